"""Reports of a layer below the model that sends a call again by itself: clients, proxies, adapters, helpers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import receipts
from onceward.drive import current_key
from onceward.errors import Held
from onceward.evidence import Code
from onceward.outcomes import Reply

BLIND = "charge: {effect: write, identity: [invoice]}"
KEYED = """
charge:
  effect: write
  identity: [invoice]
  in_flight: 0.3s
  key: {in: "argument:idempotency_key", retention: 24h, concurrent: safe}
"""
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
    lag: 0.1s
list_charges: {effect: read}
"""
INVOICE = {"invoice": "in_1", "amount": 100}
LOST_SESSION = Reply(kind="http", status=404, text="unknown session")


def test_br007_a_proxy_that_cancels_and_triggers_again_joins_the_running_call(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """The tool takes longer than the proxy waits; it cancels, sends the same again, and again; the server never stops.

    https://github.com/srbhptl39/MCP-SuperAssistant/issues/155
    """
    shop.plan(shop.Plan(takes_s=1.2))

    async def play() -> list[Any]:
        harness = harness_of(BLIND)
        answers = [await harness.call("charge", INVOICE, timeout_s=0.15) for _ in range(3)]
        answers.append(await harness.call("charge", INVOICE))
        await harness.rest()
        return answers

    *given_up, last = asyncio.run(play())
    assert [None] * 3 == given_up
    assert len(shop.effects) == len(shop.requests) == 1
    assert {"done": 1, "tool": "charge"} == answer_of(last)


def test_br007_without_the_guard_the_proxy_starts_it_again_each_time(shop: Any) -> None:
    """The control: one effect for each triggering.

    https://github.com/srbhptl39/MCP-SuperAssistant/issues/155
    """
    shop.plan(*[shop.Plan(takes_s=0.3)] * 3)

    async def play() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(shop.arequest("charge")(**INVOICE), 0.02)

    asyncio.run(play())
    assert len(shop.effects) == 3


def test_br008_a_session_404_after_the_effect_is_not_passed_on_and_the_replay_sends_nothing(
    shop: Any, harness_of: Any, block: Any
) -> None:
    """The server runs the call, forgets the session, and says 404; the client shakes hands anew and posts it again.

    The replay has the same call id and a new JSON-RPC id. https://github.com/simonx1/ruby-mcp-client/pull/209
    """
    shop.plan(shop.Plan(answer=LOST_SESSION))

    async def play() -> list[Any]:
        harness = harness_of(BLIND)
        return [await harness.call("charge", INVOICE, callId="call_0") for _ in range(2)]

    first, replay = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert [("unknown", "unverifiable")] * 2 == [(block(r)["state"], block(r)["code"]) for r in (first, replay)]
    assert first["result"]["isError"] is True


def test_br008_under_a_key_the_gate_itself_gets_the_answer_that_the_404_swallowed(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """The service knows the key: the re-issue brings the first answer, and the client's own replay hears it too.

    https://github.com/simonx1/ruby-mcp-client/pull/209
    """
    shop.keyed = True
    shop.plan(shop.Plan(answer=LOST_SESSION))

    async def play() -> list[Any]:
        harness = harness_of(KEYED)
        return [await harness.call("charge", INVOICE, callId="call_0") for _ in range(2)]

    answers = asyncio.run(play())
    assert len(shop.effects) == 1
    assert [{"done": 1, "tool": "charge"}] * 2 == [answer_of(answer) for answer in answers]
    keys = [request["key"] for request in shop.requests]
    assert len(keys) == 2
    assert keys[0] == keys[1] is not None


@pytest.mark.parametrize("status", [400, 401, 404])
def test_br010_a_session_error_after_commit_gives_the_client_nothing_to_replay(
    shop: Any, harness_of: Any, status: int
) -> None:
    """The client reconnects and replays whenever it sees a session error. Behind the gate it sees a tool result, which
    it hands to the model, so the replay below the model never comes.

    https://github.com/mastra-ai/mastra/pull/10660
    """
    shop.plan(shop.Plan(answer=Reply(kind="http", status=status, text="Bad Request: no valid session")))

    async def play() -> list[Any]:
        harness = harness_of(BLIND)
        responses = [await harness.call("charge", INVOICE, callId="call_0")]
        while "error" in responses[-1] and len(responses) < 3:
            responses.append(await harness.call("charge", INVOICE, callId="call_0"))
        return responses

    responses = asyncio.run(play())
    assert len(shop.effects) == len(responses) == 1
    assert responses[0]["result"]["isError"] is True


@pytest.mark.parametrize("status", [400, 401])
def test_br010_a_contract_that_distrusts_the_status_stops_the_model_too(
    shop: Any, harness_of: Any, block: Any, status: int
) -> None:
    """Where a gateway speaks before the server, its operator declares these statuses unknown: new call ids are stopped.

    https://github.com/mastra-ai/mastra/pull/10660
    """
    tools = "charge: {effect: write, identity: [invoice], errors: [{status: [400, 401], as: unknown}]}"
    shop.plan(shop.Plan(answer=Reply(kind="http", status=status, text="Bad Request: no session")))

    async def play() -> list[Any]:
        harness = harness_of(tools)
        return [await harness.call("charge", INVOICE, callId=f"call_{n}") for n in range(2)]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert ["unverifiable"] * 2 == [block(answer)["code"] for answer in answers]


def test_br010_a_refused_reconnect_does_not_turn_an_unknown_into_a_no(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """The first sending is lost after its effect, the second finds the server down: only the second did not happen.

    https://github.com/mastra-ai/mastra/pull/10660
    """
    shop.keyed = True
    shop.plan(shop.Plan(answer=Reply(kind="lost", text="connection closed")))
    shop.plan(shop.Plan(effect=False, answer=Reply(kind="not_sent", text="connection refused")))

    async def play() -> list[Any]:
        harness = harness_of(KEYED)
        return [await harness.call("charge", INVOICE, callId=f"call_{n}") for n in range(2)]

    answers = asyncio.run(play())
    assert len(shop.effects) == 1
    assert {"done": 1, "tool": "charge"} == answer_of(answers[-1])
    assert len({request["key"] for request in shop.requests}) == 1


def test_br011_a_definite_no_session_before_the_call_ends_with_one_effect(
    shop: Any, harness_of: Any, answer_of: Any
) -> None:
    """World one: 404 before anything ran. A lost session is no answer to the call, so the gate looks, and then sends.

    https://github.com/MoonshotAI/kimi-code/pull/2387
    """
    shop.plan(shop.Plan(effect=False, answer=LOST_SESSION))

    async def play() -> Any:
        return await harness_of(SEEN).call("charge", INVOICE, callId="call_0")

    answer = asyncio.run(play())
    assert len(shop.effects) == 1
    assert {"done": 2, "tool": "charge"} == answer_of(answer)


def test_br011_a_connection_closed_after_dispatch_is_never_replayed(shop: Any, harness_of: Any, block: Any) -> None:
    """World two: the connection closes after the call left. Nothing is sent again, and the answer says unknown.

    https://github.com/MoonshotAI/kimi-code/pull/2387
    """
    shop.plan(shop.Plan(answer=Reply(kind="lost", text="Connection closed")))

    async def play() -> list[Any]:
        harness = harness_of(BLIND)
        return [await harness.call("charge", INVOICE, callId=f"call_{n}") for n in range(2)]

    answers = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert ["unknown"] * 2 == [block(answer)["state"] for answer in answers]


def test_br013_an_adapter_that_retries_above_the_guard_inserts_one_row(shop: Any, guard_of: Any, insist: Any) -> None:
    """Four posts of one insert, each through the guard: the adapter's retries meet the first one's doubt.

    https://github.com/django-salesforce/django-salesforce/issues/159
    """
    guard = guard_of("insert: {effect: write, identity: [name]}")
    shop.lose()
    answers = insist(4, lambda: guard.call("insert", {"name": "Acme"}))
    assert len(shop.effects) == 1
    assert [Held] * 4 == [type(answer) for answer in answers]


def test_br013_rows_that_an_adapter_below_the_guard_made_are_found_and_reported(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """Here the retries are inside the guarded function, out of the guard's reach: three rows. The read-back that the
    lost answer calls for counts them, the owner is told, and no fourth is made.

    https://github.com/django-salesforce/django-salesforce/issues/159
    """
    guard = guard_of(SEEN)

    def with_adapter(**arguments: Any) -> Any:
        *_, last = insist(3, lambda: shop.request("charge")(**arguments))
        raise last

    for _ in range(3):
        shop.lose()
    guard.call("charge", INVOICE, with_adapter)
    guard.call("charge", INVOICE, with_adapter)
    assert len(shop.effects) == 3
    (row,) = receipts.intents(guard.journal)
    assert ["duplicated"] == row["notes"]
    (event,) = [e for e in guard.journal.history() if e.what == "duplicated"]
    assert "ops@example.com" == event.data["owner"]


def test_br013_an_adapter_below_the_guard_that_carries_the_key_makes_one_row(shop: Any, guard_of: Any) -> None:
    """With a key on every one of its posts the adapter may retry as it likes: the service knows them for one.

    https://github.com/django-salesforce/django-salesforce/issues/159
    """
    shop.keyed = True
    guard = guard_of(
        "charge: {effect: write, identity: [invoice], key: {in: 'header:Idempotency-Key', retention: 24h}}"
    )

    def with_adapter(**arguments: Any) -> Any:
        for _ in range(3):
            shop.take("charge", arguments, current_key())
        return shop.request("charge")(**arguments, idempotency_key=current_key())

    guard.call("charge", INVOICE, with_adapter)
    assert len(shop.effects) == 1
    assert len(shop.requests) == 4


def test_br014_a_reset_after_commit_leaves_the_retry_helper_nothing_to_repeat(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """A retry helper that thinks a reset connection never delivered the POST, and has no key.

    https://github.com/softonic/axios-retry/issues/66
    """
    guard = guard_of(BLIND)
    shop.lose(ConnectionResetError(104, "Connection reset by peer"))
    answers = insist(4, lambda: guard.call("charge", INVOICE))
    assert len(shop.effects) == 1
    assert [Code.UNVERIFIABLE] * 4 == [answer.code for answer in answers]


@pytest.mark.parametrize("status", [502, 504])
def test_br016_a_new_request_id_on_each_retry_is_neither_a_new_intent_nor_a_new_key(
    shop: Any, guard_of: Any, insist: Any, status: int
) -> None:
    """A gateway gives up on a run that goes on; the retry mints another request id, and so a second agent run.

    https://github.com/pleaseai/shunt/issues/126
    """
    shop.keyed = True
    guard = guard_of(
        """
run_agent:
  effect: write
  identity: [task]
  normalise: {request_id: ignore}
  in_flight: 0.3s
  key: {in: "argument:idempotency_key", retention: 24h, concurrent: safe}
"""
    )
    shop.lose(shop.HttpError(status, "gateway gave up"))
    ids = iter(["req-1", "req-2", "req-3"])
    answers = insist(3, lambda: guard.call("run_agent", {"task": "translate", "request_id": next(ids)}))
    assert len(shop.effects) == 1
    assert [{"done": 1, "tool": "run_agent"}] * 3 == answers
    assert len({request["key"] for request in shop.requests}) == 1


def test_br016_without_a_key_the_second_run_is_not_started(shop: Any, guard_of: Any, insist: Any) -> None:
    """The same where the service knows no key: one run, and a person is asked.

    https://github.com/pleaseai/shunt/issues/126
    """
    guard = guard_of("run_agent: {effect: write, identity: [task], normalise: {request_id: ignore}}")
    shop.lose(shop.HttpError(504, "gateway gave up"))
    ids = iter(["req-1", "req-2", "req-3"])
    answers = insist(3, lambda: guard.call("run_agent", {"task": "translate", "request_id": next(ids)}))
    assert len(shop.effects) == 1
    assert [Held] * 3 == [type(answer) for answer in answers]
