"""What is stored in place of a value that must not be stored, and how the original comes back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from onceward.identity import is_redacted, redact, refill

SECRET = b"s" * 32
CARD = "4111 1111 1111 1111"


@pytest.mark.parametrize(
    ("paths", "arguments"),
    [
        (("card",), {"card": CARD, "amount": 5}),
        (("card.number",), {"card": {"number": CARD, "month": 5}}),
        (("card", "card.number"), {"card": {"number": CARD}}),
        (("card.number", "card"), {"card": {"number": CARD}}),
        (("cards[].number",), {"cards": [{"number": CARD}, {"number": "x"}], "amount": 5}),
        (("cards[]",), {"cards": [CARD, "x"]}),
        (("card.number",), {"card": [{"number": CARD}]}),
        (("card.number",), {"card": json.dumps({"number": CARD})}),
    ],
)
def test_redacted_values_are_gone_and_come_back_only_with_a_call_that_has_them(
    paths: tuple[str, ...], arguments: dict[str, Any]
) -> None:
    """The journal must not give away a card; an equal call may still be finished after a crash."""
    before = json.dumps(arguments)
    hidden = redact(arguments, paths, SECRET)
    assert is_redacted(hidden)
    assert "4111" not in json.dumps(hidden)
    assert before == json.dumps(arguments)
    stored = json.loads(json.dumps(hidden))
    assert arguments == refill(stored, json.loads(before), SECRET)
    assert refill(stored, json.loads(before.replace("4111", "4222")), SECRET) is None
    assert refill(stored, {}, SECRET) is None
    assert refill(stored, arguments, b"t" * 32) is None


def test_what_no_path_names_stays_and_is_not_redacted() -> None:
    """A path that leads nowhere, to null, or through a number hides nothing."""
    arguments = {"amount": 5, "note": None, "list": [1, {"a": 2}]}
    assert arguments == redact(arguments, ("card", "note", "amount.value", "list[].b"), SECRET)
    assert not is_redacted(arguments)
    assert arguments == refill(arguments, {}, SECRET)


def test_the_stored_terms_come_back_not_those_of_the_new_call() -> None:
    """Only what was hidden is taken from the new call: the original request is what is sent again."""
    hidden = redact({"card": CARD, "body": "first wording"}, ("card",), SECRET)
    assert {"card": CARD, "body": "first wording"} == refill(hidden, {"card": CARD, "body": "second"}, SECRET)


def test_equal_values_have_equal_marks_under_one_secret_only() -> None:
    """Equality still works, a search through all card numbers does not; this mark is fixed for good."""
    mark = redact({"a": CARD}, ("a",), SECRET)["a"]
    assert mark == redact({"b": CARD}, ("b",), SECRET)["b"]
    assert mark != redact({"a": CARD}, ("a",), b"t" * 32)["a"]
    assert {"dev.onceward/hmac": "d1fb4b86848458333470a8d8f464594fabc9b18de183a514c7cbce83191d3dec"} == mark


def test_redaction_never_fails() -> None:
    """It also runs on results, after the effect: what has no canonical text is hidden all the same."""
    hidden = redact({"a": math.nan, "b": b"\xff", "c": "\ud800"}, ("a", "b", "c"), SECRET)
    assert all(list(value) == ["dev.onceward/hmac"] for value in hidden.values())


def test_a_refilled_value_is_a_copy() -> None:
    """The caller may change its arguments afterwards; what is about to be sent must not follow."""
    new = {"card": {"number": CARD}}
    filled = refill(redact(new, ("card",), SECRET), new, SECRET)
    new["card"]["number"] = "changed"
    assert {"card": {"number": CARD}} == filled
