"""What a journal is: rows, one transaction, and the promises every store keeps.

A journal runs `work(store)` functions. Everything a work function reads and writes is one atomic, durable step: when
`run` returns, the step survives a crash (or raised, and nothing of it is there). Works of many callers may share one
commit. A work may be run again after a conflict, so it touches nothing but its store. Rows are plain values; a work
changes them with `dataclasses.replace` and puts them back. All times are seconds since the epoch on the store's clock,
`store.now_s`, which never goes back.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, TypeVar

from ..evidence import AttemptState, Code, IntentState

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class IntentRow:
    """One intent. `base` names it without its epoch; `identity` and `kind` are hashes shared with its siblings."""

    id: str
    base: str
    epoch: int
    identity: str
    kind: str
    resource: str | None
    principal: str
    scope: str
    server: str
    tool: str
    label: str | None
    state: IntentState
    open: bool  #: it still matters to other callers of the identity (unsettled, unacknowledged, or a straggler)
    generation: int
    key: str | None  #: the key that was sent with the current generation
    key_pinned: bool
    request: str  #: the original arguments as JSON, redacted paths as HMAC
    payload: str  #: hash over identity + terms
    content: str  #: hash over content; empty = none
    acknowledged: bool = False
    code: Code | None = None  #: hold code
    owner: str | None = None
    created_s: float
    settled_s: float | None = None
    result: str | None = None  #: the stored reply as JSON, or a digest object when it was too large
    facts: dict[str, Any] = field(default_factory=dict)  #: everything rarer; JSON values only


@dataclass(slots=True, kw_only=True)
class AttemptRow:
    """One sending of an intent."""

    intent: str
    number: int
    generation: int
    state: AttemptState
    begun_s: float
    send_before_s: float
    lease_until_s: float
    holder: str  #: see `Holder.name`
    call: str  #: a token of the guarded call that made it
    call_id: str | None = None  #: the harness's own id of the call, with its scope's hash
    ended_s: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)  #: how it ended: class, text, retry_at_s, replayed_error


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line of the append-only history. Ordinary begins and ends of attempts are told by the attempt rows."""

    at_s: float
    intent: str | None
    who: str  #: `guard`, `sweep`, `person:NAME`
    what: str  #: held, released, read_back, acknowledged, told, resolved, purged, journal_new, ...
    why: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that drives attempts: host, pid, start time of the process, and a random token."""

    host: str
    pid: int
    started: str  #: clock ticks since boot from /proc/PID/stat, or "" where the system has none
    token: str

    @classmethod
    def current(cls) -> Holder:
        """Name this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, process_started(pid) or "", token_hex(8))

    @classmethod
    def parse(cls, name: str) -> Holder:
        """Read a name that `name` wrote. Raises ValueError for anything else."""
        host, pid, started, token = name.rsplit("|", 3)
        return cls(host, int(pid), started, token)

    @property
    def name(self) -> str:
        """Return the form in which the journal stores it."""
        return f"{self.host}|{self.pid}|{self.started}|{self.token}"


