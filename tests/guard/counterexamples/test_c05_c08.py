"""Who heard of an effect, whose it is, and who may act beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward.evidence import (
    Act,
    Code,
)
from onceward.recovery import Look, Send
from onceward.tools import ReadPlan
from tests.guard.scenes import (
    CHARGE,
    COUNTED,
    LOST,
    SAFE,
    SEEN,
    STAMPED,
    Scene,
    lose,
    told,
    tool,
)
from tests.guard.world import Caller, Plan, World

# --- C5: who heard of it


def _unheard(world: World) -> None:
    Caller(world, tool(read=SEEN), CHARGE).run()  # durable; the caller is gone before the answer reaches it
    Caller(world, tool(read=SEEN), CHARGE, label="2nd try").run()


def _unheard_elsewhere(world: World) -> None:
    Caller(world, tool(), CHARGE).run()
    Caller(world, tool(), CHARGE, scope="run-2").run()


UNHEARD = Scene(trace=_unheard, effects=1)
UNHEARD_ELSEWHERE = Scene(trace=_unheard_elsewhere, effects=1)


@pytest.mark.parametrize("scene", [UNHEARD, UNHEARD_ELSEWHERE])
def test_c5_an_effect_that_nobody_heard_of_is_told_first(play, scene):
    """A fresh label, or a fresh scope after a restart, may be the retry of a caller that never got its answer."""
    world = play(scene)

    assert [(Act.REPLAY, None), (Act.TELL, Code.ALREADY_HAPPENED)] == told(world)
    assert 1 == len(world.sent)


def test_c5_it_is_told_once(tmp_path):
    """Whoever was told and asks again means a second effect."""
    world = World(tmp_path)
    for scope in ("run-1", "run-2", "run-2"):
        Caller(world, tool(), CHARGE, scope=scope).run()
    world.close()

    assert [(Act.REPLAY, None), (Act.TELL, Code.ALREADY_HAPPENED), (Act.REPLAY, None)] == told(world)
    assert [CHARGE, CHARGE] == world.ours


# --- C6: whose effect a read shows


def _repeat_never_sent(read: ReadPlan) -> Callable[[World], None]:
    def trace(world: World) -> None:
        made = tool(read=read)
        Caller(world, made, CHARGE).heard()
        world.advance(60)
        repeat = Caller(world, made, CHARGE, label="again")
        repeat.until(Send)
        repeat.crash()
        Caller(world, made, CHARGE, label="again").run()

    return trace


REPEAT_CREATED = Scene(trace=_repeat_never_sent(SEEN), effects=2)
REPEAT_COUNTED = Scene(trace=_repeat_never_sent(COUNTED), effects=2)
REPEAT_STAMPED = Scene(trace=_repeat_never_sent(STAMPED), effects=2)


@pytest.mark.parametrize("scene", [REPEAT_CREATED, REPEAT_COUNTED, REPEAT_STAMPED], ids=["created", "count", "stamp"])
def test_c6_the_effect_of_an_earlier_intent_is_not_taken_for_the_repeat(play, scene):
    """The repeat was begun and never sent: what its read-back shows is the first one's."""
    world = play(scene)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)
    assert 2 == world.claims


@pytest.mark.parametrize("read", [SEEN, COUNTED, STAMPED], ids=["created", "count", "stamp"])
def test_c6_an_older_look_alike_is_not_ours(play, read):
    """Somebody else charged the same invoice before; our own request was never sent."""

    def trace(world: World) -> None:
        world.foreign(**CHARGE)
        world.advance(100)
        begun = Caller(world, tool(read=read), CHARGE)
        begun.until(Send)
        begun.crash()
        Caller(world, tool(read=read), CHARGE).run()

    world = play(Scene(trace=trace, effects=1))

    assert [(Act.REPLAY, None)] == told(world)
    assert 2 == len(world.ledger)


def _repeat_within_lag(world: World) -> None:
    made = tool(read=COUNTED)
    Caller(world, made, CHARGE).heard()
    world.advance(1)
    repeat = Caller(world, made, CHARGE, label="again")
    repeat.until(Send)
    repeat.crash()
    last = Caller(world, made, CHARGE, label="again", patience_s=1_000)
    last.run()


REPEAT_WITHIN_LAG = Scene(trace=_repeat_within_lag, effects=1)


def test_c6_a_baseline_that_may_not_show_the_last_effect_yet_claims_nothing(play):
    """Counted within the lag of an earlier effect, the baseline misses it, and it shows later as one too many."""
    world = play(REPEAT_WITHIN_LAG)

    assert [(Act.REPLAY, None), (Act.HOLD, Code.READ_BACK_INCONCLUSIVE)] == told(world)
    assert 1 == len(world.sent)


def test_c6_an_effect_just_before_the_baseline_is_counted_once(tmp_path):
    """It is in the baseline; taken off again as another intent's, our own effect would look absent and be repeated."""
    world = World(tmp_path)
    made = tool(read=COUNTED, lag_s=0.0)
    Caller(world, made, CHARGE).run()
    Caller(world, made, CHARGE, label="again").run()
    world.plans = [Plan(), LOST]
    world.advance(0.5)
    lose(world, made, label="again")
    world.advance(60)
    Caller(world, made, CHARGE, label="again").run()
    world.close()

    assert [(Act.REPLAY, None), (Act.TELL, Code.ALREADY_HAPPENED), (Act.REPLAY, None)] == told(world)
    assert [CHARGE, CHARGE] == world.ours


