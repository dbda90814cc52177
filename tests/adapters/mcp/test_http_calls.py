"""Guarded calls over the HTTP relay: whatever breaks, the gate answers, once and with status 200."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from http_gate import Gate, relay, run, scene
from http_upstream import ACCEPT, JSON, Answer, Message, Play, Upstream, ask, call, note, request, result

READ = {"method": "tools/call", "params": {"name": "look", "arguments": {"é": 1}}}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "progressToken": 5,
    "com.example/x": 1,
}


def said(answer: Message) -> str:
    [content] = answer.json["result"]["content"]
    return str(content["text"])


# -- what a broken answer becomes ----------------------------------------------------------------------------------


async def gone(request: Message, answer: Answer) -> None:
    await answer.whole(
        404, [JSON], b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}'
    )


async def drop(request: Message, answer: Answer) -> None:
    answer.drop()


async def reset(request: Message, answer: Answer) -> None:
    answer.reset()


async def reset_in_body(request: Message, answer: Answer) -> None:
    await answer.whole(200, [JSON], result(1)[:20], length=100)
    answer.reset()


async def cut_stream(request: Message, answer: Answer) -> None:
    await answer.stream()
    await answer.event(note("notifications/message"))
    answer.drop()


async def stream_without_answer(request: Message, answer: Answer) -> None:
    await answer.stream()
    await answer.event(note("notifications/message"))
    await answer.end()


async def other_id(request: Message, answer: Answer) -> None:
    await answer.whole(200, [JSON], result("1"))


async def empty(request: Message, answer: Answer) -> None:
    await answer.whole(200, [JSON])


async def accepted(request: Message, answer: Answer) -> None:
    await answer.whole(202, [])


async def unavailable(request: Message, answer: Answer) -> None:
    await answer.whole(503, [("Retry-After", "7")], b"busy")


async def moved(request: Message, answer: Answer) -> None:
    await answer.whole(307, [("Location", "/other")])


async def refused(request: Message, answer: Answer) -> None:
    await answer.whole(400, [JSON], b'{"jsonrpc":"2.0","id":1,"error":{"code":-32055,"message":"no","data":{"x":1}}}')


@pytest.mark.parametrize(
    ("play", "kind", "status", "text"),
    [
        (gone, "http", 404, "mcp session lost"),
        (drop, "lost", None, "broke before an answer"),
        (reset, "lost", None, "broke before an answer"),
        (reset_in_body, "lost", 200, "could not be read"),
        (cut_stream, "lost", 200, "broke off"),
        (stream_without_answer, "lost", 200, "broke off"),
        (other_id, "lost", 200, "no answer to the call"),
        (empty, "lost", 200, "no answer to the call"),
        (accepted, "lost", 202, "no answer to the call"),
        (unavailable, "http", 503, "busy"),
        (moved, "http", 307, ""),
        (refused, "rpc_error", 400, "no"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_forwarded_call_is_always_answered_with_200(play: Play, kind: str, status: int | None, text: str):
    """A 404, a 5xx or a broken stream makes harnesses send the call again, behind the model's back."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):

            async def charge(request: Message, answer: Answer) -> None:
                upstream.effects += 1
                await play(request, answer)

            upstream.on["charge"] = charge
            answer = await session.post(call("charge"))
            # A 400 passes where the server itself says that the request was wrong: no client sends that again.
            assert (400 if play is refused else 200, True) == (answer.status, answer.complete)
            [reply] = gate.replies
            assert (kind, status) == (reply.kind, reply.status)
            assert text in reply.text
            assert 1 == upstream.effects == len(upstream.calls("charge"))
            if kind == "http" and status == 503:
                assert "7" == reply.headers["retry-after"]
            if kind == "rpc_error":
                assert {"code": -32055, "message": "no", "data": {"x": 1}} == reply.body == answer.json["error"]

    run(scenario())


