"""A tool server as people write them, with the MCP SDK: one tool that reads, one that writes, both done at once."""

from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")


@server.tool()
def look_up(invoice: str) -> dict[str, Any]:
    """Look up an invoice."""
    return {"invoice": invoice, "open": True}


@server.tool()
def charge(invoice: str, amount: int, idempotency_key: str = "") -> dict[str, Any]:
    """Charge an invoice."""
    return {"invoice": invoice, "charged": amount}


if __name__ == "__main__":
    server.run()
