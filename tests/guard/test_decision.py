"""Every row of the decision table, in the table's order. One world for all: bound 10, lag 5, send allowance 5."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path

import onceward.decision
import pytest
from onceward.decision import decide
from onceward.evidence import (
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
    Outcome,
    Payload,
    Progress,
    Read,
    ReadBack,
    due_s,
)

BEGUN = 100.0
SEND_BEFORE = 105.0
DUE = SEND_BEFORE + 10 + 5  # last send + bound + lag
SAFE_KEY = KeySupport(retention_s=3_600, concurrent_safe=True)


def contract(effect: Effect = Effect.WRITE, **fields: object) -> Contract:
    return Contract(effect=effect, owner="ops@example.com", **fields)  # type: ignore[arg-type]


def attempt(state: AttemptState = AttemptState.UNKNOWN, number: int = 1, **fields: object) -> Attempt:
    values: dict[str, object] = {"generation": 0, "begun_s": BEGUN, "send_before_s": SEND_BEFORE} | fields
    return Attempt(number=number, state=state, **values)  # type: ignore[arg-type]


def after(*attempts: Attempt, **fields: object) -> Evidence:
    return Evidence(attempts=attempts, **fields)  # type: ignore[arg-type]


def other(state: IntentState, **fields: object) -> Other:
    return Other(intent="other", state=state, **fields)  # type: ignore[arg-type]


UNKNOWN = attempt()
KEYLESS = contract()
KEYED = contract(key=SAFE_KEY, in_flight_s=10.0)
READABLE = contract(read_back=ReadBack(lag_s=5.0), in_flight_s=10.0)
HAPPENED = attempt(AttemptState.HAPPENED)


def hold(code: Code) -> Decision:
    return Decision(act=Act.HOLD, code=code, owner="ops@example.com", permanent=True)


def test_a_held_intent_stops_every_caller():
    """Only a person, or later evidence, takes an intent out of a hold."""
    decision = decide(READABLE, after(UNKNOWN, held=Code.UNVERIFIABLE), BEGUN + 1_000)

    assert hold(Code.UNVERIFIABLE) == decision


def test_a_late_happened_settles_a_hold():
    """A fence blocks sending, never evidence."""
    decision = decide(KEYLESS, after(HAPPENED, held=Code.UNVERIFIABLE), BEGUN + 1_000)

    assert Act.REPLAY is decision.act


def test_a_person_who_asks_for_a_retry_gets_the_original_key():
    """A release re-issues; it never mints a new key."""
    decision = decide(KEYLESS, after(UNKNOWN, held=Code.UNVERIFIABLE, released=True), BEGUN + 1_000)

    assert Decision(act=Act.REISSUE, generation=0) == decision


def test_background_work_reads_back_for_a_held_intent():
    """Later evidence may release a hold, and only reads can bring it."""
    decision = decide(READABLE, after(UNKNOWN, held=Code.LAG_UNKNOWN, waiting=False), BEGUN + 1_000)

    assert Act.READ_BACK is decision.act


@pytest.mark.parametrize(
    ("tool", "evidence"),
    [
        pytest.param(KEYLESS, after(HAPPENED, settled_s=BEGUN), id="window over"),
        pytest.param(KEYLESS, after(HAPPENED, settled_s=BEGUN + 86_400, closed=True), id="resource changed"),
        pytest.param(
            contract(Effect.IDEMPOTENT), after(HAPPENED, settled_s=BEGUN + 86_400, acknowledged=True), id="idempotent"
        ),
        pytest.param(KEYLESS, after(attempt(AttemptState.REFUSED), settled_s=BEGUN), id="refused long ago"),
    ],
)
def test_a_closed_intent_begins_a_new_epoch(tool: Contract, evidence: Evidence):
    """What has ended may be asked for again, and gets a key of its own."""
    assert Act.NEW_EPOCH is decide(tool, evidence, BEGUN + 86_401).act


def test_a_label_outlives_the_window():
    """A label names one intent for as long as it is remembered."""
    decision = decide(KEYLESS, after(HAPPENED, settled_s=BEGUN, labelled=True), BEGUN + 1e6)

    assert Act.REPLAY is decision.act


def test_an_unacknowledged_idempotent_effect_is_replayed():
    """Its answer reached nobody, so this is the first call again."""
    assert Act.REPLAY is decide(contract(Effect.IDEMPOTENT), after(HAPPENED, settled_s=BEGUN), BEGUN + 1).act


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (None, Decision(act=Act.READ_STATUS)),
        (Progress.PENDING, Decision(act=Act.READ_STATUS)),
        (Progress.DONE, Decision(act=Act.SETTLE, outcome=Outcome.HAPPENED)),
        (Progress.FAILED, Decision(act=Act.SETTLE, outcome=Outcome.REFUSED)),
    ],
)
def test_an_accepted_request_is_asked_for_its_progress(progress: Progress | None, expected: Decision):
    """202 is neither yes nor no."""
    evidence = after(attempt(AttemptState.ACCEPTED), progress=progress)

    assert expected == decide(contract(progress=True), evidence, BEGUN + 1)


def test_an_acceptance_without_progress_is_reported_as_such():
    """There is nothing to ask, so the caller is told what is known."""
    assert Decision(act=Act.ANSWER, code=Code.ACCEPTED) == decide(KEYLESS, after(attempt(AttemptState.ACCEPTED)), 200.0)


@pytest.mark.parametrize("payload", [Payload.NEAR, Payload.FAR, Payload.TERMS])
def test_an_unacknowledged_effect_is_told_before_anything_different_is_sent(payload: Payload):
    """Nobody knows yet that it happened; the changed call may be a retry."""
    assert Act.TELL is decide(KEYLESS, after(HAPPENED, payload=payload), BEGUN + 1).act


def test_other_terms_under_a_finished_intent_are_a_conflict():
    """The same key with another amount is never a silent replay."""
    decision = decide(KEYLESS, after(HAPPENED, payload=Payload.TERMS, acknowledged=True), BEGUN + 1)

    assert Decision(act=Act.CONFLICT, code=Code.KEY_REUSED, permanent=True) == decision


def test_far_content_after_an_acknowledged_effect_is_a_new_intent():
    """A second mail to the same person is ordinary."""
    assert Act.NEW_EPOCH is decide(KEYLESS, after(HAPPENED, payload=Payload.FAR, acknowledged=True), BEGUN + 1).act


@pytest.mark.parametrize(("told", "act"), [(False, Act.CONFLICT), (True, Act.NEW_EPOCH)])
def test_near_content_after_an_acknowledged_effect_is_asked_once(told: bool, act: Act):
    """A reworded retry and a second mail look alike: the caller knows which it is."""
    evidence = after(HAPPENED, payload=Payload.NEAR, acknowledged=True, told=told)

    assert act is decide(KEYLESS, evidence, BEGUN + 1).act


@pytest.mark.parametrize("state", [IntentState.UNKNOWN, IntentState.IN_FLIGHT, IntentState.ACCEPTED])
@pytest.mark.parametrize("payload", [Payload.SAME, Payload.NEAR, Payload.TERMS])
def test_an_unsettled_sibling_is_driven_first(state: IntentState, payload: Payload):
    """Uncertainty is global: a fresh key on the retry must not defeat the key."""
    decision = decide(KEYLESS, Evidence(others=(other(state, payload=payload),)), BEGUN)

    assert Decision(act=Act.DRIVE, other="other") == decision


def test_an_unsettled_sibling_with_far_content_is_told_and_a_label_then_passes():
    """One lost mail must not silence a recipient."""
    first = decide(KEYLESS, Evidence(others=(other(IntentState.UNKNOWN, payload=Payload.FAR),)), BEGUN)
    unlabelled = Evidence(others=(other(IntentState.UNKNOWN, payload=Payload.FAR, told=True),))
    labelled = Evidence(others=(other(IntentState.UNKNOWN, payload=Payload.FAR, told=True),), labelled=True)

    assert Decision(act=Act.CONFLICT, code=Code.UNSETTLED_SIBLING, other="other") == first
    assert Act.CONFLICT is decide(KEYLESS, unlabelled, BEGUN).act
    assert Act.SEND is decide(KEYLESS, labelled, BEGUN).act


@pytest.mark.parametrize(
    ("fields", "act"),
    [({}, Act.TELL), ({"told": True}, Act.SEND), ({"acknowledged": True}, Act.SEND), ({"in_window": False}, Act.SEND)],
)
def test_an_unacknowledged_sibling_is_told_once(fields: dict[str, bool], act: Act):
    """The effect of a caller that died is news to the next one."""
    evidence = Evidence(others=(other(IntentState.HAPPENED, **fields),))

    assert act is decide(KEYLESS, evidence, BEGUN).act


def test_the_next_write_of_an_idempotent_thing_waits_for_stragglers():
    """An old value that lands last would undo the new one; the bound is inclusive."""
    tool = contract(Effect.IDEMPOTENT, in_flight_s=10.0)
    evidence = Evidence(others=(other(IntentState.HAPPENED, acknowledged=True, commits_until_s=BEGUN),))

    assert Decision(act=Act.WAIT, until_s=BEGUN) == decide(tool, evidence, BEGUN)
    assert Act.SEND is decide(tool, evidence, BEGUN + 0.001).act


def test_an_unbounded_straggler_is_noted():
    """Nobody can wait for ever; the receipt says what may still land."""
    evidence = Evidence(others=(other(IntentState.HAPPENED, acknowledged=True, commits_until_s=inf),))
    decision = decide(contract(Effect.IDEMPOTENT), evidence, BEGUN)

    assert (Act.SEND, True) == (decision.act, decision.straggler)


def test_a_read_passes():
    """Reads change nothing, so nothing is remembered."""
    assert Decision(act=Act.PASS) == decide(contract(Effect.READ), Evidence(), BEGUN)


def test_an_unsafe_effect_waits_for_a_yes():
    """Nothing was sent, so nobody else is blocked."""
    assert hold(Code.NEEDS_APPROVAL) == decide(contract(Effect.UNSAFE), Evidence(), BEGUN)
    assert Act.SEND is decide(contract(Effect.UNSAFE), Evidence(approved=True), BEGUN).act


def test_a_new_write_is_sent():
    """The ordinary case."""
    assert Decision(act=Act.SEND) == decide(KEYLESS, Evidence(), BEGUN)


@pytest.mark.parametrize("field", ["baseline", "read_first"])
def test_a_look_comes_before_the_first_send_where_one_is_due(field: str):
    """A baseline counts what is there; after the loss of a journal anything may be there."""
    tool = contract(read_back=ReadBack(lag_s=5.0, baseline=field == "baseline"))
    evidence = Evidence(read_first=field == "read_first")

    assert Act.READ_BACK is decide(tool, evidence, BEGUN).act


def test_what_is_found_before_the_first_send_is_told():
    """After the loss of a journal, the effect may be one of ours."""
    read = Read(started_s=BEGUN, found=Found.FOUND, count=1)
    decision = decide(READABLE, Evidence(read_first=True, read=read), BEGUN)

    assert Decision(act=Act.CONFLICT, code=Code.FOUND_BEFORE_SEND) == decision


def test_an_equal_call_joins_the_one_in_flight():
    """Two at once: one is sent, both get the answer."""
    running = attempt(AttemptState.SENDING, live=True)

    assert Act.JOIN is decide(KEYLESS, after(running, patience_until_s=BEGUN + 45), BEGUN + 1).act
    over = decide(KEYLESS, after(running, patience_until_s=BEGUN + 45), BEGUN + 45)
    assert (Act.ANSWER, Code.RUNNING) == (over.act, over.code)


def test_a_refusal_answers_the_call_whose_attempt_it_was():
    """Only a later call sends again."""
    refused = attempt(AttemptState.REFUSED, own=True)

    assert Decision(act=Act.ANSWER, code=Code.REFUSED) == decide(KEYED, after(refused), BEGUN + 1)


@pytest.mark.parametrize(
    ("tool", "state", "payload", "generation"),
    [
        pytest.param(KEYLESS, AttemptState.REFUSED, Payload.SAME, 0, id="no key"),
        pytest.param(KEYED, AttemptState.REFUSED, Payload.SAME, 1, id="refusals are cached"),
        pytest.param(KEYED, AttemptState.RATE_LIMITED, Payload.SAME, 0, id="rate limits come before the key"),
        pytest.param(KEYED, AttemptState.RATE_LIMITED, Payload.TERMS, 1, id="terms changed"),
        pytest.param(
            contract(key=KeySupport(caches_refusals=False)), AttemptState.REFUSED, Payload.SAME, 0, id="not cached"
        ),
    ],
)
def test_a_later_call_after_a_refusal_sends_under_the_right_key(
    tool: Contract, state: AttemptState, payload: Payload, generation: int
):
    """The key moves only where the old one would answer with the refusal."""
    decision = decide(tool, after(attempt(state), payload=payload), BEGUN + 1)

    assert Decision(act=Act.SEND, generation=generation) == decision


def test_a_callers_key_cannot_move():
    """Where the caller's own key is spent, a person must look."""
    evidence = after(attempt(AttemptState.REFUSED), key_pinned=True)

    assert hold(Code.ERROR_CACHED) == decide(KEYED, evidence, BEGUN + 1)


