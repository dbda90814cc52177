"""Contracts: what an operator declares about tools.

    from onceward.contracts import load
    contracts = load("payments.yaml")

Names are imported when they are first used: a program that only mentions contracts does not pay for their validation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .binding import Mismatch, bind, mirror_of, mirrored
    from .linting import Finding, lint
    from .loader import ContractFileError, load, load_many, parse
    from .model import Case, ServerContracts, ToolContract
    from .parts import Batch, ErrorRule, Key, KeyFormat, Pages, Progress, ReadBack, ReplayMarker, Stamp, Token
    from .schema import json_schema
    from .values import Duration, Query

__all__ = [
    "Batch",
    "Case",
    "ContractFileError",
    "Duration",
    "ErrorRule",
    "Finding",
    "Key",
    "KeyFormat",
    "Mismatch",
    "Pages",
    "Progress",
    "Query",
    "ReadBack",
    "ReplayMarker",
    "ServerContracts",
    "Stamp",
    "Token",
    "ToolContract",
    "bind",
    "json_schema",
    "lint",
    "load",
    "load_many",
    "mirror_of",
    "mirrored",
    "parse",
]

_HOMES = {
    "binding": {"Mismatch", "bind", "mirror_of", "mirrored"},
    "linting": {"Finding", "lint"},
    "loader": {"ContractFileError", "load", "load_many", "parse"},
    "model": {"Case", "ServerContracts", "ToolContract"},
    "schema": {"json_schema"},
    "values": {"Duration", "Query"},
}


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "parts")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
