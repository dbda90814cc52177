"""Reports of a call that took effect, and whose answer was lost before the caller heard it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward.errors import Held, Unknown
from onceward.evidence import Code
from onceward.outcomes import Reply

BLIND = "charge: {effect: write, identity: [invoice]}"
SEEN = """
charge:
  effect: write
  identity: [invoice]
  in_flight: 0.3s
  read_back:
    tool: list_charges
    arguments: {invoice: invoice}
    items: items
    match: {invoice: invoice}
    created: created
    lag: 0.2s
list_charges: {effect: read}
"""
MAIL = """
send_mail: {effect: write, identity: [to, subject], content: [body]}
post_issue: {effect: write, identity: [repo, title], content: [body]}
"""


def test_br001_without_the_guard_every_retry_of_a_lost_answer_is_an_effect(shop: Any, insist: Any) -> None:
    """The control: an SDK repeats a read time-out by itself, and the write runs once per repeat.

    https://github.com/ComposioHQ/composio/issues/3654
    """
    for _ in range(3):
        shop.lose()
    charge = shop.request("charge")
    insist(3, lambda: charge(invoice="in_1", amount=100))
    assert len(shop.effects) == 3


def test_br001_a_retrying_sdk_causes_one_effect_and_hears_that_it_is_unknown(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """The SDK's retry loop goes through the guard; the service offers neither key nor read, so a person is asked.

    https://github.com/ComposioHQ/composio/issues/3654
    """
    guard = guard_of(BLIND)
    shop.lose()
    answers = insist(3, lambda: guard.call("charge", {"invoice": "in_1", "amount": 100}))
    assert len(shop.effects) == 1
    assert [(Held, Code.UNVERIFIABLE, "ops@example.com")] * 3 == [(type(a), a.code, a.owner) for a in answers]
    assert isinstance(answers[0].__cause__, TimeoutError)
    assert "Do not repeat it" in answers[2].told


def test_br001_a_retrying_sdk_is_answered_by_the_read_back_where_there_is_one(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """The first call itself finds the effect, so the loop has nothing to repeat.

    https://github.com/ComposioHQ/composio/issues/3654
    """
    guard = guard_of(SEEN)
    shop.lose()
    answers = insist(3, lambda: guard.call("charge", {"invoice": "in_1", "amount": 100}))
    assert len(shop.effects) == 1
    assert not any(isinstance(answer, Exception) for answer in answers)
    assert len(shop.requests) == 1


@pytest.mark.parametrize("rewording", ["Hello Ann, the report is ready.", "Hello Ann, the report is ready now."])
def test_br002_advice_that_the_agent_ignores_still_sends_nothing(
    shop: Any, guard_of: Any, insist: Any, rewording: str
) -> None:
    """A mail leaves and the connection drops. Told not to repeat it, the agent repeats it, word for word or nearly.

    A harness that only advises has two mails here. https://github.com/Lexus2016/hermes-agent-evolution/pull/1953
    """
    guard = guard_of(MAIL)
    shop.lose(ConnectionResetError("connection dropped"))
    mail = {"to": "ann@example.com", "subject": "Report", "body": "Hello Ann, the report is ready."}
    with pytest.raises(Held) as first:
        guard.call("send_mail", mail)
    assert "Do not repeat it, reworded or by other means" in first.value.told
    ignoring = insist(2, lambda: guard.call("send_mail", {**mail, "body": rewording}))
    assert [mail["body"]] == [effect["body"] for effect in shop.effects]
    assert [first.value.intent] * 2 == [error.intent for error in ignoring]


def test_br002_a_fresh_scope_is_no_way_around_the_stop(shop: Any, guard_of: Any) -> None:
    """The harness restarts the agent in a new conversation, which sends the same mail: the doubt holds there as well.

    https://github.com/Lexus2016/hermes-agent-evolution/pull/1953
    """
    guard = guard_of(MAIL)
    shop.lose(ConnectionResetError("connection dropped"))
    mail = {"to": "ann@example.com", "subject": "Report", "body": "Hello Ann, the report is ready."}
    with pytest.raises(Held):
        guard.call("send_mail", mail)
    with pytest.raises(Held) as second:
        guard.call("send_mail", mail, scope="run-2")
    assert len(shop.effects) == 1
    assert second.value.code is Code.UNVERIFIABLE


def test_br004_a_json_rpc_timeout_code_means_unknown_and_reaches_the_model_as_a_tool_result(
    shop: Any, harness_of: Any, block: Any
) -> None:
    """The task file is written, then the client's own -32001 stands in for the answer: that is no failure.

    https://github.com/MrLesk/Backlog.md/issues/399
    """
    error = {"code": -32001, "message": "Request timed out"}
    shop.plan(shop.Plan(answer=Reply(kind="rpc_error", body=error)))

    async def play() -> list[Any]:
        harness = harness_of("create_task: {effect: write, identity: [title]}")
        return [await harness.call("create_task", {"title": "Write docs"}, callId=f"c{n}") for n in range(2)]

    first, second = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert first["result"]["isError"] is True
    assert ("unknown", "unverifiable") == (block(first)["state"], block(first)["code"])
    assert "may or may not have happened" in first["result"]["content"][0]["text"]
    assert block(first)["intent"] == block(second)["intent"]


@pytest.mark.parametrize("happened", [False, True], ids=["never sent", "sent and lost"])
def test_br005_one_failure_text_for_two_worlds_is_unknown_in_both(
    shop: Any, harness_of: Any, block: Any, happened: bool
) -> None:
    """A helper says the same plain words whether the connection was refused or the answer was lost.

    https://github.com/currents-dev/currents-mcp/issues/163
    """
    words = {"content": [{"type": "text", "text": "Failed to create action"}], "isError": True}
    shop.plan(shop.Plan(effect=happened, answer=Reply(kind="result", body=words)))

    async def play() -> list[Any]:
        harness = harness_of("create_action: {effect: write, identity: [name]}")
        return [await harness.call("create_action", {"name": "quarantine"}, callId=f"c{n}") for n in range(2)]

    first, second = asyncio.run(play())
    assert int(happened) == len(shop.effects)
    assert len(shop.requests) == 1
    assert [("unknown", "unverifiable")] * 2 == [(block(r)["state"], block(r)["code"]) for r in (first, second)]


@pytest.mark.parametrize("happened", [False, True], ids=["never sent", "sent and lost"])
def test_br005_a_read_back_tells_the_two_worlds_apart_and_both_end_with_one_effect(
    shop: Any, guard_of: Any, happened: bool
) -> None:
    """What the text hides, the list shows: absent after the bounds, the action is sent again, present it is not.

    https://github.com/currents-dev/currents-mcp/issues/163
    """
    guard = guard_of(SEEN)
    shop.lose(RuntimeError("Failed to create action"), effect=happened)
    guard.call("charge", {"invoice": "in_5", "amount": 1})
    assert len(shop.effects) == 1
    assert (1 if happened else 2) == len(shop.requests)


def test_br005_where_the_library_can_see_that_nothing_left_it_says_so(shop: Any, guard_of: Any) -> None:
    """A refused connection is proof: the caller gets its own error, and a later call may send.

    https://github.com/currents-dev/currents-mcp/issues/163
    """
    guard = guard_of(BLIND)
    shop.lose(ConnectionRefusedError("connection refused"), effect=False)
    with pytest.raises(ConnectionRefusedError):
        guard.call("charge", {"invoice": "in_6", "amount": 1})
    assert [] == shop.effects
    guard.call("charge", {"invoice": "in_6", "amount": 1})
    assert len(shop.effects) == 1


def test_br001_patience_ends_before_the_bounds_and_a_later_call_goes_on(shop: Any, guard_of: Any) -> None:
    """A caller that cannot wait hears until when it cannot be known; the retry after that time settles it.

    https://github.com/ComposioHQ/composio/issues/3654
    """
    guard = guard_of(SEEN, patience_s=0.2)
    shop.lag_s = 0.2
    shop.lose(late_s=0.3)
    with pytest.raises(Unknown) as first:
        guard.call("charge", {"invoice": "in_7", "amount": 100})
    assert first.value.code is Code.UNKNOWN
    assert first.value.until_s is not None
    guard.patience_s = 5.0
    guard.call("charge", {"invoice": "in_7", "amount": 100})
    assert len(shop.effects) == len(shop.requests) == 1
