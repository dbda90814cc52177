"""A client that behaves like an agent's harness: it gives up, restarts what died, and sends again by itself.

What it does was seen in real harnesses. A call that is not answered in time is cancelled and reported as timed out. A
stdio server that died is started again for the next call. An HTTP 404 is taken for a lost session: a new one is opened
and the call is sent once more, without asking anybody. Whether to ask again after a failure is the model's choice, not
the client's: see `scenarios`. It imports the standard library alone, and knows nothing of the guard.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal, Self
from urllib.parse import urlsplit

HANDSHAKE_ERA = "2025-11-25"
STATELESS_ERA = "2026-07-28"
CLIENT = {"name": "demo-agent", "version": "1"}
_START_S = 20.0  #: a server that did not shake hands by then is broken


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call came to, as the model is told."""

    kind: Literal["answered", "timed_out", "closed", "failed"]  #: closed: the server or the connection is gone
    text: str
    is_error: bool
    body: dict[str, Any] = field(default_factory=dict)  #: the result; of `failed`, the JSON-RPC error
    resends: int = 0  #: how often the client sent the call again by itself


class McpError(Exception):
    """The server does not answer as a server does."""


def _told(message: dict[str, Any]) -> ToolResult:
    if "error" in message:
        error = message["error"]
        return ToolResult(
            kind="failed", text=f"MCP error {error['code']}: {error['message']}", is_error=True, body=error
        )
    body = message["result"]
    texts = [block["text"] for block in body.get("content", ()) if block.get("type") == "text"]
    return ToolResult(kind="answered", text="\n".join(texts), is_error=bool(body.get("isError")), body=body)


def _timed_out(name: str, timeout_s: float) -> ToolResult:
    return ToolResult(kind="timed_out", text=f"tool {name} timed out after {timeout_s:g} s", is_error=True)


_CLOSED = ToolResult(kind="closed", text="MCP error -32000: Connection closed", is_error=True)


class _Session:
    """The messages of one client, in either era of the protocol."""

    def __init__(self, era: str, meta: Mapping[str, Any]) -> None:
        self.era, self._meta, self._ids = era, dict(meta), itertools.count(1)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return a request under a new id."""
        meta = {**self._meta, **params.get("_meta", {})}
        if self.era == STATELESS_ERA:
            envelope = {"protocolVersion": self.era, "clientInfo": CLIENT, "clientCapabilities": {}}
            meta |= {f"io.modelcontextprotocol/{name}": value for name, value in envelope.items()}
        params = {**params, "_meta": meta} if meta else params
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    def hello(self) -> dict[str, Any]:
        """Return the first request of the era."""
        if self.era == STATELESS_ERA:
            return self.request("server/discover", {})
        return self.request("initialize", {"protocolVersion": self.era, "capabilities": {}, "clientInfo": CLIENT})

    def call(self, name: str, arguments: Mapping[str, Any], call_id: str | None) -> dict[str, Any]:
        """Return a tools/call; `call_id` is the harness's own name for it, which not every harness sends."""
        meta = {"_meta": {"callId": call_id}} if call_id is not None else {}
        return self.request("tools/call", {"name": name, "arguments": dict(arguments), **meta})


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def _cancel(id: int) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": id, "reason": "Request timed out"},
    }


# --- stdio


class _Process:
    """One run of a stdio server."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, log: IO[bytes] | None) -> None:
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=env)
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._lock, self.dead = threading.Lock(), False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            message = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(message.get("id"), None) if "method" not in message else None
            if waiting is not None:  # else a notification, or an answer that nobody waits for any more
                waiting.put(message)
        with self._lock:
            self.dead = True
            for waiting in self._waiting.values():
                waiting.put(None)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; one that cannot be sent shows by what does not come back."""
        assert self.popen.stdin is not None
        with self._lock, suppress(BrokenPipeError):
            self.popen.stdin.write(json.dumps(message).encode() + b"\n")
            self.popen.stdin.flush()

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Return the response; None when the server died. Raises queue.Empty when it does not come in time."""
        answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            if self.dead:
                return None
            self._waiting[message["id"]] = answer
        self.tell(message)
        return answer.get(timeout=timeout_s)


class StdioClient:
    """A client of a stdio server that it starts itself, and starts again when it died."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        era: str = HANDSHAKE_ERA,
        meta: Mapping[str, Any] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        """Take the server's command; `env` is its whole environment, `log` its stderr. Each request has `meta`."""
        self.command, self._env, self._log = list(command), env, log
        self.starts = 0
        self._session = _Session(era, meta or {})
        self._process: _Process | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Return the pid of the server that runs."""
        return self._process.popen.pid if self._process is not None else None

    def connect(self) -> None:
        """Start the server and shake hands, unless one is there. Raises McpError."""
        self._running()

    def _running(self) -> _Process:
        with self._starting:
            if self._process is not None and not self._process.dead:
                return self._process
            self._reap()
            self.starts += 1
            process = self._process = _Process(self.command, self._env, self._log)
            try:
                answer = process.ask(self._session.hello(), _START_S)
            except queue.Empty:
                answer = None
            if answer is None or "error" in answer:
                raise McpError(f"{self.command[0]} did not shake hands: {answer}")
            if self._session.era != STATELESS_ERA:
                process.tell(INITIALIZED)
            return process

    def tools(self) -> list[dict[str, Any]]:
        """List the tools, as harnesses do before the first call. Raises McpError."""
        try:
            answer = self._running().ask(self._session.request("tools/list", {}), _START_S)
        except queue.Empty:
            answer = None
        if answer is None or "error" in answer:
            raise McpError(f"tools/list was not answered: {answer}")
        tools: list[dict[str, Any]] = answer["result"]["tools"]
        return tools

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float, call_id: str | None = None) -> ToolResult:
        """Call a tool once. Safe to use from several threads."""
        process, message = self._running(), self._session.call(name, arguments, call_id)
        try:
            answer = process.ask(message, timeout_s)
        except queue.Empty:
            process.tell(_cancel(message["id"]))
            return _timed_out(name, timeout_s)
        return _CLOSED if answer is None else _told(answer)

    def close(self, grace_s: float = 0.5) -> None:
        """End as a harness ends: close the server's standard input, and soon after kill it."""
        with self._starting:
            self._reap(grace_s)

    def _reap(self, grace_s: float = 0.0) -> None:
        if self._process is None:
            return
        popen, self._process = self._process.popen, None
        if popen.stdin is not None:
            with suppress(BrokenPipeError):
                popen.stdin.close()
        try:
            popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


