"""The MCP proxy: relays move bytes, the gate guards calls."""
