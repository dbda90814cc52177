"""What a recovery asks of its shell, and what it works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .gathering import Settings
from .journal.base import AttemptRow, Journal, Store
from .tools import Tool


@dataclass(frozen=True, slots=True)
class Core:
    """What every recovery needs: the journal, the deployment secret, and how to drive."""

    journal: Journal
    secret: bytes
    settings: Settings = field(default_factory=Settings)

    @property
    def holder(self) -> str:
        """Return the name under which this process drives attempts."""
        return self.journal.holder.name


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """A request that may leave now: its durable record exists."""

    tool: Tool
    arguments: dict[str, Any]  #: as they are sent, with key argument and stamp
    key: str | None
    attempt: AttemptRow
    intent: str
    first: bool  #: the caller's own request, under no earlier attempt: transports may forward it as it came
    changed: bool  #: the arguments differ from what the caller gave
    timeout_s: float
    previous: bytes | None = None  #: the last error under the same key, to know it again


@dataclass(frozen=True, slots=True)
class Step:
    """Run one journal step; the result is sent back."""

    work: Callable[[Store], Any]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; a Reply is sent back, or None when patience ended while it still runs."""

    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Look:
    """Ask a read tool; a Reply is sent back."""

    tool: Tool  #: the tool whose effect is looked for
    name: str
    arguments: dict[str, Any]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


Command = Step | Send | Look | Pause
