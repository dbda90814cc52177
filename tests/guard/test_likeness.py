"""What counts as nearly equal, and what as the same call once more where no identity is declared."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.identity import near, redact, similar

BODY = "Dear customer, your invoice 17 over 120 euro is due on Friday. Please pay."
REWORDED = "Dear customer, your invoice 17 over 120 euro is now due on Friday. Please pay it."


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Your invoice 17 is due", "Your invoice 17 is now due."),
        (BODY, REWORDED),
        ("Hello  World\n", "hello world"),
        ("", "  "),
        ("caf\u00e9 opens", "cafe\u0301 opens"),
    ],
)
def test_reworded_text_is_near(a: str, b: str) -> None:
    """A model writes its text a second time in other words, not with another meaning."""
    assert near(a, b)
    assert near(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Your invoice 17 is due", "Your invoice 18 is due"),
        ("Your invoice 17 is due", "Your invoice is due"),
        ("Your invoice 17 is due", "Your invoice 17 17 is due"),
        ("Your invoice 17 is due", "Your invoice 1 7 is due"),
        ("Your invoice is due", "Lunch at noon tomorrow?"),
        ("Good morning! Three meetings today.", "Hi all, today there are three meetings."),
        ("", "something"),
    ],
)
def test_another_number_or_another_text_is_not_near(a: str, b: str) -> None:
    """Two reminders that differ in the invoice are two reminders, however alike they read."""
    assert not near(a, b)
    assert not near(b, a)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"to": "bob", "body": BODY}, {"body": BODY, "to": "bob"}),
        ({"to": "bob", "n": 1}, {"to": "bob", "n": 1.0}),
        ({"to": "bob", "cc": None}, {"to": "bob"}),
        ({"to": "bob", "body": BODY}, {"to": "bob", "body": REWORDED}),
        ({"to": "bob", "body": BODY}, {"to": "bob", "body": REWORDED, "urgent": False}),
        ({"to": "bob"}, {"to": "bob", "priority": "normal"}),
        ({"body": BODY}, {"body": f"{BODY} Thank you for your trust in us, and have a very pleasant week-end!"}),
        ({"mail": {"to": "bob", "body": BODY}}, {"mail": {"to": "bob", "body": REWORDED}}),
        ({"bodies": [BODY, "x"]}, {"bodies": [REWORDED, "x"]}),
    ],
)
def test_a_call_that_a_model_wrote_again_is_similar(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Reworded, with a default added, or left out: the guard asks before it sends."""
    assert similar(old, new)
    assert similar(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"to": "bob", "body": BODY}, {"to": "eve", "body": BODY}),
        ({"to": "bob", "n": 1}, {"to": "bob", "n": 2}),
        ({"n": 1}, {"n": True}),
        ({"n": 1}, {"n": "1"}),
        ({"body": BODY}, {"body": BODY.replace("17", "18")}),
        ({"to": "bob", "a": 1}, {"to": "bob", "b": 1}),
        ({"code": "ABCDEFG"}, {"code": "ABCDEFH"}),
        ({"body": "Please pay invoice 17"}, {"body": "Please pay invoice 175"}),
        ({"to": ["bob"]}, {"to": ["bob", "eve"]}),
        ({"note": BODY}, {"note": [BODY]}),
    ],
)
def test_a_call_with_another_value_is_another_call(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Another recipient, number or code is another effect, and must not be held up."""
    assert not similar(old, new)
    assert not similar(new, old)


def test_a_redacted_value_counts_as_equal() -> None:
    """It cannot be compared, and a doubt makes the guard ask."""
    old = redact({"card": "4111 1111 1111 1111", "body": BODY}, ("card",), b"s" * 32)
    assert similar(old, {"card": "4111 1111 1111 1111", "body": REWORDED})
    assert not similar(old, {"card": "4111 1111 1111 1111", "body": "No."})
