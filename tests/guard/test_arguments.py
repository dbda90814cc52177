"""The quick way through a call's arguments and the exact one: they must never part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.identity import Rules

INVOICE = Rules(identity=("customer", "invoice"), content=("note",), normalise={"amount": "decimal"})
CALL = {"customer": "cus_1", "invoice": "inv-17", "amount": 120, "note": "For the services of May"}

flat = st.dictionaries(
    st.sampled_from(["customer", "invoice", "amount", "note", "tag", "x y", 'x"']) | st.text(max_size=3),
    st.text(max_size=5)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none()
    | st.lists(st.integers(), max_size=2),
    max_size=7,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(flat, st.sampled_from([0, 1, 2]))
def test_the_quick_way_writes_what_the_exact_way_writes(arguments: dict[str, Any], which: int) -> None:
    """Which way a call takes depends on its arguments alone, so both must name it alike."""
    rules = [
        Rules(),
        Rules(
            identity=("customer",), content=("note",), resource=("invoice", "tag"), defaults={"customer": "c", "n": 1}
        ),
        Rules(content=("x y",), normalise={"customer": "email", "note": "casefold", "tag": "ignore", "invoice": "set"}),
    ][which]
    quick = rules.plan.flat_texts(arguments)
    if quick is not None:
        assert rules.plan.texts(arguments) == quick


@pytest.mark.parametrize("rules", [Rules(), INVOICE, replace(INVOICE, resource=("customer",))])
def test_a_common_call_takes_the_quick_way(rules: Rules) -> None:
    """It runs before every guarded call."""
    assert rules.plan.flat_texts(CALL) is not None
    assert rules.plan.flat_texts({**CALL, "note": "F\u00fcr Mai", "amount": 10.0}) is not None
