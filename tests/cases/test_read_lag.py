"""Reports of a look that comes too early, or that shows something older."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onceward import receipts
from onceward.errors import Unknown

POST = """
post_message:
  effect: write
  identity: [channel, text]
  in_flight: 0.1s
  read_back:
    tool: search_messages
    arguments: {channel: channel}
    items: items
    match: {text: text}
    created: created
    lag: 0.5s
search_messages: {effect: read}
"""
MESSAGE = {"channel": "ops", "text": "Deploy is done."}


def older(shop: Any) -> None:
    shop.older.append({**MESSAGE, "created": time.time() - 3600})


def test_br112_an_older_hit_of_a_slow_index_is_not_taken_for_ours(shop: Any, guard_of: Any) -> None:
    """The index shows last hour's equal message while ours is not there yet; ours is found once the index has it.

    https://github.com/nearai/ironclaw/pull/6266
    """
    guard = guard_of(POST)
    shop.lag_s = 0.4
    older(shop)
    shop.lose()
    guard.call("post_message", MESSAGE)
    assert len(shop.effects) == len(shop.requests) == 1
    assert shop.reads == 2


def test_br112_an_older_hit_does_not_hide_that_ours_never_happened(shop: Any, guard_of: Any) -> None:
    """Here the request was lost before its effect. "Any hit" would report a message that nobody got.

    https://github.com/nearai/ironclaw/pull/6266
    """
    guard = guard_of(POST)
    older(shop)
    shop.lose(effect=False)
    guard.call("post_message", MESSAGE)
    assert len(shop.effects) == 1
    assert len(shop.requests) == 2


def test_br112_a_hit_without_a_time_proves_nothing_either_way(shop: Any, guard_of: Any) -> None:
    """Where the index gives no time, an equal message is no evidence: nothing is sent, and the caller hears "unknown".

    https://github.com/nearai/ironclaw/pull/6266
    """
    guard = guard_of(POST, patience_s=1.5)
    shop.older.append(MESSAGE)
    shop.lose(effect=False)
    with pytest.raises(Unknown):
        guard.call("post_message", MESSAGE)
    assert [] == shop.effects
    assert len(shop.requests) == 1


def test_br113_an_empty_look_right_after_the_write_is_not_absence(shop: Any, guard_of: Any) -> None:
    """Looked for at once it is not there, looked for after the lag it is: nothing is rolled back, nothing sent again.

    https://github.com/elastic/kibana/pull/279909
    """
    guard = guard_of(POST)
    shop.lag_s = 0.4
    shop.lose()
    guard.call("post_message", MESSAGE)
    assert len(shop.effects) == len(shop.requests) == 1
    (row,) = receipts.intents(guard.journal)
    assert "happened" == row["state"]
    findings = [event.data["found"] for event in guard.journal.history() if event.what == "read_back"]
    assert ["absent", "found"] == findings


def test_br113_absence_counts_once_every_bound_has_passed(shop: Any, guard_of: Any) -> None:
    """The control: what is still not there after the lag did not happen, and is sent, once.

    https://github.com/elastic/kibana/pull/279909
    """
    guard = guard_of(POST)
    shop.lag_s = 0.4
    shop.lose(effect=False)
    guard.call("post_message", MESSAGE)
    assert len(shop.effects) == 1
    findings = [event.data["found"] for event in guard.journal.history() if event.what == "read_back"]
    assert ["absent", "absent"] == findings
