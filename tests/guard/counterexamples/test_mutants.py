"""The same scenes with one rule taken out: each must go wrong, so that no scene can pass by accident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

import onceward.applying
import onceward.decision
import onceward.drive
import onceward.evidence
import onceward.gathering
import onceward.people
import onceward.reading
import onceward.recovery
from onceward.drive import Guard
from onceward.evidence import (
    Act,
    AttemptState,
    Code,
    Decision,
    Found,
    IntentState,
    Payload,
)
from tests.guard.counterexamples.test_c01_c04 import (
    BEYOND_RETENTION,
    EARLY_READ,
    END_OF_RETENTION,
    FROM_THE_FIRST,
    REFUSED_AGAIN,
    SENT_LATE,
    SLOW_READ,
    ZOMBIE_SENDS,
)
from tests.guard.counterexamples.test_c05_c08 import (
    AFTER_A_REFUSAL,
    IN_FLIGHT_ELSEWHERE,
    REPEAT_COUNTED,
    REPEAT_CREATED,
    REPEAT_STAMPED,
    REPEAT_WITHIN_LAG,
    SAME_SECOND,
    SETTLED_BY_ANOTHER,
    STALE_BASELINE,
    UNHEARD,
    UNHEARD_ELSEWHERE,
)
from tests.guard.counterexamples.test_c09_c15 import (
    AFTER_THE_WINDOW,
    BATCH_UNREAD,
    EARLY_WORD,
    HIDDEN_RETRY,
    NOT_LOCKED,
    PARTLY,
    PARTLY_KEYED,
    REFUSED_PART,
    STRAGGLER,
    STRAGGLER_FOUND,
    WALL_SET_BACK,
)
from tests.guard.counterexamples.test_c16_c21 import CACHED_ERROR, CHANGED_TERMS, EXISTS_ALREADY
from tests.guard.scenes import LAG_S, Scene

Patch = Callable[[pytest.MonkeyPatch], None]
_MODULES = ("applying", "decision", "evidence", "gathering", "people", "reading", "recovery")


def everywhere(name: str, value: Callable[[Any], Any]) -> Patch:
    """Replace a function in every module of the guard that holds it by `value(original)`."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        modules = [getattr(onceward, module) for module in _MODULES]
        original = next(getattr(module, name) for module in modules if hasattr(module, name))
        for module in modules:
            if getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, value(original))

    return patch


def always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: value


def _unresolved_if(proof: Callable[[float, float], bool]) -> Patch:
    """Count absence as proof under another comparison of the read's start with due."""

    def value(original: Any) -> Any:
        def unresolved(contract: Any, evidence: Any) -> Any:
            lag_s = contract.read_back.lag_s if contract.read_back else inf
            hidden_s = (inf if contract.in_flight_s is None else contract.in_flight_s) + lag_s
            if evidence.absent_s is None:
                return original(contract, evidence)
            may = [a for a in evidence.attempts if a.state.may_commit]
            return tuple(a for a in may if not proof(evidence.absent_s, a.send_before_s + hidden_s))

        return unresolved

    return everywhere("unresolved", value)


def _begun_counts(original: Any) -> Any:
    def attempt_evidence(*args: Any) -> Any:
        attempt = original(*args)
        return replace(attempt, send_before_s=attempt.begun_s)

    return attempt_evidence


def _lost_is_free(original: Any) -> Any:
    def attempt_evidence(journal: Any, row: Any, request: Any, now_s: float) -> Any:
        attempt = original(journal, row, request, now_s)
        lost = row.state is AttemptState.SENDING and not attempt.live
        return replace(attempt, state=AttemptState.NEVER_SENT) if lost else attempt

    return attempt_evidence


def _read_ends(original: Any) -> Any:
    def record_finding(core: Any, store: Any, made: Any, row: Any, finding: Any, started_s: float) -> None:
        original(core, store, made, row, finding, store.now_s)

    return record_finding


def _last_refusal_wins(original: Any) -> Any:
    def fold(contract: Any, evidence: Any) -> Any:
        last = evidence.attempts[-1].state if evidence.attempts else None
        if last in (AttemptState.REFUSED, AttemptState.NEVER_SENT):
            return IntentState.REFUSED
        return original(contract, evidence)

    return fold


def _covers_from_last(original: Any) -> Any:
    def covers(contract: Any, evidence: Any, at_s: float) -> bool:
        return bool(original(contract, replace(evidence, attempts=evidence.attempts[-1:]), at_s))

    return covers


