"""When a request left, when a read started, whom a refusal speaks for, how long a key is good."""

from __future__ import annotations

from onceward.evidence import (
    Act,
    Code,
    KeySupport,
)
from onceward.recovery import Look, Send
from tests.guard.scenes import (
    ALLOWANCE_S,
    BOUND_S,
    CHARGE,
    LAG_S,
    LEASE_S,
    LOST,
    SAFE,
    SEEN,
    SHORT,
    Scene,
    lose,
    told,
    tool,
)
from tests.guard.world import Caller, Keys, Plan, World

# --- C1: when a request left


def _sent_late(world: World) -> None:
    world.plans = [Plan(commit_s=BOUND_S, reply="lost")]
    lose(world, tool(read=SEEN), after_s=4)
    world.advance(12)
    Caller(world, tool(read=SEEN), CHARGE).run()


SENT_LATE = Scene(trace=_sent_late, effects=1)


def test_c1_the_bound_counts_from_the_last_moment_of_sending(play):
    """A process may pause between its durable begin and its bytes: what it sent commits that much later."""
    world = play(SENT_LATE)

    assert [(Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


def _zombie_sends(world: World) -> None:
    zombie = Caller(world, tool(read=SEEN), CHARGE)
    zombie.until(Send)
    world.advance(LEASE_S + 1)
    Caller(world, tool(read=SEEN), CHARGE).heard()
    zombie.run()


ZOMBIE_SENDS = Scene(trace=_zombie_sends, effects=1)


def test_c1_nothing_leaves_after_its_deadline(play):
    """A process that wakes up after its lease has been written off: the proof of absence would be void if it sent."""
    world = play(ZOMBIE_SENDS)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


# --- C2: when a read started


def _early_read(world: World) -> None:
    world.plans = [Plan(commit_s=BOUND_S, reply="lost")]
    lose(world, tool(read=SEEN))
    world.advance(3)
    Caller(world, tool(read=SEEN), CHARGE, patience_s=4).run()
    world.advance(20)
    Caller(world, tool(read=SEEN), CHARGE).run()


EARLY_READ = Scene(trace=_early_read, effects=1)


def test_c2_an_empty_read_before_due_proves_nothing(play):
    """It answered before the effect could be seen; asked again later, it is still an old answer."""
    world = play(EARLY_READ)

    assert [(Act.ANSWER, Code.UNKNOWN), (Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


def _slow_read(world: World) -> None:
    world.plans = [Plan(commit_s=BOUND_S, reply="lost")]
    lose(world, tool(read=SEEN), after_s=ALLOWANCE_S)
    world.advance(BOUND_S + LAG_S)
    caller = Caller(world, tool(read=SEEN), CHARGE)
    caller.until(Look)
    caller.leave()
    world.advance(1)
    caller.run()


SLOW_READ = Scene(trace=_slow_read, effects=1)


def test_c2_a_read_counts_from_its_start_and_strictly_after_due(play):
    """At the very moment of due the effect may still be hidden, and an answer that took its time shows that moment."""
    world = play(SLOW_READ)

    assert [(Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


# --- C3: whom a refusal speaks for


def _refused_again(world: World) -> None:
    made = tool(key=SAFE, in_flight_s=60.0)
    world.plans = [Plan(commit_s=40, reply="lost"), Plan(commit_s=None, reply=422, before_key=True)]
    Caller(world, made, CHARGE, patience_s=5).run()
    Caller(world, made, {**CHARGE, "amount": 200}, patience_s=5).run()


REFUSED_AGAIN = Scene(trace=_refused_again, effects=1, last=CHARGE)


def test_c3_a_refusal_of_the_re_issue_leaves_the_first_attempt_open(play):
    """The first request may still commit, so no new terms are sent under a new key."""
    world = play(REFUSED_AGAIN)

    assert (Act.CONFLICT, Code.TERMS_CHANGED) == told(world)[-1]
    assert {100} == {arguments["amount"] for _, arguments, _ in world.sent}


def test_c3_a_connection_refused_on_the_re_issue_leaves_the_first_attempt_open(tmp_path):
    """Nothing of the second attempt left; that says nothing of the first, whose deadline is long over."""
    world = World(tmp_path)
    world.plans = [Plan(commit_s=30, reply="lost")]
    made = tool(key=SAFE, in_flight_s=60.0)
    lose(world, made)
    second = Caller(world, made, CHARGE, patience_s=2)
    second.until(Send)
    world.advance(ALLOWANCE_S + 1)
    second.run()
    Caller(world, made, {**CHARGE, "amount": 200}, patience_s=2).run()
    world.advance(100)
    world.close()

    assert [(Act.ANSWER, Code.UNKNOWN), (Act.CONFLICT, Code.TERMS_CHANGED)] == told(world)
    assert [CHARGE] == world.ours


# --- C4: how long a key is good for


def _near_the_end_of_retention(world: World) -> None:
    world.plans = [LOST]
    lose(world, tool(key=SHORT))
    world.advance(97)
    late = Caller(world, tool(key=SHORT), CHARGE)
    if late.until(Send):
        world.advance(4)
    late.run()


END_OF_RETENTION = Scene(trace=_near_the_end_of_retention, effects=1, keys=Keys(retention_s=100))


def test_c4_a_key_covers_a_re_issue_only_while_all_its_copies_commit_in_time(play):
    """Begun before the key is forgotten, sent after: the service would take it for a new request."""
    world = play(END_OF_RETENTION)

    assert [(Act.HOLD, Code.KEY_EXPIRED)] == told(world)
    assert 1 == len(world.sent)


def _retention_from_the_first(world: World) -> None:
    made = tool(key=SHORT, attempts=5)
    world.plans = [LOST, LOST]
    lose(world, made)
    world.advance(80)
    lose(world, made)
    world.advance(17)
    late = Caller(world, made, CHARGE)
    if late.until(Send):
        world.advance(4)
    late.run()


FROM_THE_FIRST = Scene(trace=_retention_from_the_first, effects=1, keys=Keys(retention_s=100))


def test_c4_retention_counts_from_the_first_attempt(play):
    """A service forgets a key so long after it saw it first; a re-issue does not renew it."""
    world = play(FROM_THE_FIRST)

    assert [(Act.HOLD, Code.KEY_EXPIRED)] == told(world)
    assert 2 == len(world.sent)


def _bound_beyond_retention(world: World) -> None:
    made = tool(key=KeySupport(retention_s=300, concurrent_safe=True), in_flight_s=400.0)
    world.plans = [Plan(commit_s=350, reply="lost")]
    lose(world, made)
    world.advance(310)
    Caller(world, made, CHARGE).run()


BEYOND_RETENTION = Scene(trace=_bound_beyond_retention, effects=1, keys=Keys(retention_s=300))


def test_c4_a_bound_longer_than_retention_is_never_covered(play):
    """The first copy may commit when its key is already forgotten."""
    world = play(BEYOND_RETENTION)

    assert [(Act.HOLD, Code.KEY_EXPIRED)] == told(world)


def _unbounded_key(world: World) -> None:
    made = tool(key=KeySupport(retention_s=300, concurrent_safe=True), in_flight_s=None)
    world.plans = [Plan(commit_s=350, reply="lost")]
    lose(world, made)
    world.advance(250)
    late = Caller(world, made, CHARGE)
    if late.until(Send):
        world.advance(4)
        late.leave()
        late.crash()
        return
    late.run()


def test_c4_an_undeclared_bound_is_covered_by_no_finite_retention(play):
    """A copy of unknown life may outlive any memory."""
    world = play(Scene(trace=_unbounded_key, effects=1, keys=Keys(retention_s=300)))

    assert [(Act.HOLD, Code.KEY_EXPIRED)] == told(world)
    assert 1 == len(world.sent)
