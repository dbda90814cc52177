"""Reports of equal calls that are made at once: by one message of a model, or by a layer that doubles everything."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceward.errors import Unknown
from onceward.evidence import Code

SHELL = "shell: {effect: write, identity: [command]}"
SEND = "send: {effect: write, identity: [to], content: [text]}"
UPDATE = "update: {effect: write, identity: [id], resource: [id]}"
PRINTF = {"command": "printf x"}


def test_br043_nine_identical_calls_in_threads_run_once_and_all_hear_the_result(shop: Any, guard_of: Any) -> None:
    """One message holds nine equal calls, and a tool runner gives each a thread.

    https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1756
    """
    guard = guard_of(SHELL)
    shop.plan(shop.Plan(takes_s=0.2))
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda _: guard.call("shell", PRINTF), range(9)))
    assert len(shop.effects) == len(shop.requests) == 1
    assert [{"done": 1, "tool": "shell"}] * 9 == answers


def test_br043_nine_identical_calls_in_tasks_run_once_and_all_hear_the_result(shop: Any, guard_of: Any) -> None:
    """The same on one event loop.

    https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1756
    """
    guard = guard_of(SHELL)
    shop.plan(shop.Plan(takes_s=0.2))

    async def play() -> list[Any]:
        return await asyncio.gather(*(guard.acall("shell", PRINTF, shop.arequest("shell")) for _ in range(9)))

    assert [{"done": 1, "tool": "shell"}] * 9 == asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1


def test_br043_nine_identical_calls_through_the_proxy_differ_in_nothing_but_their_ids(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """The same with nine call ids over one connection.

    https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1756
    """
    shop.plan(shop.Plan(takes_s=0.2))

    async def play() -> list[Any]:
        harness = harness_of(SHELL)
        return await asyncio.gather(*(harness.call("shell", PRINTF, callId=f"c{n}") for n in range(1, 10)))

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert [{"done": 1, "tool": "shell"}] * 9 == [answer_of(answer) for answer in answers]


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "tasks"])
def test_br044_two_equal_sends_in_one_response_collapse_and_two_different_ones_do_not(
    shop: Any, guard_of: Any, threads: bool
) -> None:
    """[send(A), send(A)] is one mail; the control [send(A), send(B)] is two.

    https://github.com/langchain-ai/langchain/pull/38969
    """
    guard = guard_of(SEND)
    ann, bob = {"to": "ann@example.com", "text": "Hello"}, {"to": "bob@example.com", "text": "Hello"}
    shop.plan(shop.Plan(takes_s=0.1), shop.Plan(takes_s=0.1))

    def respond(calls: list[dict[str, str]]) -> list[Any]:
        if threads:
            with ThreadPoolExecutor(len(calls)) as pool:
                return list(pool.map(lambda call: guard.call("send", call), calls))

        async def play() -> list[Any]:
            return await asyncio.gather(*(guard.acall("send", call, shop.arequest("send")) for call in calls))

        return asyncio.run(play())

    first, second = respond([ann, ann])
    assert first == second
    assert ["ann@example.com"] == [effect["to"] for effect in shop.effects]
    respond([{**ann, "to": "carl@example.com"}, bob])
    assert {"ann@example.com", "bob@example.com", "carl@example.com"} == {effect["to"] for effect in shop.effects}
    assert len(shop.effects) == 3


def test_br046_a_client_that_dispatches_everything_twice_reaches_the_server_once(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """Each call comes twice within milliseconds, under two tool use ids; the second waits for the first.

    https://github.com/anthropics/claude-code/issues/36149
    """
    shop.plan(shop.Plan(takes_s=0.2))
    change = {"id": 7, "title": "New"}

    async def play() -> list[Any]:
        harness = harness_of(UPDATE)
        first = asyncio.ensure_future(harness.call("update", change, **{"claudecode/toolUseId": "toolu_1"}))
        await asyncio.sleep(0.003)
        return [await harness.call("update", change, **{"claudecode/toolUseId": "toolu_2"}), await first]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert answer_of(answers[0]) == answer_of(answers[1]) == {"done": 1, "tool": "update"}


def test_br098_a_concurrent_duplicate_waits_for_the_first_and_gets_its_result(shop: Any, guard_of: Any) -> None:
    """Users do not want an error that says "in progress": they want the answer.

    https://github.com/aws-powertools/powertools-lambda-python/issues/2490
    """
    guard = guard_of(SEND)
    shop.plan(shop.Plan(takes_s=0.5))
    mail = {"to": "ann@example.com", "text": "Hello"}

    async def play() -> list[Any]:
        first = asyncio.ensure_future(guard.acall("send", mail, shop.arequest("send")))
        await asyncio.sleep(0.1)
        return [await guard.acall("send", mail, shop.arequest("send")), await first]

    assert [{"done": 1, "tool": "send"}] * 2 == asyncio.run(play())
    assert len(shop.effects) == 1


def test_br098_a_duplicate_that_cannot_wait_so_long_is_told_that_it_runs(shop: Any, guard_of: Any) -> None:
    """Patience ends before the first is done: the answer is "running since", not "unknown", and not a second run.

    https://github.com/aws-powertools/powertools-lambda-python/issues/2490
    """
    patient, hasty = guard_of(SEND), guard_of(SEND, patience_s=0.1)
    shop.plan(shop.Plan(takes_s=0.9))
    mail = {"to": "ann@example.com", "text": "Hello"}

    async def play() -> Any:
        first = asyncio.ensure_future(patient.acall("send", mail, shop.arequest("send")))
        await asyncio.sleep(0.1)
        with pytest.raises(Unknown) as running:
            await hasty.acall("send", mail, shop.arequest("send"))
        return running.value, await first

    running, result = asyncio.run(play())
    assert running.code is Code.RUNNING
    assert "has been running since" in running.told
    assert {"done": 1, "tool": "send"} == result
    assert len(shop.effects) == 1
