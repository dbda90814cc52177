"""Changes to the rows of an intent: begin an attempt, record what became of it, settle, hold.

Each function runs inside one journal step and leaves the rows as the next decision must see them. Nothing here decides:
what to do comes in as a `Decision`, what was seen as a `Verdict` or a `Finding`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

from . import gathering, reading
from .commands import Core, Dispatch
from .evidence import (
    Act,
    AttemptState,
    Decision,
    Effect,
    Evidence,
    Found,
    IntentState,
    Outcome,
    Progress,
    fold,
    stronger,
)
from .gathering import Request
from .identity import intent_id, redact, refill
from .journal.base import AttemptRow, IntentRow, Store
from .keys import derive
from .outcomes import Reply, Verdict, all_text, error_bytes
from .reading import Finding
from .redaction import redact_result, scrubbed, words_of
from .tools import Tool

_ERROR_MOST = 8_192  #: bytes of an error that are kept to know it again when it is replayed


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return {gathering.DECIMAL: str(value)}
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_AGAIN_S = (0.2, 8.0)  #: back-off after an unknown: first, and at most; doubles, with jitter


def create(core: Core, store: Store, request: Request, epoch: int) -> IntentRow:
    """Insert a new intent that nothing was sent for yet."""
    row = _new_row(core, store, request, epoch)
    store.swap(row.identity, store.version(row.identity))  # an identity at version 0 counts as one without intents
    store.put_intent(row, new=True)
    return row


def begin(
    core: Core,
    store: Store,
    request: Request,
    row: IntentRow | None,
    attempts: Sequence[AttemptRow],
    decision: Decision,
    epoch: int,
) -> Dispatch:
    """Make an attempt durable and return what may leave. The identity's version moves: one of two racers wins."""
    tool, settings, now_s = request.tool, core.settings, store.now_s
    new = row is None
    if row is None:
        row = _new_row(core, store, request, epoch)
    version = store.version(row.identity)
    repeat_of = decision.repeat_of or (_happened_before(store, row) if new and version else None)
    store.swap(row.identity, version, row.id)
    if version and decision.act is Act.SEND and tool.read is not None and not tool.read.baseline:
        _close_counted(store, tool, row, now_s - reading.SKEW_S)
    own = new or decision.act is Act.SEND
    changed = False
    if decision.act is Act.SEND:
        if not new and (row.payload, row.content) != (request.names.payload, request.names.content):
            _take_new_terms(core, row, request)
        arguments = dict(request.arguments)
    else:
        arguments = _original(core, row, request)
        if decision.act is Act.SEND_MISSING:
            arguments = _missing(tool, arguments, row.facts)
            changed = True
        changed = changed or arguments != request.arguments
    if new or decision.generation != row.generation or row.key is None:
        row.generation = decision.generation
        row.key = _key(core, request, row)
    facts = {name: value for name, value in row.facts.items() if name not in ("released", "read", "not_before_s")}
    if decision.straggler:
        facts["straggler"] = True
    if row.key is not None and (place := gathering.key_place(tool)) is not None:
        facts["key_place"] = place
    if repeat_of:
        facts["repeat_of"] = repeat_of
    row.facts = facts
    row.state, row.open, row.code, row.owner, row.settled_s = IntentState.IN_FLIGHT, True, None, None, None
    attempt = AttemptRow(
        intent=row.id,
        number=len(attempts) + 1,
        generation=row.generation,
        state=AttemptState.SENDING,
        begun_s=now_s,
        send_before_s=now_s + min(settings.send_allowance_s, settings.lease_s),
        lease_until_s=now_s + settings.lease_s,
        holder=core.holder,
        call=request.call,
        call_id=request.call_id if own else None,
    )
    store.put_intent(row, new=new)
    store.put_attempt(attempt, new=True)
    if tool.key is not None and tool.key.where == "argument" and row.key is not None:
        arguments = {**arguments, tool.key.name: row.key}
    if tool.read is not None and tool.read.stamp_argument is not None:
        arguments = reading.stamped(arguments, tool.read.stamp_argument, reading.reference(row.id))
    return Dispatch(
        tool=tool,
        arguments=arguments,
        key=row.key,
        attempt=attempt,
        intent=row.id,
        first=own,
        changed=changed,
        timeout_s=settings.attempt_timeout_s,
        previous=_last_error(attempts, row.generation) if row.key is not None else None,
    )


