"""Guarded calls over the HTTP relay: whatever breaks, the gate answers, once and with status 200."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from http_gate import Gate, Session, relay, run, scene
from http_upstream import ACCEPT, JSON, Answer, Connection, Message, Play, Upstream, ask, call, note, request, result

from onceward.adapters.mcp.sse import Event, Parser

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


def events(answer: Message) -> list[Event]:
    return Parser(cap=1 << 20).feed(answer.body)


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


# -- streams -------------------------------------------------------------------------------------------------------


def test_events_of_a_call_come_before_its_answer():
    """Progress and questions are the client's; the last event is the gate's, under the id of the server's."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session), Connection(session.connection.port) as other:
            gate.own = READ
            raw: list[bytes] = []

            async def charge(request: Message, answer: Answer) -> None:
                await answer.stream()
                raw.append(await answer.event(note("notifications/progress", progress=0.5), "e-1"))
                raw.append(await answer.event(ask("elicitation/create", "q")))
                while not upstream.calls("response"):
                    await asyncio.sleep(0.005)
                await answer.event(result(1), "e-3")
                await answer.end()

            upstream.on["charge"] = charge
            await session.connection.send("POST", "/mcp", session.headers, call("charge"))
            head = await session.connection.head()
            body = b""
            async for part in session.connection.parts(head):
                body += part
                if b"elicitation" in part:
                    answer = json.dumps({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}}).encode()
                    assert 202 == (await other.request("POST", "/mcp", session.headers, answer)).status
            assert body.startswith(b"".join(raw))
            *_, last = Parser(cap=1 << 20).feed(body)
            assert (b"e-3", 1) == (last.id, json.loads(last.data or b"")["id"])
            assert b"gate: result" in (last.data or b"")
            assert 1 == body.count(b'"result"')

    run(scenario())


def test_a_cut_stream_is_taken_up_again():
    """Reading on is no second call; the answer that came meanwhile is not lost."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):

            async def charge(request: Message, answer: Answer) -> None:
                await answer.stream()
                await answer.chunk(b"id: e-1\nretry: 1\ndata:\n\n")
                await answer.event(note("notifications/progress"), "e-2")
                answer.reset()

            async def resume(request: Message, answer: Answer) -> None:
                if len([each for each in upstream.requests if each.method == "GET"]) == 1:
                    return answer.drop()
                await answer.stream()
                await answer.event(result(1, "done"), "e-3")
                return await answer.end()

            upstream.on |= {"charge": charge, "GET": resume}
            answer = await session.post(call("charge"))
            assert "done" in (events(answer)[-1].data or b"").decode()
            reads = [each for each in upstream.requests if each.method == "GET"]
            assert [("e-2", session.id)] * 2 == [(r.get("last-event-id"), r.get("mcp-session-id")) for r in reads]
            assert 1 == len(upstream.calls("charge"))
            assert ["result"] == [reply.kind for reply in gate.replies]

    run(scenario())


async def polled(upstream: Upstream, session: Session) -> tuple[list[Event], int]:
    """Call a tool whose server closes the stream again and again; return what was read, over how many streams."""

    async def charge(request: Message, answer: Answer) -> None:
        reads = len([each for each in upstream.requests if each.method == "GET"])
        await answer.stream()
        await answer.chunk(b"id: e-%d\nretry: 1\ndata:\n\n" % reads)
        if reads == 12:
            await answer.event(result(1, "done"), "e-last")
        await answer.end()

    upstream.on |= {"charge": charge, "GET": charge}
    answer, streams = await session.post(call("charge")), 1
    found = events(answer)
    while b'"result"' not in (found[-1].data or b""):
        assert (200, True) == (answer.status, answer.complete)
        headers = [*session.headers, ("Last-Event-ID", (found[-1].id or b"").decode())]
        answer, streams = await session.connection.request("GET", "/mcp", headers), streams + 1
        found += events(answer)
    return found, streams


def test_a_server_that_wants_to_be_polled_is_polled():
    """It closes the stream in good order; a client that knows this comes back for the gate's word.

    The server sees one reader, not two.
    """

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            found, streams = await polled(upstream, session)
            assert 1 < streams
            assert [f"e-{n}".encode() for n in [*range(13), "last"]] == [event.id for event in found]
            assert b"done" in (found[-1].data or b"")
            assert 12 == len([each for each in upstream.requests if each.method == "GET"])
            assert ["result"] == [reply.kind for reply in gate.replies]
            await session.post(ask("ping"))
            assert [("delivered", 1)] == gate.events

    run(scenario())


def test_an_older_client_does_not_see_that_its_server_is_polled():
    """Before 2025-11-25 a stream that ends without the answer was a failure."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):
            session.headers = [*session.headers[:-1], ("MCP-Protocol-Version", "2025-06-18")]
            found, streams = await polled(upstream, session)
            assert (1, 14) == (streams, len(found))

    run(scenario())


