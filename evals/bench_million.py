"""What a long memory costs: both steps of a call on a journal of a million settled intents, beside an empty one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward.journal import SQLiteJournal
from onceward.journal.sqlite_store import SCHEMA

from .bench_journal import begin, fill, finish
from .bench_rows import Goal, Part, Place, Row, Watch

ROWS = 1_000_000
GOAL = Goal(name="begin + finish on 1,000,000 settled intents / on none, at FULL", limit=1.2)


def measure_million(place: Place) -> Sequence[Row]:
    """Time both steps on a full journal and on an empty one beside it, turn by turn."""
    watch = Watch()
    where, rows = (place.folder, 5_000) if place.quick else (place.kept, ROWS)
    where.mkdir(parents=True, exist_ok=True)
    # The empty one is on the disk of the full one, wherever that was kept.
    with TemporaryDirectory(dir=where) as beside:
        empty_path = Path(beside) / "empty.db"
        with closing(SQLiteJournal(empty_path)) as empty, closing(SQLiteJournal(_filled(place, where, rows))) as full:
            _warm(full.path)
            first = time.time_ns()  # a kept journal has seen the numbers of earlier runs
            for number in place.rounds(1_000, least=300, quick=10):
                for journal, name in ((empty, "on none"), (full, f"on {rows:,}")):
                    start = time.perf_counter()
                    begin(journal, first + number)
                    between = time.perf_counter()
                    finish(journal, first + number)
                    end = time.perf_counter()
                    for key, taken_s in (("begin", between - start), ("finish", end - between), ("both", end - start)):
                        watch.add(f"{key} {name}", taken_s)
    names = [f"{key} {name}" for key in ("both", "begin", "finish") for name in (f"on {rows:,}", "on none")]
    value = watch.middle(names[0]) / watch.middle(names[1])
    return [Row(goal=GOAL, value=value, figures=tuple(map(watch.figure, names)))]


def _warm(path: Path) -> None:
    """Read a file once: a journal that has just grown is in the system's cache, one kept since yesterday is not."""
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass


def _filled(place: Place, where: Path, rows: int) -> Path:
    """Return a journal of that many settled intents, kept from an earlier run of the same schema if there was one."""
    with TemporaryDirectory(dir=where) as beside:
        sample = Path(beside) / "sample.db"
        SQLiteJournal(sample).close()
        with closing(sqlite3.connect(sample)) as connection:
            shape = f"{SCHEMA}{connection.execute('PRAGMA page_size').fetchone()[0]}"
        path = where / f"journal-{rows}-{sha256(shape.encode()).hexdigest()[:12]}.db"
        if path.exists() and not place.fresh:
            return path
        for old in where.glob(f"journal-{rows}-*.db*"):
            old.unlink()
        draft = Path(beside) / "draft.db"  # renamed once it is whole: a run that is stopped leaves none behind
        fill(draft, rows, lambda done: place.tick(done / rows, f"filling a journal, {done:,} of {rows:,}"))
        draft.rename(path)
        return path


MILLION = Part(goals=(GOAL,), measure=measure_million)
