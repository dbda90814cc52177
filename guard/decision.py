"""The decision: what to do next about one intent, from its contract, its evidence, and the time.

Three facts rule the table. A timeout is not a "no": an attempt that was sent may commit until its in-flight bound is
over, and its effect may stay hidden for the visibility lag after that. A key only covers a repeat while every copy that
may still commit does so before the service forgets the key. Only a waiting caller causes a send: background work reads.

`decide` folds the attempts into a state and walks its rows; the first that fits wins. Bounds are inclusive.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import assert_never

from . import evidence as ev
from .evidence import Act, AttemptState, Code, Contract, Decision, Effect, Evidence, Found, IntentState, Payload


def decide(contract: Contract, evidence: Evidence, now: float) -> Decision:
    """Return the next act for an intent. Pure; never raises for any combination of its inputs."""
    state = ev.fold(contract, evidence)
    decision = _first_row(contract, evidence, now, state)
    due = ev.due_s(contract, evidence)
    if not evidence.waiting:
        if not decision.act.sends:
            return decision
        sent_s = max((a.send_before_s for a in evidence.attempts), default=now)
        limit = (due if abs(due) < inf else sent_s) + evidence.grace_s
        return Decision(act=Act.WAIT, until_s=limit) if now <= limit else _hold(contract, Code.ABANDONED)
    # A caller waits: it is answered when its patience ends, and told when more may be known.
    over = now >= evidence.patience_until_s and decision.act.takes_time and state.unsettled
    until = inf if decision.until_s is None else decision.until_s
    if over or (decision.act is Act.WAIT and until > evidence.patience_until_s):
        code = ev.STANDING.get(state, Code.REFUSED)
        known = next((t for t in (due, until) if now < t < inf), None)
        decision = Decision(act=Act.ANSWER, code=code, until_s=known)
    if decision.act is Act.ANSWER and state.unsettled and evidence.own and evidence.payload is Payload.TERMS:
        return replace(decision, act=Act.CONFLICT, code=Code.TERMS_CHANGED)
    return decision


def _first_row(c: Contract, e: Evidence, now: float, state: IntentState) -> Decision:
    if c.effect is Effect.READ:
        return Decision(act=Act.PASS)
    if c.effect is Effect.UNDECLARED:
        return _undeclared(e, now, state)
    yes = e.approved if e.held is Code.NEEDS_APPROVAL else e.released
    if e.held and not yes and (state.unsettled or state is IntentState.NEW):
        reads = not e.waiting and c.read_back is not None and e.attempts and now >= e.not_before_s
        return Decision(act=Act.READ_BACK) if reads else _hold(c, e.held)
    if not ((e.own and e.waiting) or state.unsettled):
        return Decision(act=Act.ANSWER, code=Code.ALREADY_HAPPENED if state is IntentState.HAPPENED else Code.REFUSED)
    if ev.closed(c, e, now, state):
        return Decision(act=Act.NEW_EPOCH)
    match state:
        case IntentState.HAPPENED:
            return _happened(e)
        case IntentState.ACCEPTED:
            settled = {ev.Progress.DONE: ev.Outcome.HAPPENED, ev.Progress.FAILED: ev.Outcome.REFUSED}
            if not c.progress:
                return Decision(act=Act.ANSWER, code=Code.ACCEPTED)
            if e.progress in settled:
                return Decision(act=Act.SETTLE, outcome=settled[e.progress])
            return _not_before(e, now, Decision(act=Act.READ_STATUS))
        case IntentState.IN_FLIGHT:
            return Decision(act=Act.JOIN, until_s=e.patience_until_s)
        case IntentState.UNKNOWN:
            return _unknown(c, e, now)
        case IntentState.NEW:
            return _others(c, e, now) or _new(c, e, now)
        case IntentState.REFUSED | IntentState.ABSENT:
            return _nothing_happened(c, e, now)
        case _:
            assert_never(state)


def _undeclared(e: Evidence, now: float, state: IntentState) -> Decision:
    last = e.attempts[-1] if e.attempts else None
    if last and last.own:
        acts = {IntentState.HAPPENED: Act.REPLAY, IntentState.IN_FLIGHT: Act.JOIN}
        code = Code.UNKNOWN if state.unsettled else Code.REFUSED
        return Decision(act=acts[state]) if state in acts else Decision(act=Act.ANSWER, code=code)
    doubt = last and (state is IntentState.UNKNOWN or (state.unsettled and now > last.send_before_s))  # not at once
    if last and doubt and now <= last.begun_s + ev.REFUSAL_LASTS_S:
        return Decision(act=Act.CONFLICT, code=Code.NO_CONTRACT, until_s=last.begun_s + ev.REFUSAL_LASTS_S)
    for o in e.others:
        if o.state is IntentState.UNKNOWN and o.in_window and not e.labelled:
            return Decision(act=Act.CONFLICT, code=Code.NO_CONTRACT, other=o.intent)
    return Decision(act=Act.SEND if state is IntentState.NEW else Act.NEW_EPOCH)


def _happened(e: Evidence) -> Decision:
    if e.payload is Payload.SAME:
        return Decision(act=Act.REPLAY)
    if not e.acknowledged:
        return Decision(act=Act.TELL, code=Code.ALREADY_HAPPENED)
    if e.payload is Payload.TERMS or e.labelled:
        return Decision(act=Act.CONFLICT, code=Code.KEY_REUSED, permanent=True)
    ask = e.payload is Payload.NEAR and not e.told
    return Decision(act=Act.CONFLICT, code=Code.CONTENT_DIFFERS) if ask else Decision(act=Act.NEW_EPOCH)


def _others(c: Contract, e: Evidence, now: float) -> Decision | None:
    for o in e.others:
        doubt = o.state.unsettled
        news = o.state is IntentState.HAPPENED and o.in_window and not (o.acknowledged or o.told)
        if o.similar:
            if (doubt or news) and not e.labelled:
                return Decision(act=Act.CONFLICT, code=Code.SIMILAR_UNSETTLED, other=o.intent)
        elif doubt and o.payload is not Payload.FAR:
            return Decision(act=Act.DRIVE, other=o.intent)
        elif doubt and not (e.labelled and o.told):
            return Decision(act=Act.CONFLICT, code=Code.UNSETTLED_SIBLING, other=o.intent)
        elif news:
            return Decision(act=Act.TELL, code=Code.ALREADY_HAPPENED, other=o.intent)
    until = max((o.commits_until_s for o in e.others if not o.state.unsettled), default=-inf)
    late = c.effect is Effect.IDEMPOTENT and now <= until < inf  # an earlier write of this thing may still land last
    return Decision(act=Act.WAIT, until_s=until) if late else None


def _new(c: Contract, e: Evidence, now: float) -> Decision:
    if c.effect is Effect.UNSAFE and not e.approved:
        return _hold(c, Code.NEEDS_APPROVAL)
    baseline = c.read_back is not None and c.read_back.baseline and not e.baseline_known
    if c.read_back and (baseline or e.read_first) and (e.read is None or e.read.found is Found.INCONCLUSIVE):
        if e.read and max(now, e.not_before_s) >= e.patience_until_s:
            return _hold(c, Code.READ_BACK_INCONCLUSIVE)
        return _not_before(e, now, Decision(act=Act.READ_BACK))
    if e.read_first and e.read and e.read.found in (Found.FOUND, Found.PARTLY) and not e.told:
        return Decision(act=Act.CONFLICT, code=Code.FOUND_BEFORE_SEND)
    return _send(c, e, 0)


def _nothing_happened(c: Contract, e: Evidence, now: float) -> Decision:
    last = e.attempts[-1]
    if last.own and last.state in (AttemptState.REFUSED, AttemptState.RATE_LIMITED, AttemptState.NEVER_SENT):
        return Decision(act=Act.ANSWER, code=Code.REFUSED)  # a refusal answers the call whose attempt it was
    if not ev.attempts_left(c, e):
        return Decision(act=Act.ANSWER, code=Code.RETRY_CEILING, permanent=True)
    moves = ev.key_spent(c, e) or e.payload is not Payload.SAME or e.progress is ev.Progress.FAILED
    if moves and e.key_pinned:
        return _hold(c, Code.ERROR_CACHED)  # the caller's key is all there is, and it is spent
    return _others(c, e, now) or _not_before(e, now, _send(c, e, last.generation + moves))


def _unknown(c: Contract, e: Evidence, now: float) -> Decision:
    last, left, due = e.attempts[-1], ev.attempts_left(c, e), ev.due_s(c, e)
    read = e.read if e.read and e.read.started_s >= e.attempts[0].begun_s else None
    if read and read.found is Found.FOUND:
        return Decision(act=Act.SETTLE, outcome=ev.Outcome.HAPPENED, duplicated=read.count > read.expected)
    if c.batch and c.read_back and read and read.found is Found.PARTLY and read.started_s > due:
        spent = Code.ERROR_CACHED if e.key_pinned else Code.ORIGINAL_UNAVAILABLE
        if not left or e.key_pinned or not e.original_available:
            return _hold(c, spent if left else Code.RETRY_CEILING)
        return _not_before(e, now, Decision(act=Act.SEND_MISSING, generation=last.generation + 1))
    again = _not_before(e, now, Decision(act=Act.REISSUE, generation=last.generation))
    whole = not c.batch or (c.key is not None and c.key.resumes_batch and last.generation == 0)
    usable = c.key is not None and left and whole and not last.replayed_error and e.boundary_ok
    clear_s = -inf if c.key and c.key.concurrent_safe else ev.commits_until_s(c, e)
    if usable and e.original_available and clear_s < inf and ev.covers(c, e, max(now, clear_s)):
        return again if now > clear_s else Decision(act=Act.WAIT, until_s=clear_s)
    if (c.effect is Effect.IDEMPOTENT or e.released) and left and e.original_available:
        return again
    if c.read_back:
        if read is None or read.started_s < last.begun_s:
            return Decision(act=Act.READ_BACK)
        if read.started_s <= due < now:
            return _not_before(e, now, Decision(act=Act.READ_BACK))
        if read.found is Found.INCONCLUSIVE or (read.found is Found.PARTLY and read.started_s > due):
            if now > (due if due < inf else last.send_before_s) + e.grace_s:
                return _hold(c, Code.READ_BACK_INCONCLUSIVE)
            return _not_before(e, now, Decision(act=Act.READ_BACK))
        if due == inf:
            return _hold(c, Code.IN_FLIGHT_UNBOUNDED if c.in_flight_s is None else Code.LAG_UNKNOWN)
        return Decision(act=Act.WAIT, until_s=due)
    if not left:
        return _hold(c, Code.RETRY_CEILING)
    if not e.original_available and (c.key or c.effect is Effect.IDEMPOTENT):
        return _hold(c, Code.ORIGINAL_UNAVAILABLE)
    if c.key is None or not whole:
        return _hold(c, Code.UNVERIFIABLE)
    if last.replayed_error or not e.boundary_ok:
        return _hold(c, Code.ERROR_CACHED if last.replayed_error else Code.KEY_OUT_OF_BOUNDARY)
    return _hold(c, Code.IN_FLIGHT_UNBOUNDED if clear_s == inf and c.key.retention_s == inf else Code.KEY_EXPIRED)


def _send(c: Contract, e: Evidence, generation: int) -> Decision:
    earlier = next((o.intent for o in e.others if o.state is IntentState.HAPPENED and not o.similar), None)
    late = c.effect is Effect.IDEMPOTENT and any(o.commits_until_s == inf for o in e.others)
    return Decision(act=Act.SEND, generation=generation, straggler=late, repeat_of=earlier)


def _not_before(e: Evidence, now: float, decision: Decision) -> Decision:
    return decision if now >= e.not_before_s else Decision(act=Act.WAIT, until_s=e.not_before_s)


def _hold(c: Contract, code: Code) -> Decision:
    return Decision(act=Act.HOLD, code=code, owner=c.owner, permanent=True)
