"""The same crashes for code that uses `Guard` itself: a child process dies at a step, another makes the same call."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from crash_world import OWNER, SHAPES, World, call_in_turn, shared

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
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Play all cases that were asked for, side by side: crash at the step, then the same call in a new process."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    wanted = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]

    def play() -> dict[str, str]:
        worlds = {case: World(tmp_path_factory.mktemp("-".join(case)), case.shape) for case in wanted}
        call_in_turn({world: [case.step, "never"] for case, world in worlds.items()})
        return {"-".join(case): str(world.folder) for case, world in worlds.items()}

    folders: dict[str, str] = shared(tmp_path_factory, "library_crashes", play)
    return folders


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_killed_caller_and_the_same_call_again_make_one_effect(played: dict[str, str], case: Case) -> None:
    """The tool runs in the process that dies, so what did not happen by then never will; the contract knows no such."""
    world = World(Path(played["-".join(case)]), case.shape)
    assert [-signal.SIGKILL, 0] == json.loads((world.folder / "statuses").read_text())
    second = json.loads((world.folder / "came.1").read_text())
    assert [] == world.problems()
    if case.shape == "neither" and case.step not in CERTAIN:
        told = (second["stopped"], second["state"], second["code"], second["owner"])
        assert ("Held", "unknown", "unverifiable", OWNER) == told
        assert int(case.step not in NO_EFFECT) == len(world.effects)
        return
    assert 1 == len(world.effects)
    # An effect that only a read has shown has no result to give again.
    assert {"result": {"number": 0}} == second or (case.shape == "read_back" and {"result": None} == second)
