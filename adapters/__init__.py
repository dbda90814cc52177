"""Where the guard meets the world: MCP, the command line, the demo."""