def _after_a_refusal(world: World) -> None:
    made = tool(read=SEEN)
    world.plans = [Plan(commit_s=None, reply=429), Plan(commit_s=None, reply="lost")]
    Caller(world, made, CHARGE).run()
    world.advance(50)
    world.foreign(**CHARGE)
    world.advance(50)
    Caller(world, made, CHARGE).run()


AFTER_A_REFUSAL = Scene(trace=_after_a_refusal, effects=1)


def test_c6_what_came_after_a_refusal_and_before_the_next_attempt_is_not_ours(play):
    """The refused attempt has no effect that could be found; only what is younger than the next one may be ours."""
    world = play(AFTER_A_REFUSAL)

    assert [(Act.ANSWER, Code.REFUSED), (Act.REPLAY, None)] == told(world)
    assert 3 == len(world.sent)


def _same_second(world: World) -> None:
    made = tool(read=SEEN)
    Caller(world, made, CHARGE, scope="run-1").heard()  # at a full second, as a service shows it that counts in seconds
    world.advance(0.3)
    world.plans = [Plan(), Plan(commit_s=None, reply="lost")]
    Caller(world, made, CHARGE, scope="run-2", patience_s=30).run()


SAME_SECOND = Scene(trace=_same_second, effects=1)


def test_c6_an_effect_of_the_same_second_may_be_another_intents(play):
    """Many services show seconds, so what is as old as our begin may be the one before it: that is no claim."""
    world = play(SAME_SECOND)

    assert [(Act.REPLAY, None), (Act.ANSWER, Code.UNKNOWN)] == told(world)
    assert 2 == len(world.sent)


def _stale_baseline(world: World) -> None:
    made = tool(read=COUNTED)
    world.foreign(**CHARGE)
    world.advance(100)
    slow, quick = Caller(world, made, CHARGE), Caller(world, made, CHARGE)
    slow.until(Look)
    quick.until(Send)
    quick.crash()
    slow.leave()
    slow.run()


STALE_BASELINE = Scene(trace=_stale_baseline, effects=1)


def test_c6_a_look_before_the_first_attempt_says_nothing_once_there_is_one(play):
    """Two callers count at once; the slower one's matches are those of before, and no effect of the attempt."""
    world = play(STALE_BASELINE)

    assert [(Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


# --- C7: one row orders an identity


def _both_in_flight(world: World) -> None:
    made = tool(read=SEEN)
    first = Caller(world, made, CHARGE, scope="run-1")
    first.until(Send)
    second = Caller(world, made, CHARGE, scope="run-2", patience_s=2)
    if second.until(Send):
        second.crash()
    world.plans = [LOST]
    first.leave()
    first.crash()
    for scope in ("run-2", "run-1"):
        Caller(world, made, CHARGE, scope=scope, patience_s=25).heard()


BOTH_IN_FLIGHT = Scene(trace=_both_in_flight, effects=1)


def test_c7_what_is_in_flight_elsewhere_is_unsettled(play):
    """Two scopes that begin at once would both find the one effect, and both call it theirs."""
    world = play(BOTH_IN_FLIGHT)

    running, *later = told(world)
    assert (Act.ANSWER, Code.RUNNING) == running
    assert [(Act.TELL, Code.ALREADY_HAPPENED), (Act.REPLAY, None)] == later
    assert 1 == len(world.sent)


def _in_flight_elsewhere(world: World) -> None:
    world.plans = [Plan(commit_s=8, reply_s=8)]
    first = Caller(world, tool(), CHARGE, scope="run-1")
    first.until(Send)
    first.leave()
    Caller(world, tool(), CHARGE, scope="run-2", patience_s=2).run()
    first.run()


IN_FLIGHT_ELSEWHERE = Scene(trace=_in_flight_elsewhere, effects=1)


def test_c7_nothing_is_sent_beside_a_request_that_runs(play):
    """Another scope may be the retry of a harness that gave up on a request which is still under way."""
    world = play(IN_FLIGHT_ELSEWHERE)

    assert [(Act.ANSWER, Code.RUNNING), (Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


def test_c7_two_equal_calls_at_once_are_one(tmp_path):
    """One is sent, both get its answer."""
    world = World(tmp_path)
    first, second = Caller(world, tool(), CHARGE), Caller(world, tool(), CHARGE)
    first.until(Send)
    for _ in range(5):
        second.advance()
    first.run()
    second.run()
    world.close()

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)
    assert [CHARGE] == world.ours


# --- C8: whose result it is


def _settled_by_another(world: World) -> None:
    world.plans = [LOST]
    lose(world, tool(key=SAFE), scope="run-1")
    Caller(world, tool(key=SAFE), CHARGE, scope="run-2").run()
    Caller(world, tool(key=SAFE), CHARGE, scope="run-1").run()


SETTLED_BY_ANOTHER = Scene(trace=_settled_by_another, effects=1)


def test_c8_whoever_settles_it_for_another_is_told_and_given_nothing(play):
    """It was another scope's effect: this one decides again for an intent of its own."""
    world = play(SETTLED_BY_ANOTHER)

    assert [(Act.TELL, Code.ALREADY_HAPPENED), (Act.REPLAY, None)] == told(world)
    assert world.told[0][1].result is None
