"""A payments server whose answers can be made to fail: a real MCP tool server, and a ledger that is the truth.

Every effect is one line of the ledger, on disk before anything else happens; what really took place is read from there
and nowhere else. A plan, a list of faults in a file, says what becomes of the next calls: each call takes the first
fault that fits, and a restarted server goes on where the last one stopped. The server speaks raw JSON-RPC, over stdio
or Streamable HTTP, with or without the handshake. It imports the standard library alone and is started by its path,
so that it is up in a few hundredths of a second.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

HANDSHAKE_ERAS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_ERA = "2026-07-28"
SERVER = {"name": "payments-demo", "version": "1"}
KEY = "idempotency_key"
PAGE = 100  #: a list shows no more than the newest of this many

#: what can become of a call; over stdio, which has no status, an HTTP fault is a JSON-RPC error
FAULTS = {
    "ok": "nothing special",
    "lost_reply": "the effect, then no answer",
    "late_commit": "no answer, and the effect only after `after_s`",
    "die_before": "the server exits without an effect",
    "die_after": "the effect, then the server exits",
    "hang_before": "no effect and no answer",
    "slow": "the effect, then an answer after `after_s`",
    "http_404_after": "the effect, then HTTP 404: the session is lost",
    "503_after": "the effect, then HTTP 503",
    "drop_after": "the effect, then the connection breaks; over stdio the server exits",
}
STATUS = {"http_404_after": (404, -32001, "Session not found"), "503_after": (503, -32603, "Service Unavailable")}


class Tool(NamedTuple):
    """One tool: its arguments, and what it writes to the ledger or shows of it."""

    description: str
    arguments: dict[str, str]  #: name to JSON type, all required
    id: str = ""  #: prefix of the ids of its effects; "" = it reads
    shows: str = ""  #: a tool that reads: the effects of this tool
    items: str = ""  #: and the name of its list

    @property
    def keyed(self) -> bool:
        """Tell whether the tool knows idempotency keys, on a server that does."""
        return self.id == "ch"


TOOLS = {
    "charge_card": Tool("Charge a card.", {"customer": "string", "invoice": "string", "amount": "integer"}, id="ch"),
    "list_charges": Tool("List charges.", {"customer": "string"}, shows="charge_card", items="charges"),
    "send_mail": Tool("Send a mail.", {"to": "string", "subject": "string", "body": "string"}, id="ml"),
    "list_mail": Tool("List sent mails.", {"to": "string"}, shows="send_mail", items="mails"),
    "post_message": Tool("Post to a channel.", {"channel": "string", "text": "string"}, id="ps"),
}


class Fault(NamedTuple):
    """What becomes of one call."""

    name: str = "ok"
    after_s: float = 0.0


class NoAnswer(Exception):
    """The call is not answered with a result: not at all, or as `fault` says."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


def plan(path: Path, faults: Sequence[tuple[str, str] | tuple[str, str, float]]) -> Path:
    """Write a plan of `(tool, fault)` or `(tool, fault, after_s)` and return its path. Raises ValueError."""
    unknown = sorted({fault for _, fault, *_ in faults} - set(FAULTS))
    if unknown:
        raise ValueError(f"{path}: unknown fault {unknown[0]}; there are {', '.join(FAULTS)}")
    path.write_text(json.dumps(faults))
    return path


