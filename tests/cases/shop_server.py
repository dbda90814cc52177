"""The shop as a real MCP tool server over stdio: `shop_server.py LEDGER`. Standard library only.

Each `update` takes effect, and then: answers (`how` missing), dies (`die`), or stays silent (`hang`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

PROPERTIES = {"id": {"type": "integer"}, "title": {"type": "string"}, "how": {"type": "string"}}


def effect(arguments: dict[str, Any]) -> None:
    """Write the effect into the ledger."""
    handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, json.dumps({"tool": "update", "created": time.time(), **arguments}).encode() + b"\n")
    os.close(handle)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    result: dict[str, Any] = {}
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": "update", "inputSchema": {"type": "object", "properties": PROPERTIES}}]}
    elif method == "tools/call":
        arguments = params.get("arguments") or {}
        time.sleep(0.1)
        effect(arguments)
        if arguments.get("how") == "die":
            os._exit(1)
        if arguments.get("how") == "hang":
            continue
        result = {"content": [{"type": "text", "text": json.dumps({"updated": arguments["id"]})}], "isError": False}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
