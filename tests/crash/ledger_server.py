"""An MCP tool server over stdio whose effects are lines of a file: `ledger_server.py FOLDER`. Standard library only.

It knows idempotency keys, and several of its processes may share the folder. Where the folder holds a file
`pause.before_effect` or `pause.before_reply`, a charge stops there: it writes its pid to `reached.POINT` and goes on
once `go.POINT` exists.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TEXT = {"type": "string"}
TOOLS = {
    "charge": {"invoice": TEXT, "amount": {"type": "integer"}, "idempotency_key": TEXT},
    "wipe": {"table": TEXT},
    "list_charges": {},
}


def stop(folder: Path, point: str) -> None:
    """Wait for the test, where it asked for that."""
    if not (folder / f"pause.{point}").exists():
        return
    draft = folder / f"draft.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / f"reached.{point}")
    while not (folder / f"go.{point}").exists():
        time.sleep(0.005)


def entries(file: Path) -> list[dict[str, Any]]:
    """Return what happened so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def commit(file: Path, tool: str, arguments: dict[str, Any]) -> int:
    """Let the effect happen, once for each key; return its number."""
    key = arguments.get("idempotency_key")
    with open(file, "ab") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        before = entries(file)
        for number, entry in enumerate(before):
            if key is not None and entry.get("idempotency_key") == key:
                return number
        ledger.write(json.dumps({"tool": tool, **arguments, "created": time.time()}).encode() + b"\n")
        ledger.flush()
        os.fsync(ledger.fileno())
        return len(before)


def call(folder: Path, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one tool."""
    if name == "list_charges":
        value: dict[str, Any] = {"charges": entries(folder / "ledger")}
    else:
        stop(folder, "before_effect")
        value = {"number": commit(folder / "ledger", name, arguments)}
        stop(folder, "before_reply")
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value, "isError": False}


def serve(folder: Path) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        result: dict[str, Any] = {}
        if method == "initialize":
            version = params["protocolVersion"]
            info = {"name": "ledger", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            schemas = {name: {"type": "object", "properties": properties} for name, properties in TOOLS.items()}
            result = {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]}
        elif method == "tools/call":
            result = call(folder, params["name"], params.get("arguments") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(Path(sys.argv[1]))
    os._exit(0)  # whoever read the output may be gone: nothing is left to flush
