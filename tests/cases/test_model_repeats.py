"""Reports of a model, or the stream it comes by, that emits a call more than once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward.errors import Held
from onceward.evidence import Code

KEYED = """
book:
  effect: write
  identity: [hotel, night]
  in_flight: 0.3s
  key: {in: "argument:idempotency_key", retention: 24h, concurrent: safe}
"""
REFUND = "refund: {effect: write, identity: [order]}"
BOOKING = {"hotel": "Ritz", "night": "2026-12-24", "guests": 2}


def test_br049_a_stream_that_delivers_a_call_twice_runs_it_once_even_without_contract(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """Two chunks of one response carry call c1. The same id with the same arguments is the same call.

    https://github.com/agno-agi/agno/issues/2336
    """

    async def play() -> list[Any]:
        harness = harness_of("other: {effect: write, identity: [x]}")
        calls = [harness.call("add_row", {"value": 1}, callId="c1") for _ in range(2)]
        return [*await asyncio.gather(*calls), await harness.call("add_row", {"value": 1}, callId="c1")]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert [{"done": 1, "tool": "add_row"}] * 3 == [answer_of(answer) for answer in answers]


@pytest.mark.parametrize("tool", ["start_dev_server", "apply_edit", "create_issue"])
def test_br050_a_tool_use_id_that_comes_twice_starts_nothing_twice(
    shop: Any, harness_of: Any, answer_of: Any, tool: str
) -> None:
    """An adapter delivers a tool use a second time after the first is done: two dev servers were running.

    https://github.com/MadAppGang/claudish/issues/141
    """

    async def play() -> list[Any]:
        harness = harness_of("other: {effect: write, identity: [x]}")
        meta = {"claudecode/toolUseId": "toolu_01"}
        return [await harness.call(tool, {"port": 3000}, **meta) for _ in range(2)]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert answer_of(answers[0]) == answer_of(answers[1])
    assert "Nothing was sent now" in answers[1]["result"]["content"][0]["text"]


def test_br052_a_call_id_that_recurs_in_later_turns_is_answered_from_the_journal(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """The provider's stream repeats call_1 in three turns, other calls between them.

    https://github.com/openai/codex/issues/27757
    """

    async def play() -> list[Any]:
        harness, answers = harness_of("other: {effect: write, identity: [x]}"), []
        for turn in range(3):
            answers.append(await harness.call("apply_patch", {"file": "a.py"}, callId="call_1", threadId="t-1"))
            await harness.call("apply_patch", {"file": f"{turn}.py"}, callId=f"call_{turn + 2}", threadId="t-1")
        return answers

    answers = asyncio.run(play())
    assert 1 == sum(effect["file"] == "a.py" for effect in shop.effects)
    assert len(shop.effects) == 4
    assert [{"done": 1, "tool": "apply_patch"}] * 3 == [answer_of(answer) for answer in answers]


def test_br052_a_call_id_that_a_provider_uses_again_for_other_arguments_is_another_call(
    shop: Any, harness_of: Any
) -> None:
    """Providers number calls anew in each response, so an id alone proves nothing.

    https://github.com/openai/codex/issues/27757
    """

    async def play() -> None:
        harness = harness_of("other: {effect: write, identity: [x]}")
        for file in ("a.py", "b.py"):
            await harness.call("apply_patch", {"file": file}, callId="call_1", threadId="t-1")

    asyncio.run(play())
    assert ["a.py", "b.py"] == [effect["file"] for effect in shop.effects]


def test_br053_a_hundred_equal_writes_in_a_row_are_one_effect_and_ninety_nine_replays(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """Nothing fails, the model just goes on; each answer after the first says that nothing was sent.

    https://github.com/anthropics/claude-code/issues/67812
    """

    async def play() -> list[Any]:
        harness = harness_of("append: {effect: write, identity: [file, line]}")
        return [await harness.call("append", {"file": "log", "line": "x"}, callId=f"c{n}") for n in range(100)]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert [{"done": 1, "tool": "append"}] * 100 == [answer_of(answer) for answer in answers]
    notices = [answer["result"]["_meta"]["dev.onceward/guard"]["notices"] for answer in answers[1:]]
    assert [["replayed"]] * 99 == notices
    assert "_meta" not in answers[0]["result"]


def test_br055_the_key_survives_retry_and_resume_and_changes_with_each_new_decision(shop: Any, guard_of: Any) -> None:
    """A key per logical call: equal for a retry and a resumed run, another for other arguments, a deliberate second
    booking, and another run.

    https://github.com/strands-agents/harness-sdk/issues/2884
    """
    shop.keyed = True
    guard = guard_of(KEYED)
    shop.lose()
    guard.call("book", BOOKING, call_id="use_1")  # lost, and retried inside the call
    shop.lose()
    resumed = guard_of(KEYED, journal="another_machine.db")  # nothing left of the first journal but the secret
    resumed.call("book", BOOKING, call_id="use_1")
    keys = [request["key"] for request in shop.requests]
    assert len(shop.effects) == 1
    assert len(keys) == 4
    assert len(set(keys)) == 1

    guard.call("book", {**BOOKING, "night": "2026-12-25"})
    guard.call("book", BOOKING, label="a second room")
    guard.call("book", BOOKING, scope="run-2")
    later = [request["key"] for request in shop.requests[4:]]
    assert len(shop.effects) == 4
    assert len({keys[0], *later}) == 4


def test_br056_a_new_call_id_in_the_next_turn_is_no_new_refund(shop: Any, guard_of: Any, insist: Any) -> None:
    """The first refund times out, the model asks again, and its call has another id.

    https://github.com/openai/openai-agents-python/issues/4254
    """
    guard = guard_of(REFUND)
    shop.lose()
    ids = iter(["c1", "c2", "c3"])
    answers = insist(3, lambda: guard.call("refund", {"order": "o1", "amount": 10}, call_id=next(ids)))
    assert len(shop.effects) == len(shop.requests) == 1
    assert [(Held, Code.UNVERIFIABLE)] * 3 == [(type(a), a.code) for a in answers]
    assert len({answer.intent for answer in answers}) == 1


def test_br056_the_key_of_a_repeated_refund_knows_nothing_of_call_ids(shop: Any, guard_of: Any, insist: Any) -> None:
    """Where the service takes a key, the turn with the new id sends the old key, and the service knows it.

    https://github.com/openai/openai-agents-python/issues/4254
    """
    shop.keyed = True
    guard = guard_of(KEYED, patience_s=0.0)
    shop.lose()
    insist(1, lambda: guard.call("book", BOOKING, call_id="c1"))
    guard.patience_s = 5.0
    assert {"done": 1, "tool": "book"} == guard.call("book", BOOKING, call_id="c2")
    assert len(shop.effects) == 1
    assert len(shop.requests) == 2
    assert len({request["key"] for request in shop.requests}) == 1