def _happened_before(store: Store, row: IntentRow) -> str | None:
    """Return the intent of this identity that began last, if it happened: another scope's, another label's."""
    last = store.last(row.identity)
    earlier = store.intent(last) if last is not None and last != row.id else None
    return earlier.id if earlier is not None and earlier.state is IntentState.HAPPENED else None


def _last_error(attempts: Sequence[AttemptRow], generation: int) -> bytes | None:
    errors = [a.detail["error"] for a in attempts if a.generation == generation and "error" in a.detail]
    return errors[-1].encode("utf-8", "surrogateescape") if errors else None


def record_outcome(
    core: Core,
    store: Store,
    tool: Tool,
    row: IntentRow,
    attempt: AttemptRow,
    verdict: Verdict,
    reply: Reply,
    sent: Mapping[str, Any] | None = None,
) -> None:
    """Record what a reply says of its attempt. A late reply, or one of a fenced holder, is evidence like any other.

    `sent`: the arguments of the attempt, so that what of them is redacted is not kept where the service repeats it.
    """
    now_s, words = store.now_s, words_of(sent, tool.redact) if tool.redact and sent else None
    state = verdict.state
    if state is not AttemptState.HAPPENED:
        stored = next((a for a in store.attempts(row.id) if a.number == attempt.number), None)
        if stored is not None and stored.ended_s is not None and stored.state is state:
            return  # nothing new: what was recorded first says more than what came after it
        state = stronger(stored.state, state) if stored is not None else state
    detail: dict[str, Any] = {"why": verdict.why}
    if state is not AttemptState.HAPPENED:
        said = reply.text or ("" if tool.redact else all_text(reply))
        if said:
            detail["text"] = said[:500]
        if reply.status is not None:
            detail["status"] = reply.status
        if verdict.replayed_error:
            detail["replayed_error"] = True
        if reply.status == 401 and "www-authenticate" in reply.headers:
            detail["challenge"] = True
        error = error_bytes(reply) if row.key is not None else None
        if error is not None and len(error) <= _ERROR_MOST:
            detail["error"] = error.decode("utf-8", "surrogateescape")
            if words is not None and words.search(detail["error"]):
                del detail["error"]  # it will not be known again when it is replayed: the ceiling ends that
        if state is not AttemptState.ACCEPTED:
            wait_s = verdict.retry_after_s or _again_s(row, attempt.number)
            row.facts = {**row.facts, "not_before_s": now_s + wait_s}
    attempt.state, attempt.ended_s, attempt.detail = state, now_s, scrubbed(detail, words)
    store.put_attempt(attempt)
    if verdict.state is AttemptState.HAPPENED:
        _release(store, row, "the service answered")
        _keep_open(store, tool, row)
        row.result = _stored(core, tool, reply, words)
        row.state, row.settled_s = IntentState.HAPPENED, now_s
        row.open = still_open(row)
        store.put_intent(row)
        return
    if state is AttemptState.ACCEPTED:
        row.result = _stored(core, tool, reply, words)
        row.facts = {**row.facts, "reference": verdict.reference, "not_before_s": now_s}
    refold(core, store, tool, row)


def record_finding(core: Core, store: Store, tool: Tool, row: IntentRow, finding: Finding, started_s: float) -> None:
    """Record what a read-back showed."""
    facts = dict(row.facts)
    facts["read"] = {
        "started_s": started_s,
        "found": finding.found.value,
        "count": finding.count,
        "expected": finding.expected,
    }
    reads = facts["reads"] = facts.get("reads", 0) + 1
    if finding.found is Found.ABSENT and started_s > facts.get("absent_s", 0.0):
        facts["absent_s"] = started_s
    if finding.seen:
        facts["seen"] = sorted({*facts.get("seen", ()), *finding.seen})
    if not store.attempts(row.id) and finding.found is not Found.INCONCLUSIVE:
        facts["baseline"], facts["baseline_s"] = finding.matches, started_s
        if tool.contract.read_back is not None and tool.contract.read_back.lag_s is not None:
            _close_counted(store, tool, row, started_s - tool.contract.read_back.lag_s)
    facts["not_before_s"] = store.now_s + _again_s(row, reads)
    row.facts = facts
    store.event(row.id, "guard", "read_back", finding.why, found=finding.found.value, matches=finding.matches)
    if finding.found is Found.FOUND and row.code is not None and (attempts := store.attempts(row.id)):
        # What a person was asked is answered; the decision only repeats a hold.
        twice = finding.count > finding.expected
        happened = Decision(act=Act.SETTLE, outcome=Outcome.HAPPENED, duplicated=twice)
        settle(core, store, tool, row, attempts, happened)
        return
    refold(core, store, tool, row)