@pytest.mark.parametrize("state", [AttemptState.REFUSED, AttemptState.UNKNOWN])
def test_the_ceiling_answers_where_nothing_is_uncertain(state: AttemptState):
    """Three refusals are three refusals: no hold, a permanent answer."""
    attempts = [attempt(state, n) for n in (1, 2, 3)]
    decision = decide(READABLE, after(*attempts, absent_s=DUE + 1), DUE + 2)

    assert Decision(act=Act.ANSWER, code=Code.RETRY_CEILING, permanent=True) == decision


def test_changed_terms_wait_for_the_earlier_ones_to_settle():
    """The earlier one is settled as far as patience goes; then the caller is told until when."""
    evidence = after(UNKNOWN, payload=Payload.TERMS, patience_until_s=BEGUN + 2)
    early = decide(READABLE, evidence, BEGUN + 1)
    late = decide(READABLE, evidence, BEGUN + 2)

    assert Act.READ_BACK is early.act
    assert Decision(act=Act.CONFLICT, code=Code.TERMS_CHANGED, until_s=DUE) == late


def test_new_terms_are_sent_once_the_old_ones_are_proven_absent():
    """Otherwise the same conflict would come back for ever."""
    evidence = after(UNKNOWN, payload=Payload.TERMS, absent_s=DUE + 1)

    assert Act.SEND is decide(READABLE, evidence, DUE + 2).act


