"""Other people's entities, calls that must progress and end, needless holds, approvals, redacted originals."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.evidence import (
    Act,
    Code,
    Effect,
)
from onceward.outcomes import ErrorRules
from onceward.recovery import Send
from onceward.tools import Tool
from tests.guard.scenes import ALLOWANCE_S, BOUND_S, CHARGE, LAG_S, LOST, SAFE, SEEN, Scene, lose, told, tool
from tests.guard.world import Caller, Plan, World

# --- C16: "it exists already"


def _exists_already(world: World) -> None:
    made = tool(read=SEEN, errors=ErrorRules(on_repeat="conflict_done"), attempts=1)
    world.foreign(**CHARGE)
    world.advance(50)
    world.plans = [Plan(commit_s=None, reply=409)] * 5
    Caller(world, made, CHARGE).run()


EXISTS_ALREADY = Scene(trace=_exists_already, effects=0)


def test_c16_what_exists_without_our_key_is_somebody_elses(play):
    """A first request without a key or stamp meets another's entity: that is no proof that ours happened."""
    world = play(EXISTS_ALREADY)

    assert [(Act.ANSWER, Code.RETRY_CEILING)] == told(world)
    assert 0 == world.claims


# --- C17: progress


def _changed_terms(world: World) -> None:
    made = tool(read=SEEN)
    world.plans = [Plan(commit_s=None, reply="lost")]
    lose(world, made)
    Caller(world, made, {**CHARGE, "amount": 200}, patience_s=5).run()
    Caller(world, made, {**CHARGE, "amount": 200}).run()


CHANGED_TERMS = Scene(trace=_changed_terms, effects=1, last={**CHARGE, "amount": 200})


def test_c17_changed_terms_wait_for_the_earlier_ones_and_are_then_sent(play):
    """A conflict for ever would be as wrong as a second charge: absence can be proven, and then nothing is in doubt."""
    world = play(CHANGED_TERMS)

    assert [(Act.CONFLICT, Code.TERMS_CHANGED), (Act.REPLAY, None)] == told(world)
    assert 1_000 + ALLOWANCE_S + BOUND_S + LAG_S == world.told[0][1].decision.until_s


# --- C18: an end


def test_c18_a_join_ends_with_its_patience_and_a_request_with_its_timeout(tmp_path):
    """The owner lives and its request hangs: nobody waits for ever, and nothing is sent twice.

    No mutant: without the rule the trace has no end to look at.
    """
    world = World(tmp_path)
    world.plans = [Plan(commit_s=None, reply="lost", reply_s=10_000)]
    owner = Caller(world, tool(), CHARGE, patience_s=100)
    owner.until(Send)
    owner.leave()
    joined = Caller(world, tool(), CHARGE, patience_s=3)
    joined.run()
    assert 3 <= world.now - 1_000 < 4
    owner.run()
    world.close()

    assert [(Act.ANSWER, Code.RUNNING), (Act.HOLD, Code.UNVERIFIABLE)] == told(world)
    assert world.now - 1_000 < 35
    assert 1 == len(world.sent)


# --- C19: holds that nobody needs


def repeated(world: World, made: Tool, *plans: Plan, calls: int, every_s: float = 40.0) -> list[Any]:
    world.plans = list(plans)
    for _ in range(calls):
        Caller(world, made, CHARGE).run()
        world.advance(every_s)
    return told(world)


def test_c19_a_ceiling_of_refusals_is_an_answer(tmp_path):
    """Every attempt was refused: nothing is uncertain, so nobody is asked."""
    world = World(tmp_path)
    answers = repeated(world, tool(key=SAFE, attempts=2), *[Plan(commit_s=None, reply=422)] * 3, calls=3)
    world.close()

    assert [(Act.ANSWER, Code.REFUSED)] * 2 + [(Act.ANSWER, Code.RETRY_CEILING)] == answers
    assert [] == world.ours
    assert 2 == len({key for _, _, key in world.sent})


def test_c19_a_ceiling_of_proven_absence_is_an_answer(tmp_path):
    """Every attempt is proven not to have happened."""
    world = World(tmp_path, lag_s=LAG_S)
    lost = [Plan(commit_s=None, reply="lost")] * 3
    answers = repeated(world, tool(read=SEEN, attempts=2), *lost, calls=1)
    answers = answers or []
    Caller(world, tool(read=SEEN, attempts=2), CHARGE).run()
    world.close()

    assert (Act.ANSWER, Code.RETRY_CEILING) == told(world)[-1]
    assert 2 == len(world.sent)


