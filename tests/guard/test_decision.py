"""Every row of the decision table, in the table's order. One world for all: bound 10, lag 5, send allowance 5."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path

import pytest

import onceward.decision
from onceward.decision import decide
from onceward.evidence import (
    Act,
    AttemptState,
    Code,
    Contract,
    Decision,
    Effect,
    Evidence,
    Found,
    IntentState,
    KeySupport,
    Outcome,
    Payload,
    Progress,
    Read,
    ReadBack,
    due_s,
)
from tests.guard.decisions import (
    BEGUN,
    DUE,
    HAPPENED,
    KEYED,
    KEYLESS,
    READABLE,
    SAFE_KEY,
    UNKNOWN,
    after,
    attempt,
    contract,
    hold,
    other,
)


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
