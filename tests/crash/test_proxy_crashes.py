"""`kill -9` of the real proxy at every step of a guarded call, a restart, and the same call again.

Whatever the step: never two effects. Where the contract allows to know, never a lost one either: the second call ends
with the effect in the ledger exactly once, and its caller is told so. Where it does not, a hold names code and owner.
All cases run side by side, because most of their time is waiting for an in-flight bound.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from crash_world import OWNER, SHAPES, Client, World, block, shared, text, until

#: a step of the call, and where it stops there, what becomes of the tool server
STEPS = (
    "before_intent",
    "after_intent",
    "before_effect:dies",
    "before_effect:lands",  # the server outlives the proxy, and its effect comes before the next call
    "before_effect:lands_later",  # ... and comes while the next call is already being handled
    "before_reply:dies",
    "before_reply:lives",
    "before_outcome",
    "in_outcome",
    "before_answer",
    "after_answer",
)
CERTAIN = ("before_intent", "before_answer", "after_answer")  #: no contract is needed to know
LATE_S = 4  #: the in-flight bound where an effect comes late
NO_EFFECT = ("after_intent", "before_effect:dies")


class Case(NamedTuple):
    step: str
    shape: str


CASES = [Case(step, shape) for step in STEPS for shape in SHAPES]


@dataclass
class Played:
    """What a case came to."""

    effects: int = 0
    answers: tuple[dict[str, Any] | None, ...] = ()
    problems: tuple[str, ...] = ()
    failed: str = ""  #: the case could not be played


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Play all cases that were asked for, side by side."""
    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    wanted = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]

    def one(case: Case) -> dict[str, Any]:
        try:
            return asdict(play(case, tmp_path_factory.mktemp("-".join(case).replace(":", "-"))))
        except Exception:  # the test of this case is told
            return asdict(Played(failed=traceback.format_exc()))

    def everything() -> dict[str, Any]:
        with ThreadPoolExecutor(8) as pool:
            return dict(zip(map("-".join, wanted), pool.map(one, wanted), strict=True))

    results: dict[str, Any] = shared(tmp_path_factory, "proxy_crashes", everything)
    return results


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_killed_proxy_and_the_same_call_again_make_one_effect(played: dict[str, Any], case: Case) -> None:
    """A crash is a lost reply with a lost memory; only what was durable before it can speak after it."""
    result = Played(**played["-".join(case)])
    assert "" == result.failed
    second, third = result.answers
    assert [] == result.problems
    if case.shape == "neither" and case.step not in CERTAIN:
        for answer in (second, third):
            told = block(answer)
            assert ("unknown", "unverifiable", OWNER) == (told["state"], told["code"], told["owner"])
            assert answer is not None and answer["isError"]
        assert int(case.step not in NO_EFFECT) == result.effects
        return
    assert 1 == result.effects
    for answer in (second, third):
        assert answer is not None and not answer["isError"], text(answer)
        assert '"number": 0' in text(answer) or "happened" in text(answer)
    assert "happened" in text(third), "the third call is told that nothing was sent for it"


def play(case: Case, folder: Path) -> Played:
    """Crash at the step, and call twice more through a new proxy."""
    step, _, fate = case.step.partition(":")
    world = World(folder, case.shape, in_flight=f"{LATE_S}s" if fate == "lands_later" else "1s")
    try:
        if not fate:
            second = _crash(world, step)
        else:
            second = _crash_at_server(world, step, fate)
        id = second.begin()
        if fate == "lands_later":
            # The proxy answers this by itself, so by then it has the charge in hand.
            second.call("onceward_status", {})
            world.go(step)
        answers = (second.answer(id), second.call())
        if fate == "lands_later":
            until(lambda: len(world.effects) > 0)
            assert _in_time(world), "this machine was too slow: the effect landed after its bound"
        return Played(len(world.effects), answers, tuple(world.problems()))
    finally:
        world.close()


def _in_time(world: World) -> bool:
    """Tell whether the world kept the contract: each effect within the bound of the attempt that was paused."""
    with closing(sqlite3.connect(world.journal)) as connection:
        (send_before_s,) = connection.execute("SELECT send_before_s FROM attempts WHERE number = 1").fetchone()
    return all(effect["created"] <= send_before_s + LATE_S for effect in world.effects[:1])


def _crash(world: World, step: str) -> Client:
    """Let a proxy die at a step of its own; return the next one."""
    first = world.proxy("never" if step == "after_answer" else step)
    answer = first.call()
    if step == "after_answer":
        assert answer is not None and not answer["isError"]
        first.kill()
    else:
        assert answer is None
        assert -signal.SIGKILL == first.process.wait(10)
    return world.proxy()


def _crash_at_server(world: World, step: str, fate: str) -> Client:
    """Kill a proxy while its tool server stands at a step; return the next one."""
    world.pause(step)
    first = world.proxy()
    # Started before the call, so that the bound is not over before this one is asked.
    second = world.proxy() if fate == "lands_later" else None
    first.begin()
    server = world.reached(step)
    first.kill()
    if second is not None:
        return second
    if fate == "dies":
        os.kill(server, signal.SIGKILL)
    else:
        world.go(step)
        until(lambda: len(world.effects) == 1)
    return world.proxy()
