"""Tools the MCP conformance suite asks for, and the way they ask the client, in both protocol eras.

The suite names each tool (`test_simple_text`, ...) and says what it must do; these are our own answers. Bodies return
wire-shaped dictionaries, so that what a reader sees here is what crosses the wire, and what a proxy must not touch.

One idea carries both eras: a tool that needs something from the client calls `ask`. Through 2025-11-25 `ask` sends the
requests down the call's own stream and waits; from 2026-07-28 there is no way back to the client, so `ask` ends the
call with an `input_required` result and the tool runs again from the top when the answers arrive.
"""

import asyncio
import base64
import io
import json
import struct
import wave
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel

Wire = dict[str, Any]
Context = ServerRequestContext[Any, Any]
Question = types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest
ToolBody = Callable[[Context, types.CallToolRequestParams], Awaitable[Wire]]

# The delay the suite recommends between notifications, so that each leaves in a packet of its own.
STEP_S = 0.05
CHANGES = InMemorySubscriptionBus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool's listing and its body."""

    description: str
    schema: Wire
    body: ToolBody


TOOLS: dict[str, Tool] = {}


def tool(description: str, *, schema: Wire | None = None, **arguments: Wire) -> Callable[[ToolBody], ToolBody]:
    """Register the decorated function as a tool of its own name, all `arguments` being required."""
    default: Wire = {"type": "object", "properties": arguments, "required": list(arguments)}

    def register(body: ToolBody) -> ToolBody:
        TOOLS[body.__name__] = Tool(description=description, schema=schema or default, body=body)
        return body

    return register


def text(value: str) -> Wire:
    """Make a text content block."""
    return {"type": "text", "text": value}


def said(value: str) -> Wire:
    """Make a tool result of one text block."""
    return {"content": [text(value)]}


def embedded(uri: str, mime_type: str, value: str) -> Wire:
    """Make a content block that carries a resource."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


def _png() -> str:
    """Draw one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _wav() -> str:
    """Record one silent sample."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80")
    return base64.b64encode(buffer.getvalue()).decode()


IMAGE: Wire = {"type": "image", "data": _png(), "mimeType": "image/png"}
AUDIO: Wire = {"type": "audio", "data": _wav(), "mimeType": "audio/wav"}


# Asking the client.


class UnansweredError(Exception):
    """Carry the `input_required` result that ends this round of the call."""

    def __init__(self, result: Wire) -> None:
        super().__init__("the client has to answer first")
        self.result = result


CAPABILITY: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
ANSWER: Mapping[str, type[types.ElicitResult | types.CreateMessageResult | types.ListRootsResult]] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}


async def ask(
    ctx: Context,
    params: types.InputResponseRequestParams,
    questions: Mapping[str, Question],
    *,
    state: str | None = None,
) -> dict[str, Wire]:
    """Return the client's answers by key, asking only what it declared it can answer.

    Raises `UnansweredError` while answers are missing, and MCPError when the client can answer none of the questions.
    """
    declared = ctx.session.client_capabilities or types.ClientCapabilities()
    able = {key: q for key, q in questions.items() if getattr(declared, CAPABILITY[q.method]) is not None}
    if not able:
        required: Wire = {CAPABILITY[q.method]: {} for q in questions.values()}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"the client did not declare {', '.join(required)}",
            {"requiredCapabilities": required},
        )
    if ctx.session.can_send_request:
        here = ServerMessageMetadata(related_request_id=ctx.request_id)
        return {k: _wire(await ctx.session.send_request(q, ANSWER[q.method], metadata=here)) for k, q in able.items()}
    answers = params.input_responses or {}
    if not able.keys() <= answers.keys():
        result: Wire = {"resultType": "input_required", "inputRequests": {k: _wire(q) for k, q in able.items()}}
        raise UnansweredError(result if state is None else {**result, "requestState": state})
    return {key: _wire(answers[key]) for key in able}


def _wire(model: BaseModel) -> Wire:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def elicit(message: str, *, required: bool = True, **fields: Wire) -> types.ElicitRequest:
    """Make a form for the user with these fields."""
    schema: Wire = {"type": "object", "properties": fields, "required": list(fields) if required else []}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt: str) -> types.CreateMessageRequest:
    """Make a request for the client's model to complete."""
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


