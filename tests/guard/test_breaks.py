"""Sequences that once broke the promise of the library: an effect too many, one too few, or a secret in the clear.

The ledger is a list outside the guard, and the truth.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.contracts.compiling import toolbox_of
from onceward.contracts.loader import parse
from onceward.drive import Guard
from onceward.evidence import AttemptState, IntentState
from onceward.gathering import Settings
from onceward.identity import name_call
from onceward.journal.base import AttemptRow, IntentRow

SECRET = b"a deployment secret of the tests"
PLAIN = "charge: {effect: write, identity: [customer, invoice], in_flight: 1s}"
KEYED = (
    'charge: {effect: write, identity: [customer, invoice], in_flight: 1s, key: {in: "argument:key", retention: 24h,'
    " concurrent: safe, replays_errors: false}}"
)
HEADER = KEYED.replace("argument:key", "header:Idempotency-Key")
MAIL = "charge: {effect: write, identity: [customer, invoice], content: [note], in_flight: 1s}"
REDACTED = KEYED.replace("in_flight", "redact: [card], in_flight")
CALL = {"customer": "c", "invoice": "7"}


class World:
    """A service whose ledger is the truth; `answers` says what the next requests are answered."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.guards = folder, list[Guard]()
        self.ledger: list[dict[str, Any]] = []
        self.answers: list[Any] = []
        self.keys: dict[str, Any] = {}

    def guard(self, tools: str, **more: Any) -> Guard:
        """Open one more guard on the one journal."""
        contracts = toolbox_of(parse(f"version: 1\nserver: shop\nowner: ops@example.com\ntools:\n  {tools}\n"))
        settings = Settings(send_allowance_s=0.5, attempt_timeout_s=1.0)
        more = {"scope": "run-1", "patience_s": 1.0, "settings": settings, "secret": SECRET, **more}
        guard = Guard(contracts, self.folder / "journal.db", **more)
        guard.journal.new_until_s = 0.0
        self.guards.append(guard)
        return guard

    def charge(self, **arguments: Any) -> Any:
        """Charge, unless the key was seen before, and answer as planned."""
        key = arguments.pop("key", None)
        if key and key in self.keys:
            return self.keys[key]
        self.ledger.append(arguments)
        answer = self.answers.pop(0) if self.answers else {"number": len(self.ledger)}
        if key:
            self.keys[key] = {"number": len(self.ledger)}
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stored(self) -> bytes:
        """Return every byte that the journal left on the disk."""
        for guard in self.guards:
            guard.close()
        return b"".join(file.read_bytes() for file in self.folder.iterdir() if file.name.startswith("journal"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for guard in made.guards:
        guard.close()


def rows(guard: Guard) -> tuple[IntentRow, list[AttemptRow]]:
    guard.journal.run(lambda store: None)  # notes that wait are written with it
    row = next(iter(guard.journal.list()))
    return row, list(guard.journal.run(lambda store: store.attempts(row.id)))


def told(call: Callable[[], Any]) -> Any:
    """Return what a call is answered, an error too."""
    try:
        return call()
    except Exception as error:  # the test looks at it
        return error


def pass_window(guard: Guard) -> None:
    """Let two days go by, and purge."""
    real: Callable[[], float] = guard.journal._time  # type: ignore[attr-defined]
    guard.journal._time = lambda: real() + 200_000  # type: ignore[attr-defined]
    assert {"purged": 1, "tombstones_dropped": 0} == guard.journal.purge()


# --- an effect too many


def test_a_label_names_one_intent_after_its_row_became_a_tombstone(world: World) -> None:
    """A redelivery after days carries its old label; a tombstone without attempts looked like a new intent."""
    guard = world.guard(PLAIN)
    guard.call("charge", CALL, world.charge, label="second")
    pass_window(guard)
    guard.call("charge", CALL, world.charge, label="second")
    assert [CALL] == world.ledger


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_label_names_nothing(world: World, empty: str) -> None:
    """Models fill in optional arguments with empty text: that is no wish for a second effect."""
    guard = world.guard(PLAIN)
    first = guard.call("charge", CALL, world.charge)
    assert first == guard.call("charge", CALL, world.charge, label=empty)
    assert [CALL] == world.ledger


def test_an_empty_key_of_the_caller_protects_nothing_and_is_replaced_by_ours(world: World) -> None:
    """A service takes an empty key for none, so a re-issue under it is a second charge."""
    guard = world.guard(KEYED)
    world.answers = [TimeoutError("read timed out")]
    guard.call("charge", {**CALL, "key": ""}, world.charge)
    assert [CALL] == world.ledger


@pytest.mark.parametrize("before", [PLAIN, HEADER])
def test_a_key_that_came_into_the_contract_later_covers_no_earlier_attempt(world: World, before: str) -> None:
    """The first request went out without this key, so the service does not know it: sending under it charges twice."""
    world.answers = [KeyboardInterrupt()]
    guard = world.guard(before)
    with pytest.raises(KeyboardInterrupt):
        guard.call("charge", CALL, world.charge)
    guard.close()
    after = world.guard(KEYED)
    assert "unknown outcome" in str(told(lambda: after.call("charge", CALL, world.charge)))
    assert [CALL] == world.ledger


# --- an effect too few, or told wrongly


def test_other_words_after_a_purge_are_a_new_intent(world: World) -> None:
    """The words of a tombstone are gone and cannot be compared; every later mail to that address failed."""
    guard = world.guard(MAIL)
    guard.call("charge", {**CALL, "note": "Your invoice is due on Monday, please pay."}, world.charge)
    pass_window(guard)
    guard.call("charge", {**CALL, "note": "We wish you a happy new year!"}, world.charge)
    assert 2 == len(world.ledger)


def test_the_same_harness_id_with_another_label_is_another_call(world: World) -> None:
    """Providers use ids again, so a second action on purpose got the first one's answer."""
    guard = world.guard(PLAIN)
    first = guard.call("charge", CALL, world.charge, call_id="call_0")
    assert first == guard.call("charge", CALL, world.charge, call_id="call_0")
    assert first != guard.call("charge", CALL, world.charge, call_id="call_0", label="second")
    assert [CALL, CALL] == world.ledger


def test_a_generator_is_refused_before_it_seems_to_have_happened(world: World) -> None:
    """Calling one runs nothing yet, so its effect would be recorded as done without having begun."""

    def charge(customer: str, invoice: str) -> Iterator[None]:
        world.ledger.append({"customer": customer, "invoice": invoice})
        yield

    async def stream(customer: str, invoice: str) -> AsyncIterator[None]:
        world.ledger.append({"customer": customer, "invoice": invoice})
        yield

    guard = world.guard(PLAIN)
    for function in (charge, stream):
        with pytest.raises(TypeError, match="generator"):
            guard.tool(function)
        with pytest.raises(TypeError, match="generator"):
            guard.call("charge", CALL, function)
    assert [] == list(guard.journal.list()) == world.ledger


def test_a_coroutine_that_nobody_awaits_did_not_happen(world: World) -> None:
    """`call` with an async function returned a coroutine, and recorded it as the result."""

    async def charge(**arguments: Any) -> None:
        world.ledger.append(arguments)

    guard = world.guard(PLAIN)
    with pytest.raises(TypeError, match="acall"):
        guard.call("charge", CALL, charge)
    assert [] == list(guard.journal.list()) == world.ledger
    told(lambda: guard.call("charge", CALL, lambda **arguments: charge(**arguments)))
    assert IntentState.HAPPENED is not rows(guard)[0].state
    assert [] == world.ledger


def test_a_call_cancelled_while_its_intent_is_written_was_never_sent(world: World) -> None:
    """Its attempt would seem to run for as long as the process lives, and no later call would be sent."""
    guard = world.guard(PLAIN)

    async def charge(**arguments: Any) -> Any:
        return world.charge(**arguments)

    async def play() -> Any:
        first = asyncio.create_task(guard.acall("charge", CALL, charge))
        await asyncio.sleep(0)  # the step is queued
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await guard.acall("charge", CALL, charge)

    assert {"number": 1} == asyncio.run(play())
    assert [CALL] == world.ledger
    assert [AttemptState.NEVER_SENT, AttemptState.HAPPENED] == [a.state for a in rows(guard)[1]]


def test_a_tool_whose_own_work_was_cancelled_is_unknown_not_running(world: World) -> None:
    """The caller still waits, and nobody else would ever record how that attempt ended."""
    guard = world.guard(PLAIN)

    async def charge(**arguments: Any) -> None:
        world.charge(**arguments)
        raise asyncio.CancelledError

    async def play() -> None:
        await guard.acall("charge", CALL, charge)

    assert "unknown outcome" in str(told(lambda: asyncio.run(play())))
    assert [AttemptState.UNKNOWN] == [a.state for a in rows(guard)[1]]


@pytest.mark.parametrize("kind", ["half a character", "deep"])
def test_a_result_that_is_hard_to_store_happened_all_the_same(world: World, kind: str) -> None:
    """Services cut texts in the middle of a character; the attempt then seemed to run for ever."""
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"card": deep}
    world.answers = [{"text": "cut \ud83d"} if kind != "deep" else deep]
    guard = world.guard(REDACTED)
    first = guard.call("charge", {**CALL, "card": "4111"}, world.charge)
    row, _ = rows(guard)
    assert IntentState.HAPPENED is row.state
    again = guard.call("charge", {**CALL, "card": "4111"}, world.charge)
    assert kind == "deep" or again == first
    assert 1 == len(world.ledger)


def test_a_decimal_is_replayed_as_the_decimal_it_was(world: World) -> None:
    """A caller that counts with the first answer must be able to count with the second."""
    world.answers = [{"amount": Decimal("1.50")}]
    guard = world.guard(PLAIN)
    assert guard.call("charge", CALL, world.charge) == guard.call("charge", CALL, world.charge)


# --- a secret in the clear


def test_a_redacted_value_that_the_service_repeats_is_not_kept(world: World) -> None:
    """Errors and results quote what they were asked."""
    card = "4111111111111111"
    declined = SimpleNamespace(status_code=402, headers={}, _content=f'{{"error": "card {card} declined"}}'.encode())
    error = RuntimeError(f"402: card {card} declined")
    error.response = declined  # type: ignore[attr-defined]
    world.answers = [error, {"said": f"charged {card}", "parts": [f"from {card}."]}]
    guard = world.guard(REDACTED)
    with pytest.raises(RuntimeError):
        guard.call("charge", {**CALL, "card": card}, world.charge)
    guard.call("charge", {**CALL, "invoice": "8", "card": card}, world.charge)
    assert card.encode() not in world.stored()


def test_a_redacted_value_in_a_result_is_not_kept_whatever_shape_the_result_has(world: World) -> None:
    """An MCP result holds its data twice: structured, and as text."""
    data = {"card": "tok_SECRET"}
    mcp = {"content": [{"type": "text", "text": json.dumps(data)}], "structuredContent": data}
    world.answers = [mcp, [data], json.dumps(data)]
    guard = world.guard(REDACTED)
    for number in range(3):
        guard.call("charge", {**CALL, "invoice": number, "card": "4111"}, world.charge)
    assert b"tok_SECRET" not in world.stored()


def test_no_name_in_the_journal_lets_a_short_secret_be_searched_for(world: World) -> None:
    """A PIN has ten thousand values: a plain hash that covers it is the PIN."""
    guard = world.guard(REDACTED)
    guard.call("charge", {**CALL, "card": "4711"}, world.charge)
    row, _ = rows(guard)
    rules = guard.toolbox.tool("charge", {}).rules
    call: dict[str, Any] = {"principal": "default", "scope": "run-1", "server": "shop", "kind": "charge"}
    names = name_call(**call, arguments={**CALL, "card": "4711"}, label=None, rules=rules)
    assert {row.payload, row.identity, row.base}.isdisjoint({names.payload, names.identity, names.base})
