"""Every combination of contract fields and evidence, checked against what must never be broken.

The rules here are written anew from the words of the contract, not taken from the code that they check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from onceward.decision import decide
from onceward.evidence import (
    HOLD_CODES,
    Act,
    Attempt,
    AttemptState,
    Code,
    Contract,
    Decision,
    Effect,
    Evidence,
    Found,
    IntentState,
    KeySupport,
    Other,
    Payload,
    Progress,
    Read,
    ReadBack,
    fold,
)

BOUND, LAG, ALLOWANCE = 10.0, 5.0, 5.0
BEGUN = 100.0
DUE = BEGUN + ALLOWANCE + BOUND + LAG
NOW = (BEGUN + 8, DUE, DUE + 3)

S = AttemptState
KEYS = (
    None,
    KeySupport(),
    KeySupport(retention_s=inf),
    KeySupport(retention_s=inf, concurrent_safe=True, replays_errors=False, caches_refusals=False),
    KeySupport(retention_s=40.0, concurrent_safe=True),
    KeySupport(retention_s=24.0, resumes_batch=True),
)
READS = (None, ReadBack(lag_s=None), ReadBack(lag_s=LAG))


def contracts() -> Iterator[Contract]:
    effects = (Effect.READ, Effect.IDEMPOTENT, Effect.WRITE, Effect.UNSAFE, Effect.UNDECLARED)
    for effect, key, read, bound, batch, progress, most in product(
        effects, KEYS, READS, (None, BOUND), (False, True), (False, True), (1, 2)
    ):
        if effect in (Effect.READ, Effect.UNDECLARED) and (key or read or bound or batch or progress or most == 1):
            continue
        if (batch or progress) and (most == 1 or (batch and progress)):
            continue
        # Once a person said yes, an unsafe effect is a write: two key shapes show it.
        if effect is Effect.UNSAFE and key not in KEYS[2:4]:
            continue
        yield Contract(
            effect=effect,
            owner="ops",
            key=key,
            read_back=read,
            in_flight_s=bound,
            batch=batch,
            progress=progress,
            attempts=most,
        )


def attempts() -> Iterator[tuple[Attempt, ...]]:
    def one(number: int, state: S, *, own: bool = False, live: bool = False, replayed: bool = False) -> Attempt:
        begun = BEGUN - 20 if number == 1 else BEGUN
        return Attempt(
            number=number,
            generation=0,
            begun_s=begun,
            send_before_s=begun + ALLOWANCE,
            state=state,
            own=own,
            live=live,
            replayed_error=replayed,
        )

    yield ()
    for state, own in product(S, (False, True)):
        yield (one(2, state, own=own),)
    yield (one(2, S.SENDING, live=True),)
    yield (one(2, S.UNKNOWN, replayed=True),)
    for first, second in product(S, (S.UNKNOWN, S.REFUSED, S.BUSY)):
        yield (one(1, first), one(2, second, own=True))


READ_RESULTS = (
    None,
    Read(started_s=BEGUN - 30, found=Found.ABSENT),
    Read(started_s=BEGUN + 6, found=Found.ABSENT),
    Read(started_s=BEGUN + 6, found=Found.FOUND, count=1),
    Read(started_s=BEGUN + 6, found=Found.PARTLY, count=1, expected=2),
    Read(started_s=DUE + 1, found=Found.PARTLY, count=1, expected=2),
    Read(started_s=DUE + 1, found=Found.INCONCLUSIVE),
    Read(started_s=DUE + 1, found=Found.ABSENT),
)
OTHERS: tuple[tuple[Other, ...], ...] = (
    (),
    (Other(intent="o", state=IntentState.UNKNOWN),),
    (Other(intent="o", state=IntentState.IN_FLIGHT, payload=Payload.FAR, told=True),),
    (Other(intent="o", state=IntentState.HAPPENED, commits_until_s=inf),),
    (Other(intent="o", state=IntentState.HAPPENED, acknowledged=True, commits_until_s=DUE),),
    (Other(intent="o", state=IntentState.UNKNOWN, similar=True),),
)
#: who asks, and what people have said: (own, waiting, held, approved, released)
ASKERS = (
    (True, True, None, False, False),
    (True, True, None, True, False),
    (True, True, Code.UNVERIFIABLE, False, False),
    (True, True, Code.UNVERIFIABLE, False, True),
    (True, True, Code.NEEDS_APPROVAL, False, False),
    (False, True, None, False, False),
    (True, False, None, False, False),
    (True, False, Code.LAG_UNKNOWN, False, False),
)


def evidences() -> Iterator[Evidence]:
    for sent, read, asker, payload in product(tuple(attempts()), READ_RESULTS, ASKERS, Payload):
        own, waiting, held, approved, released = asker
        if (not own or not waiting or released) and payload is not Payload.SAME:
            continue
        absent = read.started_s if read and read.found is Found.ABSENT else None
        base = Evidence(
            attempts=sent,
            payload=payload,
            own=own,
            waiting=waiting,
            held=held,
            approved=approved,
            released=released,
            read=read,
            absent_s=absent,
            patience_until_s=DUE + 2,
        )
        yield base
        if read is None and asker == ASKERS[0] and payload in (Payload.SAME, Payload.TERMS):
            yield from _variations(base)


def _variations(e: Evidence) -> Iterator[Evidence]:
    for others in OTHERS[1:]:
        yield replace(e, others=others)
        yield replace(e, others=others, labelled=True)
    yield replace(e, acknowledged=True, settled_s=BEGUN)
    yield replace(e, acknowledged=True, settled_s=BEGUN - 1e6)
    yield replace(e, told=True, acknowledged=True)
    yield replace(e, key_pinned=True)
    yield replace(e, boundary_ok=False)
    yield replace(e, original_available=False)
    yield replace(e, read_first=True)
    yield replace(e, not_before_s=DUE + 1)
    yield replace(e, asserted_absent_s=BEGUN + 1)
    for progress in Progress:
        yield replace(e, progress=progress)


def check(c: Contract, e: Evidence, now: float, d: Decision) -> str | None:
    """Return the rule that a decision breaks, or None."""
    state = fold(c, e)
    may_commit = [a for a in e.attempts if _may_still_commit(c, e, a)]
    last = e.attempts[-1] if e.attempts else None
    if d.act.sends and c.effect is not Effect.UNDECLARED:
        if not e.waiting:
            return "a send without a waiting caller"
        if state is IntentState.HAPPENED:
            return "a send after it happened"
        if d.act is Act.SEND and may_commit:
            return "a new send while an earlier attempt may still commit"
        if d.act is Act.SEND and any(o.state.unsettled and not _let_by(e, o) for o in e.others):
            return "a send while another intent of the identity is unsettled"
        if d.act is Act.REISSUE and (last is None or d.generation != last.generation):
            return "a re-issue under another key"
        if d.act is Act.REISSUE and not _may_be_repeated(c, e, now, may_commit):
            return "a re-issue that nothing covers"
        if d.act is Act.SEND_MISSING and not (c.batch and e.read and e.read.started_s > _last_due(c, may_commit)):
            return "missing items sent before they are known to be missing"
        if d.act is Act.SEND and last and not last.generation <= d.generation <= last.generation + 1:
            return "a generation that jumps"
        if e.key_pinned and d.generation:
            return "another key in place of the caller's"
    if d.act is Act.HOLD and (d.code not in HOLD_CODES or d.owner != c.owner):
        return "a hold without code or owner"
    if d.act in (Act.TELL, Act.CONFLICT, Act.ANSWER) and d.code is None:
        return "an answer without a code"
    if d.act is Act.WAIT and (d.until_s is None or (d.until_s < now)):
        return "a wait for nothing"
    if d.act is Act.WAIT and e.waiting and d.until_s is not None and d.until_s > e.patience_until_s:
        return "a wait beyond patience"
    if d.act is Act.DRIVE and d.other is None:
        return "a drive without a target"
    if d.act is Act.SETTLE and d.outcome is None:
        return "a settlement without outcome"
    if d.act is Act.REPLAY and not (e.own and state is IntentState.HAPPENED and e.payload is Payload.SAME):
        return "a replay to somebody else, or of something else" if c.effect is not Effect.UNDECLARED else None
    if d.act is Act.READ_BACK and c.read_back is None:
        return "a read-back that is not declared"
    if d.act is Act.NEW_EPOCH and state.unsettled and c.effect is not Effect.UNDECLARED:
        return "an unsettled intent closed"
    if d.act is Act.PASS and c.effect is not Effect.READ:
        return "a write that passes unrecorded"
    asserted_s = -inf if e.asserted_absent_s is None else e.asserted_absent_s
    doubtful = [a for a in e.attempts if a.state.may_commit and a.begun_s > asserted_s]
    if state is IntentState.ABSENT and doubtful and not (e.absent_s or -inf) > _last_due(c, doubtful):
        return "an absence trusted before due"
    return None


def _may_still_commit(c: Contract, e: Evidence, a: Attempt) -> bool:
    if a.state not in (S.SENDING, S.UNKNOWN, S.BUSY, S.ACCEPTED):
        return False
    if e.asserted_absent_s is not None and a.begun_s <= e.asserted_absent_s and a.state is not S.ACCEPTED:
        return False
    proof = e.absent_s is not None and c.in_flight_s is not None and c.read_back is not None
    if proof and c.read_back and c.read_back.lag_s is not None and c.in_flight_s is not None:
        due = a.send_before_s + c.in_flight_s + c.read_back.lag_s
        return a.state is S.ACCEPTED or not (e.absent_s or 0) > due
    return True


def _last_due(c: Contract, sent: list[Attempt]) -> float:
    if c.in_flight_s is None or c.read_back is None or c.read_back.lag_s is None:
        return inf
    return max((a.send_before_s + c.in_flight_s + c.read_back.lag_s for a in sent), default=-inf)


def _may_be_repeated(c: Contract, e: Evidence, now: float, may_commit: list[Attempt]) -> bool:
    if c.effect is Effect.IDEMPOTENT or e.released:
        return True
    key = c.key
    if key is None or e.attempts[-1].replayed_error or not e.boundary_ok:
        return False
    if c.batch and not key.resumes_batch:
        return False
    bound = inf if c.in_flight_s is None else c.in_flight_s
    first = min(a.begun_s for a in e.attempts)
    remembered = key.retention_s == inf or now + e.send_allowance_s + bound < first + key.retention_s
    running = any(now <= a.send_before_s + bound for a in may_commit)
    return remembered and (key.concurrent_safe or not running)


def _let_by(e: Evidence, o: Other) -> bool:
    return e.labelled and (o.similar or (o.payload is Payload.FAR and o.told))


@pytest.mark.parametrize("key", range(len(KEYS)))
@pytest.mark.parametrize("effect", list(Effect), ids=lambda e: e.value)
def test_no_combination_breaks_a_rule(effect: Effect, key: int):
    """Every contract shape meets all evidence; the time moves on from pair to pair: before due, at due, after it."""
    found = tuple(evidences())
    checked = 0
    for c in contracts():
        if c.effect is not effect or c.key != KEYS[key]:
            continue
        for e in found:
            now = NOW[checked % len(NOW)]
            checked += 1
            d = decide(c, e, now)
            broken = check(c, e, now, d)
            assert broken is None, f"{broken}: decide({c!r}, {e!r}, {now}) = {d!r}"

    assert checked or effect in (Effect.READ, Effect.UNDECLARED, Effect.UNSAFE)