def outcome(answer: Wire) -> str:
    """Say what the user did with a form."""
    return f"action={answer['action']}, content={json.dumps(answer.get('content', {}))}"


# Tools that only answer. The first one listed is called by the header scenarios with no arguments.

ANSWERS: Mapping[str, tuple[str, list[Wire]]] = {
    "test_simple_text": ("Return one text block.", [text("This is a simple text response for testing.")]),
    "test_image_content": ("Return an image.", [IMAGE]),
    "test_audio_content": ("Return a sound.", [AUDIO]),
    "test_embedded_resource": (
        "Return an embedded resource.",
        [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
    ),
    "test_multiple_content_types": (
        "Return text, an image and a resource.",
        [
            text("Multiple content types test:"),
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ],
    ),
}


def _answering(content: list[Wire]) -> ToolBody:
    async def body(ctx: Context, params: types.CallToolRequestParams) -> Wire:
        return {"content": content}

    return body


for _name, (_description, _content) in ANSWERS.items():
    TOOLS[_name] = Tool(
        description=_description, schema={"type": "object", "properties": {}}, body=_answering(_content)
    )

ADDRESS_BOOK_SCHEMA: Wire = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"address": {"$anchor": "place", "type": "object", "properties": {"town": {"type": "string"}}}},
    "type": "object",
    "properties": {
        "by": {"enum": ["phone", "mail"]},
        "phone": {"type": "string"},
        "home": {"$ref": "#/$defs/address"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["home"]}]}],
    "if": {"properties": {"by": {"const": "phone"}}},
    "then": {"required": ["phone"]},
    "else": {"required": ["home"]},
    "additionalProperties": False,
}


