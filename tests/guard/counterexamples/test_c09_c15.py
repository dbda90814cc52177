"""Batches, stragglers, a person's word, unlocked keys, clocks, windows, and retries beneath us."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jmespath

from onceward.evidence import (
    Act,
    Code,
    Effect,
)
from onceward.journal.base import IntentRow
from onceward.people import ResolveError
from onceward.recovery import Send
from onceward.tools import BatchPlan, ReadPlan, Tool
from tests.guard.scenes import (
    ALLOWANCE_S,
    BOUND_S,
    CHARGE,
    LAG_S,
    LOST,
    SAFE,
    SEEN,
    UNSAFE_KEY,
    Scene,
    lose,
    told,
    tool,
)
from tests.guard.world import Caller, Keys, Plan, World

# --- C9: batches

ITEMS = [{"to": "ada"}, {"to": "bo"}, {"to": "ada"}]
MAILS = {"list": "l1", "items": ITEMS}
_LISTED = ReadPlan(tool="sent_mails", created=jmespath.compile("created"), items=jmespath.compile("@"))


def mails(**fields: Any) -> Tool:
    return tool(identity=("list",), batch=BatchPlan(items="items"), **fields)


def _partly(world: World) -> None:
    world.plans = [Plan(part=1, reply="lost")]
    lose(world, mails(read=_LISTED), MAILS)
    world.advance(1)
    Caller(world, mails(read=_LISTED), MAILS).run()


PARTLY = Scene(trace=_partly, effects=3)


def test_c9_only_the_missing_items_are_sent_and_equal_items_are_counted(play):
    """One of two equal mails is out: one more is due, not none and not two."""
    world = play(PARTLY)

    assert [(Act.REPLAY, None)] == told(world)
    assert ["ada", "ada", "bo"] == sorted(item["to"] for item in world.ours)
    assert [3, 2] == [len(arguments["items"]) for _, arguments, _ in world.sent]


def _partly_keyed(world: World) -> None:
    made = mails(read=_LISTED, key=SAFE)
    world.plans = [Plan(part=1, reply="lost")]
    lose(world, made, MAILS)
    world.advance(1)
    Caller(world, made, MAILS).run()


PARTLY_KEYED = Scene(trace=_partly_keyed, effects=3)


def test_c9_missing_items_go_under_a_key_of_their_own(play):
    """The old key belongs to the whole batch: the service rejects other arguments under it, or runs nothing."""
    world = play(PARTLY_KEYED)

    assert [(Act.REPLAY, None)] == told(world)
    assert 2 == len({key for _, _, key in world.sent})


def test_c9_a_key_that_resumes_continues_the_batch(tmp_path):
    """Where the service itself goes on, the whole request is re-issued under the old key, and only then."""
    world = World(tmp_path, keys=Keys(resumes=True))
    world.plans = [Plan(part=1, reply="lost")]
    made = mails(key=replace(SAFE, resumes_batch=True))
    lose(world, made, MAILS)
    Caller(world, made, MAILS).run()
    world.close()

    assert [(Act.REPLAY, None)] == told(world)
    assert 3 == len(world.ours)
    assert 1 == len({key for _, _, key in world.sent})


def _batch_under_unlocked_key(world: World) -> None:
    world.plans = [Plan(part=1, reply="lost")]
    lose(world, mails(key=SAFE), MAILS)
    Caller(world, mails(key=SAFE), MAILS).run()


BATCH_UNREAD = Scene(trace=_batch_under_unlocked_key, effects=1)


def test_c9_a_batch_under_a_key_that_does_not_resume_is_not_sent_again(play):
    """Whether the service would run it anew, or answer that it is done, is not known."""
    world = play(BATCH_UNREAD)

    assert [(Act.HOLD, Code.UNVERIFIABLE)] == told(world)
    assert 1 == len(world.sent)


def _refused_after_a_part(world: World) -> None:
    made = mails(read=_LISTED)
    world.plans = [Plan(part=1, reply="lost"), Plan(commit_s=None, reply=422)]
    lose(world, made, MAILS)
    world.advance(1)
    Caller(world, made, MAILS, patience_s=25).run()
    world.advance(10)
    Caller(world, made, MAILS).run()


REFUSED_PART = Scene(trace=_refused_after_a_part, effects=3)


def test_c9_a_refusal_after_a_proven_part_still_owes_only_the_rest(play):
    """The refusal speaks for the missing items alone; the part that is out stays out."""
    world = play(REFUSED_PART)

    assert (Act.REPLAY, None) == told(world)[-1]
    assert [3, 2, 2] == [len(arguments["items"]) for _, arguments, _ in world.sent]


# --- C10: stragglers

SWITCH = tool(Effect.IDEMPOTENT, identity=("name",), in_flight_s=60.0)


def _straggler(world: World) -> None:
    world.plans = [Plan(commit_s=40, reply="lost")]
    lose(world, SWITCH, {"name": "light", "value": 1})
    Caller(world, SWITCH, {"name": "light", "value": 1}).heard()
    Caller(world, SWITCH, {"name": "light", "value": 2}, patience_s=200).heard()


STRAGGLER = Scene(trace=_straggler, effects=3, last={"name": "light", "value": 2})


def test_c10_the_next_write_waits_until_no_copy_of_the_last_can_land(play):
    """Set 1 timed out and was repeated; its first copy lands last and would undo set 2."""
    world = play(STRAGGLER)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)


def _straggler_found(world: World) -> None:
    made = tool(Effect.IDEMPOTENT, identity=("name",), in_flight_s=60.0, attempts=2, read=_SWITCHED, lag_s=0.0)
    world.plans = [Plan(commit_s=40, reply="lost"), LOST]
    lose(world, made, {"name": "light", "value": 1})
    Caller(world, made, {"name": "light", "value": 1}).heard()
    Caller(world, made, {"name": "light", "value": 2}, patience_s=200).heard()


_SWITCHED = replace(SEEN, arguments={}, match=())
STRAGGLER_FOUND = Scene(trace=_straggler_found, effects=3, last={"name": "light", "value": 2}, lag_s=0.0)


def test_c10_it_waits_also_where_the_last_was_settled_by_a_read_back(play):
    """Found is as good as answered: the other copy is still on its way."""
    world = play(STRAGGLER_FOUND)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)


# --- C11: a person's word


def _early_word(world: World) -> None:
    world.plans = [Plan(commit_s=8, reply="lost")]
    lose(world, tool())
    held = Caller(world, tool(), CHARGE)
    held.run()
    assert held.answer is not None
    assert held.answer.intent is not None
    held.person("did_not_happen", held.answer.intent)
    Caller(world, tool(), CHARGE).run()


EARLY_WORD = Scene(trace=_early_word, effects=1)


def test_c11_a_person_cannot_rule_out_what_may_still_come(play):
    """She looks, sees nothing, and the request commits a moment later."""
    world = play(EARLY_WORD)

    assert [(Act.HOLD, Code.UNVERIFIABLE)] * 2 == told(world)
    assert 1 == len(world.sent)


def test_c11_the_word_is_taken_after_due_or_with_an_override(tmp_path):
    """After due she can know; before, the history keeps that she decided without."""
    world = World(tmp_path)
    world.plans = [Plan(commit_s=None, reply="lost")]
    lose(world, tool())
    held = Caller(world, tool(), CHARGE)
    intent = held.run().intent
    assert intent is not None
    assert held.journal is not None

    early = held.person("did_not_happen", intent)
    assert isinstance(early, ResolveError)
    assert 1_000 + ALLOWANCE_S + BOUND_S == early.until_s
    assert ["held"] == [event.what for event in held.journal.history(intent)]

    assert isinstance(held.person("did_not_happen", intent, override=True), IntentRow)
    assert {"override": True} == list(held.journal.history(intent))[-1].data
    assert (Act.REPLAY, None) == (Caller(world, tool(), CHARGE).run().decision.act, None)
    world.close()
    assert [CHARGE] == world.ours


def _word_and_send_at_once(world: World) -> None:
    world.plans = [Plan(commit_s=None, reply="lost"), LOST]
    lose(world, tool())
    held = Caller(world, tool(), CHARGE)
    held.run()
    world.advance(30)
    assert held.answer is not None
    assert held.answer.intent is not None
    held.person("did_not_happen", held.answer.intent)
    lose(world, tool(), CHARGE)
    Caller(world, tool(), CHARGE).run()


WORD_AND_SEND = Scene(trace=_word_and_send_at_once, effects=1)


def test_c11_the_word_covers_no_attempt_that_begins_after_it(play):
    """Not even one of the same instant: she spoke of what had been sent by then."""
    world = play(WORD_AND_SEND)

    assert [(Act.HOLD, Code.UNVERIFIABLE)] * 2 == told(world)
    assert 2 == len(world.sent)


# --- C12: keys while the first request runs


def _key_not_locked(world: World) -> None:
    world.plans = [Plan(commit_s=BOUND_S, reply="lost")]
    lose(world, tool(key=UNSAFE_KEY), after_s=1)
    Caller(world, tool(key=UNSAFE_KEY), CHARGE).run()


NOT_LOCKED = Scene(trace=_key_not_locked, effects=1, keys=Keys(locks=False))


def test_c12_a_key_that_is_not_locked_is_used_again_only_once_the_first_is_over(play):
    """Two requests under one key both pass its look-up while neither has finished."""
    world = play(NOT_LOCKED)

    assert [(Act.REPLAY, None)] == told(world)
    assert 1_000 + ALLOWANCE_S + BOUND_S < world.sent[1][0]


# --- C13: one clock


def _wall_set_back(world: World) -> None:
    zombie = Caller(world, tool(read=SEEN), CHARGE)
    zombie.until(Send)
    world.wall_shift_s = -1_000.0
    world.advance(60)
    Caller(world, tool(read=SEEN), CHARGE, patience_s=60).heard()
    zombie.run()


WALL_SET_BACK = Scene(trace=_wall_set_back, effects=1)


def test_c13_a_clock_set_back_opens_no_deadline_again(play):
    """Deadline and proof of absence are on one clock, which never goes back: the wall clock alone would let it leave.

    Callers whose wall clocks differ at the same moment cannot be played here: the processes of one SQLite file share
    one machine and its clock. Many machines share PostgreSQL's, which is its own suite's claim.
    """
    world = play(WALL_SET_BACK)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)
    assert 1 == len(world.sent)


def test_c13_a_process_that_starts_with_an_older_clock_continues_the_journals(tmp_path):
    """Its times must not lie before those that are written, or an early read would seem to be a late one."""
    world = World(tmp_path, lag_s=LAG_S)
    world.plans = [Plan(commit_s=BOUND_S, reply="lost")]
    lose(world, tool(read=SEEN))
    world.wall_shift_s = -1_000.0
    late = Caller(world, tool(read=SEEN), CHARGE)
    late.run()
    world.close()

    assert late.journal is not None
    assert 1_000 + BOUND_S <= late.journal.clock()
    assert [(Act.REPLAY, None)] == told(world)
    assert [CHARGE] == world.ours


# --- C14: windows and retention


def _after_the_window(world: World) -> None:
    made = tool(key=SAFE, window_s=60.0)
    Caller(world, made, CHARGE).heard()
    world.advance(100)
    Caller(world, made, CHARGE).heard()


AFTER_THE_WINDOW = Scene(trace=_after_the_window, effects=2)


def test_c14_an_intent_begun_anew_has_a_key_of_its_own(play):
    """Under the old key the service would replay: two callers told of it, one effect."""
    world = play(AFTER_THE_WINDOW)

    assert [(Act.REPLAY, None), (Act.REPLAY, None)] == told(world)
    assert 2 == len({key for _, _, key in world.sent})


# --- C15: retries beneath us


def _hidden_retry(world: World) -> None:
    made = tool(read=SEEN, inner_retries=True)
    world.plans = [Plan(reply=429)]
    Caller(world, made, CHARGE, patience_s=2).run()
    world.advance(1)
    Caller(world, made, CHARGE).run()


HIDDEN_RETRY = Scene(trace=_hidden_retry, effects=1)


def test_c15_behind_a_client_that_retries_no_refusal_is_proof(play):
    """Its first delivery ran, its second was told 429, and we see one attempt and a 429."""
    world = play(HIDDEN_RETRY)

    assert (Act.REPLAY, None) == told(world)[-1]
    assert 1 == len(world.sent)
