"""A client that only reads: what `onceward sweep` asks a tool server with.

It starts the server itself (or posts to its URL), shakes hands in the era that the server speaks, and calls read tools.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from onceward.outcomes import Reply

_HANDSHAKE_ERA = "2025-11-25"
_STATELESS_ERA = "2026-07-28"
_CLIENT = {"name": "onceward-sweep", "version": "1"}
_WAIT_S = 30.0
_LINE_MOST = 64 * 1024 * 1024


class Asker(Protocol):
    """Something that calls a read tool."""

    async def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Return the reply of one read; never raises for what the server does."""
        ...


class _Wire(Protocol):
    async def ask(self, message: dict[str, Any]) -> dict[str, Any] | None: ...

    async def tell(self, message: dict[str, Any]) -> None: ...


class _Session:
    """The handshake and the envelope, over either transport."""

    def __init__(self, wire: _Wire) -> None:
        self._wire, self._ids, self._envelope = wire, itertools.count(1), False

    async def start(self) -> None:
        hello = {"protocolVersion": _HANDSHAKE_ERA, "capabilities": {}, "clientInfo": _CLIENT}
        answer = await self._wire.ask(self._request("initialize", hello))
        if answer is not None and "result" in answer:
            await self._wire.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        else:
            self._envelope = True  # a stateless server knows no handshake

    async def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        try:
            answer = await asyncio.wait_for(
                self._wire.ask(self._request("tools/call", {"name": name, "arguments": arguments})), _WAIT_S
            )
        except (OSError, TimeoutError, ValueError) as error:
            return Reply(kind="lost", text=str(error) or type(error).__name__)
        if answer is None:
            return Reply(kind="lost", text="the tool server gave no answer")
        if "error" in answer:
            return Reply(kind="rpc_error", body=answer["error"])
        return Reply(kind="result", body=answer.get("result"))

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._envelope:
            meta = {"protocolVersion": _STATELESS_ERA, "clientInfo": _CLIENT, "clientCapabilities": {}}
            params = {**params, "_meta": {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}}
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}


class _Stdio:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def tell(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        await self._stdin.drain()

    async def ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        await self.tell(message)
        while line := await self._stdout.readline():
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if not isinstance(answer, dict):
                continue
            if answer.get("id") == message["id"] and "method" not in answer:
                return answer
            if "method" in answer and "id" in answer:  # a request of the server: this client offers nothing
                error = {"code": -32601, "message": "not offered"}
                await self.tell({"jsonrpc": "2.0", "id": answer["id"], "error": error})
        raise ConnectionError("the tool server ended before it answered")


class _Http:
    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url
        self._headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": _HANDSHAKE_ERA}

    async def tell(self, message: dict[str, Any]) -> None:
        await self._post(message, self._headers)

    async def ask(self, message: dict[str, Any]) -> dict[str, Any] | None:
        headers = dict(self._headers)
        if "_meta" in message["params"]:
            headers |= {"mcp-protocol-version": _STATELESS_ERA, "mcp-method": message["method"]}
            if "name" in message["params"]:
                headers["mcp-name"] = message["params"]["name"]
        response = await self._post(message, headers)
        if "mcp-session-id" in response.headers:
            self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        for part in _messages(response):
            if isinstance(part, dict) and part.get("id") == message["id"] and "method" not in part:
                return part
        return None

    async def _post(self, message: dict[str, Any], headers: dict[str, str]) -> Any:
        from httpx2 import HTTPError

        try:
            return await self._client.post(self._url, json=message, headers=headers)
        except HTTPError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error


def _messages(response: Any) -> list[Any]:
    if "text/event-stream" not in response.headers.get("content-type", ""):
        try:
            return [response.json()]
        except ValueError:
            return []
    found = []
    for event in response.text.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:"))
        if data.strip():
            found.append(json.loads(data))
    return found


@asynccontextmanager
async def connected(command: Sequence[str] | None, url: str | None) -> AsyncIterator[Asker]:
    """Start a tool server, or reach one at its URL, for reads. Raises OSError when that fails."""
    if url is not None:
        import httpx2

        async with httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=_WAIT_S) as client:
            session = _Session(_Http(client, url))
            await session.start()
            yield session
        return
    assert command
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_LINE_MOST)
    try:
        session = _Session(_Stdio(process))
        await asyncio.wait_for(session.start(), _WAIT_S)
        yield session
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 2.0)
        except TimeoutError:
            process.kill()
            await process.wait()