def test_a_polling_client_that_does_not_come_back_is_gone(monkeypatch: pytest.MonkeyPatch):
    """Its answer was never heard, and the guard has to know."""
    monkeypatch.setattr("onceward.adapters.mcp.http_calls.PARTED_S", 0.05)

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):

            async def charge(request: Message, answer: Answer) -> None:
                await answer.stream()
                await answer.chunk(b"id: e-1\nretry: 1\ndata:\n\n")
                if request.method == "GET":
                    await upstream.left.wait()
                await answer.end()

            upstream.on |= {"charge": charge, "GET": charge}
            await session.post(call("charge"))
            while not gate.events:
                await asyncio.sleep(0.005)
            assert [("cancelled", 1)] == gate.events
            upstream.left.set()

    run(scenario())


def test_an_answer_on_another_stream_of_the_session_is_the_gates_to_give():
    """A client that lost its connection resumes by itself; it must get what the gate says, and only once."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session), Connection(session.connection.port) as stream:
            finish = asyncio.Event()

            async def charge(request: Message, answer: Answer) -> None:
                await answer.stream()
                await answer.event(note("notifications/progress"), "e-1")
                await upstream.left.wait()

            async def resume(request: Message, answer: Answer) -> None:
                await answer.stream()
                await answer.event(note("notifications/message"))
                await finish.wait()
                await answer.event(result(1, "from the server"), "e-2")
                await answer.end()

            upstream.on |= {"charge": charge, "GET": resume}
            gate.own = READ
            await session.connection.send("POST", "/mcp", session.headers, call("charge"))
            await session.connection.head()
            session.connection.close()
            await stream.send("GET", "/mcp", [*session.headers, ("Last-Event-ID", "e-1")])
            while ("cancelled", 1) not in gate.events:
                await asyncio.sleep(0.005)
            finish.set()
            answer = await stream.receive()
            assert "gate: result" in answer.body.decode()
            assert "from the server" not in answer.body.decode()
            assert b"e-2" == events(answer)[-1].id

    run(scenario())


def test_a_slow_answer_becomes_a_stream(monkeypatch: pytest.MonkeyPatch):
    """Whoever sits between cuts a connection that is silent for long; a comment shows life."""
    monkeypatch.setattr("onceward.adapters.mcp.http_relay.LIFE_S", 0.01)
    monkeypatch.setattr("onceward.adapters.mcp.http_relay.PULSE_S", 0.01)

    async def scenario() -> None:
        async with scene() as (upstream, _, session):

            async def charge(request: Message, answer: Answer) -> None:
                await asyncio.sleep(0.1)
                await answer.result(1)

            upstream.on["charge"] = charge
            comment, *_, last = events(await session.post(call("charge")))
            assert (None, result(1)) == (comment.data, last.data)
            session.headers.remove(ACCEPT)
            assert "ok" == said(await session.post(call("charge")))

    run(scenario())


# -- clients that go, and come back --------------------------------------------------------------------------------


def test_a_client_that_leaves_does_not_cancel_its_call():
    """A harness's timeout closes the connection; the effect is under way, and its answer is worth knowing."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            finish = asyncio.Event()

            async def charge(request: Message, answer: Answer) -> None:
                await finish.wait()
                upstream.effects += 1
                await answer.result(1)

            upstream.on["charge"] = charge
            await session.connection.send("POST", "/mcp", session.headers, call("charge"))
            while not upstream.calls("charge"):
                await asyncio.sleep(0.005)
            session.connection.close()
            while not gate.events:
                await asyncio.sleep(0.005)
            assert not upstream.left.is_set()
            finish.set()
            while not gate.replies:
                await asyncio.sleep(0.005)
            assert (["result"], [("cancelled", 1)]) == ([reply.kind for reply in gate.replies], gate.events)

    run(scenario())


