"""Canonical text: what RFC 8785 says where both are defined, and what is narrower or wider on purpose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from unicodedata import is_normalized, normalize

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import ArgumentsError
from onceward.identity import canonical
from onceward.jcs import DEEPEST, leaf, plain

quick = settings(max_examples=150, deadline=None, derandomize=True)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(lambda text: normalize("NFC", text))
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = texts | numbers | st.booleans()
values = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner.filter(lambda v: v is not None), max_size=4)
    ),
    max_leaves=12,
)


@quick
@given(values)
def test_canonical_text_is_that_of_rfc_8785_where_both_are_defined(value: Any) -> None:
    """Another implementation must be able to check a name of ours."""
    assert rfc8785.dumps(value) == canonical(value).encode()


@quick
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_is_written_as_ecmascript_writes_it(number: float) -> None:
    """Python and ECMAScript differ in where exponents begin and in how they look."""
    assert rfc8785.dumps(number) == canonical(number).encode()


@quick
@given(values)
def test_the_quick_way_and_the_exact_way_write_one_text(value: Any) -> None:
    """A call must not get another name because one of its neighbours in the arguments is not plain."""
    spoilt = canonical([value, "\u00e9"])
    assert f'[{canonical(value)},"\u00e9"]' == spoilt
    assert leaf(value) in (None, canonical(value))


@quick
@given(st.dictionaries(texts, leaves, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_members_is_nothing(members: dict[str, Any], random: Any) -> None:
    """A model writes the same arguments in another order."""
    shuffled = list(members.items())
    random.shuffle(shuffled)
    assert canonical(members) == canonical(dict(shuffled))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1", 1.0),
        ("1", Decimal("1.00")),
        ("0", -0.0),
        ("0", Decimal("0E+50")),
        ("0.1", Decimal("0.1")),
        ("1e-7", Decimal("0.0000001")),
        ("0.000001", 1e-6),
        ("9007199254740993", 2**53 + 1),
        ("-9007199254740993", -(2**53) - 1),
        ("12345678901234567890.123", Decimal("12345678901234567890.123")),
        ("1e+21", 10**21),
        ("1e+21", 1e21),
        ("1.208925819614629174706176e+24", 2**80),
        ("1e+999999", Decimal("1e999999")),
        ("true", True),
        ("[null]", [None]),
        ("{}", {"a": None}),
        ("[1,2]", (1, 2)),
        ('"\u00e9"', "e\u0301"),
        ('{"\u00e9":1}', {"e\u0301": 1}),
        ('{"\U0001f600":1,"\uff21":2}', {"\uff21": 2, "\U0001f600": 1}),
    ],
)
def test_values_of_one_meaning_have_one_text(text: str, value: Any) -> None:
    """1 and 1.0 are one value, 2^53 + 1 is not 2^53, and two spellings of a letter are one letter."""
    assert text == canonical(value)


def test_numbers_that_a_double_confuses_stay_apart() -> None:
    """Two account numbers beyond 2^53 may share a double; they are two accounts."""
    assert float(2**53) == float(2**53 + 1)
    assert canonical(2**53) != canonical(2**53 + 1)
    assert canonical(Decimal("0.1")) != canonical(Decimal("0.1000000000000000055511151231257827"))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": math.nan}, "$.a"),
        ({"a": [1, math.inf]}, "$.a[1]"),
        ({"a": Decimal("NaN")}, "$.a"),
        ({"a": Decimal("-Infinity")}, "$.a"),
        ({1: "a"}, "$"),
        ({"a": {None: 1}}, "$.a"),
        ({"a": b"raw"}, "$.a"),
        ({"a": {1, 2}}, "$.a"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "$.a"),
        ({"a": object()}, "$.a"),
        ({"a": "\ud800"}, "$.a"),
        ({"\ud800": 1}, "$.\ud800"),
        ({"e\u0301": 1, "\u00e9": 2}, "$.\u00e9"),
        ({"a": 10**5000}, "$.a"),
    ],
)
def test_what_is_not_json_is_refused_and_its_place_is_named(value: Any, path: str) -> None:
    """A guess at what a set, a date or a NaN means would become part of an intent's name."""
    with pytest.raises(ArgumentsError) as refused:
        canonical(value)
    assert path == refused.value.path


def test_a_path_given_by_the_caller_comes_first() -> None:
    """The error names the place as the caller knows it."""
    with pytest.raises(ArgumentsError) as refused:
        canonical([b""], "result")
    assert "result[0]" == refused.value.path


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}], ids=["lists", "objects"])
@pytest.mark.parametrize("core", ["plain", "\u00e9"])
def test_nesting_has_a_limit(wrap: Callable[[Any], Any], core: str) -> None:
    """Arguments nested without end must end in a refusal, not in a crash of the proxy."""
    value: Any = core
    for _ in range(DEEPEST):
        value = wrap(value)
    assert value == json.loads(canonical(value))
    with pytest.raises(ArgumentsError, match="200 deep"):
        canonical(wrap(value))


def test_a_list_that_holds_itself_is_refused() -> None:
    """It has no end, so the limit finds it."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ArgumentsError):
        canonical(endless)


def test_subclasses_of_plain_types_are_what_they_stand_for() -> None:
    """Enumerations of text and number are common in Python tools."""

    class Colour(str, Enum):  # noqa: UP042  # older tools are written so, and str() of it differs
        RED = "red"

    class Size(IntEnum):
        BIG = 3

    assert '["red",3]' == canonical([Colour.RED, Size.BIG])
    assert not plain(Colour.RED)


@quick
@given(st.text(max_size=6))
def test_texts_are_composed_whatever_they_hold(text: str) -> None:
    """The canonical text of a text is that of its NFC."""
    try:
        written = canonical(text)
    except ArgumentsError:
        assert any("\ud800" <= char <= "\udfff" for char in text)
        return
    assert is_normalized("NFC", json.loads(written))
    assert canonical(normalize("NFD", text)) == written