@pytest.mark.parametrize("reply", [409, 429])
def test_c19_busy_and_rate_limited_attempts_are_free(tmp_path, reply):
    """The service did nothing for them, so they use up nothing."""
    world = World(tmp_path)
    plans = [Plan(commit_s=None, reply=reply, before_key=True)] * 5
    made = tool(key=SAFE, attempts=1)
    answers = repeated(world, made, *plans, calls=6, every_s=1)
    world.close()

    assert (Act.REPLAY, None) == answers[-1]
    assert [CHARGE] == world.ours


def test_c19_attempts_that_never_left_are_free(tmp_path):
    """A pause past the deadline costs nothing but time."""
    world = World(tmp_path)
    made = tool(attempts=1)
    for _ in range(4):
        paused = Caller(world, made, CHARGE)
        paused.until(Send)
        world.advance(ALLOWANCE_S + 1)
        paused.run()
    Caller(world, made, CHARGE).run()
    world.close()

    assert [(Act.ANSWER, Code.REFUSED)] * 4 + [(Act.REPLAY, None)] == told(world)
    assert [CHARGE] == world.ours


def _late_reply(world: World) -> None:
    world.plans = [Plan(reply_s=40)]
    first = Caller(world, tool(), CHARGE)
    first.run()
    first.late()
    Caller(world, tool(), CHARGE).run()


LATE_REPLY = Scene(trace=_late_reply, effects=1)


def test_c19_a_late_answer_settles_a_hold(play):
    """A fence blocks sending, never evidence: the owner need not be asked any more."""
    world = play(LATE_REPLY)

    assert [(Act.HOLD, Code.UNVERIFIABLE), (Act.REPLAY, None)] == told(world)


def _cached_error(world: World) -> None:
    made = tool(read=SEEN, key=SAFE)
    world.plans = [Plan(commit_s=None, reply=500)]
    Caller(world, made, CHARGE).run()


CACHED_ERROR = Scene(trace=_cached_error, effects=1)


def test_c19_a_replayed_error_is_not_asked_for_again(play):
    """The service answers the old key with the old error for ever: look, and go on under a new key."""
    world = play(CACHED_ERROR)

    assert [(Act.REPLAY, None)] == told(world)
    assert 2 == len({key for _, _, key in world.sent})
    assert 3 == len(world.sent)


def test_c19_a_replayed_error_without_a_read_back_is_held(tmp_path):
    """It may have happened behind the error; the key will never say, and a new one would send it again."""
    world = World(tmp_path)
    world.plans = [Plan(reply=500)]
    Caller(world, tool(key=SAFE), CHARGE).run()
    world.close()

    assert [(Act.HOLD, Code.ERROR_CACHED)] == told(world)
    assert [CHARGE] == world.ours


# --- C20: approvals


def test_c20_what_waits_for_a_yes_blocks_nobody(tmp_path):
    """Nothing was sent for it, so another scope with its own yes may go on."""
    world = World(tmp_path)
    made = tool(Effect.UNSAFE)
    Caller(world, made, CHARGE, scope="run-1").run()
    asked = Caller(world, made, CHARGE, scope="run-2")
    asked.run()
    assert [(Act.HOLD, Code.NEEDS_APPROVAL)] * 2 == told(world)
    assert [] == world.sent
    assert asked.answer is not None
    assert asked.answer.intent is not None
    asked.person("retry", asked.answer.intent)
    Caller(world, made, CHARGE, scope="run-2").run()
    world.close()

    assert (Act.REPLAY, None) == told(world)[-1]
    assert [CHARGE] == world.ours


# --- C21: redacted originals

CARD = {**CHARGE, "card": "4242"}


def _redacted(world: World) -> None:
    made = tool(key=SAFE, redact=("card",))
    world.plans = [LOST]
    lose(world, made, CARD)
    Caller(world, made, CARD).run()


REDACTED = Scene(trace=_redacted, effects=1)


def test_c21_a_redacted_original_is_refilled_from_an_equal_call(play):
    """The journal has only a hash of the card; the call that came again has the card."""
    world = play(REDACTED)

    assert [(Act.REPLAY, None)] == told(world)
    assert [CARD, CARD] == [arguments for _, arguments, _ in world.sent]


def test_c21_without_an_equal_call_the_original_is_not_invented(tmp_path):
    """Another card cannot stand in for the one that was sent."""
    world = World(tmp_path)
    made = tool(key=SAFE, redact=("card",))
    world.plans = [LOST]
    lose(world, made, CARD)
    Caller(world, made, {**CARD, "card": "1881"}, scope="run-2").run()
    world.close()

    assert [(Act.HOLD, Code.ORIGINAL_UNAVAILABLE)] == told(world)
    assert 1 == len(world.sent)
    assert [CARD] == world.ours
