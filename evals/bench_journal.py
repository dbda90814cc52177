"""What a journal costs: begin and finish beside two bare commits, alone, in a crowd, and on a million intents.

Run `python -m onceward.evals.bench_journal [ROWS]`. The steps are those of a guarded call, without the Python around
them. All figures are medians of one run whose parts take turns, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Literal

from onceward.evidence import AttemptState, IntentState
from onceward.journal import AttemptRow, IntentRow, Journal, SQLiteJournal, Store
from onceward.journal.sqlite_store import INSERT_ATTEMPT, INSERT_INTENT, attempt_values, intent_values

Level = Literal["FULL", "NORMAL"]

_REQUEST = '{"amount":"129.00","currency":"EUR","customer":"cus_8812","invoice":"inv_2026_0417"}'
_RESULT = '{"content":[{"type":"text","text":"charged 129.00 EUR"}],"structuredContent":{"id":"ch_91","status":"paid"}}'


def name(*parts: object) -> str:
    """Return a hash as the guard makes them: in no order at all."""
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()


def new_intent(number: int, now_s: float) -> IntentRow:
    """Return an intent in flight, of ordinary size."""
    return IntentRow(
        id=name("intent", number),
        base=name("base", number),
        epoch=0,
        identity=name("identity", number),
        kind=name("kind", "charge_card"),
        resource=None,
        principal="acct_1",
        scope=f"thread-{number // 20}",
        server="payments",
        tool="charge_card",
        label=None,
        state=IntentState.IN_FLIGHT,
        open=True,
        generation=0,
        key=name("key", number)[:32],
        key_pinned=False,
        request=_REQUEST,
        payload=name("payload", number),
        content="",
        created_s=now_s,
        facts={"window_s": 86400.0},
    )


def new_attempt(number: int, now_s: float, holder: str) -> AttemptRow:
    """Return the first attempt of intent `number`, being sent."""
    return AttemptRow(
        intent=name("intent", number),
        number=1,
        generation=0,
        state=AttemptState.SENDING,
        begun_s=now_s,
        send_before_s=now_s + 5,
        lease_until_s=now_s + 30,
        holder=holder,
        call=f"{number:016x}",
    )


def settled(row: IntentRow, attempt: AttemptRow, now_s: float) -> tuple[IntentRow, AttemptRow]:
    """Return both rows as they are once the effect has happened and was told."""
    row = replace(row, state=IntentState.HAPPENED, open=False, settled_s=now_s, result=_RESULT, acknowledged=True)
    return row, replace(attempt, state=AttemptState.HAPPENED, ended_s=now_s, detail={"class": "result"})


def fill(path: Path, rows: int, tick: Callable[[int], None] = lambda done: None) -> None:
    """Write `rows` settled intents with one attempt each into the journal at `path`, in a few large transactions.

    `tick` is told how many are written.
    """
    SQLiteJournal(path).close()
    now_s = time.time()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        for first in range(0, rows, 50_000):
            pairs = []
            for number in range(first, min(first + 50_000, rows)):
                begun_s = now_s - 40_000 + number * (40_000 / rows)
                pairs.append(
                    settled(new_intent(number, begun_s), new_attempt(number, begun_s, "host|1|1|fill"), begun_s)
                )
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(INSERT_INTENT, (intent_values(row) for row, _ in pairs))
            connection.executemany(
                INSERT_ATTEMPT, ((first + i + 1, *attempt_values(attempt)) for i, (_, attempt) in enumerate(pairs))
            )
            connection.executemany(
                "INSERT INTO identities (id, version) VALUES (?, 1)", ((row.identity,) for row, _ in pairs)
            )
            connection.execute("COMMIT")
            tick(first + len(pairs))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def begin(journal: Journal, number: int) -> None:
    """Make the first step of a guarded call durable."""
    holder = journal.holder.name

    def work(store: Store) -> None:
        row = new_intent(number, store.now_s)
        store.swap(row.identity, store.version(row.identity))
        assert store.latest(row.base) is None
        assert not store.open_of(row.identity)
        store.put_intent(row, new=True)
        store.put_attempt(new_attempt(number, store.now_s, holder), new=True)

    journal.run(work)


def finish(journal: Journal, number: int) -> None:
    """Make the second step of a guarded call durable."""
    id = name("intent", number)

    def work(store: Store) -> None:
        row = store.intent(id)
        assert row is not None
        row, attempt = settled(row, store.attempts(id)[-1], store.now_s)
        store.put_attempt(attempt)
        store.put_intent(row)

    journal.run(work)


@contextmanager
def bare(path: Path, synchronous: Level, text: str = _REQUEST) -> Iterator[Callable[[], None]]:
    """Give the floor: a function that writes one row in one commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, text TEXT)")

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO floor (text) VALUES (?)", (text,))
            connection.execute("COMMIT")

        yield commit


