"""From rows to evidence: what one caller's decision is made of.

Everything here runs inside one journal step and only reads. `gather` folds an intent's rows, and those of the other
intents that share its identity, into the `Evidence` that `decide` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any

from .evidence import (
    Attempt,
    AttemptState,
    Contract,
    Effect,
    Evidence,
    Found,
    IntentState,
    Other,
    Payload,
    Progress,
    Read,
    commits_until_s,
    fold,
    unresolved,
)
from .identity import Names, compare, refill, similar
from .journal.base import AttemptRow, IntentRow, Journal, Store
from .tools import Tool

if TYPE_CHECKING:
    from .commands import Core

DECIMAL = "dev.onceward/decimal"  #: how a decimal number, which JSON does not have, is stored


@dataclass(slots=True, kw_only=True)
class Request:
    """One guarded call, as it is asked."""

    tool: Tool
    arguments: Mapping[str, Any]  #: without label and key
    names: Names
    scope: str
    principal: str
    label: str | None = None
    key: str | None = None  #: a key that the caller supplied and that is sent as it came
    call: str = ""  #: a token of this call
    call_id: str | None = None  #: hash over the harness's own call id, the scope and the arguments
    patience_until_s: float = inf
    waiting: bool = True
    boundary: str | None = None
    intent: str | None = None  #: background work: the very intent that is settled
    tools: Callable[[str, Mapping[str, Any]], Tool | None] = field(default=lambda name, arguments: None)

    def tool_of(self, row: IntentRow) -> Tool:
        """Return the tool that another intent of the server was made with."""
        if row.tool == self.tool.name and not row.request:
            return self.tool
        return self.tools(row.tool, stored(row.request) if row.request else {}) or self.tool


@dataclass(slots=True, kw_only=True)
class Settings:
    """How a guard drives: all times in seconds."""

    send_allowance_s: float = 5.0
    grace_s: float = 600.0
    lease_s: float = 30.0
    attempt_timeout_s: float = 30.0
    result_limit: int = 262_144  #: bytes; a larger result is stored as a digest


def attempt_evidence(journal: Journal, row: AttemptRow, request: Request | None, now_s: float) -> Attempt:
    """Fold one attempt's row; a sending attempt whose holder is lost becomes unknown."""
    state = row.state
    live = state is AttemptState.SENDING and journal.alive(row, now_s)
    if state is AttemptState.SENDING and not live:
        state = AttemptState.UNKNOWN
    own = request is not None and row.call == request.call
    if request is not None and request.call_id is not None and row.call_id == request.call_id:
        # A client that was asked for credentials sends the same call again with them: that is a later call.
        own = own or not row.detail.get("challenge")
    return Attempt(
        number=row.number,
        generation=row.generation,
        begun_s=row.begun_s,
        send_before_s=row.send_before_s,
        state=state,
        live=live,
        own=own,
        replayed_error=bool(row.detail) and bool(row.detail.get("replayed_error")),
    )


def gather(
    store: Store,
    core: Core,
    request: Request,
    row: IntentRow | None,
    attempts: Sequence[AttemptRow],
    *,
    own: bool = True,
    others: Sequence[Other] = (),
    known: bool = False,
) -> Evidence:
    """Return the evidence about one intent as `request` sees it.

    `row` None: a new intent. `known`: this journal has seen its identity before, so what exists is no news to it.
    """
    if row is None:
        return Evidence(
            waiting=request.waiting,
            patience_until_s=request.patience_until_s,
            labelled=request.label is not None,
            read_first=not known and _read_first(core.journal, store.now_s),
            key_pinned=request.key is not None,
            others=tuple(others),
            grace_s=core.settings.grace_s,
            send_allowance_s=core.settings.send_allowance_s,
        )
    facts = row.facts
    payload = payload_of(row, request) if own and request.waiting else Payload.SAME
    evidence = Evidence(
        attempts=tuple(attempt_evidence(core.journal, a, request if own else None, store.now_s) for a in attempts)
        or _buried(row),
        payload=payload,
        own=own,
        waiting=request.waiting,
        patience_until_s=request.patience_until_s,
        not_before_s=facts.get("not_before_s", 0.0),
        held=row.code,
        approved=bool(facts.get("approved")),
        released=bool(facts.get("released")),
        closed=bool(facts.get("void")) or _resource_changed(store, row),
        acknowledged=row.acknowledged,
        told=request.names.content in facts.get("told", ()),
        labelled=row.label is not None,
        settled_s=row.settled_s,
        absent_s=facts.get("absent_s"),
        asserted_absent_s=facts.get("asserted_absent_s"),
        read=_read(facts),
        progress=Progress(facts["progress"]) if "progress" in facts else None,
        baseline_known="baseline" in facts,
        read_first=not attempts and _read_first(core.journal, store.now_s),
        key_pinned=row.key_pinned,
        # A key reaches only who saw it with the first attempt: one that came into the contract later, nobody did.
        boundary_ok=(facts.get("boundary"), facts.get("key_place")) == (request.boundary, key_place(request.tool))
        and (row.key is not None or not attempts),
        original_available=not facts.get("redacted") or (own and refillable(row, request, core.secret)),
        others=tuple(others),
        grace_s=core.settings.grace_s,
        send_allowance_s=core.settings.send_allowance_s,
    )
    nothing = (IntentState.NEW, IntentState.REFUSED, IntentState.ABSENT)
    contract, other = request.tool.contract, payload is not Payload.SAME
    if other and contract.effect is Effect.UNSAFE and fold(contract, evidence) in nothing:
        # A yes is for what the person saw: other arguments are an intent, and a question, of their own.
        return replace(evidence, closed=True, held=None)
    return evidence