def record_status(core: Core, store: Store, tool: Tool, row: IntentRow, status: Progress | None) -> None:
    """Record what a status read of an accepted request showed."""
    facts = dict(row.facts)
    polls = facts["polls"] = facts.get("polls", 0) + 1
    if status is not None:
        facts["progress"] = status.value
    facts["not_before_s"] = store.now_s + _again_s(row, polls)
    row.facts = facts
    store.event(row.id, "guard", "status", status.value if status else "unreadable")
    store.put_intent(row)


def settle(
    core: Core, store: Store, tool: Tool, row: IntentRow, attempts: Sequence[AttemptRow], decision: Decision
) -> None:
    """Record the outcome that evidence other than a reply has shown."""
    happened = decision.outcome is Outcome.HAPPENED
    for attempt in reversed(attempts):
        if attempt.state.may_commit:
            state = AttemptState.HAPPENED if happened else AttemptState.REFUSED
            why = "found by read-back" if attempt.state is not AttemptState.ACCEPTED else "told by its status"
            store.put_attempt(replace(attempt, state=state, ended_s=store.now_s, detail={**attempt.detail, "why": why}))
            break
    if decision.duplicated:
        row.facts = {**row.facts, "duplicated": True}
        store.event(row.id, "guard", "duplicated", "found more often than intended", owner=tool.contract.owner)
    if not happened:
        row.facts = {**row.facts, "failed_acceptance": True}
    refold(core, store, tool, row)


def hold(
    core: Core, store: Store, request: Request, row: IntentRow | None, decision: Decision, epoch: int
) -> IntentRow:
    """Park an intent for its owner; holding it again changes nothing."""
    assert decision.code is not None
    new = row is None
    if row is None:
        row = _new_row(core, store, request, epoch)
        store.swap(row.identity, store.version(row.identity))
    if row.code is not decision.code:
        row.code, row.owner = decision.code, decision.owner
        row.facts = {**row.facts, "held_s": store.now_s}
        row.open = row.state.unsettled
        store.put_intent(row, new=new)
        store.event(row.id, "guard", "held", decision.code.value, owner=decision.owner)
    return row


def refold(core: Core, store: Store, tool: Tool, row: IntentRow) -> None:
    """Bring an intent's row in step with its attempts, and release a hold that evidence has answered."""
    attempts = tuple(gathering.attempt_evidence(core.journal, a, None, store.now_s) for a in store.attempts(row.id))
    absent_s, asserted_s = row.facts.get("absent_s"), row.facts.get("asserted_absent_s")
    state = fold(tool.contract, Evidence(attempts=attempts, absent_s=absent_s, asserted_absent_s=asserted_s))
    if not state.unsettled and state is not IntentState.NEW:
        if row.settled_s is None:
            row.settled_s = store.now_s
        _release(store, row, f"the evidence says {state.value}")
    if state is IntentState.HAPPENED:
        _keep_open(store, tool, row)
    row.state = state
    row.open = still_open(row)
    store.put_intent(row)


def still_open(row: IntentRow) -> bool:
    """Tell whether an intent matters to other callers: unsettled, unheard, or a copy of it may straggle."""
    if row.state.unsettled:
        return True
    return (row.state is IntentState.HAPPENED and not row.acknowledged) or bool(row.facts.get("straggles"))


def acknowledge(store: Store, intent: str) -> None:
    """Note that the answer of an intent reached a live caller."""
    store.acknowledge(intent)


def _keep_open(store: Store, tool: Tool, row: IntentRow) -> None:
    """Keep an intent that happened before the others' eyes: a copy of it may still land, or their count may miss it."""
    counted = tool.read is not None and tool.read.stamp_argument is None
    idempotent = tool.contract.effect is Effect.IDEMPOTENT
    if counted or (idempotent and any(a.state.may_commit for a in store.attempts(row.id))):
        row.facts = {**row.facts, "straggles": True}


