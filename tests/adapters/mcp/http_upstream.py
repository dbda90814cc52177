"""Both ends of an HTTP relay, for tests: a scripted tool server that can break in every way, a client that sees bytes.

Standard library only, on raw streams: what a test compares is what was on the wire.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Headers = list[tuple[str, str]]
JSON = ("Content-Type", "application/json")
SSE = ("Content-Type", "text/event-stream")
ACCEPT = ("Accept", "application/json, text/event-stream")


@dataclass(slots=True)
class Message:
    """A request or response: first line, headers as written, body without framing."""

    first: str
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    complete: bool = True  #: False = the connection broke before the end

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def method(self) -> str:
        return self.first.split(" ")[0]

    @property
    def target(self) -> str:
        return self.first.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.first.split(" ")[1])

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def read_head(reader: asyncio.StreamReader) -> Message:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text[:-4].split("\r\n")
    return Message(first, [(line.partition(":")[0], line.partition(":")[2].strip()) for line in lines])


async def read_chunks(reader: asyncio.StreamReader, head: Message, *, to_end: bool) -> AsyncIterator[bytes]:
    """Yield a body as it comes; raises IncompleteReadError where it breaks off."""
    if (head.get("transfer-encoding") or "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif (length := head.get("content-length")) is not None:
        left = int(length)
        while left:
            chunk = await reader.read(min(left, 65536))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(chunk)
            yield chunk
    elif to_end:
        while chunk := await reader.read(65536):
            yield chunk


# -- the tool server -----------------------------------------------------------------------------------------------


class Answer:
    """The way back to whoever sent a request, with every way to break it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.chunked = False

    async def whole(self, status: int, headers: Headers, body: bytes = b"", *, length: int | None = None) -> None:
        size = len(body) if length is None else length
        await self.raw(_head(f"HTTP/1.1 {status} Some", [*headers, ("Content-Length", str(size))]) + body)

    async def result(self, id_: Any, text: str = "ok", *, headers: Headers | None = None) -> None:
        await self.whole(200, [JSON, *(headers or [])], result(id_, text))

    async def stream(self, headers: Headers | None = None) -> None:
        self.chunked = True
        await self.raw(_head("HTTP/1.1 200 OK", [SSE, *(headers or []), ("Transfer-Encoding", "chunked")]))

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, data: bytes, id_: str | None = None) -> bytes:
        raw = (f"id: {id_}\n".encode() if id_ else b"") + b"event: message\ndata: " + data + b"\n\n"
        await self.chunk(raw)
        return raw

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def drop(self) -> None:
        """Close without a word."""
        self._writer.close()

    def reset(self) -> None:
        """Send a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the other side closed the connection."""
        await self._writer.wait_closed()


Play = Callable[[Message, Answer], Awaitable[None]]


class Upstream:
    """A tool server: handshake, sessions, and for the rest what the test says.

    `on` maps a tool's name, a JSON-RPC method or an HTTP method to what happens. `effects` counts what calls did.
    """

    def __init__(self, *, sessions: bool = True) -> None:
        self.on: dict[str, Play] = {}
        self.requests: list[Message] = []
        self.effects = 0
        self.sessions: set[str] = set()
        self._use_sessions = sessions
        self._writers: set[asyncio.StreamWriter] = set()
        self.left = asyncio.Event()  #: the other side closed a connection while its request was open
        self.connections = 0

    async def __aenter__(self) -> Upstream:
        await self.start(0)
        return self

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 27)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def calls(self, name: str) -> list[Message]:
        return [each for each in self.requests if each.method == "POST" and _name(each) == name]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                request = await read_head(reader)
                request.body = b"".join([part async for part in read_chunks(reader, request, to_end=False)])
                self.requests.append(request)
                play = asyncio.ensure_future(self._play(request, Answer(writer)))
                while not play.done():
                    await asyncio.wait({play}, timeout=0.005)
                    if not play.done() and reader.at_eof():
                        self.left.set()
                await play
        writer.close()
        self._writers.discard(writer)

    async def _play(self, request: Message, answer: Answer) -> None:
        session = request.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            return await answer.whole(404, [JSON], b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}')
        play = self.on.get(_name(request)) or self.on.get(request.method)
        if play is not None:
            return await play(request, answer)
        if request.method != "POST":
            return await answer.whole(405, [])
        message = request.json
        if message.get("method") == "initialize":
            headers = []
            if self._use_sessions:
                self.sessions.add(f"s-{len(self.requests)}")
                headers = [("Mcp-Session-Id", f"s-{len(self.requests)}")]
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "u", "version": "1"}}
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": hello}).encode()
            return await answer.whole(200, [JSON, *headers], body)
        if "id" not in message or "method" not in message:
            return await answer.whole(202, [])
        return await answer.result(message["id"])


def _name(request: Message) -> str:
    if request.method != "POST":
        return request.method
    message = json.loads(request.body)
    if not isinstance(message, dict):
        return "batch"
    return message["params"]["name"] if message.get("method") == "tools/call" else message.get("method", "response")


def _head(first: str, headers: Headers) -> bytes:
    return "\r\n".join([first, *(f"{key}: {value}" for key, value in headers), "", ""]).encode("latin-1")


# -- the client ----------------------------------------------------------------------------------------------------


class Connection:
    """One connection of a client."""

    def __init__(self, port: int, *, limit: int = 1 << 27) -> None:
        self.port, self._limit = port, limit  # above the limit it does not read before it is asked

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=self._limit)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    async def send(self, method: str, target: str, headers: Headers | None = None, body: bytes = b"") -> None:
        out = list(headers or [])
        if not any(key.lower() == "host" for key, _ in out):
            out.insert(0, ("Host", f"127.0.0.1:{self.port}"))
        if body or method == "POST":
            out.append(("Content-Length", str(len(body))))
        self._method = method
        self._writer.write(_head(f"{method} {target} HTTP/1.1", out) + body)
        await self._writer.drain()

    async def head(self) -> Message:
        return await read_head(self._reader)

    def parts(self, head: Message) -> AsyncIterator[bytes]:
        return read_chunks(self._reader, head, to_end=True)

    async def receive(self) -> Message:
        found = await self.head()
        if self._method == "HEAD" or found.status in (204, 304):
            return found
        body = bytearray()
        try:
            async for part in self.parts(found):
                body += part
        except (asyncio.IncompleteReadError, ConnectionError):
            found.complete = False
        found.body = bytes(body)
        return found

    async def request(self, method: str, target: str, headers: Headers | None = None, body: bytes = b"") -> Message:
        await self.send(method, target, headers, body)
        return await self.receive()


async def request(port: int, method: str, target: str, headers: Headers | None = None, body: bytes = b"") -> Message:
    """Send one request on a connection of its own."""
    async with Connection(port) as connection:
        return await connection.request(method, target, headers, body)


# -- messages ------------------------------------------------------------------------------------------------------


def call(name: str, id_: Any = 1, *, meta: dict[str, Any] | None = None, **arguments: Any) -> bytes:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}).encode()


def result(id_: Any, text: str = "ok") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": text}]}}).encode()


def note(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def ask(method: str, id_: Any = 1, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode()