def test_what_never_left_is_not_sent():
    """A refused connection is proof; and the check right before the first byte may say no."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            gate.allowed = False
            assert "gate: not_sent" == said(await session.post(call("charge")))
            assert [] == upstream.calls("charge")
            gate.allowed = True
            assert "ok" == said(await session.post(call("charge")))
            upstream.stop()
            assert "gate: not_sent" == said(await session.post(call("charge", 2)))
            assert ["not_sent", "result", "not_sent"] == [reply.kind for reply in gate.replies]

    run(scenario())


def test_a_request_for_credentials_passes_with_its_status():
    """Only so can a client renew its token; nothing was done, and the next call goes through the gate as well."""
    challenge = ("WWW-Authenticate", 'Bearer error="invalid_token"')

    async def scenario() -> None:
        async with scene() as (upstream, _, session):

            async def charge(request: Message, answer: Answer) -> None:
                await answer.whole(401, [challenge])

            upstream.on["charge"] = charge
            answer = await session.post(call("charge"))
            assert (401, challenge[1]) == (answer.status, answer.get("www-authenticate"))
            assert "gate: http" == said(answer)

    run(scenario())


def test_a_fault_of_the_gate_sends_nothing_or_says_unknown():
    """A call that nobody judged must not leave."""

    class Faulty(Gate):
        def wants(self, call: object) -> bool:
            raise RuntimeError("a fault")

    class Failing(Gate):
        async def handle(self, call: object, upstream: object) -> bytes:
            raise RuntimeError("a fault")

    async def scenario() -> None:
        async with scene(Faulty()) as (upstream, _, session):
            answer = await session.post(call("charge"))
            assert (200, True) == (answer.status, "was not sent" in said(answer))
            assert [] == upstream.calls("charge")
        async with scene(Failing()) as (upstream, _, session):
            answer = await session.post(call("charge"))
            assert (200, True) == (answer.status, "not known" in said(answer))

    run(scenario())


# -- what is sent --------------------------------------------------------------------------------------------------


def test_a_key_goes_where_the_contract_wants_it():
    """A changed body keeps the client's id; a header of ours is added, the mirrored ones match the body."""
    headers = [("Mcp-Method", "tools/call"), ("Mcp-Name", "charge"), ("Mcp-Param-Region", "eu"), ("X-Other", "1")]

    async def scenario() -> None:
        gate = Gate()
        gate.message = {
            "jsonrpc": "2.0",
            "id": "ignored",
            "method": "tools/call",
            "params": {"name": "charge", "arguments": {"k": 1}},
        }
        gate.headers = {"Idempotency-Key": "k-1", "Mcp-Param-Region": "us"}
        async with Upstream() as upstream, relay(upstream.url, gate) as port:
            answer = await request(port, "POST", "/mcp", [*headers, JSON, ACCEPT], call("charge", 9))
            assert (9, "ok") == (answer.json["id"], said(answer))
            [sent] = upstream.requests
            assert {**gate.message, "id": 9} == sent.json
            names = ("idempotency-key", "mcp-param-region", "mcp-name", "x-other", "content-length")
            assert ["k-1", "us", "charge", "1", str(len(sent.body))] == [sent.get(name) for name in names]

    run(scenario())


def test_what_mirrors_an_untouched_body_is_untouched():
    """A server must see, and refuse, headers that contradict the body."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:
            headers = [("Mcp-Method", "tools/list"), ("Mcp-Name", "other"), ("Mcp-Param-A", "b")]
            await request(port, "POST", "/mcp", [*headers, JSON, ACCEPT], call("charge"))
            names = ("mcp-method", "mcp-name", "mcp-param-a")
            assert ["tools/list", "other", "b"] == [upstream.requests[0].get(name) for name in names]

    run(scenario())


def test_a_request_of_our_own_carries_the_envelope_of_the_call():
    """The stateless era knows client and version from each request; progress is for the client's own call."""
    mirrored = [("Mcp-Method", "tools/call"), ("Mcp-Name", "charge"), ("Mcp-Param-Region", "eu")]
    credentials = [("Authorization", "Bearer t"), ("MCP-Protocol-Version", "2026-07-28")]

    async def scenario() -> None:
        gate = Gate()
        gate.own = {"method": "tools/call", "params": {"name": "look-é"}}
        async with Upstream() as upstream, relay(upstream.url, gate) as port:
            headers = [*mirrored, *credentials, JSON, ACCEPT]
            assert "gate: result" == said(await request(port, "POST", "/mcp", headers, call("charge", 1, meta=MODERN)))
            _, own = upstream.requests
            assert own.json["id"] != 1
            assert {key: MODERN[key] for key in list(MODERN)[:2]} == own.json["params"]["_meta"]
            assert ("Bearer t", "2026-07-28") == (own.get("authorization"), own.get("mcp-protocol-version"))
            assert ("tools/call", "=?base64?bG9vay3DqQ==?=") == (own.get("mcp-method"), own.get("mcp-name"))
            assert own.get("mcp-param-region") is None

    run(scenario())