def _close_counted(store: Store, tool: Tool, row: IntentRow, before_s: float) -> None:
    """Forget what was settled so long before this intent that no read-back can take it for this one's."""
    if tool.contract.effect is Effect.IDEMPOTENT:
        return
    for other in store.open_of(row.identity):
        if "straggles" in other.facts and other.settled_s is not None and other.settled_s < before_s:
            other.facts = {name: value for name, value in other.facts.items() if name != "straggles"}
            other.open = still_open(other)
            store.put_intent(other)


def _release(store: Store, row: IntentRow, why: str) -> None:
    if row.code is not None:
        store.event(row.id, "guard", "released", why, code=row.code.value)
        row.code = row.owner = None


def _new_row(core: Core, store: Store, request: Request, epoch: int) -> IntentRow:
    names = request.names
    facts: dict[str, Any] = {}
    arguments, redacted = _clean(core, request)
    if redacted:
        facts["redacted"] = True
    if request.tool.contract.window_s != 86_400.0:
        facts["window_s"] = request.tool.contract.window_s
    if request.boundary is not None:
        facts["boundary"] = request.boundary
    if request.tool.contract.effect is Effect.UNDECLARED:
        facts["undeclared"] = True
    return IntentRow(
        id=intent_id(names.base, epoch),
        base=names.base,
        epoch=epoch,
        identity=names.identity,
        kind=names.kind,
        resource=names.resource,
        principal=request.principal,
        scope=request.scope,
        server=request.tool.server,
        tool=request.tool.name,
        label=request.label,
        state=IntentState.NEW,
        open=False,
        generation=0,
        key=None,
        key_pinned=request.key is not None,
        request=arguments,
        payload=names.payload,
        content=names.content,
        created_s=store.now_s,
        facts=facts,
    )


def _take_new_terms(core: Core, row: IntentRow, request: Request) -> None:
    """Nothing happened under the old terms: the caller's present request takes their place."""
    row.request, redacted = _clean(core, request)
    row.payload, row.content = request.names.payload, request.names.content
    row.facts = {name: value for name, value in row.facts.items() if name not in ("redacted", "seen")}
    if redacted:
        row.facts["redacted"] = True


def _clean(core: Core, request: Request) -> tuple[str, bool]:
    """Return the arguments as they are stored."""
    if not request.tool.redact:
        return _encode(request.arguments), False
    return _encode(redact(request.arguments, request.tool.redact, core.secret)), True


def _original(core: Core, row: IntentRow, request: Request) -> dict[str, Any]:
    stored = gathering.stored(row.request)
    if not row.facts.get("redacted"):
        return stored
    filled = refill(stored, request.arguments, core.secret)
    if filled is None:
        raise AssertionError("a redacted original is only re-issued for a call that has its arguments")
    return dict(filled)


def _key(core: Core, request: Request, row: IntentRow) -> str | None:
    if request.tool.key is None:
        return None
    if row.key_pinned and request.key is not None:
        return request.key
    return derive(core.secret, row.id, row.generation, request.tool.key.format)


def _missing(tool: Tool, arguments: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    assert tool.batch is not None
    items = reading.at_path(arguments, tool.batch.items)
    seen = set(facts.get("seen", ()))
    return reading.with_path(arguments, tool.batch.items, [i for n, i in enumerate(items) if n not in seen])


def _stored(core: Core, tool: Tool, reply: Reply, words: re.Pattern[str] | None) -> str | None:
    """Return a reply as it is kept for replays: its JSON, or a digest when it is too large or is no JSON."""
    body = reply.body
    try:
        if tool.redact:
            body = scrubbed(redact_result(body, tool.redact, core.secret), words)
        text = _encode(body)
        if not text.isascii() and _SURROGATE.search(text):  # half a character, as services cut texts
            text = json.dumps(body, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError):  # it happened all the same
        text = json.dumps({"dev.onceward/unstorable": type(body).__name__})
    if len(text) <= core.settings.result_limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps({"dev.onceward/digest": digest, "bytes": len(text)})


def _again_s(row: IntentRow, number: int) -> float:
    """Return the back-off after the n-th try: exponential, with a jitter that a replay of the same rows repeats."""
    first_s, most_s = _AGAIN_S
    base_s: float = min(first_s * 2.0 ** min(number - 1, 20), most_s)
    return base_s * (0.5 + Random(f"{row.id}:{number}").random())
