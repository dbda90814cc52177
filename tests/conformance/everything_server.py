"""Serve what the MCP conformance suite asks for, on the low-level `mcp` server, in both protocol eras.

Run as `python everything_server.py [--port N | --stdio]`. Port 0 takes a free port; the first line printed is the
address.
"""

import argparse
import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

import mcp_types as types
import uvicorn
from everything_tools import CHANGES, IMAGE, TOOLS, Context, UnansweredError, Wire, ask, elicit, embedded, outcome, text
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.methods import CacheableMethod
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

# What a client is told to wait before it resumes a closed stream; the answer is written sooner.
RETRY_MS = 300


def user(content: Wire) -> Wire:
    """Make a prompt message from the user."""
    return {"role": "user", "content": content}


async def _prompt_simple(ctx: Context, params: types.GetPromptRequestParams) -> list[Wire]:
    return [user(text("This is a simple prompt for testing."))]


async def _prompt_with_arguments(ctx: Context, params: types.GetPromptRequestParams) -> list[Wire]:
    given = params.arguments or {}
    return [user(text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"))]


async def _prompt_with_resource(ctx: Context, params: types.GetPromptRequestParams) -> list[Wire]:
    uri = (params.arguments or {}).get("resourceUri", "test://embedded-resource")
    resource = embedded(uri, "text/plain", "Embedded resource content for testing.")
    return [user(resource), user(text("Please process the embedded resource above."))]


async def _prompt_with_image(ctx: Context, params: types.GetPromptRequestParams) -> list[Wire]:
    return [user(IMAGE), user(text("Please analyze the image above."))]


async def _prompt_asking(ctx: Context, params: types.GetPromptRequestParams) -> list[Wire]:
    form = elicit("What context should the prompt use?", context={"type": "string"})
    return [user(text(f"Context: {outcome((await ask(ctx, params, {'user_context': form}))['user_context'])}"))]


PromptBody = Callable[[Context, types.GetPromptRequestParams], Awaitable[list[Wire]]]
PROMPTS: Mapping[str, tuple[str, tuple[str, ...], PromptBody]] = {
    "test_simple_prompt": ("A prompt of one sentence.", (), _prompt_simple),
    "test_prompt_with_arguments": ("A prompt with two arguments.", ("arg1", "arg2"), _prompt_with_arguments),
    "test_prompt_with_embedded_resource": ("A prompt with a resource.", ("resourceUri",), _prompt_with_resource),
    "test_prompt_with_image": ("A prompt with an image.", (), _prompt_with_image),
    "test_input_required_result_prompt": ("A prompt that asks the user first.", (), _prompt_asking),
}

TEMPLATE = ("test://template/", "/data")
RESOURCES: Mapping[str, Wire] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": IMAGE["data"]},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watched."},
}


