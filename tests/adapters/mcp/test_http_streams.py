"""Guarded calls over the HTTP relay: their streams, and clients that go and come back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from http_gate import Gate, Session, run, scene
from http_upstream import ACCEPT, Answer, Connection, Message, Upstream, ask, call, note, result

from onceward.adapters.mcp.sse import Event, Parser

READ = {"method": "tools/call", "params": {"name": "look", "arguments": {"é": 1}}}


def said(answer: Message) -> str:
    [content] = answer.json["result"]["content"]
    return str(content["text"])


def events(answer: Message) -> list[Event]:
    return Parser(cap=1 << 20).feed(answer.body)


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


def test_an_answer_on_another_stream_ends_the_wait_of_the_call():
    """Some servers answer on the stream of the session; the client's own response is still open, so it ends there."""

    async def scenario() -> None:
        async with scene() as (upstream, gate, session), Connection(session.connection.port) as stream:
            started = asyncio.Event()

            async def charge(request: Message, answer: Answer) -> None:
                await answer.stream()
                started.set()
                await upstream.left.wait()

            async def listen(request: Message, answer: Answer) -> None:
                await answer.stream()
                await started.wait()
                await answer.event(result(1, "done"))
                await answer.event(note("notifications/message"))
                await answer.end()

            upstream.on |= {"charge": charge, "GET": listen}
            await stream.send("GET", "/mcp", session.headers)
            [last] = events(await session.post(call("charge")))
            assert b"done" in (last.data or b"")
            assert [note("notifications/message")] == [event.data for event in events(await stream.receive())]
            assert ["result"] == [reply.kind for reply in gate.replies]

    run(scenario())


def test_a_client_that_does_not_read_stops_the_server_and_not_the_memory():
    """Events wait for a slow client up to a bound; what is beyond waits at the server."""
    chunk, count = note("notifications/message", data="x" * 1_000_000), 40

    async def scenario() -> None:
        async with scene() as (upstream, gate, session), Connection(session.connection.port, limit=1 << 20) as slow:
            sent, gate.patience_s = 0, 25.0

            async def charge(request: Message, answer: Answer) -> None:
                nonlocal sent
                await answer.stream()
                for _ in range(count):
                    await answer.event(chunk)
                    sent += 1
                await answer.event(result(1))
                await answer.end()

            upstream.on["charge"] = charge
            await slow.send("POST", "/mcp", session.headers, call("charge"))
            seen = -1
            while seen < sent:
                seen = sent
                await asyncio.sleep(0.2)
            assert sent < count
            answer = await slow.receive()
            assert answer.complete
            sizes = [len(event.data or b"") for event in Parser(cap=1 << 27).feed(answer.body)]
            assert [len(chunk)] * count + [len(result(1))] == sizes

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


def test_a_signal_ends_the_proxy_in_order():
    """The journal is closed after the relay, so a signal must not end the process on the spot."""
    program = (
        "import asyncio; from http_gate import Gate; from onceward.adapters.mcp.http import serve\n"
        "say = lambda port: print(port, flush=True)\n"
        "asyncio.run(serve('127.0.0.1', 0, 'http://127.0.0.1:1/mcp', Gate(), ready=say))\n"
        "print('closed')"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.terminate()
        assert ("closed\n", 0) == (process.stdout.read(), process.wait())
