"""The stdio relay with a gate that records what it is told, as a process for tests: `relay_main.py OPTIONS COMMAND...`.

OPTIONS is JSON: `wants` (tool names), `events` (a file that gets a line per event), `gate_after` (a file: the gate is
ready once it exists), `broken` (the gate cannot be loaded), `cap`, `tools` (what to add to tool lists). How a wanted
call is handled is in its argument `how`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from onceward.adapters.mcp import stdio
from onceward.adapters.mcp.wire import Call, Upstream
from onceward.outcomes import Reply

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])


def record(*words: object) -> None:
    """Append one event."""
    with open(OPTIONS["events"], "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


class RecordingGate:
    """Answers wanted calls as they ask for it, and writes down what it learns."""

    def wants(self, call: Call) -> bool:
        return call.name in OPTIONS.get("wants", ())

    async def handle(self, call: Call, upstream: Upstream) -> bytes:
        how = call.arguments.get("how", "send")
        record("handle", call.id)
        if how == "raise":
            raise RuntimeError("a fault of the gate")
        if how == "answer first":  # as when patience ends: the reply is harvested later
            upstream.exchange(call).add_done_callback(lambda future: record("late", call.id, future.result().kind))
            return self._answer(call, Reply(kind="lost", text="not known yet"))
        if how == "refuse":
            reply = await upstream.exchange(call, before_send=lambda: False)
        elif how == "inject":
            params = {**call.params, "arguments": {**call.arguments, "key": "k-1"}}
            reply = await upstream.exchange(call, {**call.message, "params": params})
        elif how == "read first":
            read = {"method": "tools/call", "params": {"name": call.arguments["read"]}}
            own = await upstream.exchange(call, read, own=True)
            record("own", own.kind)
            reply = await upstream.exchange(call)
        else:
            reply = await upstream.exchange(call)
        record("reply", call.id, reply.kind)
        if how == "read after" and reply.kind == "lost":
            read = {"method": "tools/call", "params": {"name": "seen"}}
            reply = await upstream.exchange(call, read, own=True)
            record("own", reply.kind)
        return self._answer(call, reply)

    def _answer(self, call: Call, reply: Reply) -> bytes:
        if reply.kind == "result":
            return json.dumps({"jsonrpc": "2.0", "id": call.id, "result": reply.body}).encode()
        if reply.kind == "rpc_error":
            return json.dumps({"jsonrpc": "2.0", "id": call.id, "error": reply.body}).encode()
        text = {"type": "text", "text": f"{reply.kind}: {reply.text}"}
        return json.dumps({"jsonrpc": "2.0", "id": call.id, "result": {"content": [text]}}).encode()

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        record("tools", len(result["tools"]))
        return {**result, "tools": result["tools"] + OPTIONS["tools"]} if OPTIONS.get("tools") else None

    def cancelled(self, call: Call) -> None:
        record("cancelled", call.id)

    def delivered(self, call: Call) -> None:
        record("delivered", call.id)


def ready() -> RecordingGate:
    """Return the gate, after what the options ask to wait for."""
    while OPTIONS.get("gate_after") and not os.path.exists(OPTIONS["gate_after"]):
        time.sleep(0.005)
    if OPTIONS.get("broken"):
        raise ValueError(OPTIONS["broken"])
    return RecordingGate()


if __name__ == "__main__":
    sys.exit(asyncio.run(stdio.relay(sys.argv[2:], ready, cap=OPTIONS.get("cap", stdio.CAP))))