def _any_match_is_ours(original: Any) -> Any:
    def judge(question: Any, items: Any, *, whole: bool) -> Any:
        finding = original(question, items, whole=whole)
        return replace(finding, found=Found.FOUND, count=1) if finding.matches and question.begun_s else finding

    return judge


def _part_is_all(original: Any) -> Any:
    def judge(question: Any, items: Any, *, whole: bool) -> Any:
        finding = original(question, items, whole=whole)
        return replace(finding, found=Found.FOUND) if finding.found is Found.PARTLY else finding

    return judge


def _part_is_nothing(original: Any) -> Any:
    def judge(question: Any, items: Any, *, whole: bool) -> Any:
        finding = original(question, items, whole=whole)
        return replace(finding, found=Found.ABSENT, seen=()) if finding.found is Found.PARTLY else finding

    return judge


def _items_are_a_set(original: Any) -> Any:
    def judge(question: Any, items: Any, *, whole: bool) -> Any:
        finding = original(question, items, whole=whole)
        wanted = question.items or ()
        seen = [n for n, item in enumerate(wanted) if item in [wanted[s] for s in finding.seen]]
        return replace(finding, seen=tuple(seen))

    return judge


def _owned_by_whoever_asks(original: Any) -> Any:
    def drive(*args: Any) -> Any:
        plan = original(*args)
        if plan is not None:
            plan.foreign = False
        return plan

    return drive


def _terms_stop(original: Any) -> Any:
    def decide(contract: Any, evidence: Any, now: float) -> Any:
        decision = original(contract, evidence, now)
        stop = evidence.payload is Payload.TERMS and decision.act is not Act.REPLAY
        return Decision(act=Act.CONFLICT, code=Code.TERMS_CHANGED) if stop else decision

    return decide


def _first_key(original: Any) -> Any:
    def key(core: Any, request: Any, row: Any) -> Any:
        return original(core, request, replace(row, generation=0))

    return key


def _key_without_epoch(original: Any) -> Any:
    def key(core: Any, request: Any, row: Any) -> Any:
        return original(core, request, replace(row, id=row.base))

    return key


def _every_retry_a_new_key(original: Any) -> Any:
    def begin(core: Any, store: Any, request: Any, row: Any, attempts: Any, decision: Any, epoch: int) -> Any:
        return original(core, store, request, row, attempts, replace(decision, generation=len(attempts)), epoch)

    return begin


def _classified(**changed: Any) -> Callable[[Any], Any]:
    return lambda original: lambda reply, rules, **given: original(reply, rules, **{**given, **changed})


def _contract(**changed: Any) -> Patch:
    """Decide as if the contract promised more than it does."""

    def value(original: Any) -> Any:
        def decide(contract: Any, evidence: Any, now: float) -> Any:
            key = replace(contract.key, **changed) if contract.key else None
            return original(replace(contract, key=key), evidence, now)

        return decide

    return everywhere("decide", value)


def _not_a_batch(original: Any) -> Any:
    return lambda contract, evidence, now: original(replace(contract, batch=False), evidence, now)


def may_always_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "may_leave", lambda self, dispatch: True)


def wall_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_leave(guard: Any, dispatch: Any) -> bool:
        return bool(guard.journal._time() <= dispatch.attempt.send_before_s)

    monkeypatch.setattr(Guard, "may_leave", may_leave)


def nobody_is_kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onceward.applying, "_keep_open", lambda *args: None)


def every_attempt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved_of(store: Any, journal: Any, contract: Any, row: Any, now_s: float) -> Any:
        return store.attempts(row.id)

    monkeypatch.setattr(onceward.gathering, "unresolved_of", unresolved_of)


def every_question_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    record = onceward.recovery._record

    def recorded(core: Any, store: Any, request: Any, news: Any) -> None:
        row = store.intent(news.intent)
        if news.finding is not None and row is not None:
            news.begun_s = onceward.recovery._dated_s(store, core.journal, request.tool, row)
        record(core, store, request, news)

    monkeypatch.setattr(onceward.recovery, "_record", recorded)


def alone_in_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onceward.recovery, "_counts_since_s", lambda *args: inf)


def open_while_unsettled(original: Any) -> Any:
    return lambda row: row.state.unsettled


def _no_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onceward.people, "_may_commit_until", lambda *args: -inf)