def process_started(pid: int) -> str | None:
    """Return when a process started, as text that differs once a pid is reused; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command may hold spaces and brackets; the fields after the last bracket are plain. 22nd = starttime.
            return stat.read().rsplit(b")", 1)[1].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError):
        if os.path.isdir("/proc/self"):
            return None
    except (OSError, IndexError):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""


class Store(ABC):
    """One transaction on a journal."""

    now_s: float

    @abstractmethod
    def version(self, identity: str) -> int:
        """Return the version of an identity's row; 0 when there is none."""

    @abstractmethod
    def swap(self, identity: str, version: int, intent: str | None = None) -> None:
        """Move an identity from `version` to the next, or raise `Raced` (the work is then run again).

        `intent` is remembered as the last one that began for this identity.
        """

    @abstractmethod
    def last(self, identity: str) -> str | None:
        """Return the intent that a swap last remembered for an identity."""

    @abstractmethod
    def latest(self, base: str) -> IntentRow | None:
        """Return the row of `base` with the highest epoch."""

    @abstractmethod
    def intent(self, id: str) -> IntentRow | None:
        """Return one intent."""

    @abstractmethod
    def open_of(self, identity: str) -> Sequence[IntentRow]:
        """Return the intents of an identity that are `open`."""

    @abstractmethod
    def open_of_kind(self, kind: str) -> Sequence[IntentRow]:
        """Return the intents of a kind that are `open`."""

    @abstractmethod
    def later_on(self, resource: str, after_s: float, identity: str) -> bool:
        """Tell whether an intent of another identity happened on `resource` after `after_s`."""

    @abstractmethod
    def attempts(self, intent: str) -> Sequence[AttemptRow]:
        """Return the attempts of an intent, by number."""

    @abstractmethod
    def by_call(self, call_id: str) -> IntentRow | None:
        """Return the newest intent that an attempt of the harness call `call_id` belongs to."""

    @abstractmethod
    def put_intent(self, row: IntentRow, *, new: bool = False) -> None:
        """Insert (`new`) or update an intent; an insert of an existing id raises `Raced`."""

    @abstractmethod
    def put_attempt(self, row: AttemptRow, *, new: bool = False) -> None:
        """Insert (`new`) or update an attempt; an insert of an existing number raises `Raced`."""

    def acknowledge(self, intent: str) -> None:
        """Note that the answer of an intent that happened reached a live caller."""
        row = self.intent(intent)
        if row is not None and not row.acknowledged and row.state is IntentState.HAPPENED:
            row.acknowledged = True
            row.open = bool(row.facts.get("straggles"))
            self.put_intent(row)

    @abstractmethod
    def event(self, intent: str | None, who: str, what: str, why: str, **data: Any) -> None:
        """Append to the history, at `now_s`."""

    @abstractmethod
    def meta(self, name: str) -> str | None:
        """Return a value of the meta table."""

    @abstractmethod
    def set_meta(self, name: str, value: str) -> None:
        """Set a value of the meta table."""


class Raced(Exception):
    """Another writer was first; the work is run again on fresh rows."""


class Journal(ABC):
    """A durable memory of intents. Safe to use from many threads, and from many processes at once."""

    holder: Holder
    new_until_s: float  #: until then a first send is preceded by a read-back; 0 = the journal is not new

    @abstractmethod
    def run(self, work: Callable[[Store], T]) -> T:
        """Run one durable step in this thread. Raises JournalError when it could not be made durable."""

    @abstractmethod
    async def run_async(self, work: Callable[[Store], T]) -> T:
        """Run one durable step without blocking the event loop; many callers share one commit."""

    @abstractmethod
    def later(self, work: Callable[[Store], Any]) -> None:
        """Run a step with the next commit, at the latest on `close`: for notes that need no answer."""

    @abstractmethod
    def clock(self) -> float:
        """Return the store's clock now, without a transaction."""

    @abstractmethod
    def alive(self, attempt: AttemptRow, now_s: float) -> bool:
        """Tell whether an attempt's holder lives: its lease runs, and on this host its process too."""

    @abstractmethod
    def extend_leases(self) -> None:
        """Extend the leases of this holder's attempts that are still sending."""

    @abstractmethod
    def list(
        self,
        *,
        scope: str | None = None,
        states: Sequence[IntentState] | None = None,
        held: bool | None = None,
        unsettled: bool | None = None,
        since_s: float | None = None,
        limit: int | None = None,
    ) -> Iterator[IntentRow]:
        """Yield intents, newest first."""

    @abstractmethod
    def history(self, intent: str | None = None) -> Iterator[EventRow]:
        """Yield events, oldest first."""

    @abstractmethod
    def find(self, prefix: str) -> Sequence[IntentRow]:
        """Return the intents whose id begins with `prefix`."""

    @abstractmethod
    def purge(self, *, margin_s: float = 3_600.0, tombstone_s: float = 2_592_000.0) -> dict[str, int]:
        """Drop settled rows past window + margin to tombstones, and old tombstones; unknown and held rows stay.

        Returns counts: `purged`, `tombstones_dropped`. The window of a row is `facts["window_s"]` (default a day).
        """

    @abstractmethod
    def check(self) -> Sequence[str]:
        """Return what is wrong with the file and its rows, one sentence each; empty = sound."""

    @abstractmethod
    def close(self) -> None:
        """Write what waits, and close. Idempotent."""
