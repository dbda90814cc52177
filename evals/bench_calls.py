"""What the guard costs in its caller's process: one call beside two bare commits, and sixty-four at once.

The two commits are the floor: an intent is durable before the request leaves, and its outcome before the answer does.
The tool returns at once, and every call is an intent of its own, so nothing is replayed and all that is timed is ours.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from onceward.drive import Guard
from onceward.evidence import Contract, Effect
from onceward.identity import Rules
from onceward.journal import SQLiteJournal
from onceward.toolbox import StaticToolbox
from onceward.tools import Tool

from .bench_journal import Level, bare
from .bench_rows import Goal, Part, Place, Row, Watch

CROWD = 64
ROW_TEXT = "x" * 200  #: what a bare commit writes: about as much as an intent is
_MEMORY = Path("/dev/shm")  #: a file system without a disk, where there is one: what is left is the processor's part

CALL_FULL = Goal(name="guarded call / two bare commits, synchronous=FULL", limit=1.1)
CALL_NORMAL = Goal(name="guarded call / two bare commits, synchronous=NORMAL", limit=3.0)
CALL_MEMORY = Goal(name="guarded call, processor time, no disk", unit="µs")
CROWD_TASKS = Goal(name=f"{CROWD} concurrent tasks / one after another, throughput at FULL", limit=4.0, at_least=True)
CROWD_THREADS = Goal(
    name=f"{CROWD} concurrent threads / one after another, throughput at FULL", limit=4.0, at_least=True
)


def charge(invoice: str, amount: int) -> dict[str, Any]:
    """Stand for a tool that takes no time."""
    return {"charged": amount, "invoice": invoice}


async def charge_async(invoice: str, amount: int) -> dict[str, Any]:
    """Do the same on an event loop."""
    return charge(invoice, amount)


def measure_calls(place: Place) -> Sequence[Row]:
    """Time guarded calls and pairs of bare commits, turn by turn, at both levels and without a disk."""
    watch = Watch()
    with ExitStack() as stack:
        sides: list[tuple[str, Callable[[int], Any], Callable[[], None]]] = []
        levels: tuple[tuple[str, Path, Level], ...] = (
            ("FULL", place.folder, "FULL"),
            ("NORMAL", place.folder, "NORMAL"),
        )
        if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
            memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY)))
            levels = (*levels, ("no disk", memory, "NORMAL"))
        for name, folder, level in levels:
            call = stack.enter_context(guarding(folder / f"guard-{level}.db", level))
            sides.append((name, call, stack.enter_context(bare(folder / f"bare-{level}.db", level, ROW_TEXT))))
        for number in range(-20, 0):  # the first calls of a process import and compile
            for _, call, _ in sides:
                call(number)
        for number in place.rounds(1_500, least=300, quick=15):
            for name, call, commit in sides:
                cpu_s = time.thread_time()
                with watch.timing(f"guarded, {name}"):
                    call(number)
                watch.add(f"processor, {name}", time.thread_time() - cpu_s)
                with watch.timing(f"two commits, {name}"):
                    commit()
                    commit()
    rows = []
    for goal, name in ((CALL_FULL, "FULL"), (CALL_NORMAL, "NORMAL")):
        value = watch.middle(f"guarded, {name}") / watch.middle(f"two commits, {name}")
        names = (f"guarded, {name}", f"two commits, {name}", f"processor, {name}")
        rows.append(Row(goal=goal, value=value, figures=tuple(map(watch.figure, names))))
    if len(sides) == 2:
        return [*rows, Row(goal=CALL_MEMORY, note=f"there is no {_MEMORY} here")]
    names = ("processor, no disk", "guarded, no disk", "two commits, no disk")
    figures = tuple(map(watch.figure, names))
    return [*rows, Row(goal=CALL_MEMORY, value=figures[0].median, figures=figures)]


def measure_crowd(place: Place) -> Sequence[Row]:
    """Time 64 calls one after another, as tasks of one loop, and from as many threads, round by round."""
    watch = Watch()
    numbers = count()
    with (
        opened(place.folder / "crowd.db", "FULL") as guard,
        ThreadPoolExecutor(CROWD) as pool,
        asyncio.Runner() as runner,
    ):

        def one(number: int) -> None:
            guard.call("charge", {"invoice": str(number), "amount": 2}, charge)

        async def all_at_once() -> None:
            calls = [{"invoice": str(next(numbers)), "amount": 2} for _ in range(CROWD)]
            await asyncio.gather(*(guard.acall("charge", arguments, charge_async) for arguments in calls))

        start_together = threading.Barrier(CROWD)
        list(pool.map(lambda _: start_together.wait(), range(CROWD)))  # so that no round pays for starting threads
        for _ in place.rounds(25, least=5, quick=2):
            with watch.timing("one after another"):
                for _ in range(CROWD):
                    one(next(numbers))
            with watch.timing("tasks"):
                runner.run(all_at_once())
            with watch.timing("threads"):
                list(pool.map(one, [next(numbers) for _ in range(CROWD)]))
    alone = watch.figure("one after another", per=CROWD)
    return [
        Row(
            goal=goal,
            value=watch.middle("one after another") / watch.middle(name),
            figures=(watch.figure(name, per=CROWD), alone),
            note="a call",
        )
        for goal, name in ((CROWD_TASKS, "tasks"), (CROWD_THREADS, "threads"))
    ]


@contextmanager
def opened(path: Path, level: Level) -> Iterator[Guard]:
    """Open a guard of one plain write on a journal of its own."""
    rules = Rules(identity=("invoice",))
    tool = Tool(name="charge", server="bench", contract=Contract(effect=Effect.WRITE, owner="bench"), rules=rules)
    journal = SQLiteJournal(path, synchronous=level)
    journal.new_until_s = 0.0
    with Guard(StaticToolbox(tool, server="bench"), journal, scope="bench", secret=b"x" * 32) as guard:
        yield guard


@contextmanager
def guarding(path: Path, level: Level) -> Iterator[Callable[[int], Any]]:
    """Give a function that makes one guarded call, an intent of its own for each number."""
    with opened(path, level) as guard:
        yield lambda number: guard.call("charge", {"invoice": str(number), "amount": 2}, charge)


CALLS = Part(goals=(CALL_FULL, CALL_NORMAL, CALL_MEMORY), measure=measure_calls)
CROWDS = Part(goals=(CROWD_TASKS, CROWD_THREADS), measure=measure_crowd)
