"""One world for the tests of the decision: bound 10, lag 5, send allowance 5."""

from __future__ import annotations

from onceward.evidence import (
    Act,
    Attempt,
    AttemptState,
    Code,
    Contract,
    Decision,
    Effect,
    Evidence,
    IntentState,
    KeySupport,
    Other,
    ReadBack,
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