@pytest.mark.parametrize(("count", "duplicated"), [(1, False), (2, True)])
def test_what_is_found_happened(count: int, duplicated: bool):
    """Found more often than intended is told to the owner."""
    read = Read(started_s=BEGUN + 6, found=Found.FOUND, count=count)
    decision = decide(READABLE, after(UNKNOWN, read=read), BEGUN + 7)

    assert Decision(act=Act.SETTLE, outcome=Outcome.HAPPENED, duplicated=duplicated) == decision


def test_the_missing_items_of_a_batch_are_sent_once_it_is_due():
    """Before that, the missing ones may still come."""
    tool = contract(read_back=ReadBack(lag_s=5.0), in_flight_s=10.0, batch=True)
    early = Read(started_s=BEGUN + 6, found=Found.PARTLY, count=1, expected=2)
    late = Read(started_s=DUE + 1, found=Found.PARTLY, count=1, expected=2)

    assert Decision(act=Act.WAIT, until_s=DUE) == decide(tool, after(UNKNOWN, read=early), BEGUN + 7)
    assert Act.READ_BACK is decide(tool, after(UNKNOWN, read=early), DUE + 1).act
    assert Decision(act=Act.SEND_MISSING, generation=1) == decide(tool, after(UNKNOWN, read=late), DUE + 2)


