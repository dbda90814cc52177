"""Just enough JSON-RPC for a relay: what a line is, without decoding it where its ends already tell.

A line that cannot be decoded is nobody's message and is forwarded as it is. A line that is merely too deep, or holds a
number too long for this interpreter, may still mean something to the tool server: forwarding it could carry a call past
the guard, so it is an `UnreadableError`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from onceward.outcomes import Reply

from .wire import Call

Id = int | str | float

ENVELOPE = "io.modelcontextprotocol/"  #: `_meta` keys of the stateless era, which a request of our own must repeat
MODERN = b'"io.modelcontextprotocol/protocolVersion"'  #: marks a request of that era
NOT_COPIED = (ENVELOPE + "logLevel", ENVELOPE + "subscriptionId")  #: they ask for notifications

_ID = rb'\s*:\s*(?:(-?\d{1,18})|"([^"\\\x80-\xff]{0,256})")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
#: a response that begins with its id, as the Python SDK writes it
_ID_FIRST = re.compile(rb"\s*\{\s*" + _VERSION + rb',\s*"id"' + _ID + rb',\s*"(result|error)"\s*:')
#: a response that ends with its id, as the TypeScript SDK writes it. The last brace closes the message, so what stands
#: directly before it belongs to the message, and a quote within a string would have a backslash.
_BODY_FIRST = re.compile(rb'\s*\{\s*"(result|error)"\s*:')
_ID_LAST = re.compile(rb",\s*" + _VERSION + rb',\s*"id"' + _ID + rb"\}\s*\Z")
_PLAIN = b'{"jsonrpc":"2.0","id":'  #: how nearly every response of a Python server begins
_ENDS = ("\n", "", "\r\n")
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # set in __init__, which the stubs leave out

#: any mention of an id or method, for lines of which only the ends are left
_SOME_ID = re.compile(rb'"id"' + _ID)


class UnreadableError(ValueError):
    """A message that is too deep, or holds a number that is too long, to be decoded here."""


def decode(line: bytes) -> Any:
    """Return what the line holds; None where it is blank or no JSON. Raises UnreadableError."""
    text = line.decode("utf-8", "replace")  # as the SDKs do: a stray byte must not hide a call
    try:
        if text.startswith("{"):  # json.loads without its layers, which are felt at a fraction of a millisecond
            value, end = _scan(text, 0)
            if text[end:] in _ENDS:
                return value
        return json.loads(text.removeprefix("\ufeff"))
    except StopIteration:
        return None
    except json.JSONDecodeError:
        return None
    except (RecursionError, ValueError) as error:
        raise UnreadableError(str(error)) from None


def encode(message: Any) -> bytes:
    """Return the message as one line without its newline, in ASCII: nothing in it can be taken for a separator."""
    return json.dumps(message, separators=(",", ":")).encode()


def elements(line: bytes) -> list[bytes]:
    """Return the bytes of each element of a line that holds a JSON array."""
    text = line.decode("utf-8", "surrogateescape").strip()
    decoder, at = json.JSONDecoder(), 1
    found: list[bytes] = []
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return found
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end].encode("utf-8", "surrogateescape"))
        at = end


def may_ask(line: bytes) -> bool:
    """Tell whether a line may be a request or notification; only an escape can spell the word otherwise."""
    return b'"method"' in line or b"\\u" in line


def answered_id(line: bytes) -> tuple[Id, bool] | None:
    """Return the id of a response and whether it is a result, where the ends of the line tell; None = decode it."""
    if line.startswith(_PLAIN):  # the usual case once more, without regular expressions
        comma = line.find(b",", len(_PLAIN), len(_PLAIN) + 20)
        token = line[len(_PLAIN) : comma]
        if token.isdigit() and line.startswith(b'"result":', comma + 1):
            return int(token), True
    found = _ID_FIRST.match(line)
    if found is not None:
        number, text, body = found.groups()
    else:
        first = _BODY_FIRST.match(line)
        last = _ID_LAST.search(line, max(0, len(line) - 400)) if first else None
        if first is None or last is None:
            return None
        number, text, body = *last.groups(), first.group(1)
    return (int(number) if number is not None else text.decode()), body == b"result"


def some_id(line: bytes) -> Id | None:
    """Return the first id that the line mentions, or None."""
    found = _SOME_ID.search(line)
    if found is None:
        return None
    return int(found.group(1)) if found.group(1) is not None else str(found.group(2).decode())


def request_id(message: dict[str, Any]) -> Id | None:
    """Return the id of a request or response; None where it has none that JSON-RPC allows."""
    value = message.get("id")
    return value if type(value) in (int, str, float) else None


def failed_call(rpc_id: Any, text: str, *, modern: bool) -> bytes:
    """Return a tool result that says what went wrong, for the model to read."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if modern:
        result["resultType"] = "complete"
    return encode({"jsonrpc": "2.0", "id": rpc_id, "result": result})


def failed_request(rpc_id: Any, text: str, *, code: int = -32603) -> bytes:
    """Return a JSON-RPC error."""
    return encode({"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": text}})


def cancels(message: Any) -> Id | None:
    """Return the id of the request that a message cancels; None where it cancels nothing."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled":
        return None
    params = message.get("params")
    value = params.get("requestId") if isinstance(params, dict) else None
    return value if type(value) in (int, str, float) else None


def own_message(key: str, call: Call, message: dict[str, Any]) -> dict[str, Any]:
    """Return a request of our own: under our id, in the envelope of `call`, asking for no notifications."""
    params = message.get("params") or {}
    meta = {name: value for name, value in call.meta.items() if name.startswith(ENVELOPE)}
    meta |= params.get("_meta") or {}
    for name in ("progressToken", *NOT_COPIED):
        meta.pop(name, None)
    params = {**params, "_meta": meta} if meta else {name: value for name, value in params.items() if name != "_meta"}
    return {"jsonrpc": "2.0", **message, "id": key, "params": params}


def reply(raw: bytes) -> Reply:
    """Return the reply that a response line holds."""
    try:
        message = decode(raw)
    except UnreadableError as error:
        return Reply(kind="lost", text=f"the answer could not be read: {error}", raw=raw)
    if not isinstance(message, dict):
        return Reply(kind="lost", text="the answer could not be read", raw=raw)
    if "result" in message:
        return Reply(kind="result", body=message["result"], raw=raw)
    error_object = message.get("error")
    text = str(error_object.get("message", "")) if isinstance(error_object, dict) else str(error_object)
    return Reply(kind="rpc_error", body=error_object, text=text, raw=raw)