def effects(ledger: Path, tool: str | None = None) -> list[dict[str, Any]]:
    """Return what really happened, in order; a ledger that is not there yet is empty."""
    try:
        entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [entry for entry in entries if tool is None or entry["tool"] == tool]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other threads and processes out: each opening of the file has a lock of its own."""
    with open(f"{path}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Service:
    """The tools, their keys, and the faults of the plan."""

    def __init__(self, ledger: Path, plan: Path | None, *, keys: bool, lag_s: float) -> None:
        """Take the ledger and the plan, which outlive the server. `lag_s`: reads do not show what is younger."""
        self._ledger, self._plan, self._keys, self._lag_s = ledger, plan, keys, lag_s
        self._running: dict[str, threading.Event] = {}  # keys of effects that are under way

    def tools(self) -> list[dict[str, Any]]:
        """Describe the tools as `tools/list` does."""
        described = []
        for name, tool in TOOLS.items():
            properties = {argument: {"type": kind} for argument, kind in tool.arguments.items()}
            if self._keys and tool.keyed:
                properties[KEY] = {"type": "string"}
            schema = {"type": "object", "properties": properties, "required": list(tool.arguments)}
            hints = {"readOnlyHint": not tool.id}
            described.append(
                {"name": name, "description": tool.description, "inputSchema": schema, "annotations": hints}
            )
        return described

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the result of one call. Raises NoAnswer as the plan wants."""
        tool = TOOLS[name]
        known = {argument: arguments[argument] for argument in tool.arguments if argument in arguments}
        missing = sorted(set(tool.arguments) - set(known))
        if missing:
            return _failed(f"missing argument: {missing[0]}")
        fault = self._take_fault(name)
        if fault.name in ("hang_before", "die_before"):
            raise NoAnswer(fault.name)
        if not tool.id:
            return self._answered(fault, self._shown(tool, known))
        key = str(arguments[KEY]) if self._keys and tool.keyed and arguments.get(KEY) is not None else None
        if fault.name == "late_commit":
            self._commit_later(name, known, key, fault.after_s)
            raise NoAnswer("lost_reply")
        if key is not None and key in self._running:
            self._running[key].wait()
        entry = self._commit(name, known, key)
        if entry["tool"] != name or entry["arguments"] != known:
            return _failed(f"409 the key {key} was used with other arguments")
        done = {"id": entry["id"], "created_at": entry["at"], **known}
        return self._answered(fault, _result(f"{name} done: {entry['id']}", done))

    def _answered(self, fault: Fault, result: dict[str, Any]) -> dict[str, Any]:
        if fault.name == "slow":
            time.sleep(fault.after_s)
        elif fault.name != "ok":
            raise NoAnswer(fault.name)
        return result

    def _shown(self, tool: Tool, wanted: dict[str, Any]) -> dict[str, Any]:
        before_s = time.time() - self._lag_s
        entries = [entry for entry in effects(self._ledger, tool.shows) if entry["at"] <= before_s]
        items = [{"id": e["id"], "created_at": e["at"], **e["arguments"]} for e in entries]
        fitting = [item for item in items if all(item[name] == wanted[name] for name in wanted)]
        return _result(None, {tool.items: fitting[-PAGE:]})

    def _commit(self, name: str, arguments: dict[str, Any], key: str | None) -> dict[str, Any]:
        """Make one effect durable and return its entry, or the entry that the key has already."""
        with _locked(self._ledger):
            entries = effects(self._ledger)
            for entry in entries:
                if key is not None and entry["key"] == key:
                    return entry
            entry = {
                "at": time.time(),
                "tool": name,
                "arguments": arguments,
                "key": key,
                "pid": os.getpid(),
                "id": f"{TOOLS[name].id}_{len(entries) + 1}",
            }
            with self._ledger.open("a") as ledger:
                ledger.write(json.dumps(entry) + "\n")
                ledger.flush()
                os.fsync(ledger.fileno())
            return entry

    def _commit_later(self, name: str, arguments: dict[str, Any], key: str | None, after_s: float) -> None:
        done = threading.Event()
        if key is not None:
            self._running[key] = done

        def land() -> None:
            time.sleep(after_s)
            self._commit(name, arguments, key)
            done.set()

        threading.Thread(target=land).start()  # no daemon: a server whose client leaves still does what it took on

    def _take_fault(self, name: str) -> Fault:
        """Take the first fault of the plan that is meant for a tool; taken once, whoever restarts."""
        if self._plan is None:
            return Fault()
        with _locked(self._plan):
            waiting = json.loads(self._plan.read_text())
            position = next((n for n, (tool, *_) in enumerate(waiting) if tool == name), None)
            if position is None:
                return Fault()
            _, *fault = waiting.pop(position)
            rest = Path(f"{self._plan}.new")
            rest.write_text(json.dumps(waiting))
            rest.replace(self._plan)
            return Fault(*fault)


def _result(text: str | None, data: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text or json.dumps(data)}], "structuredContent": data}