def test_an_answer_after_the_gates_own_is_harvested():
    """Patience ended and the client was answered; the future stays open."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):
            gate.patience_s, finish = 0.05, asyncio.Event()

            async def charge(request: Message, answer: Answer) -> None:
                await finish.wait()
                await answer.result(1)

            upstream.on["charge"] = charge
            assert "gate: no answer yet" == said(await session.post(call("charge")))
            assert 202 == (await session.post(note("notifications/cancelled", requestId=1))).status
            assert [] == upstream.calls("notifications/cancelled")
            finish.set()
            await asyncio.wait_for(gate.late.wait(), 5)
            assert ["result"] == [reply.kind for reply in gate.replies]

    run(scenario())


def test_a_cancellation_of_a_guarded_call_ends_here():
    """Forwarded, it would make the outcome of a write under way unknown. Others pass."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session), Connection(session.connection.port) as other:
            finish = asyncio.Event()

            async def charge(request: Message, answer: Answer) -> None:
                await finish.wait()
                await answer.result(1)

            upstream.on["charge"] = charge
            await session.connection.send("POST", "/mcp", session.headers, call("charge"))
            while not upstream.calls("charge"):
                await asyncio.sleep(0.005)
            for number in (1, 2):
                body = note("notifications/cancelled", requestId=number)
                assert 202 == (await other.request("POST", "/mcp", session.headers, body)).status
            finish.set()
            await session.connection.receive()
            [passed] = upstream.calls("notifications/cancelled")
            assert 2 == passed.json["params"]["requestId"]
            await session.post(ask("ping"))
            assert [("cancelled", 1)] == gate.events

    run(scenario())


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_later_message_shows_that_the_answer_arrived(method: str):
    """Written is not heard: a client that is still there and goes on has heard."""

    async def scenario() -> None:
        async with scene() as (_, gate, session), Connection(session.connection.port) as other:
            await session.post(call("charge", "c-1"))
            await (await Session(other).start()).post(ask("ping"))
            await session.connection.request("GET", "/mcp", session.headers)
            assert [] == gate.events
            body = ask("ping") if method == "POST" else b""
            await session.connection.request(method, "/mcp", session.headers, body)
            await session.post(ask("ping"))
            assert [("delivered", "c-1")] == gate.events

    run(scenario())


def test_a_cancellation_that_crossed_the_answer_is_no_delivery():
    """A client that gave up does not look at the answer any more."""

    async def scenario() -> None:
        async with scene() as (_, gate, session):
            await session.post(call("charge", 4))
            await session.post(note("notifications/cancelled", requestId=4))
            await session.post(ask("ping"))
            assert [("cancelled", 4)] == gate.events

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


# -- the end -------------------------------------------------------------------------------------------------------


def test_open_calls_are_told_at_the_end():
    """The gate learns that nothing more will come, so that it can write down what it does not know."""

    async def scenario() -> None:
        gate = Gate()
        async with scene(gate) as (upstream, _, session), Connection(session.connection.port) as stream:

            async def hang(request: Message, answer: Answer) -> None:
                if request.method == "GET":
                    await answer.stream()
                await upstream.left.wait()

            upstream.on |= {"charge": hang, "GET": hang}
            await stream.send("GET", "/mcp", session.headers)
            await stream.head()
            await session.connection.send("POST", "/mcp", session.headers, call("charge"))
            while not upstream.calls("charge"):
                await asyncio.sleep(0.005)
            session.connection.close()
        assert (["lost"], [("cancelled", 1)]) == ([reply.kind for reply in gate.replies], gate.events)

    run(scenario())
