"""The HTTP relay over real sockets: whom it lets in, and what it refuses to relay."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from http_gate import Gate, relay, run, scene
from http_upstream import ACCEPT, JSON, Answer, Connection, Message, Upstream, ask, call, request

from onceward.adapters.mcp import http

# -- who may come in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Host", "evil.example:80")], 403),
        ([("Host", "127.0.0.1.evil.example")], 403),
        ([("Origin", "http://evil.example")], 403),
        ([("Origin", "null")], 403),
        ([("Host", "localhost:1234")], 200),
        ([("Host", "[::1]:1234"), ("Origin", "http://127.0.0.1:5173")], 200),
        ([("Host", "guard.example"), ("Origin", "https://app.example")], 200),
    ],
)
def test_foreign_hosts_and_origins_are_turned_away(headers: list[tuple[str, str]], status: int):
    """A page whose name was rebound to this machine must not reach the tools."""

    async def scenario() -> None:
        async with Upstream() as upstream:
            options = {"allowed_hosts": ["guard.example"], "allowed_origins": ["https://app.example"]}
            async with relay(upstream.url, Gate(), **options) as port:
                answer = await request(port, "POST", "/mcp", [*headers, JSON, ACCEPT], ask("ping"))
                assert status == answer.status
                assert (status == 200) == bool(upstream.requests)

    run(scenario())


def test_a_token_is_asked_for_and_kept():
    """The tool server gets the client's own credentials, never ours."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate(), token="s3cret") as port:
            for headers in ([], [("Authorization", "Bearer other")], [("X-Onceward-Token", "s3cre")]):
                assert 401 == (await request(port, "POST", "/mcp", [*headers, JSON], ask("ping"))).status
            assert [] == upstream.requests
            ours = ("X-Onceward-Token", "s3cret")
            for headers in ([("Authorization", "Bearer s3cret")], [ours, ("Authorization", "Bearer theirs")]):
                assert 200 == (await request(port, "POST", "/mcp", [*headers, JSON], ask("ping"))).status
            first, second = upstream.requests
            assert (None, None) == (first.get("authorization"), first.get("x-onceward-token"))
            assert ("Bearer theirs", None) == (second.get("authorization"), second.get("x-onceward-token"))

    run(scenario())


def test_other_machines_need_a_token():
    async def scenario() -> None:
        with pytest.raises(ValueError, match="set a token"):
            await http.serve("0.0.0.0", 0, "http://127.0.0.1:1/mcp", Gate())
        with pytest.raises(ValueError, match="upstream URL"):
            await http.serve("127.0.0.1", 0, "127.0.0.1:1/mcp", Gate())

    run(scenario())


def test_what_cannot_be_judged_is_not_relayed():
    """A call must not pass the gate in a form that the gate cannot read."""

    async def scenario() -> None:
        async with Upstream() as upstream, relay(upstream.url, Gate()) as port:
            deep = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
            packed = ("Content-Encoding", "gzip")
            for status, headers, body in (
                (400, [], b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"charge"}}'),
                (400, [], deep),
                (415, [packed], gzip.compress(call("charge"))),
                (413, [("Content-Length", str(http_cap() + 1))], b""),
            ):
                async with Connection(port) as client:
                    if status == 413:
                        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {http_cap() + 1}\r\n\r\n"
                        client._method = "POST"
                        client._writer.write(head.encode())
                        answer = await client.receive()
                    else:
                        answer = await client.request("POST", "/mcp", [JSON, ACCEPT, *headers], body)
                    assert status == answer.status, answer.body
            assert [] == upstream.requests

    run(scenario())


def http_cap() -> int:
    from onceward.adapters.mcp.http_relay import CAP

    return CAP


@pytest.mark.parametrize("spelling", [b"tools\\/call", b"tools\\u002fcall", b"tools/call"])
def test_a_call_is_known_however_it_is_spelled(spelling: bytes):
    """PHP writes its slashes so; the tool server reads them all alike."""

    async def scenario() -> None:
        async with scene() as (_, gate, session):
            answer = await session.post(call("charge").replace(b"tools/call", spelling))
            assert 200 == answer.status
            assert ["result"] == [reply.kind for reply in gate.replies]

    run(scenario())


def test_a_batch_with_a_guarded_call_is_answered_and_not_sent():
    """Its parts would share one response; revision 2025-03-26 alone had batches."""

    async def scenario() -> None:
        async with scene() as (upstream, _, session):
            seen = len(upstream.requests)
            answer = await session.post(
                b"[" + call("look", 1) + b"," + call("charge", 2) + b"," + ask("ping", 3) + b"]"
            )
            assert [1, 2, 3] == [each["id"] for each in answer.json]
            assert "Nothing of this batch was sent" in answer.json[1]["result"]["content"][0]["text"]
            assert seen == len(upstream.requests)

            async def play(request: Message, answer: Answer) -> None:
                await answer.whole(200, [JSON], b"[]")

            upstream.on["batch"] = play
            assert b"[]" == (await session.post(b"[" + call("look", 1) + b"]")).body

    run(scenario())