MUTANTS: list[tuple[str, Patch, Scene]] = [
    ("c1 the bound counts from the begin", everywhere("attempt_evidence", _begun_counts), SENT_LATE),
    ("c1 no deadline is checked", may_always_leave, ZOMBIE_SENDS),
    ("c1 a lost holder sent nothing", everywhere("attempt_evidence", _lost_is_free), SENT_LATE),
    ("c2 any empty read is proof", _unresolved_if(lambda absent_s, due_s: True), EARLY_READ),
    ("c2 a read counts from its end", everywhere("record_finding", _read_ends), SLOW_READ),
    ("c2 the very moment of due counts", _unresolved_if(lambda absent_s, due_s: absent_s >= due_s), SLOW_READ),
    ("c2 the lag is ignored", _unresolved_if(lambda absent_s, due_s: absent_s > due_s - LAG_S), SLOW_READ),
    ("c3 the last refusal speaks for all", everywhere("fold", _last_refusal_wins), REFUSED_AGAIN),
    ("c3 every retry has a new key", everywhere("begin", _every_retry_a_new_key), SETTLED_BY_ANOTHER),
    ("c4 a key always covers", everywhere("covers", always(True)), END_OF_RETENTION),
    ("c4 retention counts from the last", everywhere("covers", _covers_from_last), FROM_THE_FIRST),
    ("c4 the bound does not matter", everywhere("covers", always(True)), BEYOND_RETENTION),
    ("c5 what happened concerns nobody else", everywhere("still_open", open_while_unsettled), UNHEARD),
    ("c5 the same in another scope", everywhere("still_open", open_while_unsettled), UNHEARD_ELSEWHERE),
    ("c6 any match is ours (created)", everywhere("judge", _any_match_is_ours), REPEAT_CREATED),
    ("c6 any match is ours (count)", everywhere("judge", _any_match_is_ours), REPEAT_COUNTED),
    ("c6 any match is ours (stamp)", everywhere("judge", _any_match_is_ours), REPEAT_STAMPED),
    ("c6 a baseline shows all there is", alone_in_the_count, REPEAT_WITHIN_LAG),
    ("c6 effects count from the first attempt", every_attempt_counts, AFTER_A_REFUSAL),
    ("c6 a second is told apart", alone_in_the_count, SAME_SECOND),
    ("c6 an old question is answered", every_question_is_answered, STALE_BASELINE),
    ("c7 others are not looked at", everywhere("others_of", always([])), IN_FLIGHT_ELSEWHERE),
    ("c7 the table skips the others", everywhere("_others", always(None)), IN_FLIGHT_ELSEWHERE),
    ("c8 whoever settles it owns it", everywhere("_drive", _owned_by_whoever_asks), SETTLED_BY_ANOTHER),
    ("c9 a part is all", everywhere("judge", _part_is_all), PARTLY),
    ("c9 a part is nothing", everywhere("judge", _part_is_nothing), PARTLY),
    ("c9 a part is nothing, after a refusal", everywhere("judge", _part_is_nothing), REFUSED_PART),
    ("c9 equal items are one", everywhere("judge", _items_are_a_set), PARTLY),
    ("c9 missing items keep the key", everywhere("_key", _first_key), PARTLY_KEYED),
    ("c9 a batch is like any other", everywhere("decide", _not_a_batch), BATCH_UNREAD),
    ("c10 stragglers are forgotten", nobody_is_kept_open, STRAGGLER),
    ("c10 stragglers that were found are forgotten", nobody_is_kept_open, STRAGGLER_FOUND),
    ("c10 the table does not wait", everywhere("_others", always(None)), STRAGGLER),
    ("c11 a person's word is taken at once", _no_due, EARLY_WORD),
    ("c12 every key is taken for locked", _contract(concurrent_safe=True), NOT_LOCKED),
    ("c13 the wall clock alone", wall_clock_alone, WALL_SET_BACK),
    ("c14 the epoch is not in the key", everywhere("_key", _key_without_epoch), AFTER_THE_WINDOW),
    ("c15 retries beneath us are forgotten", everywhere("classify", _classified(inner_retries=False)), HIDDEN_RETRY),
    ("c16 every entity is ours", everywhere("classify", _classified(own_key=True)), EXISTS_ALREADY),
    ("c17 changed terms stop at once", everywhere("decide", _terms_stop), CHANGED_TERMS),
    ("c19 a new key is never taken", everywhere("_key", _first_key), CACHED_ERROR),
]


@pytest.mark.parametrize(("patch", "scene"), [pytest.param(p, s, id=name) for name, p, s in MUTANTS])
def test_the_scene_goes_wrong_without_its_rule(monkeypatch, tmp_path, patch, scene):
    """A scene that ends well even so would test nothing."""
    patch(monkeypatch)

    world = scene.play(tmp_path)

    assert not scene.right(world), [(c.scope, c.label, c.act) for c, _ in world.told]
