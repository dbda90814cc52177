"""The same crashes for code that uses `Guard` itself: a child process dies at a step, another makes the same call."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from crash_world import OWNER, SHAPES, World

pytestmark = pytest.mark.xdist_group("crash-library")

HERE = Path(__file__).parent
STEPS = (
    "before_intent",
    "after_intent",
    "before_effect",
    "before_reply",
    "before_outcome",
    "in_outcome",
    "before_answer",
    "after_answer",
)
CERTAIN = ("before_intent", "before_answer", "after_answer")  #: no contract is needed to know
NO_EFFECT = ("after_intent", "before_effect")


class Case(NamedTuple):
    step: str
    shape: str


CASES = [Case(step, shape) for step in STEPS for shape in SHAPES]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Play all cases that were asked for, side by side."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    wanted = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(6) as pool:
        results: dict[Case, Future[Any]] = {}
        for case in wanted:
            results[case] = pool.submit(play, case, tmp_path_factory.mktemp("-".join(case)))
        yield results


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_killed_caller_and_the_same_call_again_make_one_effect(played: dict[Case, Future[Any]], case: Case) -> None:
    """The tool runs in the process that dies, so what did not happen by then never will; the contract knows no such."""
    effects, second, problems = played[case].result()
    assert [] == problems
    if case.shape == "neither" and case.step not in CERTAIN:
        told = (second["stopped"], second["state"], second["code"], second["owner"])
        assert ("Held", "unknown", "unverifiable", OWNER) == told
        assert int(case.step not in NO_EFFECT) == effects
        return
    assert 1 == effects
    # An effect that only a read has shown has no result to give again.
    assert {"result": {"number": 0}} == second or (case.shape == "read_back" and {"result": None} == second)


def play(case: Case, folder: Path) -> tuple[int, dict[str, Any], list[str]]:
    """Crash at the step, and make the same call from a new process."""
    world = World(folder, case.shape)
    first = child(world, case.step)
    assert -signal.SIGKILL == first.returncode, first.stderr
    second = child(world, "never")
    assert 0 == second.returncode, second.stderr
    return len(world.effects), json.loads(second.stdout), world.problems()


def child(world: World, point: str) -> subprocess.CompletedProcess[str]:
    """Make the call in a process that dies at a point."""
    command = [sys.executable, str(HERE / "library_child.py"), str(world.folder), point]
    return subprocess.run(command, env=world.environ, capture_output=True, text=True, timeout=60, check=False)
