"""What the decision reads, and what it answers: plain values, nothing else.

A `Contract` is what an operator declared about one tool, in seconds and booleans. `Evidence` is all that the journal
knows of one intent, seen by one caller at one moment. A `Decision` is one act with the values it needs. The decision
itself is `decision.decide`; the journal builds evidence, the driver carries decisions out. Times are seconds on the
journal's clock. A promise that was not made is `None` or the inconvenient value, never the convenient one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

REFUSAL_LASTS_S = (
    900.0  #: a refusal, or a stop without contract, speaks for a quarter of an hour: then the world moved on
)


class Effect(Enum):
    """What a tool does to the world."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    WRITE = "write"
    UNSAFE = "unsafe"
    UNDECLARED = "undeclared"  #: no contract: the call passes, only an ambiguous failure is remembered


class Outcome(Enum):
    """What is known of an effect, from here."""

    HAPPENED = "happened"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class AttemptState(Enum):
    """Where one sending of a request stands; a definite state is never overwritten by a vaguer one."""

    SENDING = "sending"
    NEVER_SENT = "never_sent"
    HAPPENED = "happened"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    RATE_LIMITED = "rate_limited"  #: refused, and free of charge against the ceiling
    BUSY = "busy"  #: not settled, and free: the first request under the key still runs
    UNKNOWN = "unknown"

    @property
    def may_commit(self) -> bool:
        """Tell whether a request in this state may still take effect."""
        return self in _MAY_COMMIT

    @property
    def counts(self) -> bool:
        """Tell whether this attempt uses up one of the contract's attempts."""
        return self not in _FREE


_MAY_COMMIT = frozenset({AttemptState.SENDING, AttemptState.ACCEPTED, AttemptState.BUSY, AttemptState.UNKNOWN})
_FREE = frozenset({AttemptState.NEVER_SENT, AttemptState.RATE_LIMITED, AttemptState.BUSY})
_DEFINITE = frozenset({AttemptState.NEVER_SENT, AttemptState.HAPPENED, AttemptState.REFUSED})


def stronger(old: AttemptState, new: AttemptState) -> AttemptState:
    """Return the state an attempt has after news of `new`: a late HAPPENED always counts, a vaguer word never does."""
    if new is AttemptState.HAPPENED:
        return new
    return old if old in _DEFINITE else new


class IntentState(Enum):
    """The state of an intent, folded from its attempts."""

    NEW = "new"
    IN_FLIGHT = "in_flight"
    ACCEPTED = "accepted"
    HAPPENED = "happened"
    REFUSED = "refused"
    ABSENT = "absent"  #: every attempt was never sent, or is proven not to have taken effect
    UNKNOWN = "unknown"

    @property
    def unsettled(self) -> bool:
        """Tell whether an effect may exist, or may still come, and nobody can say yet."""
        return self in (IntentState.IN_FLIGHT, IntentState.ACCEPTED, IntentState.UNKNOWN)


class Payload(Enum):
    """How the caller's arguments compare with those of the intent."""

    SAME = "same"
    NEAR = "near"  #: only content differs, and it is nearly equal
    FAR = "far"  #: only content differs, and it is not nearly equal
    TERMS = "terms"  #: what must stay the same differs


class Found(Enum):
    """What the last read-back showed."""

    ABSENT = "absent"
    FOUND = "found"
    PARTLY = "partly"  #: some items of a batch
    INCONCLUSIVE = "inconclusive"  #: a failed read, a full page, an unclear match


