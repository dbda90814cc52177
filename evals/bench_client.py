"""A client of one MCP server over stdio, with as little of its own as can be: blocking pipes and JSON lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from .bench_rows import Missing

_ERA = "2025-11-25"
_HANG_S = (
    60.0  #: no request here takes a second on an idle machine: a peer that takes longer hangs, and its rows say so
)
_LAST = 400  #: characters of its error output that are shown then
_HELLO = {"protocolVersion": _ERA, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Client:
    """One process that is spoken to. Raises Missing when it ends, or answers with an error."""

    def __init__(self, command: Sequence[str], environ: dict[str, str]) -> None:
        """Start the process."""
        self._errors = TemporaryFile()  # noqa: SIM115  # open for as long as the process; `close` closes it
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, env=environ)
        except OSError as error:
            raise Missing(f"cannot start {command[0]}: {error.strerror}") from error
        assert self.process.stdout is not None
        self._poll = select.poll()
        self._poll.register(self.process.stdout, select.POLLIN)
        self._read = b""
        self._id = 0

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result; what the server says in between is passed over."""
        self._id += 1
        self._write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        while line := self._line(method):
            message = json.loads(line)
            if message.get("id") == self._id and "method" not in message:
                if "result" not in message:
                    raise Missing(f"{method} was answered with an error: {message.get('error')}")
                result: dict[str, Any] = message["result"]
                return result
        raise Missing(f"no answer to {method}: {self._last_words()}")

    def hello(self) -> None:
        """Make the first request, and wait for its answer."""
        self.ask("initialize", _HELLO)

    def settle_in(self) -> None:
        """Finish the handshake, and list the tools as clients do."""
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.ask("tools/list", {})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise Missing(f"{tool} failed: {json.dumps(result.get('content'))[:_LAST]}")
        return result

    def resident_mib(self) -> float:
        """Return how much memory this process alone, without its children, keeps in use."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise Missing("there is no /proc here to read memory from") from error
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def close(self) -> None:
        """Close its input, as clients do at their end, and wait; kill it if that is not enough."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(10.0)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._errors.close()

    def _line(self, method: str) -> bytes:
        """Return the next line; empty when there is none to come."""
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            if not self._poll.poll(_HANG_S * 1e3):
                self.process.kill()
                raise Missing(f"no answer to {method} within {_HANG_S:g} s: {self._last_words()}")
            part = os.read(self.process.stdout.fileno(), 65_536)
            if not part:
                return b""
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Missing(f"it ended: {self._last_words()}") from error

    def _last_words(self) -> str:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        return words[-_LAST:] or "it said nothing"


@contextmanager
def client(command: Sequence[str], folder: Path, *, at_ease: bool = True) -> Iterator[Client]:
    """Start a server for the block; `at_ease` shakes hands first."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    one = Client(command, {**environ, "ONCEWARD_SECRET_FILE": str(folder / "secret")})
    try:
        if at_ease:
            one.hello()
            one.settle_in()
        yield one
    finally:
        one.close()


def proxied(command: Sequence[str], contracts: Path, journal: Path) -> list[str]:
    """Return the command of the guard's proxy in front of a server."""
    options = ["--contracts", str(contracts), "--journal", str(journal), "--scope", "bench"]
    return [sys.executable, "-m", "onceward.adapters.cli", "proxy", *options, "--", *command]