@tool("Accept arguments described with the whole 2020-12 vocabulary.", schema=ADDRESS_BOOK_SCHEMA)
async def json_schema_2020_12_tool(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Echo the arguments."""
    return said(json.dumps(params.arguments or {}))


@tool("Route by a value that must also stand in a header.", region={"type": "string", "x-mcp-header": "Region"})
async def test_header_argument(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Echo the region."""
    return said(f"region {(params.arguments or {}).get('region')}")


@tool("Fail, always.")
async def test_error_handling(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Answer with an error the model can see."""
    return {**said("This tool intentionally returns an error for testing"), "isError": True}


# Tools that say something on the way.


@tool("Log three messages while working.")
async def test_tool_with_logging(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Log at info level, with a pause between."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", message, related_request_id=ctx.request_id)
        await asyncio.sleep(STEP_S)
    return said("Logged three messages.")


@tool("Log once, if the request asked for logs.")
async def test_logging_tool(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Log at info level; the SDK holds the message back unless this request set a log level."""
    await ctx.session.send_log_message("info", "working", related_request_id=ctx.request_id)
    return said("Done.")


@tool("Report progress in three steps.")
async def test_tool_with_progress(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Report 0, 50 and 100 of 100."""
    for progress in (0, 50, 100):
        await ctx.session.report_progress(progress, 100)
        await asyncio.sleep(STEP_S)
    return said("Reported three steps.")


@tool("Close the response stream, then answer on the resumed one.")
async def test_reconnection(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Hang up mid-call; the event store keeps the answer for the client that comes back."""
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(STEP_S)
    return said("Reconnected.")


@tool("Announce that the list of tools changed.")
async def test_trigger_tool_change(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Tell the listening streams."""
    await CHANGES.publish(ToolsListChanged())
    return said("Announced.")


@tool("Announce that the list of prompts changed.")
async def test_trigger_prompt_change(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Tell the listening streams."""
    await CHANGES.publish(PromptsListChanged())
    return said("Announced.")


# Tools that ask the client.


@tool("Ask the client's model.", prompt={"type": "string"})
async def test_sampling(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Pass the prompt on and quote the reply."""
    answers = await ask(ctx, params, {"reply": sample((params.arguments or {})["prompt"])})
    return said(f"LLM response: {answers['reply']['content']['text']}")


@tool("Ask the user two things.", message={"type": "string"})
async def test_elicitation(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Show the message with a form for a name and an address."""
    form = elicit(
        (params.arguments or {})["message"],
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return said(f"User response: {outcome((await ask(ctx, params, {'form': form}))['form'])}")


@tool("Ask the user with every kind of default.")
async def test_elicitation_sep1034_defaults(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Show a form with one default for each primitive type."""
    form = elicit(
        "Please review the defaults.",
        required=False,
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return said(f"Elicitation completed: {outcome((await ask(ctx, params, {'form': form}))['form'])}")


@tool("Ask the user with every kind of choice.")
async def test_elicitation_sep1330_enums(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Show a form with the five ways to write an enumeration."""
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    plain = ["option1", "option2", "option3"]
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    form = elicit(
        "Please choose.",
        required=False,
        untitledSingle={"type": "string", "enum": plain},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={"type": "string", **legacy},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": plain}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return said(f"Elicitation completed: {outcome((await ask(ctx, params, {'form': form}))['form'])}")


NAME = elicit("What is your name?", name={"type": "string"})
CONFIRM = elicit("Please confirm", ok={"type": "boolean"})

# Tools of one round: what they ask, and whether the client must hand back a sealed state.
ROUNDS: Mapping[str, tuple[Mapping[str, Question], str | None]] = {
    "test_input_required_result_elicitation": ({"user_name": NAME}, None),
    "test_input_required_result_sampling": ({"capital_question": sample("What is the capital of France?")}, None),
    "test_input_required_result_list_roots": ({"client_roots": types.ListRootsRequest()}, None),
    "test_input_required_result_request_state": ({"confirm": CONFIRM}, "confirming"),
    "test_input_required_result_tampered_state": ({"confirm": CONFIRM}, "confirming"),
    "test_input_required_result_multiple_inputs": (
        {"user_name": NAME, "greeting": sample("Generate a greeting"), "client_roots": types.ListRootsRequest()},
        "collecting",
    ),
    "test_input_required_result_capabilities": ({"user_name": NAME, "greeting": sample("Generate a greeting")}, None),
    "test_streaming_elicitation": ({"user_name": NAME}, None),
    "test_missing_capability": ({"greeting": sample("Generate a greeting")}, None),
}


def _asking(questions: Mapping[str, Question], state: str | None) -> ToolBody:
    async def body(ctx: Context, params: types.CallToolRequestParams) -> Wire:
        return said(f"state-ok: {json.dumps(await ask(ctx, params, questions, state=state))}")

    return body


for _name, (_questions, _state) in ROUNDS.items():
    TOOLS[_name] = Tool(
        description=f"Ask the client for {', '.join(_questions)}.",
        schema={"type": "object", "properties": {}},
        body=_asking(_questions, _state),
    )


@tool("Ask the user twice, the second time knowing the first answer.")
async def test_input_required_result_multi_round(ctx: Context, params: types.CallToolRequestParams) -> Wire:
    """Keep the first answer in the state, because the client repeats only the latest one."""
    held = params.request_state or ""
    if held.startswith("name="):
        name = held.removeprefix("name=")
    else:
        name = (await ask(ctx, params, {"step1": NAME}, state="started"))["step1"]["content"]["name"]
    colour = elicit("What is your favorite color?", color={"type": "string"})
    answer = (await ask(ctx, params, {"step2": colour}, state=f"name={name}"))["step2"]
    return said(f"{name}: {outcome(answer)}")