def python_us() -> float:
    """Return what the rows of one call cost to make, without any journal."""

    def build() -> None:
        number, now_s = 7, 1.0
        row = new_intent(number, now_s)
        name("intent", number)
        settled(row, new_attempt(number, now_s, "host|1|1|x"), now_s)

    taken_s = []
    for _ in range(2_000):
        start = time.perf_counter()
        build()
        taken_s.append(time.perf_counter() - start)
    return median(taken_s) * 1e6


def compare(folder: Path, synchronous: Level, calls: int, rows: int) -> dict[str, float]:
    """Return medians in microseconds: a bare commit, and both steps on an empty journal and on one of `rows`."""
    times: dict[str, list[float]] = {key: [] for key in ("bare", "begin", "finish", "begin_full", "finish_full")}
    fill(folder / f"full-{synchronous}.db", rows)
    with (
        _journal(folder / f"empty-{synchronous}.db", synchronous) as empty,
        _journal(folder / f"full-{synchronous}.db", synchronous) as full,
        bare(folder / f"bare-{synchronous}.db", synchronous) as commit,
    ):
        for number in range(10_000_000, 10_000_000 + calls):
            for key, act in (
                ("bare", commit),
                ("begin", lambda n=number: begin(empty, n)),
                ("finish", lambda n=number: finish(empty, n)),
                ("begin_full", lambda n=number: begin(full, n)),
                ("finish_full", lambda n=number: finish(full, n)),
            ):
                start = time.perf_counter()
                act()
                times[key].append(time.perf_counter() - start)
    return {key: median(values) * 1e6 for key, values in times.items()}


def crowd(folder: Path, synchronous: Level, threads: int, calls: int) -> tuple[float, float, float]:
    """Return calls per second one after another, the same from `threads` threads, and calls per commit of these."""
    with _journal(folder / f"crowd-{synchronous}.db", synchronous) as journal:

        def drive(first: int, count: int) -> None:
            for number in range(first, first + count):
                begin(journal, number)
                finish(journal, number)

        start = time.perf_counter()
        drive(0, calls)
        alone_s = time.perf_counter() - start
        before = journal.commits
        each = calls // threads
        crew = [threading.Thread(target=drive, args=(1_000_000 * (i + 1), each)) for i in range(threads)]
        start = time.perf_counter()
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        crowd_s = time.perf_counter() - start
        return calls / alone_s, each * threads / crowd_s, 2 * each * threads / (journal.commits - before)


def main(rows: int) -> None:
    """Print the figures."""
    levels: tuple[Level, ...] = ("NORMAL", "FULL")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        print(f"rows of one call, no journal: {python_us():.0f} us")
        for level in levels:
            us = compare(Path(folder), level, 3_000, rows)
            ratio = (us["begin_full"] + us["finish_full"]) / (us["begin"] + us["finish"])
            print(
                f"{level:6}  bare commit {us['bare']:.0f} us, begin {us['begin']:.0f}, finish {us['finish']:.0f};"
                f" on {rows} intents {us['begin_full']:.0f} + {us['finish_full']:.0f} ({ratio:.2f} times)"
            )
        for level in levels:
            alone, together, share = crowd(Path(folder), level, 64, 6_400)
            print(f"{level:6}  {alone:.0f} calls/s alone, {together:.0f} from 64 threads ({share:.1f} steps a commit)")


@contextmanager
def _journal(path: Path, synchronous: Level) -> Iterator[SQLiteJournal]:
    with closing(SQLiteJournal(path, synchronous=synchronous)) as journal:
        yield journal


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
