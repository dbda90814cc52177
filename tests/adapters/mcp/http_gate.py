"""A gate that records what it is told, and the HTTP relay around it, in one event loop with a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from http_upstream import ACCEPT, JSON, Connection, Headers, Message, Upstream, ask, note

from onceward.adapters.mcp import http
from onceward.adapters.mcp.wire import Call
from onceward.adapters.mcp.wire import Upstream as Way
from onceward.outcomes import Reply

WAIT_S = 10.0  #: only ends a hang


class Gate:
    """Wants every call but `look`; sends it once, and says what it learned."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.replies: list[Reply] = []
        self.patience_s = WAIT_S
        self.message: dict[str, Any] | None = None
        self.headers: dict[str, str] | None = None
        self.allowed = True
        self.own: dict[str, Any] | None = None  #: sent on our own account after the call
        self.shown: dict[str, Any] = {}
        self.late = asyncio.Event()

    def wants(self, call: Call) -> bool:
        return call.name != "look"

    async def handle(self, call: Call, upstream: Way) -> bytes:
        future = upstream.exchange(call, self.message, headers=self.headers, before_send=lambda: self.allowed)
        done, _ = await asyncio.wait({future}, timeout=self.patience_s)
        if not done:
            future.add_done_callback(self._harvest)
            return self._answer(call, "no answer yet")
        self.replies.append(future.result())
        if self.own is not None:
            self.replies.append(await upstream.exchange(call, self.own, own=True))
        reply = self.replies[-1]
        passes = self.own is None and reply.kind in ("result", "rpc_error")
        return reply.raw if passes and reply.raw is not None else self._answer(call, reply.kind)

    def _harvest(self, future: asyncio.Future[Reply]) -> None:
        self.replies.append(future.result())
        self.late.set()

    def _answer(self, call: Call, text: str) -> bytes:
        result = {"content": [{"type": "text", "text": f"gate: {text}"}]}
        return json.dumps({"jsonrpc": "2.0", "id": call.id, "result": result}).encode()

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        return {**result, **self.shown} if self.shown else None

    def cancelled(self, call: Call) -> None:
        self.events.append(("cancelled", call.id))

    def delivered(self, call: Call) -> None:
        self.events.append(("delivered", call.id))


@asynccontextmanager
async def relay(url: str, gate: Gate, **options: Any) -> AsyncIterator[int]:
    """Run the relay; yields its port."""
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(http.serve("127.0.0.1", 0, url, gate, ready=bound.set_result, **options))
    await asyncio.wait({bound, serving}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield bound.result() if bound.done() else await serving
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a test's scenario, and end it when it hangs."""
    asyncio.run(asyncio.wait_for(scenario, 3 * WAIT_S))


class Session:
    """A client of the handshake era."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.headers: Headers = [JSON, ACCEPT]

    async def start(self) -> Session:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        answer = await self.post(ask("initialize", 0, **hello))
        self.headers += [("Mcp-Session-Id", answer.get("mcp-session-id") or ""), ("MCP-Protocol-Version", "2025-11-25")]
        await self.post(note("notifications/initialized"))
        return self

    @property
    def id(self) -> str:
        return dict(self.headers)["Mcp-Session-Id"]

    async def post(self, body: bytes) -> Message:
        return await self.connection.request("POST", "/mcp", self.headers, body)


@asynccontextmanager
async def scene(gate: Gate | None = None, **options: Any) -> AsyncIterator[tuple[Upstream, Gate, Session]]:
    """A tool server, the relay, and a client that has shaken hands."""
    gate = gate or Gate()
    async with Upstream() as upstream, relay(upstream.url, gate, **options) as port, Connection(port) as connection:
        yield upstream, gate, await Session(connection).start()
