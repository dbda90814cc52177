"""The HTTP relay over real sockets: what it must not touch."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fidelity import CASES, Case
from http_gate import Gate, Session, relay, run, scene
from http_upstream import ACCEPT, JSON, SSE, Answer, Connection, Message, Upstream, ask, call, note, request

from onceward.adapters.mcp.sse import Parser

HERE = Path(__file__).parent
MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "com.example/x": [1.0]}
HOP = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


def free(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key.lower(), value) for key, value in headers if key.lower() not in HOP]


# -- fidelity ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(), ("--sse",)], ids=["json", "sse"])
def echo(request: pytest.FixtureRequest) -> Iterator[int]:
    words = [sys.executable, str(HERE / "echo_server.py"), "--http", "0", *request.param]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        yield int(process.stderr.readline())
        process.kill()


@pytest.mark.parametrize("wanted", [False, True], ids=["relayed", "guarded"])
def test_every_byte_arrives_as_it_was_sent(echo: int, wanted: bool):
    """A relay that rebuilds messages loses what it does not know; the server answers only the exact bytes."""

    class Passing(Gate):
        def wants(self, call: object) -> bool:
            return wanted

    async def scenario() -> None:
        async with relay(f"http://127.0.0.1:{echo}/mcp", Passing()) as port:
            for case in CASES:
                assert list(case.expected) == await messages(port, case), case.name

    run(scenario())


async def messages(port: int, case: Case) -> list[bytes]:
    async with Connection(port) as connection:
        await connection.send("POST", "/mcp", [JSON, ACCEPT], case.request)
        head = await connection.head()
        assert 200 == head.status
        if "event-stream" not in (head.get("content-type") or ""):
            return [b"".join([part async for part in connection.parts(head)])]
        found, answers, parser = [], list(case.answers), Parser(cap=1 << 27)
        async for part in connection.parts(head):
            for event in parser.feed(part):
                assert event.data is not None
                found.append(event.data)
                message = json.loads(event.data)
                if "method" in message and "id" in message:
                    answer = await request(port, "POST", "/mcp", [JSON, ACCEPT], answers.pop(0))
                    assert 202 == answer.status
        return found


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT"])
def test_requests_and_responses_keep_path_headers_and_status(method: str):
    """Authorization, session, mirrored headers and whatever comes next year are not the relay's business."""
    sent = [
        ("Authorization", "Bearer abc"),
        ("Mcp-Method", "x/y"),
        ("Mcp-Param-Region", "=?base64?w6k=?="),
        ("Last-Event-ID", "e-7"),
        ("X-New", "a"),
        ("X-New", "b"),
        ("Accept-Encoding", "br;q=0.5"),
        ("Accept", "*/*"),
        ("Origin", "http://localhost:3000"),
    ]
    back = [
        ("X-Odd", "1"),
        ("x-odd", "2"),
        ("WWW-Authenticate", 'Bearer resource_metadata="http://a/b"'),
        ("Vary", "*"),
    ]

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(418, back, b"" if method == "HEAD" else b"teapot")

            for name in ("GET", "DELETE", "OPTIONS", "HEAD", "PUT", "x/y"):
                upstream.on[name] = play
            target = "/.well-known/oauth-protected-resource/mcp?a=%2F..&b=c%20d"
            body = ask("x/y") if method == "POST" else b"{}" if method == "PUT" else b""
            answer = await request(port, method, target, [*sent, ("Connection", "x-hop"), ("X-Hop", "1")], body)
            [got] = upstream.requests
            assert (method, target, body) == (got.method, got.target, got.body)
            assert free(sent) == free(got.headers)
            assert f"127.0.0.1:{upstream.port}" == got.get("host")
            assert (418, b"" if method == "HEAD" else b"teapot") == (answer.status, answer.body)
            assert back == [(k, v) for k, v in answer.headers if k.lower() not in HOP]

    run(scenario())


def test_the_root_stands_for_the_endpoint():
    """A client that is given only host and port reaches the tool server all the same."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(f"{upstream.url}?team=1", Gate()) as port:
            await request(port, "POST", "/", [JSON, ACCEPT], ask("ping"))
            await request(port, "POST", "/mcp", [JSON, ACCEPT], ask("ping"))
            assert ["/mcp?team=1"] * 2 == [each.target for each in upstream.requests]

    run(scenario())


def test_redirects_are_passed_on_and_never_followed():
    """A followed redirect would carry credentials to another place, and a call twice."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(307, [("Location", f"{upstream.url}/elsewhere")])

            upstream.on["ping"] = play
            answer = await request(port, "POST", "/mcp", [JSON, ACCEPT], ask("ping"))
            assert (307, f"{upstream.url}/elsewhere") == (answer.status, answer.get("location"))
            assert 1 == len(upstream.requests)

    run(scenario())


def test_compressed_bodies_pass_as_they_are():
    """Decoding and encoding again would change bytes, and lengths that somebody checks."""
    packed = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{}}')

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(200, [JSON, ("Content-Encoding", "gzip")], packed)

            upstream.on["ping"] = play
            answer = await request(port, "POST", "/mcp", [JSON, ACCEPT, ("Accept-Encoding", "gzip")], ask("ping"))
            assert (packed, "gzip", str(len(packed))) == (
                answer.body,
                answer.get("content-encoding"),
                answer.get("content-length"),
            )

    run(scenario())