# --- Streamable HTTP


class HttpClient:
    """A client of a Streamable HTTP server: a new session, and the call once more, when the old one is lost."""

    def __init__(
        self,
        url: str,
        *,
        era: str = HANDSHAKE_ERA,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the server's URL. `meta` and `headers` are sent with each request."""
        self.url, self._headers = urlsplit(url), dict(headers or {})
        self._session = _Session(era, meta or {})
        self._session_id: str | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def connect(self) -> None:
        """Open a session. Raises McpError or OSError."""
        self._session_id = None
        message = self._session.hello()
        status, headers, answer = self._post(message, _START_S)
        if answer is None or "error" in answer:
            raise McpError(f"{self.url.geturl()} did not shake hands: HTTP {status}, {answer}")
        if self._session.era != STATELESS_ERA:
            self._session_id = headers.get("mcp-session-id")
            self._post(INITIALIZED, _START_S)

    def tools(self) -> list[dict[str, Any]]:
        """List the tools. Raises McpError or OSError."""
        status, _, answer = self._post(self._session.request("tools/list", {}), _START_S)
        if answer is None or "error" in answer:
            raise McpError(f"tools/list was not answered: HTTP {status}, {answer}")
        tools: list[dict[str, Any]] = answer["result"]["tools"]
        return tools

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float, call_id: str | None = None) -> ToolResult:
        """Call a tool once, or twice where the session turns out to be lost. Safe to use from several threads."""
        told = self._call_once(name, arguments, timeout_s, call_id)
        if told is not None:
            return told
        self.connect()
        told = self._call_once(name, arguments, timeout_s, call_id)
        lost = ToolResult(kind="failed", text="HTTP 404: Session not found", is_error=True)
        return replace(told or lost, resends=1)

    def _call_once(
        self, name: str, arguments: Mapping[str, Any], timeout_s: float, call_id: str | None
    ) -> ToolResult | None:
        message = self._session.call(name, arguments, call_id)
        try:
            status, _, answer = self._post(message, timeout_s)
        except TimeoutError:
            if self._session.era != STATELESS_ERA:  # there, closing the connection is the cancellation
                with suppress(OSError, http.client.HTTPException):
                    self._post(_cancel(message["id"]), _START_S)
            return _timed_out(name, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            return ToolResult(kind="closed", text=f"{type(error).__name__}: {error}", is_error=True)
        if status == 404:
            return None
        if status >= 400 or answer is None:
            said = answer["error"]["message"] if answer and "error" in answer else ""
            return ToolResult(kind="failed", text=f"HTTP {status}: {said}", is_error=True)
        return _told(answer)

    def _post(self, message: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, str], dict[str, Any] | None]:
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self._session.era,
        }
        if self._session_id is not None:
            headers["Mcp-Session-Id"] = self._session_id
        if self._session.era == STATELESS_ERA:
            headers["Mcp-Method"] = message["method"]
            if "name" in message["params"]:
                headers["Mcp-Name"] = message["params"]["name"]
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=timeout_s)
        try:
            connection.request("POST", self.url.path or "/", json.dumps(message).encode(), headers)
            response = connection.getresponse()
            answer = next((m for m in _messages(response) if m.get("id") == message.get("id", "")), None)
            return response.status, {name.lower(): value for name, value in response.getheaders()}, answer
        finally:
            connection.close()

    def close(self) -> None:
        """End the session."""
        if self._session_id is None:
            return
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=_START_S)
        with suppress(OSError, http.client.HTTPException):
            connection.request("DELETE", self.url.path or "/", headers={"Mcp-Session-Id": self._session_id})
            connection.getresponse().read()
        connection.close()
        self._session_id = None


def _messages(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the messages of a response, as they come where it is a stream of events."""
    if "text/event-stream" not in (response.getheader("Content-Type") or ""):
        with suppress(ValueError):  # no body, or no JSON: there is no message
            yield json.loads(response.read())
        return
    data = b""
    for line in response:
        if line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line.strip() and data:
            yield json.loads(data)
            data = b""


# --- an agent of its own process, that can be killed


def main() -> None:
    """Start a stdio server, make one call, print what was told."""
    p = argparse.ArgumentParser(description="Make one tool call, as an agent in a process of its own.")
    p.add_argument("--tool", required=True)
    p.add_argument("--arguments", type=json.loads, required=True, metavar="JSON")
    p.add_argument("--timeout", type=float, default=60.0, metavar="S")
    p.add_argument("command", nargs="+", help="the server's command, after --")
    options = p.parse_args()
    with StdioClient(options.command) as client:
        client.tools()
        told = client.call(options.tool, options.arguments, options.timeout)
    json.dump({"kind": told.kind, "text": told.text, "is_error": told.is_error, "body": told.body}, sys.stdout)


if __name__ == "__main__":
    main()
