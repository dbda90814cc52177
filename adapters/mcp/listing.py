"""What a client sees of the tools, and what the guard learns from it.

A `tools/list` result passes as it came, except that each guarded tool gains an optional label argument, and the last
page a status tool. On the way the contracts are bound to the living tools: a promise that the tool does not carry is
void, and standard error says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onceward.evidence import Effect

if TYPE_CHECKING:
    from onceward.contracts.compiling import ContractToolbox

LABEL = "onceward_label"
STATUS_TOOL = "onceward_status"

_LABEL_SCHEMA = {
    "type": "string",
    "description": "Leave out. Only to repeat an equal, finished action on purpose: a new name for the second one.",
}

_STATUS = {
    "name": STATUS_TOOL,
    "title": "Status of guarded actions",
    "description": (
        "Says what is known of the actions of this conversation that change the world: what happened, what did not, "
        "what is not known yet, and who is asked. Sends nothing."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "intent": {"type": "string", "description": "The first letters of one intent's id; without it, all."},
        },
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


class Listing:
    """The tool list of one server."""

    def __init__(self, toolbox: ContractToolbox) -> None:
        """Take the contracts; they are bound when the list is seen."""
        self.toolbox = toolbox
        self._unbound = toolbox.contracts
        self._seen: dict[str, dict[str, Any]] = {}
        self._said: set[str] = set()
        self.known = False  #: the whole list was seen, so contracts are bound to it

    def shown(self, result: dict[str, Any]) -> dict[str, Any] | None:
        """Learn from one page of a list, and return what the client is shown; None = exactly what came."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return None
        named = [t for t in tools if isinstance(t, dict) and isinstance(t.get("name"), str)]
        self._learn(named, result.get("nextCursor"))
        shown = [self._with_label(tool) for tool in tools]
        guards = any(new is not old for new, old in zip(shown, tools, strict=True))
        if "nextCursor" not in result and (guards or self._guards_any()):
            shown.append(_STATUS)
            guards = True
        return {**result, "tools": shown} if guards else None

    def unlisted(self) -> None:
        """Rely on no argument of a tool and on no other tool, while the server does not say what it has."""
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        tools = [{"name": name, "inputSchema": schema} for name in self._unbound.tools]
        self._tell("the tool server did not list its tools: no key argument and no read-back is relied on")
        self._bind(tools, quiet=True)

    def has_output_schema(self, name: str) -> bool:
        """Tell whether a tool promises structured content of some shape."""
        return "outputSchema" in self._seen.get(name, {})

    def mirrored_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that must repeat an argument (SEP-2243), for the arguments as they are sent."""
        from onceward.contracts.binding import mirrored

        tool = self._seen.get(name)
        return mirrored(tool, arguments) if tool is not None else {}

    def _learn(self, tools: list[dict[str, Any]], next_cursor: Any) -> None:
        for tool in tools:
            self._seen[tool["name"]] = tool
        self.known = self.known or next_cursor is None
        hints = {
            tool["name"]: bool((tool.get("annotations") or {}).get("readOnlyHint"))
            for tool in tools
            if isinstance(tool.get("annotations") or {}, dict)
        }
        self._bind(list(self._seen.values()), next_cursor, hints=hints)

    def _bind(
        self,
        tools: list[dict[str, Any]],
        next_cursor: Any = None,
        *,
        hints: Mapping[str, bool] | None = None,
        quiet: bool = False,
    ) -> None:
        from onceward.contracts.binding import bind

        bound, mismatches = bind(self._unbound, {"tools": tools, "nextCursor": next_cursor})
        self.toolbox.rebind(bound, hints or {})
        for mismatch in () if quiet else mismatches:
            self._tell(f"{mismatch.tool}: {mismatch.field}: {mismatch.problem}")

    def _tell(self, problem: str) -> None:
        line = f"onceward: contract_mismatch: {problem}"
        if line not in self._said:
            self._said.add(line)
            print(line, file=sys.stderr, flush=True)

    def _with_label(self, tool: Any) -> Any:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            return tool
        declared = self.toolbox.contracts.tools.get(tool["name"])
        schema = tool.get("inputSchema")
        if declared is None or declared.effect is Effect.READ or not isinstance(schema, dict):
            return tool
        properties = schema.get("properties", {})
        if not isinstance(properties, dict) or LABEL in properties:
            return tool
        return {**tool, "inputSchema": {**schema, "properties": {**properties, LABEL: _LABEL_SCHEMA}}}

    def _guards_any(self) -> bool:
        return any(t.effect is not Effect.READ for t in self.toolbox.contracts.tools.values())