def test_a_large_body_streams_through():
    """The first part is with the client before the last one exists."""
    half = b"x" * 2_500_000

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port, Connection(port) as client:
            go = asyncio.Event()

            async def play(request: Message, answer: Answer) -> None:
                await answer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5000000\r\n\r\n")
                await answer.raw(half)
                await go.wait()
                await answer.raw(half)

            upstream.on["look"] = play
            await client.send("POST", "/mcp", [JSON, ACCEPT], call("look"))
            head, size = await client.head(), 0
            async for part in client.parts(head):
                size += len(part)
                if size == len(half):
                    go.set()
            assert 2 * len(half) == size

    run(scenario())


def test_both_eras_and_notifications_pass():
    """The stateless era has no handshake, so nothing here may wait for one."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):
            assert 202 == (await session.post(note("notifications/progress", progressToken=1))).status
            assert session.id == upstream.requests[-1].get("mcp-session-id")
            modern = [JSON, ACCEPT, ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "server/discover")]
            body = json.dumps({"jsonrpc": "2.0", "id": "é", "method": "server/discover", "params": {"_meta": MODERN}})
            answer = await session.connection.request("POST", "/mcp", modern, body.encode())
            assert "é" == answer.json["id"]
            assert body.encode() == upstream.requests[-1].body
            assert "server/discover" == upstream.requests[-1].get("mcp-method")

    run(scenario())


def test_the_stream_of_a_session_passes_event_by_event():
    """Clients learn from it that the tools changed; comments and odd line ends are bytes like others."""
    pieces = [b": hello\r\n\r\n", b"id: 1\ndata: " + note("notifications/tools/list_changed") + b"\n\n", b"data: x\r\r"]

    async def scenario() -> None:
        async with scene() as (upstream, _, session), Connection(session.connection.port) as stream:
            more = asyncio.Event()

            async def play(request: Message, answer: Answer) -> None:
                await answer.stream()
                for piece in pieces:
                    await answer.chunk(piece)
                    await more.wait()
                    more.clear()
                await answer.chunk(b"data: cut off")
                await answer.end()

            upstream.on["GET"] = play
            headers = [*session.headers, ("Last-Event-ID", "e-0")]
            await stream.send("GET", "/mcp", headers)
            head = await stream.head()
            assert SSE == ("Content-Type", head.get("content-type"))
            found = []
            async for part in stream.parts(head):
                found.append(part)
                more.set()
            assert [*pieces, b"data: cut off"] == found
            assert "e-0" == upstream.requests[-1].get("last-event-id")

    run(scenario())


def test_a_lost_session_is_the_clients_to_renew():
    """On an ordinary request the 404 passes: the client shakes hands again, as the protocol says."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):
            upstream.sessions.clear()
            assert 404 == (await session.post(ask("resources/list"))).status
            assert 200 == (await (await Session(session.connection).start()).post(ask("resources/list"))).status

    run(scenario())


def test_closing_a_session_passes():
    async def scenario() -> None:
        async with scene() as (upstream, _, session):

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(204, [])

            upstream.on["DELETE"] = play
            assert 204 == (await session.connection.request("DELETE", "/mcp", session.headers)).status
            assert session.id == upstream.requests[-1].get("mcp-session-id")

    run(scenario())


def test_a_client_that_leaves_takes_a_read_with_it():
    """In the stateless era a closed stream is the cancellation, and the server must see it."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):

            async def play(request: Message, answer: Answer) -> None:
                await answer.stream()
                await asyncio.wait_for(upstream.left.wait(), 5)

            upstream.on["look"] = play
            await session.connection.send("POST", "/mcp", session.headers, call("look"))
            await session.connection.head()
            session.connection.close()
            await asyncio.wait_for(upstream.left.wait(), 5)

    run(scenario())


def test_an_unreachable_upstream_is_a_502_for_reads():
    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:
            upstream.stop()
            answer = await request(port, "POST", "/mcp", [JSON, ACCEPT], ask("ping", 7))
            assert (502, 7, -32603) == (answer.status, answer.json["id"], answer.json["error"]["code"])

    run(scenario())


def test_a_broken_response_breaks_for_the_client_too():
    """A truncated answer must not look like a whole one."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(200, [JSON], b'{"jsonrpc"', length=100)
                answer.drop()

            upstream.on["look"] = play
            answer = await session.post(call("look"))
            assert (200, False) == (answer.status, answer.complete)

    run(scenario())


# -- tool lists ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_a_tool_list_is_shown_to_the_gate(stream: bool):
    """The label argument and the status tool come in here; without a change the bytes stay."""
    body = b'{"jsonrpc" : "2.0","id":1,"result":{"tools":[{"name":"a","x":1.50}],"n":1}}'

    async def scenario() -> None:
        async with scene() as (upstream, gate, session):

            async def play(request: Message, answer: Answer) -> None:
                if not stream:
                    return await answer.whole(200, [JSON], body)
                await answer.stream()
                await answer.event(note("notifications/message"), "1")
                await answer.event(body, "2")
                return await answer.end()

            upstream.on["tools/list"] = play
            expected = note("notifications/message")
            untouched = await session.post(ask("tools/list"))
            gate.shown = {"more": True}
            changed = await session.post(ask("tools/list"))
            if not stream:
                assert body == untouched.body
                assert {"tools": [{"name": "a", "x": 1.5}], "n": 1, "more": True} == changed.json["result"]
                assert str(len(changed.body)) == changed.get("content-length")
                return
            first, second = Parser(cap=10_000).feed(untouched.body)
            assert [expected, body] == [first.data, second.data]
            first, second = Parser(cap=10_000).feed(changed.body)
            assert (expected, b"2") == (first.data, second.id)
            assert json.loads(second.data or b"")["result"]["more"]

    run(scenario())
