"""A client of the stdio relay for tests: it starts `relay_main.py` before `echo_server.py` and talks to it in bytes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"roots": {}},
    "clientInfo": {"name": "t", "version": "1"},
}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
    "com.example/trace": "t-1",
}
SERVER = (sys.executable, str(HERE / "echo_server.py"))


class Client:
    """A client that talks to a relay in lines of bytes."""

    def __init__(self, folder: Path, options: dict[str, Any], env: dict[str, str], *, reads: bool = True) -> None:
        self.folder, self.log = folder, folder / "log"
        options = {"events": str(folder / "events"), **options}
        env = {**os.environ, "ECHO_LOG": str(self.log), "ECHO_EFFECTS": str(folder / "effects"), **env}
        command = [sys.executable, str(HERE / "relay_main.py"), json.dumps(options), *SERVER]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=env
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._next = 0
        if reads:
            self.read()

    def read(self) -> None:
        """Begin to read what the relay sends."""

        def pump() -> None:
            assert self.process.stdout is not None
            with os.fdopen(os.dup(self.process.stdout.fileno()), "rb") as stdout:
                for line in stdout:
                    self._lines.put(line)
            self._lines.put(b"")

        threading.Thread(target=pump, daemon=True).start()

    def send(self, data: bytes, end: bytes = b"\n") -> None:
        """Send one message."""
        assert self.process.stdin is not None
        data += end
        while data:
            data = data[self.process.stdin.write(data) or 0 :]

    def line(self) -> bytes:
        """Return the next line; b"" at the end."""
        return self._lines.get(timeout=20)

    def get(self) -> Any:
        """Return the next message."""
        return json.loads(self.line())

    def request(self, method: str, params: Any = None, id_: Any = None) -> Any:
        """Send a request and return its id."""
        self._next += 1
        message = {"jsonrpc": "2.0", "id": id_ or self._next, "method": method}
        self.send(json.dumps(message if params is None else {**message, "params": params}).encode())
        return message["id"]

    def ask(self, method: str, params: Any = None) -> Any:
        """Send a request and return the next message, which must be its response."""
        id_ = self.request(method, params)
        message = self.get()
        assert message["id"] == id_
        return message

    def call(self, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Call a tool and return the next message, which must be its response."""
        return self.ask("tools/call", self.params(tool, meta, arguments))

    @staticmethod
    def params(tool: str, meta: dict[str, Any] | None, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {})

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def shake_hands(self) -> None:
        """Go through the handshake."""
        assert "result" in self.ask("initialize", INITIALIZE)
        self.notify("notifications/initialized")

    def events(self) -> list[str]:
        """Return what the gate learned so far."""
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def await_event(self, event: str) -> None:
        """Wait until the gate learned this."""
        wait(lambda: event in self.events(), f"{event!r} in {self.events()}")

    def received(self) -> list[bytes]:
        """Return what the tool server received so far, over all its lives."""
        return self.log.read_bytes().splitlines() if self.log.exists() else []

    def methods(self) -> list[str]:
        """Return the methods among what the tool server received."""
        return [json.loads(raw).get("method") for raw in self.received()]

    def effects(self) -> list[str]:
        """Return the effects so far."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def hang_up(self) -> int:
        """Close stdin and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(20)

    def stop(self) -> None:
        """End whatever still runs."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def stderr(self) -> str:
        """Return what was said on stderr, after the end."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def memory_kib(self) -> int:
        """Return the resident memory of the relay."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


def wait(condition: Callable[[], bool], claim: str = "") -> None:
    """Wait for something that happens in another process."""
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s, claim
        time.sleep(0.005)


def text(message: Any) -> str:
    """Return the text of a tool result."""
    return str(message["result"]["content"][0]["text"])


Start = Callable[..., Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[Client] = []

    def start(*wants: str, env: dict[str, str] | None = None, reads: bool = True, **options: Any) -> Client:
        clients.append(Client(tmp_path, {"wants": wants, **options}, env or {}, reads=reads))
        return clients[-1]

    yield start
    for client in clients:
        client.stop()


def alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