@pytest.mark.parametrize(
    ("started_s", "act"),
    [pytest.param(DUE, Act.READ_BACK, id="at the bound"), pytest.param(DUE + 0.001, Act.SEND, id="after it")],
)
def test_absence_counts_from_a_read_that_started_after_due(started_s: float, act: Act):
    """An empty answer inside bound + lag proves nothing; bounds are inclusive."""
    read = Read(started_s=started_s, found=Found.ABSENT)
    evidence = after(UNKNOWN, read=read, absent_s=started_s)

    assert act is decide(READABLE, evidence, DUE + 1).act


def test_an_attempt_that_never_left_is_free():
    """Too late to send, or a connection that was refused: the next call sends."""
    assert Act.SEND is decide(contract(attempts=1), after(attempt(AttemptState.NEVER_SENT)), BEGUN + 1).act


def test_proven_absence_moves_the_key_where_errors_are_cached():
    """The key of an attempt that failed may answer with its error for ever."""
    tool = contract(key=KeySupport(retention_s=1.0), read_back=ReadBack(lag_s=5.0), in_flight_s=10.0)
    honest = contract(
        key=KeySupport(retention_s=1.0, replays_errors=False), read_back=ReadBack(lag_s=5.0), in_flight_s=10.0
    )
    evidence = after(UNKNOWN, absent_s=DUE + 1)

    assert 1 == decide(tool, evidence, DUE + 2).generation
    assert 0 == decide(honest, evidence, DUE + 2).generation