def _buried(row: IntentRow) -> tuple[Attempt, ...]:
    """Return what a tombstone still says of its attempts: how they ended."""
    if "tombstone" not in row.facts:
        return ()
    state = AttemptState.HAPPENED if row.state is IntentState.HAPPENED else AttemptState.REFUSED
    begun_s = row.created_s
    return (Attempt(number=1, generation=row.generation, begun_s=begun_s, send_before_s=begun_s, state=state),)


def key_place(tool: Tool) -> str | None:
    """Return where the key of a tool goes, as far as it is kept: nothing for the usual place, an argument."""
    return None if tool.key is None or tool.key.where == "argument" else f"{tool.key.where}:{tool.key.name}"


def others_of(store: Store, journal: Journal, request: Request, row: IntentRow | None) -> list[Other]:
    """Return the other intents that this call must mind, unsettled ones first."""
    tool, names = request.tool, request.names
    undeclared = tool.contract.effect is Effect.UNDECLARED
    found: list[Other] = []
    for other in store.open_of(names.identity):
        if row is not None and other.id == row.id:
            continue
        if undeclared and other.scope != request.scope:
            continue
        found.append(_other(store, journal, request, other, similar_only=False))
    if not undeclared and tool.rules.identity is None:
        arguments = request.arguments
        for other in store.open_of_kind(names.kind):
            if other.identity != names.identity and similar(stored(other.request), arguments):
                found.append(_other(store, journal, request, other, similar_only=True))
    found.sort(key=lambda o: not o.state.unsettled)
    return found


def state_of(
    store: Store, journal: Journal, contract: Contract, row: IntentRow, now_s: float
) -> tuple[IntentState, float]:
    """Fold a row as it stands now: its state, and until when an attempt of it may still commit."""
    evidence = _own_evidence(store, journal, row, now_s)
    return fold(contract, evidence), commits_until_s(contract, evidence)


def unresolved_of(
    store: Store, journal: Journal, contract: Contract, row: IntentRow, now_s: float
) -> tuple[Attempt, ...]:
    """Return the attempts of a row that may have taken effect, or may still do so."""
    return unresolved(contract, _own_evidence(store, journal, row, now_s))


def _own_evidence(store: Store, journal: Journal, row: IntentRow, now_s: float) -> Evidence:
    attempts = tuple(attempt_evidence(journal, a, None, now_s) for a in store.attempts(row.id))
    facts = row.facts
    return Evidence(attempts=attempts, absent_s=facts.get("absent_s"), asserted_absent_s=facts.get("asserted_absent_s"))


def payload_of(row: IntentRow, request: Request) -> Payload:
    """Compare a call with the request that an intent was made for."""
    if row.payload != request.names.payload:
        return Payload.TERMS
    if row.content == request.names.content:
        return Payload.SAME
    if not row.request:  # a tombstone: its words are gone, so a doubt counts as likeness
        return Payload.NEAR
    return compare(stored(row.request), request.arguments, request.tool.rules)


def _other(store: Store, journal: Journal, request: Request, row: IntentRow, *, similar_only: bool) -> Other:
    tool = request.tool_of(row)
    state, until_s = state_of(store, journal, tool.contract, row, store.now_s)
    window_s = row.facts.get("window_s", 86_400.0)
    if tool.contract.effect is Effect.UNDECLARED:
        window_s = 900.0
    since_s = row.settled_s if row.settled_s is not None else row.created_s
    return Other(
        intent=row.id,
        state=state,
        payload=Payload.SAME if similar_only else payload_of(row, request),
        told=request.names.content in row.facts.get("told", ()),
        acknowledged=row.acknowledged,
        in_window=store.now_s <= since_s + window_s,
        held=row.code,
        commits_until_s=until_s,
        similar=similar_only,
    )


def _read(facts: Mapping[str, Any]) -> Read | None:
    read = facts.get("read")
    if read is None:
        return None
    return Read(
        started_s=read["started_s"], found=Found(read["found"]), count=read["count"], expected=read.get("expected", 1)
    )


def _read_first(journal: Journal, now_s: float) -> bool:
    return now_s < journal.new_until_s


def _resource_changed(store: Store, row: IntentRow) -> bool:
    if row.resource is None or row.state is not IntentState.HAPPENED or row.settled_s is None:
        return False
    return store.later_on(row.resource, row.settled_s, row.identity)


def refillable(row: IntentRow, request: Request, secret: bytes) -> bool:
    """Tell whether a redacted original can be rebuilt from this call's arguments."""
    return refill(stored(row.request), request.arguments, secret) is not None


def stored(text: str) -> dict[str, Any]:
    """Return arguments as they were before they were stored."""
    loaded: dict[str, Any] = json.loads(text, object_hook=_revived)
    return loaded


def _revived(value: dict[str, Any]) -> Any:
    return Decimal(value[DECIMAL]) if DECIMAL in value else value