# Handlers, one for each method.


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Run a tool; an unanswered question becomes the result."""
    if (found := TOOLS.get(params.name)) is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        return await found.body(ctx, params)
    except UnansweredError as unanswered:
        return unanswered.result


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Wire:
    """Fill in a prompt; an unanswered question becomes the result."""
    if (found := PROMPTS.get(params.name)) is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    description, _, body = found
    try:
        return {"description": description, "messages": await body(ctx, params)}
    except UnansweredError as unanswered:
        return unanswered.result


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Wire:
    """Read a resource, or one made from the template."""
    uri, (prefix, suffix) = params.uri, TEMPLATE
    if uri in RESOURCES:
        return {"contents": [{"uri": uri, **RESOURCES[uri]}]}
    if uri.startswith(prefix) and uri.endswith(suffix):
        ident = uri.removeprefix(prefix).removesuffix(suffix)
        data = {"id": ident, "templateTest": True, "data": f"Data for ID: {ident}"}
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}]}
    raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})


async def list_tools(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    """List the tools, on one page."""
    return {
        "tools": [{"name": n, "description": t.description, "inputSchema": t.schema} for n, t in TOOLS.items()],
    }


async def list_prompts(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    """List the prompts, on one page."""
    return {
        "prompts": [
            {
                "name": name,
                "description": description,
                "arguments": [{"name": argument, "description": argument, "required": True} for argument in arguments],
            }
            for name, (description, arguments, _) in PROMPTS.items()
        ]
    }


async def list_resources(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    """List the resources that are not templates, on one page."""
    return {
        "resources": [
            {"uri": uri, "name": uri, "description": f"The resource {uri}.", "mimeType": body["mimeType"]}
            for uri, body in RESOURCES.items()
        ]
    }


async def list_templates(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    """List the only template."""
    template = {"uriTemplate": "{id}".join(TEMPLATE), "name": "data", "description": "Data by its id."}
    return {"resourceTemplates": [{**template, "mimeType": "application/json"}]}


async def complete(ctx: Context, params: types.CompleteRequestParams) -> Wire:
    """Suggest the towns that begin as typed."""
    values = [town for town in ("paris", "park", "party", "rome") if town.startswith(params.argument.value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


async def accept(ctx: Context, params: types.RequestParams) -> Wire:
    """Accept a level or a subscription; the fixture logs at info only and its resources never change."""
    return {}


class MemoryEvents(EventStore):
    """Keep every event of every stream in one list, its index being its id."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Append the event and return its id."""
        self._events.append((stream_id, message))
        return str(len(self._events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what its stream carried after the event; priming events carry nothing to send."""
        if not last_event_id.isdecimal() or int(last_event_id) >= len(self._events):
            return None
        last = int(last_event_id)
        stream_id, _ = self._events[last]
        for ident, (stream, message) in enumerate(self._events[last + 1 :], last + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(ident)))
        return stream_id


HANDLERS: tuple[tuple[str, type[types.RequestParams], Callable[[Context, Any], Awaitable[Wire]]], ...] = (
    ("tools/list", types.PaginatedRequestParams, list_tools),
    ("tools/call", types.CallToolRequestParams, call_tool),
    ("prompts/list", types.PaginatedRequestParams, list_prompts),
    ("prompts/get", types.GetPromptRequestParams, get_prompt),
    ("resources/list", types.PaginatedRequestParams, list_resources),
    ("resources/templates/list", types.PaginatedRequestParams, list_templates),
    ("resources/read", types.ReadResourceRequestParams, read_resource),
    ("resources/subscribe", types.SubscribeRequestParams, accept),
    ("resources/unsubscribe", types.UnsubscribeRequestParams, accept),
    ("logging/setLevel", types.SetLevelRequestParams, accept),
    ("completion/complete", types.CompleteRequestParams, complete),
)


def _complete(handler: Callable[[Context, Any], Awaitable[Wire]]) -> Callable[[Context, Any], Awaitable[Wire]]:
    """Mark a result as the last word unless it says otherwise, in the era that has the mark."""

    async def handle(ctx: Context, params: Any) -> Wire:
        result = await handler(ctx, params)
        return {"resultType": "complete", **result} if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else result

    return handle


def build() -> Server[Any]:
    """Assemble the server."""
    server: Server[Any] = Server(
        "everything",
        version="1.0.0",
        instructions="A fixture for protocol conformance.",
        cache_hints={method: CacheHint(ttl_ms=1000, scope="public") for method in get_args(CacheableMethod)},
        get_tool_input_schema=lambda name: TOOLS[name].schema if name in TOOLS else None,
        on_subscriptions_listen=ListenHandler(CHANGES),
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=server.name))
    for method, params_type, handler in HANDLERS:
        server.add_request_handler(method, params_type, _complete(handler))
    return server


async def serve_stdio() -> None:
    """Serve one client on standard input and output."""
    server = build()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def serve_http(port: int) -> None:
    """Serve on loopback until killed."""
    listener = socket.create_server(("127.0.0.1", port))
    # The socket listens from here on, so whoever reads the line may connect at once.
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    app = build().streamable_http_app(event_store=MemoryEvents(), retry_interval=RETRY_MS)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description="Serve the MCP conformance fixture.")
    parser.add_argument("--port", type=int, default=0, help="loopback port for HTTP; 0 takes a free one")
    parser.add_argument("--stdio", action="store_true", help="serve standard input and output instead")
    options = parser.parse_args()
    if options.stdio:
        asyncio.run(serve_stdio())
    else:
        serve_http(options.port)


if __name__ == "__main__":
    main()