def test_a_replayed_error_spends_the_key():
    """The service will say the same for ever; without a read-back only a person can know."""
    failed = attempt(replayed_error=True)
    readable = contract(key=SAFE_KEY, in_flight_s=10.0, read_back=ReadBack(lag_s=5.0))

    assert hold(Code.ERROR_CACHED) == decide(KEYED, after(failed), BEGUN + 1)
    assert Act.READ_BACK is decide(readable, after(failed), BEGUN + 1).act


def test_a_key_covers_a_re_issue():
    """Same key, same request: the service deduplicates."""
    assert Decision(act=Act.REISSUE) == decide(KEYED, after(UNKNOWN), BEGUN + 1)


@pytest.mark.parametrize(
    ("retention_s", "act"),
    [(1 + 5 + 10 + 0.001, Act.REISSUE), (1 + 5 + 10, Act.HOLD)],
)
def test_a_key_covers_only_what_commits_before_it_is_forgotten(retention_s: float, act: Act):
    """now + send allowance + bound must lie before first begin + retention."""
    tool = contract(key=KeySupport(retention_s=retention_s, concurrent_safe=True), in_flight_s=10.0)
    decision = decide(tool, after(UNKNOWN), BEGUN + 1)

    assert act is decision.act
    assert decision.act is Act.REISSUE or decision.code is Code.KEY_EXPIRED


def test_an_undeclared_bound_covers_nothing_unless_the_key_is_kept_for_ever():
    """A copy could commit after any finite retention."""
    finite = contract(key=SAFE_KEY)
    forever = contract(key=KeySupport(retention_s=inf, concurrent_safe=True))

    assert hold(Code.KEY_EXPIRED) == decide(finite, after(UNKNOWN), BEGUN + 1)
    assert Act.REISSUE is decide(forever, after(UNKNOWN), BEGUN + 1).act


def test_a_key_that_does_not_lock_waits_for_earlier_attempts():
    """A second request could pass the look-up while the first still runs."""
    tool = contract(key=KeySupport(retention_s=3_600), in_flight_s=10.0)

    assert Decision(act=Act.WAIT, until_s=SEND_BEFORE + 10) == decide(tool, after(UNKNOWN), BEGUN + 1)
    assert Act.REISSUE is decide(tool, after(UNKNOWN), SEND_BEFORE + 10.001).act


def test_a_batch_is_re_issued_only_where_the_key_resumes_it():
    """Elsewhere the items that exist would be made again."""
    plain = contract(key=SAFE_KEY, in_flight_s=10.0, batch=True)
    resumes = contract(
        key=KeySupport(retention_s=3_600, concurrent_safe=True, resumes_batch=True), in_flight_s=10.0, batch=True
    )

    assert hold(Code.UNVERIFIABLE) == decide(plain, after(UNKNOWN), BEGUN + 1)
    assert Act.REISSUE is decide(resumes, after(UNKNOWN), BEGUN + 1).act


