"""The yes that an `unsafe` tool needs, asked of the person at the client through elicitation.

In the stateless era a tool call may be answered "input required": the client asks its user and sends the call again
with the answer. The question names the tool and its arguments; the state that comes back is bound to the intent, so one
yes cannot stand for another. A client that offers no elicitation leaves the intent held, for `onceward holds resolve`.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import replace
from typing import Any

from .wire import Call

_QUESTION = "dev.onceward/approval"
_STATE = "onceward-approval:"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_SHOWN = 2_000


def can_ask(call: Call) -> bool:
    """Tell whether the client offers to put a form to its user."""
    capabilities = call.meta.get(_CAPABILITIES)
    offered = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(offered, dict) and (not offered or "form" in offered)


def question(call: Call, intent: str, secret: bytes) -> dict[str, Any]:
    """Return the result that asks."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    if len(arguments) > _SHOWN:
        arguments = f"{arguments[:_SHOWN]}… (shortened from {len(arguments)} characters)"
    return {
        "resultType": "input_required",
        "inputRequests": {
            _QUESTION: {
                "method": "elicitation/create",
                "params": {
                    "mode": "form",
                    "message": f"May {call.name} be done, once, with {arguments}?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": {"approve": {"type": "boolean", "title": "Do it, once"}},
                        "required": ["approve"],
                    },
                },
            }
        },
        "requestState": f"{_STATE}{intent}:{_seal(intent, secret)}",
    }


def answer_in(call: Call, secret: bytes) -> tuple[str, bool] | None:
    """Return the intent that was asked about, and whether the answer is a yes; None when the call carries no answer."""
    state = call.params.get("requestState")
    if not isinstance(state, str) or not state.startswith(_STATE):
        return None
    intent, _, seal = state.removeprefix(_STATE).partition(":")
    if not hmac.compare_digest(seal.encode("utf-8", "replace"), _seal(intent, secret).encode()):
        return None
    responses = call.params.get("inputResponses")
    given = responses.get(_QUESTION) if isinstance(responses, dict) else None
    if not isinstance(given, dict) or given.get("action") != "accept":
        return intent, False
    content = given.get("content")
    return intent, isinstance(content, dict) and content.get("approve") is True


def without_answer(call: Call) -> Call:
    """Return the call as it was before it was asked about: the tool server never saw the question."""
    params = {name: value for name, value in call.params.items() if name not in ("requestState", "inputResponses")}
    message = {**call.message, "params": params}
    return replace(call, message=message, raw=json.dumps(message, ensure_ascii=False).encode())


def _seal(intent: str, secret: bytes) -> str:
    return hmac.digest(secret, f"approval:{intent}".encode("utf-8", "replace"), "sha256").hex()
