"""A folder with a ledger, a journal, a secret and contracts, and the real proxy processes that work in it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from onceward.journal import open_journal

HERE = Path(__file__).parent
SCOPE = "nightly"
OWNER = "ops@example.com"
CHARGE = {"invoice": "in_7", "amount": 100}
BLOCK = "dev.onceward/guard"
_KEY = "{in: argument:idempotency_key, retention: 24h%s}"
_READ = "read_back: {tool: list_charges, items: charges, match: {invoice: invoice}, created: created, lag: 0s}"
#: what a contract may promise about the same tool
SHAPES = {
    "key": [f"key: {_KEY % ', concurrent: safe'}", "in_flight: IN_FLIGHT"],
    "read_back": [_READ, "in_flight: IN_FLIGHT"],
    "both": [f"key: {_KEY % ''}", _READ, "in_flight: IN_FLIGHT"],
    "neither": [],
}
_HARNESS = ("ONCEWARD_SCOPE", "ONCEWARD_JOURNAL", "CLAUDE_CODE_SESSION_ID", "COPILOT_AGENT_SESSION_ID")


def contracts(shape: str, in_flight: str = "1s") -> str:
    """Return a contract file of one shape."""
    promises = [line.replace("IN_FLIGHT", in_flight) for line in SHAPES[shape]]
    return "\n".join(
        [
            "version: 1",
            "server: payments",
            f"owner: {OWNER}",
            "tools:",
            "  charge:",
            *(f"    {line}" for line in ["effect: write", "identity: [invoice]", *promises]),
            "  wipe: {effect: unsafe, identity: [table]}",
            "  list_charges: {effect: read}",
            "",
        ]
    )


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for what another process does."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` made, as JSON would have it; of many test workers one makes it, the others wait."""
    base = factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / f"{name}.json"
        if not made.exists():
            made.write_text(json.dumps(make()))
        return json.loads(made.read_text())


class World:
    """Everything that outlives a proxy."""

    def __init__(self, folder: Path, shape: str, *, in_flight: str = "1s") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.journal, self.secret = folder, folder / "journal.db", folder / "secret"
        self.contracts = folder / "contracts.yaml"
        self.contracts.write_text(contracts(shape, in_flight))
        self.environ = {name: value for name, value in os.environ.items() if name not in _HARNESS}
        self.environ["ONCEWARD_SECRET_FILE"] = str(self.secret)
        self.server = [sys.executable, str(HERE / "ledger_server.py"), str(folder)]
        self._clients: list[Client] = []
        self._stopped: list[int] = []

    @property
    def effects(self) -> list[dict[str, Any]]:
        """What really happened."""
        ledger = self.folder / "ledger"
        return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []

    def proxy(self, point: str = "never", *options: str) -> Client:
        """Start a proxy that dies at a point, and shake hands with it."""
        words = ["--contracts", str(self.contracts), "--journal", str(self.journal), "--scope", SCOPE, *options]
        command = [sys.executable, str(HERE / "dying.py"), point, *words, "--", *self.server]
        client = Client(command, self.environ)
        self._clients.append(client)
        return client

    def pause(self, point: str) -> None:
        """Have the tool server stop at a point."""
        (self.folder / f"pause.{point}").touch()

    def reached(self, point: str) -> int:
        """Wait until a tool server stands at a point, let the next one pass; return its pid."""
        file = self.folder / f"reached.{point}"
        until(file.exists)
        (self.folder / f"pause.{point}").unlink()
        self._stopped.append(int(file.read_text()))
        return self._stopped[-1]

    def go(self, point: str) -> None:
        """Let a tool server that stands at a point go on."""
        (self.folder / f"go.{point}").touch()

    def problems(self) -> list[str]:
        """Look over the journal."""
        with closing(open_journal(self.journal, create=False)) as journal:
            return list(journal.check())

    def close(self) -> None:
        """End every process of this folder."""
        for client in self._clients:
            client.kill()
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def call_in_turn(points: dict[World, list[str]]) -> None:
    """Make the library's calls, each in a process of its own that dies at its point."""
    jobs = json.dumps([[str(world.folder), list(each)] for world, each in points.items()])
    command = [sys.executable, str(HERE / "library_children.py"), jobs]
    subprocess.run(command, timeout=60, check=True)


class Client:
    """An MCP client of one proxy."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._watchdog = threading.Timer(60.0, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        self._id = 0
        self._results: dict[int, dict[str, Any]] = {}  # that nobody asked for yet
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.ask("initialize", hello)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, name: str = "charge", arguments: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Call a tool; None = the proxy died first."""
        return self.ask("tools/call", {"name": name, "arguments": CHARGE if arguments is None else arguments})

    def begin(self, name: str = "charge", arguments: dict[str, Any] | None = None) -> int:
        """Call a tool, and do not wait."""
        return self._send("tools/call", {"name": name, "arguments": CHARGE if arguments is None else arguments})

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request and return its result; None = the proxy died first."""
        return self.answer(self._send(method, params))

    def answer(self, id: int) -> dict[str, Any] | None:
        """Wait for the result of a request."""
        assert self.process.stdout is not None
        while id not in self._results and (line := self.process.stdout.readline()):
            message = json.loads(line)
            if "id" in message and "method" not in message:
                self._results[message["id"]] = message["result"]
        return self._results.pop(id, None)

    def kill(self) -> None:
        """End the proxy as a power cut would."""
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        self._listener.join(1.0)

    def leave(self) -> int:
        """Close in good order; return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(10)
        self._watchdog.cancel()
        self._listener.join(1.0)
        return code

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode())

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._id += 1
        self._write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return self._id

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()


def block(result: dict[str, Any] | None) -> dict[str, Any]:
    """Return what an answer tells machines; {} for the tool server's own answer."""
    assert result is not None, "the proxy died"
    found: dict[str, Any] = (result.get("_meta") or {}).get(BLOCK) or {}
    return found


def text(result: dict[str, Any] | None) -> str:
    """Return what an answer tells a model."""
    assert result is not None, "the proxy died"
    return "\n".join(part["text"] for part in result["content"])