def test_an_idempotent_write_is_re_issued():
    """Twice is once."""
    assert Act.REISSUE is decide(contract(Effect.IDEMPOTENT), after(UNKNOWN), BEGUN + 1).act


def test_the_first_look_comes_at_once_and_the_next_at_due():
    """An effect that is there can be seen early; only its absence needs the wait."""
    looked = after(UNKNOWN, read=Read(started_s=BEGUN + 6, found=Found.ABSENT), absent_s=BEGUN + 6)

    assert Act.READ_BACK is decide(READABLE, after(UNKNOWN), BEGUN + 1).act
    assert Decision(act=Act.WAIT, until_s=DUE) == decide(READABLE, looked, BEGUN + 7)
    assert Act.WAIT is decide(READABLE, looked, DUE).act
    assert Act.READ_BACK is decide(READABLE, looked, DUE + 0.001).act


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        (contract(read_back=ReadBack(lag_s=5.0)), Code.IN_FLIGHT_UNBOUNDED),
        (contract(read_back=ReadBack(lag_s=None), in_flight_s=10.0), Code.LAG_UNKNOWN),
    ],
)
def test_absence_without_declared_bounds_is_held(tool: Contract, code: Code):
    """No wait is long enough, so a person is asked."""
    read = Read(started_s=BEGUN + 1e6, found=Found.ABSENT)

    assert hold(code) == decide(tool, after(UNKNOWN, read=read, absent_s=read.started_s), BEGUN + 2e6)


def test_an_inconclusive_read_is_repeated_with_back_off_and_held_after_grace():
    """A failed read says nothing, in either direction."""
    read = Read(started_s=BEGUN + 6, found=Found.INCONCLUSIVE)
    evidence = after(UNKNOWN, read=read, not_before_s=BEGUN + 8)

    assert Decision(act=Act.WAIT, until_s=BEGUN + 8) == decide(READABLE, evidence, BEGUN + 7)
    assert Act.READ_BACK is decide(READABLE, evidence, BEGUN + 8).act
    late = after(UNKNOWN, read=Read(started_s=DUE + 601, found=Found.INCONCLUSIVE))
    assert hold(Code.READ_BACK_INCONCLUSIVE) == decide(READABLE, late, DUE + 602)


def test_a_caller_is_answered_when_its_patience_ends():
    """It is told when more may be known; a later identical call goes on from there."""
    read = Read(started_s=BEGUN + 6, found=Found.ABSENT)
    evidence = after(UNKNOWN, read=read, absent_s=read.started_s, patience_until_s=DUE - 1)

    assert Decision(act=Act.ANSWER, code=Code.UNKNOWN, until_s=DUE) == decide(READABLE, evidence, BEGUN + 7)


@pytest.mark.parametrize(
    ("tool", "evidence", "code"),
    [
        pytest.param(KEYLESS, after(UNKNOWN), Code.UNVERIFIABLE, id="nothing declared"),
        pytest.param(contract(key=KeySupport()), after(UNKNOWN), Code.KEY_EXPIRED, id="retention unknown"),
        pytest.param(KEYED, after(UNKNOWN, boundary_ok=False), Code.KEY_OUT_OF_BOUNDARY, id="another region"),
        pytest.param(KEYED, after(*[attempt(number=n) for n in (1, 2, 3)]), Code.RETRY_CEILING, id="ceiling"),
        pytest.param(KEYED, after(UNKNOWN, original_available=False), Code.ORIGINAL_UNAVAILABLE, id="redacted"),
        pytest.param(
            contract(key=KeySupport(retention_s=inf)), after(UNKNOWN), Code.IN_FLIGHT_UNBOUNDED, id="key does not lock"
        ),
    ],
)
def test_what_cannot_be_known_is_held_under_its_code(tool: Contract, evidence: Evidence, code: Code):
    """The code says which promise is missing."""
    assert hold(code) == decide(tool, evidence, BEGUN + 1)


