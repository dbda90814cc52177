"""The bench measures, and says so where it cannot. How long anything takes is no business of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onceward.evals import bench
from onceward.evals.bench_client import client
from onceward.evals.bench_rows import Goal, Missing, Part, Place, Row, figure

CHEAP = ("call", "crowd", "million")


def test_a_quick_run_prints_every_row_with_its_numbers(tmp_path: Path):
    """What `make bench` shows is complete, and stays where it was told to stay."""
    command = [sys.executable, "-m", "onceward.evals.bench", "--quick", "--json", "--only", *CHEAP]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120)
    report = json.loads(run.stdout)

    wanted = [(name, goal.name) for name in CHEAP for goal in bench.PARTS[name].goals]
    assert wanted == [(row["part"], row["row"]) for row in report["rows"]]
    for row in report["rows"]:
        if row["row"] == "guarded call, processor time, no disk" and not row["figures"]:
            continue  # not every system has a file system in memory
        assert row["value"] > 0, row["note"]
        assert all(0 < each["p25"] <= each["median"] <= each["p75"] for each in row["figures"])
    assert {"folder", "filesystem", "cores", "python", "sqlite"} <= set(report["machine"])
    assert [] == list(tmp_path.iterdir())


def test_a_part_that_cannot_run_keeps_its_rows_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
):
    """A bench without one of its parts is still a bench, and nobody takes silence for a number."""

    def measure(place: Place) -> list[Row]:
        raise Missing("the SDK is not installed")

    goals = (Goal(name="one", limit=1.0), Goal(name="two"))
    monkeypatch.setattr(bench, "PARTS", {"broken": Part(goals=goals, measure=measure)})
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    assert 0 == bench.main(["--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [("one", None, None), ("two", None, None)] == [(r["row"], r["value"], r["met"]) for r in rows]
    assert {"the SDK is not installed"} == {row["note"] for row in rows}


def test_a_server_that_ends_is_quoted(tmp_path: Path):
    """Its last words are what a reader of the row needs."""
    with (
        pytest.raises(Missing, match="no such contract"),
        client([sys.executable, "-c", "exit('no such contract')"], tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(1.1, False, True), (1.2, False, False), (1.1, True, True), (1.0, True, False), (None, False, None)],
)
def test_a_goal_is_met_at_its_limit(value: float | None, at_least: bool, met: bool | None):
    """A row without a value is neither met nor missed."""
    assert met == Row(goal=Goal(name="g", limit=1.1, at_least=at_least), value=value).met


def test_a_figure_is_a_median_between_its_quartiles():
    """One slow call among many changes neither."""
    found = figure("read", "µs", [1.0, 2.0, 3.0, 4.0, 1000.0])

    assert (3.0, 2.0, 4.0) == (found.median, found.p25, found.p75)
