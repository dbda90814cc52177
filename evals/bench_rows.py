"""What a bench measures, as values: goals, figures with their spread, rows that are met, missed or not measured.

A part measures several things in one interleaved run: what is compared takes turns, call by call, so that a busy
machine slows both sides alike. A figure is a median with its quartiles; what is judged is a ratio of two medians, or
their difference where the goal is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

_LONG_S = 25.0  #: after that a part does no more rounds than it must, so that all of them take a few minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one row measures, and what it should be at most, or at least."""

    name: str
    unit: str = "x"
    limit: float | None = None  #: None: shown, and judged by nobody
    at_least: bool = False

    @property
    def text(self) -> str:
        """Return the goal as people read it."""
        return "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {shown(self.limit, self.unit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was timed or counted: its median and quartiles."""

    name: str
    unit: str
    median: float
    p25: float
    p75: float
    count: int

    @property
    def text(self) -> str:
        """Return the figure as people read it."""
        middle = shown(self.median, self.unit)
        if self.count == 1:
            return f"{self.name} {middle}"
        return f"{self.name} {middle} ({shown(self.p25, '')}-{shown(self.p75, '')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report."""

    goal: Goal
    value: float | None = None  #: None: not measured, and `note` says why
    figures: tuple[Figure, ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Tell whether the goal is met; None where there is no goal, or no value."""
        if self.value is None or self.goal.limit is None:
            return None
        return self.value >= self.goal.limit if self.goal.at_least else self.value <= self.goal.limit

    @property
    def verdict(self) -> str:
        """Return met, missed, not measured, or nothing where there is no goal."""
        if self.value is None:
            return "not measured"
        return "" if self.met is None else "met" if self.met else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a part measures, how thoroughly, and whom it tells how far it is."""

    folder: Path  #: its own, empty, on the disk that is measured
    kept: Path  #: where a filled journal stays for the next run
    quick: bool = False
    fresh: bool = False
    tick: Callable[[float, str], None] = field(default=lambda share, doing: None)

    def rounds(self, count: int, *, least: int, quick: int) -> Iterator[int]:
        """Count the rounds of a run, fewer where they take long but not below `least`, and tell how far it is."""
        total, start = quick if self.quick else count, time.perf_counter()
        for number in range(total):
            if number >= least and time.perf_counter() - start > _LONG_S:
                return
            self.tick(number / total, "")
            yield number


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Several rows that one interleaved run measures."""

    goals: tuple[Goal, ...]
    measure: Callable[[Place], Sequence[Row]]


class Missing(Exception):
    """Something that a part needs is not here; the text is shown in its rows."""


class Watch:
    """Collects how long named acts take, in seconds."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    @contextmanager
    def timing(self, name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
        """Time the block."""
        start = clock()
        yield
        self.add(name, clock() - start)

    def add(self, name: str, value: float) -> None:
        """Add one value."""
        self._taken.setdefault(name, []).append(value)

    def middle(self, name: str) -> float:
        """Return the median of what was collected under a name."""
        return median(self._taken[name])

    def figure(self, name: str, unit: str = "µs", *, per: float = 1.0) -> Figure:
        """Return what was collected under a name; `per` divides it, for batches."""
        factor = {"µs": 1e6, "ms": 1e3}.get(unit, 1.0) / per
        return figure(name, unit, [value * factor for value in self._taken[name]])


def figure(name: str, unit: str, values: Sequence[float]) -> Figure:
    """Return the median and the quartiles of some values."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Figure(name=name, unit=unit, median=median(values), p25=low, p75=high, count=len(values))


def shown(value: float, unit: str) -> str:
    """Return a number with three digits that matter, and its unit."""
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{digits} {unit}".rstrip()


def as_data(name: str, row: Row) -> dict[str, Any]:
    """Return a row of part `name` as JSON values."""
    figures: list[Mapping[str, Any]] = [
        {
            "name": each.name,
            "unit": each.unit,
            "median": each.median,
            "p25": each.p25,
            "p75": each.p75,
            "count": each.count,
        }
        for each in row.figures
    ]
    return {
        "part": name,
        "row": row.goal.name,
        "value": row.value,
        "unit": row.goal.unit,
        "goal": row.goal.limit,
        "relation": None if row.goal.limit is None else ">=" if row.goal.at_least else "<=",
        "met": row.met,
        "figures": figures,
        "note": row.note,
    }
