"""The tools of one server, by name: what a guard asks when a call comes in."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .evidence import Contract, Effect
from .identity import Rules
from .tools import Tool

_READS = frozenset(
    """get list search read find fetch query show describe view lookup count check status ping help browse
    preview""".split()  # noqa: SIM905  # a list of words reads best as words
)
_WRITES = frozenset(
    """add create make new insert upsert update set put patch write edit append delete remove drop clear send post
    publish reply notify mail email charge pay refund transfer buy order book cancel deploy run start stop
    restart trigger execute exec merge push commit approve reject assign move rename copy upload import
    grant revoke enable disable apply invite submit sign close open lock unlock mark replace reset restore
    rotate schedule subscribe sync save store""".split()  # noqa: SIM905  # a list of words reads best as words
)


def reads_by_name(name: str) -> bool:
    """Tell whether a tool's name says that it only reads: a reading first word, and no writing word."""
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return bool(words) and words[0] in _READS and not _WRITES.intersection(words)


class Toolbox(ABC):
    """The tools of one server under their contracts."""

    server: str
    owner: str

    @abstractmethod
    def declared(self, name: str, arguments: Mapping[str, Any]) -> Tool | None:
        """Return a tool under its contract, for these arguments; None where there is no contract."""

    def uncontracted(self, name: str) -> Effect:
        """Return how a tool without contract passes: as a read, or under watch."""
        return Effect.READ if reads_by_name(name) else Effect.UNDECLARED

    def tool(self, name: str, arguments: Mapping[str, Any]) -> Tool:
        """Return the tool that a call means; one without contract stands under watch for ambiguous failures."""
        tool = self.declared(name, arguments)
        if tool is not None:
            return tool
        contract = Contract(effect=self.uncontracted(name), owner=self.owner)
        return Tool(name=name, server=self.server, contract=contract, rules=Rules())

    def by_name(self, name: str) -> Tool | None:
        """Return a tool by name alone, for settling an intent whose arguments are in the journal."""
        return self.declared(name, {})


class StaticToolbox(Toolbox):
    """Tools built by hand, for code that needs no contract file."""

    def __init__(self, *tools: Tool, server: str = "local", owner: str = "nobody") -> None:
        """Take the tools; every one belongs to the same server."""
        self.server, self.owner = server, owner
        self._tools = {tool.name: tool for tool in tools}

    def declared(self, name: str, arguments: Mapping[str, Any]) -> Tool | None:
        """Return the tool of that name."""
        return self._tools.get(name)
