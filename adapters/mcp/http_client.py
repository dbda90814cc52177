"""One request of a client, seen through ASGI."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from . import rpc
from .http_headers import Headers, get

BODY_S = 60.0  #: a client that sends nothing of its body for so long is gone

JSON = (b"content-type", b"application/json")


class RefusedError(Exception):
    """Says with what status a request is not relayed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class GoneError(Exception):
    """The client went away."""


class Client:
    """A request, and the way back to whoever sent it."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take what ASGI gives."""
        self.method: str = scope["method"]
        query: bytes = scope["query_string"]
        self.target: bytes = scope["raw_path"] + (b"?" + query if query else b"")
        self.headers: Headers = list(scope["headers"])
        self._peer: tuple[str, int] = tuple(scope["client"] or ("", 0))
        self._receive, self._send = receive, send
        self._started = self._complete = False
        self._drop: Callable[[], object] = lambda: None

    @property
    def host(self) -> str:
        """Return the address that the request came from, without the port."""
        return self._peer[0]

    @property
    def session(self) -> str | None:
        """Return the session id that came with the request."""
        value = get(self.headers, b"mcp-session-id")
        return None if value is None else value.decode("latin-1")

    @property
    def key(self) -> str:
        """Name the client, as well as can be: by its session, its credentials and scope, or its connection."""
        if self.session is not None:
            return f"session:{self.session}"
        names = (b"authorization", b"x-onceward-scope")
        told = [get(self.headers, name) or b"" for name in (*names, b"user-agent")]
        if not any(told[: len(names)]):
            return f"connection:{self._peer[0]}:{self._peer[1]}"
        return "user:" + hashlib.sha256(b"\0".join([self._peer[0].encode(), *told])).hexdigest()

    def accepts_stream(self) -> bool:
        """Tell whether the client said that it reads event streams."""
        return any(name == b"accept" and b"text/event-stream" in value.lower() for name, value in self.headers)

    async def body(self, cap: int) -> bytes:
        """Return the request's body. Raises RefusedError, GoneError."""
        length = get(self.headers, b"content-length") or b"0"
        if int(length) > cap:
            raise RefusedError(413, f"at most {cap} bytes are relayed")
        chunks, size = [], 0
        while True:
            try:
                async with asyncio.timeout(BODY_S):
                    message = await self._receive()
            except TimeoutError:
                raise RefusedError(408, "the rest of this request did not come; it was not sent") from None
            if message["type"] == "http.disconnect":
                raise GoneError
            size += len(message["body"])
            if size > cap:
                raise RefusedError(413, f"at most {cap} bytes are relayed")
            chunks.append(message["body"])
            if not message["more_body"]:
                return b"".join(chunks)

    @asynccontextmanager
    async def watched(self, gone: Callable[[], object] | None = None) -> AsyncIterator[None]:
        """Call `gone` when the client goes away; without it, what runs inside is ended, with GoneError."""
        task, left = asyncio.current_task(), False
        assert task is not None, "ASGI applications run in tasks"

        def drop() -> None:
            nonlocal left
            if not left:
                left = True
                task.cancel()

        self._drop = drop if gone is None else gone
        watcher = asyncio.create_task(self._watch())
        try:
            yield
        except asyncio.CancelledError:
            if left and task.uncancel() == 0:
                raise GoneError from None
            raise
        finally:
            watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.drop()

    def drop(self) -> None:
        """End a response that is still open, as when the client had gone."""
        if not self._complete:
            self._drop()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the response's head."""
        self._started = True
        # A status beyond HTTP's classes has no name to be written under.
        status = status if status < 600 else 502
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits for a client that is slow."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self._complete = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        kept = [(key, value) for key, value in headers if key.lower() != b"content-length"]
        await self.start(status, [*kept, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def refuse(self, status: int, why: str) -> None:
        """Say that the request is not relayed, unless a response has begun."""
        if not self._started:
            headers = [JSON, (b"connection", b"close")] if status in (408, 413) else [JSON]
            if status == 401:
                headers.append((b"www-authenticate", b"Bearer"))
            with suppress(OSError):
                await self.whole(status, headers, rpc.failed_request(None, why, code=-32600))