def _failed(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


# --- JSON-RPC


def respond(service: Service, message: dict[str, Any]) -> dict[str, Any]:
    """Return the response to one request. Raises NoAnswer as the plan wants."""
    params = message.get("params") or {}
    stateless = "io.modelcontextprotocol/protocolVersion" in (params.get("_meta") or {})
    result: dict[str, Any]
    match message["method"]:
        case "initialize":
            wanted = params.get("protocolVersion")
            version = wanted if wanted in HANDSHAKE_ERAS else HANDSHAKE_ERAS[-1]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": SERVER}
        case "server/discover":
            result = {"supportedVersions": [STATELESS_ERA], "capabilities": {"tools": {}}}
        case "tools/list":
            result = {"tools": service.tools()}
        case "tools/call" if params.get("name") in TOOLS:
            result = service.call(params["name"], params.get("arguments") or {})
        case "tools/call":
            return _error(message, -32602, f"Unknown tool: {params.get('name')}")
        case "ping":
            result = {}
        case method:
            return _error(message, -32601, f"Method not found: {method}")
    if stateless:
        result = {"resultType": "complete", **result, "_meta": {"io.modelcontextprotocol/serverInfo": SERVER}}
        if message["method"] in ("server/discover", "tools/list"):
            result |= {"ttlMs": 0, "cacheScope": "private"}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _error(message: dict[str, Any], code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": text}}


# --- stdio


def serve_stdio(service: Service) -> None:
    """Answer the requests on standard input until it ends; calls run side by side."""
    writing = threading.Lock()

    def answer(message: dict[str, Any]) -> None:
        try:
            response = respond(service, message)
        except NoAnswer as none:
            if none.fault in STATUS:
                _, code, text = STATUS[none.fault]
                response = _error(message, code, text)
            elif none.fault.startswith(("die", "drop")):
                os._exit(1)
            else:
                return
        with writing, suppress(BrokenPipeError):
            sys.stdout.buffer.write(json.dumps(response).encode() + b"\n")
            sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == "tools/call" and "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
        elif "method" in message and "id" in message:
            answer(message)


# --- Streamable HTTP


def serve_http(service: Service, port: int) -> None:
    """Answer posts on a port of the loopback, 0 for any, until the process is ended; tells its URL on stderr."""
    # Over stdio nothing of this is needed, and it takes twice as long to import as all the rest.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    sessions: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._reply(405, None)

        def do_DELETE(self) -> None:
            sessions.discard(self.headers.get("Mcp-Session-Id", ""))
            self._reply(204, None)

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in message or "method" not in message:
                self._reply(202, None)
                return
            session = self.headers.get("Mcp-Session-Id", "")
            if message["method"] == "initialize":
                session = os.urandom(16).hex()
                sessions.add(session)
            elif self.headers.get("Mcp-Protocol-Version") != STATELESS_ERA and session not in sessions:
                self._reply(404, _error(message, -32001, "Session not found"))
                return
            try:
                self._reply(200, respond(service, message), session)
            except NoAnswer as none:
                self._fail(none.fault, message, session)

        def _fail(self, fault: str, message: dict[str, Any], session: str) -> None:
            if fault in STATUS:
                status, code, text = STATUS[fault]
                if status == 404:
                    sessions.discard(session)
                self._reply(status, _error(message, code, text))
            elif fault.startswith("die"):
                os._exit(1)
            elif fault.startswith("drop"):
                self.close_connection = True
            else:
                threading.Event().wait()  # until the process ends: the client is the one that gives up

        def _reply(self, status: int, body: dict[str, Any] | None, session: str = "") -> None:
            content = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            if session:
                self.send_header("Mcp-Session-Id", session)
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{server.server_port}/mcp", file=sys.stderr, flush=True)
    server.serve_forever()


# --- starting it


class DemoServer:
    """How to start the server: for a client that starts it itself, or as a service of its own."""

    @staticmethod
    def command(ledger: Path, plan: Path | None = None, *, keys: bool = True, lag_s: float = 0.0) -> list[str]:
        """Return the command of a stdio server. `keys`: charge_card knows idempotency keys."""
        # Isolated and without site: nothing but the standard library is needed, and the start is twice as fast.
        command = [sys.executable, "-I", "-S", str(Path(__file__).absolute()), "--ledger", str(ledger)]
        command += ["--plan", str(plan)] if plan is not None else []
        command += ["--no-keys"] if not keys else []
        return [*command, "--lag", str(lag_s)] if lag_s else command

    @staticmethod
    @contextmanager
    def serving(
        ledger: Path, plan: Path | None = None, *, keys: bool = True, lag_s: float = 0.0, port: int = 0
    ) -> Iterator[str]:
        """Serve Streamable HTTP inside the block, which gets the URL."""
        command = [*DemoServer.command(ledger, plan, keys=keys, lag_s=lag_s), "--http", str(port)]
        with listening(command) as url:
            yield url


@contextmanager
def listening(command: Sequence[str], env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a command that says on stderr where it listens, inside the block, which gets the URL. Raises RuntimeError."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    assert process.stderr is not None
    try:
        said: list[str] = []
        for line in process.stderr:
            said.append(line.decode(errors="replace"))
            if found := re.search(r"listening on (http://[^/\s]+)(\S*)", said[-1]):
                break
        else:
            raise RuntimeError(f"{command[0]} did not start: {''.join(said)}")
        # What else it says is read and dropped, so that a full pipe never stops it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1] + (found[2] if len(found[2]) > 1 else "/mcp")
    finally:
        process.terminate()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Run the server."""
    p = argparse.ArgumentParser(description="A payments server for demonstrations.")
    p.add_argument("--ledger", type=Path, required=True, help="file that gets a line for each effect")
    p.add_argument("--plan", type=Path, help="file with the faults of the next calls")
    p.add_argument("--no-keys", dest="keys", action="store_false", help="know no idempotency keys")
    p.add_argument("--lag", type=float, default=0.0, help="seconds until a read shows an effect")
    p.add_argument("--http", type=int, metavar="PORT", help="serve Streamable HTTP instead of stdio")
    options = p.parse_args()
    service = Service(options.ledger, options.plan, keys=options.keys, lag_s=options.lag)
    if options.http is None:
        serve_stdio(service)
    else:
        serve_http(service, options.http)


if __name__ == "__main__":
    main()
