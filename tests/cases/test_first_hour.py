"""What a newcomer meets in the first hour: a misspelt contract, a tool without one, a journal that is still young."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from onceward import Conflict, Unknown

INVOICE = {"invoice": "in_1", "amount": 100}
SEEN = """
charge:
  effect: write
  identity: [invoice]
  in_flight: 0.2s
  read_back:
    tool: list_charges
    arguments: {{invoice: invoice}}
    items: items
    match: {{{match}}}
    created: created
    lag: 0s
list_charges: {{effect: read}}
"""


def test_a_misspelt_match_proves_nothing(shop: Any, guard_of: Any):
    """No item has the field that is looked for, so a full list looks empty; acting on that charged twice."""
    guard = guard_of(SEEN.format(match="invoce: invoice"), patience_s=2.0)
    shop.lose()

    with pytest.raises(Unknown):
        guard.call("charge", INVOICE, shop.request("charge"))

    assert 1 == len(shop.effects)
    reasons = {event.why for event in guard.journal.history() if event.what == "read_back"}
    assert {"no item of the list has `invoce`"} == reasons


def test_a_match_on_an_argument_that_the_call_lacks_proves_nothing(shop: Any, guard_of: Any):
    """The other half of the same slip."""
    guard = guard_of(SEEN.format(match="invoice: invoce"), patience_s=2.0)
    shop.lose()

    with pytest.raises(Unknown):
        guard.call("charge", INVOICE, shop.request("charge"))

    assert 1 == len(shop.effects)


@pytest.mark.parametrize("cancels", [True, False], ids=["cancelled", "only timed out"])
def test_without_a_contract_giving_up_is_an_ambiguous_failure(
    shop: Any, harness_of: Any, block: Any, monkeypatch: Any, cancels: bool
):
    """Most ambiguous failures are a client's own time-out: an identical call after it is stopped."""
    shop.plan(shop.Plan(takes_s=1.0))

    async def play() -> Any:
        harness = harness_of("list_charges: {effect: read}", send_allowance_s=0.2)
        if cancels:
            await harness.call("charge", INVOICE, timeout_s=0.1)
        else:
            left = asyncio.ensure_future(harness.call("charge", INVOICE))
            await asyncio.sleep(0.4)
        answer = await harness.call("charge", INVOICE)
        await (harness.rest() if cancels else left)
        return answer

    stopped = asyncio.run(play())

    assert "no_contract" == block(stopped)["code"]
    assert 1 == len(shop.effects)


def test_a_young_journal_knows_its_own_effects(shop: Any, guard_of: Any):
    """The look before a first send is for what a lost journal knew, not for what this one has seen happen."""
    guard = guard_of(SEEN.format(match="invoice: invoice"))
    guard.journal.new_until_s = time.time() + 900
    charge = shop.request("charge")

    guard.call("charge", INVOICE, charge)
    guard.call("charge", INVOICE, charge, label="second")

    assert 2 == len(shop.effects)


def test_a_young_journal_tells_of_an_effect_that_it_did_not_make(shop: Any, guard_of: Any):
    """After the loss of a journal the same call must not charge again."""
    guard = guard_of(SEEN.format(match="invoice: invoice"))
    guard.journal.new_until_s = time.time() + 900
    shop.request("charge")(**INVOICE)

    with pytest.raises(Conflict) as told:
        guard.call("charge", INVOICE, shop.request("charge"))

    assert "found_before_send" == told.value.code.value
    assert 1 == len(shop.effects)


def test_a_missing_reader_is_named_before_anything_is_sent(shop: Any, guard_of: Any):
    """Otherwise the first lost reply would show it, after the effect."""
    guard = guard_of(SEEN.format(match="invoice: invoice"))
    del guard._functions["list_charges"]

    with pytest.raises(LookupError, match="list_charges"):
        guard.call("charge", INVOICE, shop.request("charge"))

    assert [] == shop.requests


def test_a_tool_error_reaches_the_person_who_decides(shop: Any, guard_of: Any):
    """What the service said is what the owner needs."""
    guard = guard_of("charge: {effect: write, identity: [invoice]}")
    shop.lose(ValueError("card declined"))

    with pytest.raises(Exception, match="unknown"):
        guard.call("charge", INVOICE, shop.request("charge"))

    (row,) = guard.journal.list(held=True)
    (attempt,) = guard.journal.run(lambda store: store.attempts(row.id))
    assert "card declined" in attempt.detail["text"]