def test_nobody_waiting_means_nothing_is_sent():
    """Background work waits for a caller, and after due + grace gives the intent to its owner."""
    evidence = after(UNKNOWN, waiting=False)
    limit = SEND_BEFORE + 10 + 600

    assert Decision(act=Act.WAIT, until_s=limit) == decide(KEYED, evidence, BEGUN + 1)
    assert hold(Code.ABANDONED) == decide(KEYED, evidence, limit + 0.001)


def test_busy_and_rate_limited_and_unsent_attempts_are_free():
    """The ceiling counts what was really sent."""
    free = [
        attempt(s, n) for n, s in enumerate((AttemptState.BUSY, AttemptState.RATE_LIMITED, AttemptState.NEVER_SENT))
    ]
    tool = contract(key=SAFE_KEY, in_flight_s=10.0, attempts=2)

    assert Act.REISSUE is decide(tool, after(UNKNOWN, *free), BEGUN + 1).act


def test_a_re_issue_waits_for_retry_after():
    """The service said when to come again."""
    evidence = after(UNKNOWN, not_before_s=BEGUN + 9)

    assert Decision(act=Act.WAIT, until_s=BEGUN + 9) == decide(KEYED, evidence, BEGUN + 1)


def test_a_similar_call_of_a_kind_without_identity_is_a_conflict():
    """Nothing names the effect, so a nearly equal text may be the same one."""
    unsettled = Evidence(others=(other(IntentState.UNKNOWN, similar=True),))
    unheard = Evidence(others=(other(IntentState.HAPPENED, similar=True),))
    labelled = Evidence(others=(other(IntentState.UNKNOWN, similar=True),), labelled=True)

    assert Code.SIMILAR_UNSETTLED is decide(KEYLESS, unsettled, BEGUN).code
    assert Code.SIMILAR_UNSETTLED is decide(KEYLESS, unheard, BEGUN).code
    assert Act.SEND is decide(KEYLESS, labelled, BEGUN).act


class TestWithoutContract:
    """Only an ambiguous failure changes anything."""

    tool = contract(Effect.UNDECLARED)

    @pytest.mark.parametrize("state", [AttemptState.HAPPENED, AttemptState.REFUSED])
    def test_an_equal_call_after_a_clear_end_passes(self, state: AttemptState):
        assert Act.NEW_EPOCH is decide(self.tool, after(attempt(state)), BEGUN + 1).act

    def test_an_equal_call_at_the_same_time_passes(self):
        assert Act.NEW_EPOCH is decide(self.tool, after(attempt(AttemptState.SENDING, live=True)), BEGUN + 1).act

    def test_an_equal_call_after_an_unclear_end_is_stopped_for_a_quarter_of_an_hour(self):
        stopped = decide(self.tool, after(UNKNOWN), BEGUN + 900)

        assert Decision(act=Act.CONFLICT, code=Code.NO_CONTRACT, until_s=BEGUN + 900) == stopped
        assert Act.NEW_EPOCH is decide(self.tool, after(UNKNOWN), BEGUN + 900.001).act

    def test_a_label_passes(self):
        doubts = (other(IntentState.UNKNOWN),)

        assert Act.CONFLICT is decide(self.tool, Evidence(others=doubts), BEGUN).act
        assert Act.SEND is decide(self.tool, Evidence(others=doubts, labelled=True), BEGUN).act

    def test_its_own_unclear_end_is_reported(self):
        assert Code.UNKNOWN is decide(self.tool, after(attempt(own=True)), BEGUN + 1).code


def test_due_counts_from_the_last_attempt_that_may_still_commit():
    """Attempts that are settled do not move it."""
    evidence = after(UNKNOWN, attempt(AttemptState.REFUSED, 2, begun_s=200.0, send_before_s=205.0))

    assert DUE == due_s(READABLE, evidence)


def test_the_decision_stays_small_and_pure():
    """A stranger reads it in ten minutes: under 200 lines, the standard library and its own values only."""
    source = Path(onceward.decision.__file__).read_text()
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }

    assert len(source.splitlines()) < 200
    assert {"__future__", "dataclasses", "math", "typing", "evidence", None} >= imported
