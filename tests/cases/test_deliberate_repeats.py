"""Reports of a guard that stops what was meant: equal arguments are not always a repeat."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onceward.errors import Conflict, Held
from onceward.evidence import Code

NOTIFY = "notify: {effect: write, identity: [user, text]}"
CALL = {"user": "u1", "text": "Your report is ready."}


def test_br091_the_same_notice_on_another_day_runs_again(shop: Any, guard_of: Any) -> None:
    """Monday's run and Tuesday's run are two scopes, and Monday's answer was heard.

    https://github.com/worldcoin/developer-portal/pull/1608
    """
    monday = guard_of(NOTIFY, scope="run-monday")
    monday.call("notify", CALL)
    monday.close()
    tuesday = guard_of(NOTIFY, scope="run-tuesday")
    tuesday.call("notify", CALL)
    assert len(shop.effects) == 2


def test_br091_in_one_conversation_a_label_says_that_it_is_meant(shop: Any, guard_of: Any) -> None:
    """Without a label it is the same notice, and the answer is replayed; with one it is sent.

    https://github.com/worldcoin/developer-portal/pull/1608
    """
    guard = guard_of(NOTIFY)
    first = guard.call("notify", CALL)
    assert first == guard.call("notify", CALL)
    assert len(shop.effects) == 1
    guard.call("notify", CALL, label="tuesday")
    assert len(shop.effects) == 2
    guard.call("notify", CALL, label="tuesday")
    assert len(shop.effects) == 2


def test_br091_past_its_window_a_finished_notice_is_no_bar(shop: Any, guard_of: Any) -> None:
    """A conversation that lasts for days: what was done before the window is done anew.

    https://github.com/worldcoin/developer-portal/pull/1608
    """
    guard = guard_of("notify: {effect: write, identity: [user, text], window: 0.2s}")
    guard.call("notify", CALL)
    time.sleep(0.3)
    guard.call("notify", CALL)
    assert len(shop.effects) == 2


def test_br092_after_a_time_out_an_equal_call_is_the_same_call(shop: Any, guard_of: Any, insist: Any) -> None:
    """World (a): seconds after a lost answer. Byte for byte it equals world (b); only the journal can tell.

    https://github.com/MystenLabs/MemWal/issues/273
    """
    guard = guard_of(NOTIFY)
    shop.lose()
    answers = insist(2, lambda: guard.call("notify", CALL))
    assert len(shop.effects) == 1
    assert [Held, Held] == [type(answer) for answer in answers]


def test_br092_after_a_success_an_equal_call_in_a_new_task_is_another_call(shop: Any, guard_of: Any) -> None:
    """World (b): the first was answered, its task went on, and a new task asks.

    https://github.com/MystenLabs/MemWal/issues/273
    """
    guard = guard_of(NOTIFY)
    guard.call("notify", CALL, scope="task-1")
    guard.call("notify", {**CALL, "text": "Thank you."}, scope="task-1")
    guard.call("notify", CALL, scope="task-2")
    assert 2 == sum(effect["text"] == CALL["text"] for effect in shop.effects)


def test_br092_after_a_success_that_nobody_heard_a_new_task_is_told_first(shop: Any, guard_of: Any) -> None:
    """Between the worlds: done, but its caller never went on. The new task hears of it once, then may send.

    https://github.com/MystenLabs/MemWal/issues/273
    """
    guard, after_a_crash = guard_of(NOTIFY), guard_of(NOTIFY)
    guard.call("notify", CALL, scope="task-1")
    with pytest.raises(Conflict) as told:
        after_a_crash.call("notify", CALL, scope="task-2")
    assert told.value.code is Code.ALREADY_HAPPENED
    assert len(shop.effects) == 1
    after_a_crash.call("notify", CALL, scope="task-2")
    assert len(shop.effects) == 2
