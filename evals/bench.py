"""`make bench`: what the guard costs, beside floors and goals, as medians of one run whose parts take turns.

Run `python -m onceward.evals.bench [--json] [--quick] [--only PART ...]`. It measures on the disk of the current
folder, in `.cache/bench`, or where TMPDIR says: on a file system in memory a durable commit costs nothing, and every
ratio would be another. A goal that is missed is printed so and changes no exit code: a bench measures, tests judge.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .bench_calls import CALLS, CROWDS
from .bench_million import MILLION
from .bench_proxy import RELAY, RESIDENT, STARTING
from .bench_rows import Missing, Part, Place, Row, as_data, shown

PARTS: dict[str, Part] = {
    "call": CALLS,
    "crowd": CROWDS,
    "relay": RELAY,
    "start": STARTING,
    "memory": RESIDENT,
    "million": MILLION,
}
KEPT = Path(".cache") / "bench"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print what was found."""
    options = _options(argv)
    names = [name for name in PARTS if not options.only or name in options.only]
    started_s = time.perf_counter()
    given = os.environ.get("TMPDIR")
    above = Path(given) if given else KEPT
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=above) as folder, _bar() as bar:
        machine = _machine(Path(folder))
        found: list[tuple[str, Row]] = []
        for name in names:
            task = bar.add_task(name, total=1.0)

            def tick(share: float, doing: str, task: Any = task, name: str = name) -> None:
                bar.update(task, completed=share, description=doing or name)

            own = Path(folder) / name
            own.mkdir()
            place = Place(folder=own, kept=KEPT.absolute(), quick=options.quick, fresh=options.fresh, tick=tick)
            found += [(name, row) for row in _measured(PARTS[name], place)]
            bar.update(task, completed=1.0, description=name)
    took_s = time.perf_counter() - started_s
    if options.json:
        rows = [as_data(name, row) for name, row in found]
        report = {"machine": machine, "quick": options.quick, "took_s": round(took_s, 1), "rows": rows}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _show(machine, [row for _, row in found], took_s, quick=options.quick)
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m onceward.evals.bench", description="Measure what the guard costs.")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--quick", action="store_true", help="a few rounds: shows that all works, its numbers say little")
    p.add_argument("--only", nargs="+", metavar="PART", choices=PARTS, help=f"some parts: {', '.join(PARTS)}")
    p.add_argument("--fresh", action="store_true", help="fill the large journal anew, instead of keeping the last one")
    return p.parse_args(argv)


def _measured(part: Part, place: Place) -> Sequence[Row]:
    """Run a part; one that cannot run has its rows all the same, and they say why."""
    try:
        return part.measure(place)
    except Missing as missing:
        why = str(missing)
    except Exception as error:  # whatever it is, the rows tell it, and the other parts are measured
        why = f"{type(error).__name__}: {error}"
    return [Row(goal=goal, note=why) for goal in part.goals]


def _machine(folder: Path) -> dict[str, Any]:
    device, kind = _disk(folder)
    return {
        "folder": str(folder.parent.absolute()),
        "device": device,
        "filesystem": kind,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def _disk(folder: Path) -> tuple[str, str]:
    """Return the device and the kind of the file system that holds a folder, where the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown", "unknown"
    where = folder.resolve()
    holding = [(len(m[1]), m[0], m[2]) for m in mounts if where.is_relative_to(m[1].replace("\\040", " "))]
    return max(holding)[1:] if holding else ("unknown", "unknown")


@contextmanager
def _bar() -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


def _show(machine: dict[str, Any], rows: Sequence[Row], took_s: float, *, quick: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(
        "{filesystem} on {device} ({folder}), {cores} cores, load {load}, {system}, Python {python},"
        " SQLite {sqlite}".format(**machine),
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    colours = {"met": "green", "missed": "red", "not measured": "yellow"}
    table = Table(title="medians of one run whose parts take turns", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("goal", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("from: median (quartiles)")
    for row in rows:
        colour = colours.get(row.verdict, "default")
        value = "-" if row.value is None else shown(row.value, row.goal.unit)
        about = "\n".join([*(each.text for each in row.figures), *([row.note] if row.note else [])])
        table.add_row(row.goal.name, value, row.goal.text, f"[{colour}]{row.verdict}[/]", escape(about))
    console.print(table)
    met, missed = (sum(row.met is wanted for row in rows) for wanted in (True, False))
    hint = "; a quick run, so the numbers say little" if quick else ""
    console.print(f"{met} goals met, {missed} missed, in {took_s:.0f} s{hint}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