class Progress(Enum):
    """What the last status read of an accepted effect showed."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Act(Enum):
    """What to do next."""

    PASS = "pass"  #: a read: forward, journal nothing
    SEND = "send"  #: begin an attempt with the caller's request, under `generation`
    SEND_MISSING = "send_missing"  #: begin an attempt with the batch items that were never seen
    REISSUE = "reissue"  #: begin an attempt with the original request and its original key
    READ_BACK = "read_back"
    READ_STATUS = "read_status"
    WAIT = "wait"  #: decide again at `until_s`
    JOIN = "join"  #: another attempt runs: wait for its outcome, at most until `until_s`
    DRIVE = "drive"  #: settle intent `other` first, then decide again
    NEW_EPOCH = "new_epoch"  #: this intent is closed, begin a new one in its place
    SETTLE = "settle"  #: the evidence shows `outcome`: record it, then decide again
    REPLAY = "replay"  #: answer with the stored result; nothing is sent
    TELL = "tell"  #: state a fact once; nothing is sent
    CONFLICT = "conflict"  #: the caller must decide; nothing is sent
    ANSWER = "answer"  #: say how things stand (`code`); nothing is sent
    HOLD = "hold"  #: park the intent for `owner` under `code`, or repeat that it is parked

    @property
    def sends(self) -> bool:
        """Tell whether this act lets a request leave."""
        return self in (Act.SEND, Act.SEND_MISSING, Act.REISSUE)

    @property
    def takes_time(self) -> bool:
        """Tell whether this act asks the world, or waits for it."""
        return self.sends or self in (Act.READ_BACK, Act.READ_STATUS, Act.JOIN)


class Code(Enum):
    """Why something was not simply sent. Each has a section in docs/codes.md."""

    # holds: a person is asked
    NEEDS_APPROVAL = "needs_approval"
    ERROR_CACHED = "error_cached"
    IN_FLIGHT_UNBOUNDED = "in_flight_unbounded"
    LAG_UNKNOWN = "lag_unknown"
    READ_BACK_INCONCLUSIVE = "read_back_inconclusive"
    UNVERIFIABLE = "unverifiable"
    KEY_EXPIRED = "key_expired"
    KEY_OUT_OF_BOUNDARY = "key_out_of_boundary"
    ABANDONED = "abandoned"
    ORIGINAL_UNAVAILABLE = "original_unavailable"
    RETRY_CEILING = "retry_ceiling"  # a hold when something is uncertain, an answer when nothing is
    # conflicts: the caller decides
    TERMS_CHANGED = "terms_changed"
    KEY_REUSED = "key_reused"
    CONTENT_DIFFERS = "content_differs"
    UNSETTLED_SIBLING = "unsettled_sibling"
    SIMILAR_UNSETTLED = "similar_unsettled"
    NO_CONTRACT = "no_contract"
    # facts: nothing is uncertain, or nothing can be done here
    ALREADY_HAPPENED = "already_happened"
    FOUND_BEFORE_SEND = "found_before_send"
    RUNNING = "running"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    # refusals before anything is decided
    NO_SCOPE = "no_scope"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    JOURNAL_MISSING = "journal_missing"
    CONTRACT_MISMATCH = "contract_mismatch"
    BAD_ARGUMENTS = "bad_arguments"


#: how an unsettled intent stands, for a caller whose patience is over
STANDING = {
    IntentState.IN_FLIGHT: Code.RUNNING,
    IntentState.ACCEPTED: Code.ACCEPTED,
    IntentState.UNKNOWN: Code.UNKNOWN,
}

HOLD_CODES = frozenset(
    {
        Code.NEEDS_APPROVAL,
        Code.ERROR_CACHED,
        Code.IN_FLIGHT_UNBOUNDED,
        Code.LAG_UNKNOWN,
        Code.READ_BACK_INCONCLUSIVE,
        Code.UNVERIFIABLE,
        Code.KEY_EXPIRED,
        Code.KEY_OUT_OF_BOUNDARY,
        Code.ABANDONED,
        Code.ORIGINAL_UNAVAILABLE,
        Code.RETRY_CEILING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySupport:
    """What a service promises about idempotency keys."""

    retention_s: float = 0.0  #: how long a key is remembered; `inf` = forever; unknown counts as nothing
    concurrent_safe: bool = False  #: a second request under a key waits, is refused or joins while the first runs
    replays_errors: bool = True  #: an error is replayed under the key even where the effect ran
    caches_refusals: bool = True  #: a refusal is remembered under the key
    resumes_batch: bool = False  #: a partly executed batch continues under the same key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """How an effect can be seen."""

    lag_s: float | None = None  #: visibility lag; None = unknown, so absence proves nothing
    baseline: bool = False  #: count the matches once before the first attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What is declared about one tool, reduced to what the decision reads."""

    effect: Effect
    owner: str
    key: KeySupport | None = None
    read_back: ReadBack | None = None
    in_flight_s: float | None = None  #: in-flight bound; None = unbounded
    attempts: int = 3
    window_s: float = 86_400.0
    batch: bool = False
    progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One sending, as the journal has it now."""

    number: int
    generation: int
    begun_s: float
    send_before_s: float  #: nothing of this attempt leaves after this time
    state: AttemptState
    live: bool = False  #: its holder is alive and its lease runs
    own: bool = False  #: it was made by the call that asks now
    replayed_error: bool = False  #: its answer was an earlier error, replayed under the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The last read-back."""

    started_s: float
    found: Found
    count: int = 0  #: matches that can only be this intent's
    expected: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another intent of the same identity (other scope, label or epoch), or a similar call where none is declared."""

    intent: str
    state: IntentState
    payload: Payload = Payload.SAME  #: how the caller's arguments compare with this one's
    told: bool = False  #: this caller was told of it before
    acknowledged: bool = False
    in_window: bool = True
    held: Code | None = None
    commits_until_s: float = 0.0  #: an attempt of it may commit until then; `inf` where no bound is declared
    similar: bool = False  #: same kind and a similar text, not the same identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one intent, and who asks."""

    attempts: tuple[Attempt, ...] = ()
    payload: Payload = Payload.SAME
    own: bool = True  #: the asker's scope and label are the intent's
    waiting: bool = True  #: a caller waits for the answer; False = background work
    patience_until_s: float = inf  #: the call is answered by then
    not_before_s: float = 0.0  #: no re-issue or repeated read-back earlier: back-off, or the service's Retry-After
    held: Code | None = None
    approved: bool = False  #: a person's yes to an `unsafe` effect
    released: bool = False  #: a person asked for one more attempt under the original key
    closed: bool = False  #: a person voided it, or a later effect on the same resource ended it
    acknowledged: bool = False  #: its answer reached a live caller
    told: bool = False  #: this caller was told of the difference before
    labelled: bool = False
    settled_s: float | None = None
    absent_s: float | None = None  #: start of the last conclusive empty read-back
    asserted_absent_s: float | None = None  #: a person said that nothing begun before this time happened
    read: Read | None = None
    progress: Progress | None = None  #: what the last status read showed; `not_before_s` spaces the reads
    baseline_known: bool = False
    read_first: bool = False  #: the journal is new: look before the first send
    key_pinned: bool = False  #: the caller supplied the key, so no generation can replace it
    boundary_ok: bool = True  #: the key would reach the region or account that saw it first
    original_available: bool = True  #: the original request can be rebuilt
    others: tuple[Other, ...] = ()  #: unsettled ones first
    grace_s: float = 600.0
    send_allowance_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One act and the values it needs."""

    act: Act
    code: Code | None = None
    generation: int = 0
    until_s: float | None = None  #: when to decide again, or when it may be known; None = not bounded
    other: str | None = None
    owner: str | None = None
    outcome: Outcome | None = None
    duplicated: bool = False  #: found more often than intended
    straggler: bool = False  #: an earlier attempt on this identity may still commit, its bound is not declared
    repeat_of: str | None = None  #: an earlier intent with the same identity
    permanent: bool = False  #: repeating the call will not change the answer


def unresolved(contract: Contract, evidence: Evidence) -> tuple[Attempt, ...]:
    """Return the attempts that may have taken effect, or may still do so.

    Absence clears an attempt only when the read that showed it began strictly after that attempt could last commit and
    its effect could last be hidden. What a service accepted is cleared by its status alone.
    """
    if not evidence.attempts:
        return ()
    hidden_s = _sum(contract.in_flight_s, contract.read_back.lag_s if contract.read_back else None)
    asserted_s = -inf if evidence.asserted_absent_s is None else evidence.asserted_absent_s
    absent_s = -inf if evidence.absent_s is None else evidence.absent_s
    return tuple(
        a
        for a in evidence.attempts
        if a.state.may_commit
        and (a.state is AttemptState.ACCEPTED or not (a.begun_s <= asserted_s or absent_s > a.send_before_s + hidden_s))
    )


def fold(contract: Contract, evidence: Evidence) -> IntentState:
    """Fold the attempts into the state of their intent."""
    states = {a.state for a in evidence.attempts}
    if AttemptState.HAPPENED in states:
        return IntentState.HAPPENED
    if any(a.live and a.state is AttemptState.SENDING for a in evidence.attempts):
        return IntentState.IN_FLIGHT
    if AttemptState.ACCEPTED in states:
        return IntentState.ACCEPTED
    if not evidence.attempts:
        return IntentState.NEW
    if unresolved(contract, evidence):
        return IntentState.UNKNOWN
    if states & {AttemptState.REFUSED, AttemptState.RATE_LIMITED}:
        return IntentState.REFUSED
    return IntentState.ABSENT


def commits_until_s(contract: Contract, evidence: Evidence) -> float:
    """Return the last time at which an attempt may still commit; -inf when none can, inf when no bound is declared."""
    bound_s = inf if contract.in_flight_s is None else contract.in_flight_s
    return max((a.send_before_s + bound_s for a in unresolved(contract, evidence)), default=-inf)


def due_s(contract: Contract, evidence: Evidence) -> float:
    """Return the time after which absence is proof: the last commit, and the lag of its read-back."""
    lag_s = contract.read_back.lag_s if contract.read_back else 0.0
    return commits_until_s(contract, evidence) + (inf if lag_s is None else lag_s)


def covers(contract: Contract, evidence: Evidence, at_s: float) -> bool:
    """Tell whether every copy sent at `at_s` commits before its key can be forgotten."""
    if contract.key is None or contract.key.retention_s == inf:
        return contract.key is not None
    first_s = min(a.begun_s for a in evidence.attempts if a.generation == evidence.attempts[-1].generation)
    return at_s + _sum(evidence.send_allowance_s, contract.in_flight_s) < first_s + contract.key.retention_s


def attempts_left(contract: Contract, evidence: Evidence) -> bool:
    """Tell whether the ceiling allows one more attempt, or a person did."""
    return evidence.released or sum(a.state.counts for a in evidence.attempts) < contract.attempts


def key_spent(contract: Contract, evidence: Evidence) -> bool:
    """Tell whether the service may answer the current key with a stored refusal or error instead of acting."""
    if contract.key is None:
        return False
    refused = any(a.state is AttemptState.REFUSED for a in evidence.attempts)
    # A caller's key cannot be replaced, so only an error that was really replayed spends it.
    failed = any(a.state.may_commit and (a.replayed_error or not evidence.key_pinned) for a in evidence.attempts)
    return (refused and contract.key.caches_refusals) or (failed and contract.key.replays_errors)


def closed(contract: Contract, evidence: Evidence, now: float, state: IntentState) -> bool:
    """Tell whether this intent has ended, so that an equal call is a new one."""
    age_s = -inf if evidence.settled_s is None else now - evidence.settled_s
    if state is IntentState.HAPPENED:
        again = contract.effect is Effect.IDEMPOTENT and evidence.acknowledged
        return evidence.closed or again or (age_s > contract.window_s and not evidence.labelled)
    nothing = state in (IntentState.REFUSED, IntentState.ABSENT)
    return evidence.closed or (nothing and age_s > REFUSAL_LASTS_S and not evidence.released)


def _sum(*terms: float | None) -> float:
    return sum(inf if term is None else term for term in terms)