def test_nothing_of_our_own_request_reaches_the_client():
    """Its progress would confuse; its questions are declined, because no client waits for that request."""

    async def scenario() -> None:
        gate = Gate()
        gate.own = READ
        async with scene(gate) as (upstream, _, session):

            async def look(request: Message, answer: Answer) -> None:
                await answer.stream()
                await answer.event(note("notifications/progress"))
                await answer.event(ask("elicitation/create", "q-1"))
                while not upstream.calls("response"):
                    await asyncio.sleep(0.005)
                await answer.event(result(request.json["id"]))
                await answer.end()

            upstream.on["look"] = look
            answer = await session.post(call("charge"))
            assert "gate: result" == said(answer)
            [declined] = upstream.calls("response")
            assert ("q-1", -32601) == (declined.json["id"], declined.json["error"]["code"])

    run(scenario())


# -- lost sessions -------------------------------------------------------------------------------------------------


def test_a_request_of_our_own_opens_a_new_session_where_the_old_is_lost():
    """The guard can still look; and the client's session id goes on to work, on any stream."""

    async def scenario() -> None:
        gate = Gate()
        gate.own = READ
        async with scene(gate) as (upstream, _, session):
            hello = upstream.requests[0].json

            async def charge(request: Message, answer: Answer) -> None:
                upstream.sessions.clear()
                await gone(request, answer)

            upstream.on["charge"] = charge
            assert "gate: result" == said(await session.post(call("charge")))
            assert ["http", "result"] == [reply.kind for reply in gate.replies]
            [new] = upstream.sessions
            assert new != session.id
            _, _, _, greeting, ready, look = upstream.requests
            assert (hello, None) == (greeting.json, greeting.get("mcp-session-id"))
            assert ("notifications/initialized", new) == (ready.json["method"], ready.get("mcp-session-id"))
            assert ("look", new) == (look.json["params"]["name"], look.get("mcp-session-id"))
            answer = await session.post(ask("ping"))
            assert (200, new) == (answer.status, upstream.requests[-1].get("mcp-session-id"))

    run(scenario())


def test_a_guarded_call_never_runs_into_a_session_that_is_known_to_be_lost():
    """A client that does not renew its session would otherwise leave one unknown outcome after the other."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            upstream.sessions.clear()
            assert "gate: http" == said(await session.post(call("charge", 1)))
            assert "ok" == said(await session.post(call("charge", 2)))
            assert ["http", "result"] == [reply.kind for reply in gate.replies]

    run(scenario())


def test_after_a_silence_the_session_is_asked_for_first():
    """A server that died and came back knows no sessions; a ping finds out what a call would pay for."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            upstream.on["charge"] = drop
            assert "gate: lost" == said(await session.post(call("charge", 1)))
            del upstream.on["charge"]
            upstream.stop()
            upstream.sessions.clear()
            await upstream.start(upstream.port)
            assert "ok" == said(await session.post(call("charge", 2)))
            assert ["lost", "result"] == [reply.kind for reply in gate.replies]
            assert 2 == len(upstream.calls("charge"))

    run(scenario())


def test_a_session_older_than_the_proxy_is_renewed_too():
    """The proxy was restarted, then the server: nobody here saw the handshake."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:
            headers = [JSON, ACCEPT, ("Mcp-Session-Id", "old"), ("MCP-Protocol-Version", "2025-06-18")]
            await request(port, "POST", "/mcp", headers, call("charge", 1))
            assert "ok" == said(await request(port, "POST", "/mcp", headers, call("charge", 2)))
            [greeting] = upstream.calls("initialize")
            assert "2025-06-18" == greeting.json["params"]["protocolVersion"]

    run(scenario())
