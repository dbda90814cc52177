"""Reports of repeats that are not equal to the byte, of keys that are used twice, and of payloads that mislead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward.errors import Conflict, Held
from onceward.evidence import Code

KEYED = """
create:
  effect: write
  identity: [customer]
  key: {in: "argument:idempotency_key", retention: 24h, concurrent: safe}
"""
ISSUE = """
create_issue:
  effect: write
  identity: [project, title]
  content: [body]
  in_flight: 0.3s
"""
ISSUE_KEYED = f'{ISSUE}  key: {{in: "argument:idempotency_key", retention: 24h, concurrent: safe}}\n'
TRANSFER = """
transfer:
  effect: write
  identity: [to, reference]
  normalise: {amount: decimal}
  in_flight: 0.3s
  key: {in: "argument:idempotency_key", retention: 24h, concurrent: safe}
"""
BODIES = [
    "The exporter stops at row 500 when the file has Windows line ends; the log says nothing of it.",
    "The exporter stops at row 500 when the file has Windows line ends.",
    "Exporter stops at row 500 with Windows line ends.",
    "Exporter stops at row 500.",
]


# --- retry_with_mutated_args


def test_br071_two_runs_of_one_job_send_its_message_once_where_the_text_is_a_term(shop: Any, guard_of: Any) -> None:
    """A scheduled job runs isolated, and the main session generates its message a second time in other words. The
    contract names the message by its job, once whoever asks; another text under that name is for the caller to decide.

    https://github.com/openclaw/openclaw/issues/15692
    """
    tools = "send: {effect: write, identity: [channel, job], once: window}"
    isolated, main = guard_of(tools, scope="cron-isolated"), guard_of(tools, scope="main-session")
    isolated.call("send", {"channel": "team", "job": "daily-7", "text": "Good morning! Three meetings today."})
    isolated.close()  # its answer was heard
    with pytest.raises(Conflict) as second:
        main.call("send", {"channel": "team", "job": "daily-7", "text": "Hi all, today there are three meetings."})
    assert second.value.code is Code.KEY_REUSED
    assert "Good morning!" in second.value.told
    assert len(shop.effects) == 1


def test_br071_a_second_wording_is_told_of_a_message_that_nobody_heard_of(shop: Any, guard_of: Any) -> None:
    """Where the text is content, the main session is told of the isolated run's message as long as its answer reached
    nobody who went on. Insisting sends it.

    https://github.com/openclaw/openclaw/issues/15692
    """
    tools = "send: {effect: write, identity: [channel, job], content: [text]}"
    isolated, main = guard_of(tools, scope="cron-isolated"), guard_of(tools, scope="main-session")
    isolated.call("send", {"channel": "team", "job": "daily-7", "text": "Good morning! Three meetings today."})
    text = {"channel": "team", "job": "daily-7", "text": "Hi all, today there are three meetings."}
    with pytest.raises(Conflict) as told:
        main.call("send", text)
    assert told.value.code is Code.ALREADY_HAPPENED
    assert len(shop.effects) == 1
    main.call("send", text)
    assert len(shop.effects) == 2


def test_br095_an_issue_whose_body_shrinks_with_each_retry_is_created_once(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """Four creations in half a minute, the title the same, the body ever shorter. The first answer was lost.

    https://github.com/paperclipai/paperclip/issues/7980
    """
    guard = guard_of(ISSUE)
    shop.lose()
    bodies = iter(BODIES)
    answers = insist(4, lambda: guard.call("create_issue", {"project": "app", "title": "Export", "body": next(bodies)}))
    assert BODIES[:1] == [effect["body"] for effect in shop.effects]
    assert [(Held, Code.UNVERIFIABLE)] * 4 == [(type(a), a.code) for a in answers]


def test_br095_under_a_key_the_retry_sends_the_first_wording_and_says_so(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """With a key the second call settles the first: what is sent again is the original, and the answer names it.

    https://github.com/paperclipai/paperclip/issues/7980
    """
    shop.keyed = True
    shop.lose()

    async def play() -> Any:
        harness = harness_of(ISSUE_KEYED, patience_s=0.0)
        await harness.call("create_issue", {"project": "app", "title": "Export", "body": BODIES[0]})
        harness.gate._patience_s = 5.0
        return await harness.call("create_issue", {"project": "app", "title": "Export", "body": BODIES[1]})

    answer = asyncio.run(play())
    assert BODIES[:1] == [effect["body"] for effect in shop.effects]
    assert [BODIES[0]] * 2 == [request["body"] for request in shop.requests]
    assert {"done": 1, "tool": "create_issue"} == answer_of(answer)
    assert "original wording" in answer["result"]["content"][0]["text"]


# --- same_key_different_args


def test_br086_a_key_that_comes_with_other_arguments_is_a_conflict_and_no_replay(shop: Any, guard_of: Any) -> None:
    """A look-up by key alone returns the old receipt for new arguments, and its caller believes in a second effect.

    https://github.com/rhein1/agoragentic-integrations/pull/88
    """
    guard = guard_of(KEYED)
    first = guard.call("create", {"customer": "c", "a": 1, "idempotency_key": "K1"})
    with pytest.raises(Conflict) as stopped:
        guard.call("create", {"customer": "c", "a": 2, "idempotency_key": "K1"})
    assert stopped.value.code is Code.KEY_REUSED
    assert stopped.value.permanent
    assert len(shop.effects) == len(shop.requests) == 1
    assert "K1" == shop.requests[0]["key"]
    assert first == guard.call("create", {"customer": "c", "a": 1, "idempotency_key": "K1"})
    assert len(shop.requests) == 1


def test_br086_the_same_holds_where_no_identity_is_declared(shop: Any, guard_of: Any) -> None:
    """The service would answer K1 with the old receipt, so the guard must not let K1 leave with other arguments.

    https://github.com/rhein1/agoragentic-integrations/pull/88
    """
    shop.keyed = True
    guard = guard_of('create: {effect: write, key: {in: "argument:idempotency_key", retention: 24h}}')
    guard.call("create", {"a": 1, "idempotency_key": "K1"})
    with pytest.raises(Conflict) as stopped:
        guard.call("create", {"a": 2, "idempotency_key": "K1"})
    assert stopped.value.code is Code.KEY_REUSED
    assert len(shop.effects) == len(shop.requests) == 1


# --- large_or_unsafe_payload


def test_br088_the_order_of_arguments_is_nothing_and_the_tool_is_something(shop: Any, guard_of: Any) -> None:
    """{a, b} and {b, a} are one call; the same arguments under two tools are two.

    https://github.com/ddutchie/cairn/pull/110
    """
    guard = guard_of("grant: {effect: write}\nrevoke: {effect: write}")
    guard.call("grant", {"a": {"x": 1, "y": 2}, "b": 2})
    guard.call("grant", {"b": 2, "a": {"y": 2, "x": 1}})
    assert ["grant"] == [effect["tool"] for effect in shop.effects]
    guard.call("revoke", {"a": {"x": 1, "y": 2}, "b": 2})
    assert ["grant", "revoke"] == [effect["tool"] for effect in shop.effects]


def test_br088_two_calls_that_collide_under_a_rolling_hash_are_two_calls(shop: Any, guard_of: Any) -> None:
    """An approval known by 32 bits of rolling hash lets one call stand for another.

    https://github.com/ddutchie/cairn/pull/110
    """

    def rolling(text: str) -> int:
        value = 0
        for char in text:
            value = (value * 31 + ord(char)) & 0xFFFFFFFF
        return value

    paths = ["/srv/AaAa", "/srv/BBBB"]
    assert rolling(paths[0]) == rolling(paths[1])
    guard = guard_of("delete: {effect: write, identity: [path]}")
    for path in paths:
        guard.call("delete", {"path": path})
    assert paths == [effect["path"] for effect in shop.effects]


def test_br089_an_amount_in_four_spellings_is_one_transfer_under_one_key(shop: Any, guard_of: Any, insist: Any) -> None:
    """A model writes 1.0, 1.00, 1 and 1e0 for one amount. The first answer is lost, so the key is used again.

    https://github.com/KeeperHub/keeperhub/pull/1877
    """
    shop.keyed = True
    guard = guard_of(TRANSFER, patience_s=0.0)
    shop.lose()
    amounts = iter(["1.0", "1.00", 1, "1e0", "+1"])

    def transfer() -> Any:
        return guard.call("transfer", {"to": "0xA", "reference": "r1", "amount": next(amounts), "chainId": 7})

    insist(1, transfer)
    guard.patience_s = 5.0
    answers = insist(4, transfer)
    assert len(shop.effects) == 1
    assert [{"done": 1, "tool": "transfer"}] * 4 == answers
    assert len({request["key"] for request in shop.requests}) == 1


def test_br089_an_alias_of_a_field_is_a_conflict_and_no_second_transfer(shop: Any, guard_of: Any) -> None:
    """That `network: base` and `chainId: 7` mean the same no contract can say. It is stopped and shown, not sent.

    https://github.com/KeeperHub/keeperhub/pull/1877
    """
    guard = guard_of(TRANSFER)
    guard.call("transfer", {"to": "0xA", "reference": "r1", "amount": "1", "chainId": 7})
    with pytest.raises(Conflict) as stopped:
        guard.call("transfer", {"to": "0xA", "reference": "r1", "amount": "1", "network": "base"})
    assert stopped.value.code is Code.KEY_REUSED
    assert '"chainId":7' in stopped.value.told
    assert len(shop.effects) == 1


def test_br109_a_large_answer_is_still_a_success_and_its_repeat_sends_nothing(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """A harness puts a long answer into a file, takes that for a failure, and asks again under the same call id.

    https://github.com/github/copilot-cli/issues/1274
    """
    large = {"log": "x" * 300_000}
    shop.plan(shop.Plan(answer=large))

    async def play() -> list[Any]:
        harness = harness_of("deploy: {effect: write, identity: [version]}")
        return [await harness.call("deploy", {"version": "1.2"}, callId="c1") for _ in range(2)]

    first, again = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert large == answer_of(first)
    assert again["result"]["isError"] is False
    assert "Nothing was sent now: deploy happened at" in again["result"]["content"][0]["text"]


@pytest.mark.parametrize("size", [30_000, 300_000], ids=["above the harness's limit", "above the journal's limit"])
def test_br109_the_library_gives_a_large_answer_whole_and_remembers_that_it_happened(
    shop: Any, guard_of: Any, size: int
) -> None:
    """Above its limit the journal keeps a digest: enough to know that the write is done.

    https://github.com/github/copilot-cli/issues/1274
    """
    guard = guard_of("deploy: {effect: write, identity: [version]}")
    shop.plan(shop.Plan(answer="x" * size))
    assert "x" * size == guard.call("deploy", {"version": "1.2"})
    replay = guard.call("deploy", {"version": "1.2"})
    assert len(shop.effects) == len(shop.requests) == 1
    if size > guard.core.settings.result_limit:
        assert {"dev.onceward/digest", "bytes"} == set(replay)
    else:
        assert "x" * size == replay
