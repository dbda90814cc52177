"""A tool server with odd habits, for tests of relays: standard library only, over stdio or (`--http PORT`) over HTTP.

A message with the exact bytes of a case in `fidelity.py` is answered with the exact bytes of that case. Everything else
goes to a few tools that hang, die, flood, stop reading, or ask back. Over HTTP a reply of one message is JSON, a longer
one a stream of events; with `--sse` every reply is a stream. The bound port is printed to stderr. `ECHO_LOG` names a
file that gets every message received, raw; `ECHO_EFFECTS` one that gets a line per effect.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fidelity import CASES, Case

BY_REQUEST: dict[bytes, Case] = {case.request: case for case in CASES}
TOOLS = ("echo", "pid", "seen", "charge", "die", "hang", "release", "flood", "deaf", "ask", "mute", "progress", "batch")

answers: queue.Queue[bytes] = queue.Queue()  # what the client said to our requests
released = threading.Event()
seen: list[dict[str, Any]] = []


def respond(raw: bytes) -> Iterator[bytes]:
    """Yield what this server says to one request, its response last."""
    case = BY_REQUEST.get(raw)
    if case is None:
        yield from _generic(json.loads(raw))
        return
    expected_answers = list(case.answers)
    for message in case.expected:
        yield message
        decoded = json.loads(message)
        if "method" in decoded and "id" in decoded:
            answer = answers.get()
            assert answer == expected_answers.pop(0), f"the client's answer was changed: {answer!r}"


def _generic(message: dict[str, Any]) -> Iterator[bytes]:
    method, id_, params = message["method"], message["id"], message.get("params") or {}
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    elif method == "server/discover":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif method == "tools/call":
        arguments = params.get("arguments") or {}
        if params["name"] == "hang":
            _effect(arguments)
            released.wait()
        elif params["name"] == "flood":
            note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": "x" * arguments["size"]})
            for _ in range(arguments["lines"]):
                yield note.encode()
        elif params["name"] == "progress":
            token = params.get("_meta", {}).get("progressToken")
            if token is not None:
                note = json.dumps({"method": "notifications/progress", "params": {"progressToken": token}})
                yield note.encode()
        elif params["name"] == "ask":
            yield json.dumps({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}}).encode()
            params = {"answer": json.loads(answers.get())}
        text = _tool(params.get("name", ""), arguments, params)
        result = {"content": [{"type": "text", "text": text}]}
    else:
        yield json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": -32601, "message": "no such method"}}).encode()
        return
    yield json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}).encode()


def _tool(name: str, arguments: dict[str, Any], params: dict[str, Any]) -> str:
    if name == "pid":
        return str(os.getpid())
    if name == "seen":
        return json.dumps(seen)
    if name == "charge":
        _effect(arguments)
        return "charged"
    if name == "die":
        _effect(arguments)
        os._exit(arguments.get("code", 3))
    if name == "mute":
        os.close(1)
        time.sleep(60)
    if name == "release":
        released.set()
    return json.dumps(params)


def _effect(arguments: dict[str, Any]) -> None:
    if "effect" in arguments:
        with open(os.environ["ECHO_EFFECTS"], "a") as file:
            file.write(f"{arguments['effect']}\n")


def note(raw: bytes) -> Any:
    """Remember a message; return it decoded, None where it is no JSON."""
    if os.environ.get("ECHO_LOG"):
        with open(os.environ["ECHO_LOG"], "ab") as file:
            file.write(raw + b"\n")
    try:
        message = json.loads(raw)
    except ValueError:
        return None
    for each in message if isinstance(message, list) else [message]:
        seen.append({key: each.get(key) for key in ("id", "method")})
    return message


# -- stdio ---------------------------------------------------------------------------------------------------------

_writing = threading.Lock()


def _say(data: bytes) -> None:
    with _writing:
        data += b"\n"
        while data:
            data = data[os.write(1, data) :]


def _answer(raw: bytes) -> None:
    for message in respond(raw):
        _say(message)


def _answer_batch(messages: list[dict[str, Any]]) -> None:
    replies = [list(respond(json.dumps(each).encode()))[-1] for each in messages if "method" in each and "id" in each]
    if replies:
        _say(b"[" + b",".join(replies) + b"]")


def serve_stdio() -> int:
    """Serve until stdin ends."""
    if os.environ.get("ECHO_STILLBORN"):
        print("echo: cannot start", file=sys.stderr)
        return int(os.environ["ECHO_STILLBORN"])
    for line in sys.stdin.buffer:
        raw = line[:-1]
        message = note(raw)
        if isinstance(message, list):
            _answer_batch(message)
        elif not isinstance(message, dict):
            _say(b"heard " + raw)  # how a server that logs to stdout looks
        elif "method" not in message:
            answers.put(raw)
        elif b'"deaf"' in raw:
            _answer(raw)
            while not os.path.exists(message["params"]["arguments"]["until"]):
                time.sleep(0.01)
        elif "id" in message:
            threading.Thread(target=_answer, args=(raw,), daemon=True).start()
    return int(os.environ.get("ECHO_EXIT", "0"))


# -- HTTP ----------------------------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    always_sse = False

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        message = note(raw)
        if not isinstance(message, dict):
            return self._whole(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')
        if "method" not in message or "id" not in message:
            if "method" not in message:
                answers.put(raw)
            return self._whole(202, b"")
        replies = respond(raw)
        first = next(replies)
        if self.always_sse or "method" in json.loads(first):
            return self._stream(first, replies)
        return self._whole(200, first)

    def do_GET(self) -> None:
        self._whole(405, b"")

    def do_DELETE(self) -> None:
        self._whole(200, b"")

    def _whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "echo-session")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, first: bytes, rest: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event(0, first)
        for number, message in enumerate(rest, 1):
            self._event(number, message)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, number: int, message: bytes) -> None:
        data = b"id: %d\nevent: message\ndata: %s\n\n" % (number, message)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve_http(port: int, *, sse: bool) -> int:
    """Serve on the loopback until the process is ended; the bound port is printed to stderr."""
    _Handler.always_sse = sse
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    print(server.server_address[1], file=sys.stderr, flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--sse", action="store_true")
    options = parser.parse_args()
    sys.exit(serve_stdio() if options.http is None else serve_http(options.http, sse=options.sse))
