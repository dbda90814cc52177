"""Onceward: a recovery guard for AI agents.

One intent, at most one effect; and when that cannot be known, a person is asked, never a guess made. `Guard` wraps the
calls of a tool server's tools; `decide` is the pure rule inside it. Names are imported when they are first used, so
that `import onceward` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decision import decide
    from .drive import Guard, current_key, scope
    from .errors import (
        ArgumentsError,
        Conflict,
        ContractError,
        GuardError,
        Held,
        JournalError,
        Refused,
        Stopped,
        Unknown,
    )
    from .evidence import Act, Code, Contract, Decision, Effect, Evidence, IntentState, Outcome
    from .journal import Journal, open_journal
    from .toolbox import StaticToolbox, Toolbox
    from .tools import Tool

_HOMES = {
    "decide": "decision",
    "Guard": "drive",
    "current_key": "drive",
    "scope": "drive",
    "ArgumentsError": "errors",
    "Conflict": "errors",
    "ContractError": "errors",
    "GuardError": "errors",
    "Held": "errors",
    "JournalError": "errors",
    "Refused": "errors",
    "Stopped": "errors",
    "Unknown": "errors",
    "Act": "evidence",
    "Code": "evidence",
    "Contract": "evidence",
    "Decision": "evidence",
    "Effect": "evidence",
    "Evidence": "evidence",
    "IntentState": "evidence",
    "Outcome": "evidence",
    "Journal": "journal",
    "open_journal": "journal",
    "StaticToolbox": "toolbox",
    "Toolbox": "toolbox",
    "Tool": "tools",
}

__all__ = [
    "Act",
    "ArgumentsError",
    "Code",
    "Conflict",
    "Contract",
    "ContractError",
    "Decision",
    "Effect",
    "Evidence",
    "Guard",
    "GuardError",
    "Held",
    "IntentState",
    "Journal",
    "JournalError",
    "Outcome",
    "Refused",
    "StaticToolbox",
    "Stopped",
    "Tool",
    "Toolbox",
    "Unknown",
    "current_key",
    "decide",
    "open_journal",
    "scope",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
