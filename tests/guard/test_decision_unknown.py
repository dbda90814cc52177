"""The rows of the decision table for an intent whose outcome is unknown."""

from __future__ import annotations

from math import inf

import pytest

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
    KeySupport,
    Outcome,
    Read,
    ReadBack,
)
from tests.guard.decisions import (
    BEGUN,
    DUE,
    KEYED,
    KEYLESS,
    READABLE,
    SAFE_KEY,
    SEND_BEFORE,
    UNKNOWN,
    after,
    attempt,
    contract,
    hold,
)


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
    """Now + send allowance + bound must lie before first begin + retention."""
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
