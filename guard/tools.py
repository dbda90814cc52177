"""One tool as the guard uses it: its contract compiled to plain values and extractors.

`onceward.contracts` compiles a contract file to these; code that needs no file may build one by hand. An extractor is
anything with `search(data)` that returns the value it finds or None, such as a compiled JMESPath expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .evidence import Contract
from .identity import Rules
from .keys import KeyFormat
from .outcomes import ErrorRules


class Extractor(Protocol):
    """Something that finds a value in JSON-like data."""

    def search(self, data: Any, /) -> Any:
        """Return what is found, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlace:
    """Where an idempotency key goes in a request, and what it looks like."""

    where: Literal["argument", "meta", "param", "header"]
    name: str
    format: KeyFormat = field(default_factory=KeyFormat)
    replace: bool = False  #: a key that the caller supplies is replaced by ours instead of sent as it came


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """How to look for an effect."""

    tool: str
    arguments: Mapping[str, Extractor] = field(default_factory=dict)  #: over the original arguments
    items: Extractor | None = None  #: over the read's result; None = the result itself is the list, or the one item
    match: tuple[tuple[Extractor, Extractor], ...] = ()  #: (in an item, in the original arguments) must be equal
    created: Extractor | None = None  #: in an item
    baseline: bool = False
    stamp_argument: str | None = None  #: path of the argument that carries the intent's reference
    stamp_item: Extractor | None = None  #: where the reference shows in an item
    page_argument: str | None = None
    page_next: Extractor | None = None
    page_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPlan:
    """How to ask what became of an accepted request."""

    tool: str
    arguments: Mapping[str, Extractor]  #: over {"arguments": ..., "result": ..., "reference": ...}
    path: Extractor
    pending: tuple[Any, ...] = ()
    done: tuple[Any, ...] = ()
    failed: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Where a batch keeps its items, and what names one of them."""

    items: str  #: path of the list in the arguments
    identity: tuple[str, ...] = ()  #: paths in an item; empty = the whole item


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool of one server, for one set of arguments (a contract may differ by argument)."""

    name: str
    server: str
    contract: Contract
    kind: str = ""  #: shared by tools that cause the same effect; empty = the tool's name
    rules: Rules = field(default_factory=Rules)
    errors: ErrorRules = field(default_factory=ErrorRules)
    key: KeyPlace | None = None
    read: ReadPlan | None = None
    progress: ProgressPlan | None = None
    batch: BatchPlan | None = None
    once_per_window: bool = False
    redact: tuple[str, ...] = ()
    inner_retries: bool = False  #: a client below us repeats requests by itself, so no refusal is proof
    undo: str | None = None
    boundary: str | None = None  #: region or account within which keys are shared; part of the evidence

    @property
    def effect_name(self) -> str:
        """Return the name under which identity is judged."""
        return self.kind or self.name
