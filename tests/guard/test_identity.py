"""The names of a call: what they rest on, what they must not rest on, and that they never change."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from onceward.errors import ArgumentsError
from onceward.evidence import Payload
from onceward.identity import Names, Rules, compare, intent_id, name_call, redact

INVOICE = Rules(identity=("customer", "invoice"), content=("note",), normalise={"amount": "decimal"})
CALL = {"customer": "cus_1", "invoice": "inv-17", "amount": 120, "note": "For the services of May"}
SHOP = Rules(
    identity=("customer.id", "items[].sku"),
    content=("mail.body", "items[].remark"),
    normalise={"items": "set", "items[].price": "decimal", "customer.mail": "email", "trace": "ignore"},
    resource=("customer.id",),
)
ORDER = {
    "customer": {"id": "c1", "mail": "Bob@Example.org "},
    "items": [{"sku": "a", "price": "1.0", "remark": "red"}, {"sku": "b", "price": 2}],
    "mail": {"body": "Thank you"},
    "trace": "t-1",
}


def names(arguments: Any, rules: Rules = INVOICE, **changes: Any) -> Names:
    call = {"principal": "acme", "scope": "thread-1", "server": "pay", "kind": "charge", "label": None}
    return name_call(**{**call, **changes}, arguments=arguments, rules=rules)


def moved(before: Names, after: Names) -> set[str]:
    """Return which names differ."""
    return {f.name for f in fields(Names) if getattr(before, f.name) != getattr(after, f.name)}


# --- what each name rests on

ALL = {"base", "identity", "kind"}


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (ALL, {"principal": "other"}),
        (ALL, {"server": "other"}),
        (ALL, {"kind": "other"}),
        ({"base"}, {"scope": "other"}),
        ({"base"}, {"scope": None}),
        ({"base"}, {"label": "again"}),
        ({"base"}, {"label": ""}),
    ],
)
def test_names_move_with_what_they_rest_on(expected: set[str], changes: dict[str, Any]) -> None:
    """A hit across two accounts is worse than a miss; scope and label only part intents of one identity."""
    assert expected == moved(names(CALL), names(CALL, **changes))


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ({"base", "identity", "payload", "arguments"}, {**CALL, "customer": "cus_2"}),
        ({"payload", "arguments"}, {**CALL, "amount": 121}),
        ({"payload", "arguments"}, {**CALL, "currency": "EUR"}),
        ({"content", "arguments"}, {**CALL, "note": "For May"}),
        (set(), {**CALL, "memo": None}),
        (set(), dict(reversed(CALL.items()))),
    ],
)
def test_each_class_of_arguments_moves_its_own_names(expected: set[str], arguments: dict[str, Any]) -> None:
    """The customer names the charge, the amount is a term of it, the note may be reworded."""
    assert expected == moved(names(CALL), names(arguments))


def test_without_a_declared_identity_everything_but_content_names_the_effect() -> None:
    """Then another amount is another effect."""
    rules = Rules(content=("note",))
    assert {"base", "identity", "payload", "arguments"} == moved(
        names(CALL, rules), names({**CALL, "amount": 1}, rules)
    )
    assert {"content", "arguments"} == moved(names(CALL, rules), names({**CALL, "note": "x"}, rules))
    assert "" == names({"a": 1}, rules).content


def test_a_resource_is_met_by_another_kind_of_the_same_account_and_server() -> None:
    """A roll-back of a service ends the replays of its deployments, whatever the two tools call it."""
    deploy = Rules(identity=("version",), resource=("service", "environment"))
    undo = Rules(resource=("name", "stage"))
    first = names({"version": 1, "service": "web", "environment": "prod"}, deploy, kind="deploy")
    back = names({"name": "web", "stage": "prod"}, undo, kind="rollback")
    assert first.resource == back.resource is not None
    assert first.resource != names({"name": "web", "stage": "test"}, undo).resource
    assert first.resource != names({"name": "web", "stage": "prod"}, undo, principal="other").resource
    assert first.resource != names({"name": "web", "stage": "prod"}, undo, server="other").resource
    assert names({"version": 1}, deploy).resource is None
    assert names(CALL).resource is None


def test_no_two_calls_feed_the_hash_the_same_bytes() -> None:
    """Parts that are only joined would let one account's call pass for another's."""
    parts = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a,b", "c", ""), ('a","b', "c", ""), ("", "ab", "c")]
    made = [names({}, Rules(), principal=p, server=s, kind=k) for p, s, k in parts]
    assert len(parts) == len({one.kind for one in made}) == len({one.base for one in made})
    places = [("a", "b"), ("ab", ""), ("a", None), (None, "a"), ("null", None), (None, None), ("", ""), ('a","b', None)]
    assert len(places) == len({names({}, Rules(), scope=scope, label=label).base for scope, label in places})
    one = names(CALL)
    values = [one.base, one.identity, one.kind, one.payload, one.content, one.arguments]
    assert 6 == len(set(values))
    assert all(64 == len(value) for value in values)


def test_an_epoch_makes_another_intent_of_the_same_base() -> None:
    """So that a repeat after a closing has a key of its own."""
    base = names(CALL).base
    assert 4 == len({base, intent_id(base, 0), intent_id(base, 1), intent_id(base, 10)})


@pytest.mark.parametrize(
    ("path", "rules", "arguments"),
    [
        ("$.invoice", INVOICE, {"customer": "cus_1"}),
        ("$.invoice", INVOICE, {**CALL, "invoice": None}),
        ("$.customer.id", SHOP, {**ORDER, "customer": {"mail": "x"}}),
        ("$.customer.id", SHOP, {**ORDER, "customer": "c1"}),
        ("$.items[1].sku", SHOP, {**ORDER, "items": [{"sku": "a"}, {"price": 1}]}),
        ("$.items", SHOP, {**ORDER, "items": {"sku": "a"}}),
        ("$.amount", INVOICE, {**CALL, "amount": "twelve"}),
        ("$.items[0].price", SHOP, {**ORDER, "items": [{"sku": "a", "price": True}]}),
        ("$.note", INVOICE, {**CALL, "note": "\ud800"}),
        ("$", INVOICE, {**CALL, 1: 2}),
    ],
)
def test_a_call_that_cannot_be_named_is_refused_and_the_place_is_named(
    path: str, rules: Rules, arguments: dict[str, Any]
) -> None:
    """Without its identity it would share its name with calls that mean something else."""
    with pytest.raises(ArgumentsError) as refused:
        names(arguments, rules)
    assert path == refused.value.path


def test_a_lone_surrogate_in_a_label_is_refused() -> None:
    """Labels come from models too."""
    with pytest.raises(ArgumentsError):
        names(CALL, label="\ud800")


@pytest.mark.parametrize("path", ["", ".", "a..b", "[]", "a.[]", "a[0]", "a.b."])
def test_a_path_that_means_nothing_is_refused_when_the_rules_are_made(path: str) -> None:
    """A path that matches nothing would silently leave the identity empty."""
    with pytest.raises(ValueError, match="path"):
        Rules(identity=(path,))
    with pytest.raises(ValueError, match="none of"):
        Rules(normalise={"a": "lower"})


# --- trap: the model writes the arguments anew


def test_a_default_that_the_model_adds_changes_nothing() -> None:
    """Written out, left out or null, a default is the same value."""
    rules = replace(INVOICE, defaults={"currency": "EUR", "tags": [], "amount": 0})
    assert set() == moved(names(CALL, rules), names({**CALL, "currency": "EUR", "tags": []}, rules))
    assert set() == moved(names(CALL, rules), names({**CALL, "currency": None}, rules))
    assert {"payload", "arguments"} == moved(names(CALL, rules), names({**CALL, "currency": "USD"}, rules))
    named = Rules(identity=("account",), defaults={"account": "main"})
    assert names({}, named).identity == names({"account": "main"}, named).identity


def test_a_reworded_text_does_not_make_another_intent() -> None:
    """The key rests on what the effect is, so a retry in other words has the key of the first try."""
    reworded = {**CALL, "note": "For the services of May, with the order 5 in prose"}
    assert intent_id(names(CALL).base, 0) == intent_id(names(reworded).base, 0)


@pytest.mark.parametrize("amount", [1, 1.0, "1", "1.0", "1.00", "+1", "1e0", "10e-1", " 01 ", Decimal("1.000"), "1."])
def test_br089_an_amount_has_one_name_in_every_spelling(amount: Any) -> None:
    """Keys that a caller derives from what a model wrote differ between '1', '1.0', '+1' and '1e0'.

    https://github.com/KeeperHub/keeperhub/pull/1877
    """
    rules = Rules(identity=("to", "amount"), normalise={"amount": "decimal"})
    first = names({"to": "0xA", "amount": 1}, rules)
    assert set() == moved(first, names({"to": "0xA", "amount": amount}, rules))
    assert "identity" in moved(first, names({"to": "0xA", "amount": "1.01"}, rules))


@pytest.mark.parametrize(
    "amount", ["", "1,00", "1_000", "one", "NaN", "Infinity", math.nan, True, [1], "\u0661", "1e99999999999999999999"]
)
def test_br089_what_is_no_amount_is_refused(amount: Any) -> None:
    """A guess at what a comma means would be a guess at a sum of money.

    https://github.com/KeeperHub/keeperhub/pull/1877
    """
    with pytest.raises(ArgumentsError) as refused:
        names({**CALL, "amount": amount})
    assert "$.amount" == refused.value.path


def test_br089_an_alias_of_a_field_changes_the_terms_not_the_intent() -> None:
    """Network and chainId mean one thing to the service. The identity holds, so the caller is asked, not charged twice.

    https://github.com/KeeperHub/keeperhub/pull/1877
    """
    rules = Rules(identity=("to", "reference"), normalise={"amount": "decimal"})
    old = {"to": "0xA", "reference": "r1", "amount": "1.0", "network": "x"}
    new = {"to": "0xA", "reference": "r1", "amount": 1, "chainId": 7}
    assert {"payload", "arguments"} == moved(names(old, rules), names(new, rules))
    assert Payload.TERMS is compare(old, new, rules)


# --- trap: what a hash must not rest on


def test_br088_order_is_nothing_tools_are_something_and_a_rolling_hash_is_not_enough() -> None:
    """An approval known by 32 bits of a key-order-dependent text, without the tool's name, approves other calls.

    https://github.com/ddutchie/cairn/pull/110
    """
    rules = Rules()
    assert set() == moved(names({"a": {"x": 1, "y": 2}, "b": 2}, rules), names({"b": 2, "a": {"y": 2, "x": 1}}, rules))
    assert names({"a": 1}, rules, kind="grant").base != names({"a": 1}, rules, kind="revoke").base
    assert names({"path": "/srv/AaAa"}, rules).base != names({"path": "/srv/BBBB"}, rules).base


def test_numbers_texts_and_integers_of_one_value_have_one_name() -> None:
    """1 and 1.0, two spellings of a letter, and a decimal are the same; integers beyond 2^53 stay apart."""
    rules = Rules()
    for same in ({"a": 1.0}, {"a": Decimal("1.0")}):
        assert set() == moved(names({"a": 1}, rules), names(same, rules))
    assert set() == moved(names({"\u00e9": "\u00e9"}, rules), names({"e\u0301": "e\u0301"}, rules))
    assert names({"a": 2**53}, rules).base != names({"a": 2**53 + 1}, rules).base
    assert names({"a": 1}, rules).base != names({"a": True}, rules).base != names({"a": "1"}, rules).base


@pytest.mark.parametrize("value", [math.nan, {1, 2}, b"raw", datetime(2026, 1, 1, tzinfo=UTC)])
def test_values_that_have_no_one_text_are_refused(value: Any) -> None:
    """A set has no order, and a date has a time zone or none: their author must say which text is meant."""
    with pytest.raises(ArgumentsError):
        names({**CALL, "extra": value})


def test_ignored_values_are_no_part_of_any_name() -> None:
    """A trace id or a time differs on every retry."""
    rules = Rules(normalise={"trace": "ignore", "meta.at": "ignore"})
    plain = names({"a": 1}, rules)
    assert set() == moved(plain, names({"a": 1, "trace": "t-9", "meta": {"at": 5}}, rules))
    assert set() != moved(plain, names({"a": 1, "meta": {"by": 5}}, rules))


def test_forms_make_spellings_equal_in_depth() -> None:
    """The order of a set, the case of an address and the form of a price are nothing; how many items there are is."""
    again = json.loads(json.dumps(ORDER))
    again["items"].reverse()
    again["items"][1]["price"] = 1
    again["customer"]["mail"] = "bob@example.org"
    again["trace"] = "t-2"
    assert set() == moved(names(ORDER, SHOP), names(again, SHOP))
    twice = {**ORDER, "items": [*ORDER["items"], ORDER["items"][0]]}
    assert {"base", "identity"} <= moved(names(ORDER, SHOP), names(twice, SHOP))


def test_reworded_content_and_changed_terms_do_not_reorder_a_set() -> None:
    """Items are sorted by what names them, so another remark or price leaves the identity alone."""
    other = json.loads(json.dumps(ORDER))
    other["items"][0]["remark"] = "zzz"
    assert {"content", "arguments"} == moved(names(ORDER, SHOP), names(other, SHOP))
    other["items"][0]["price"] = 99
    assert {"payload", "content", "arguments"} == moved(names(ORDER, SHOP), names(other, SHOP))


def test_arguments_that_change_after_naming_change_no_name() -> None:
    """A tool may alter the list it was given before its outcome is recorded. The names hold, the list is untouched."""
    mine = json.loads(json.dumps(ORDER))
    before = names(mine, SHOP)
    assert ORDER == mine
    mine["items"].clear()
    mine["customer"]["id"] = "changed"
    assert before == names(ORDER, SHOP)
    rules, forms = Rules(), {"a": "strip"}
    stripped = Rules(normalise=forms)
    forms.clear()
    assert names({"a": " x"}, stripped) == names({"a": "x"}, stripped) != names({"a": " x"}, rules)


def test_secrets_are_named_before_they_are_masked() -> None:
    """Two cards that are both shown as stars are two cards."""
    paths = ("card",)
    one, two = {**CALL, "card": "4111"}, {**CALL, "card": "4222"}
    assert {"payload", "arguments"} == moved(names(one), names(two))
    assert redact(one, paths, b"s" * 32) != redact(two, paths, b"s" * 32)


def test_names_do_not_depend_on_the_seed_of_the_process() -> None:
    """Another process, on another machine, must derive the same id."""
    code = (
        "import json\nfrom onceward.identity import Rules, name_call\n"
        "rules = Rules(identity=('b', 'c[].x'), content=('n',), normalise={'c': 'set', 'd': 'decimal'})\n"
        "arguments = {'b': 'e\\u0301', 'c': [{'x': 2}, {'x': 1}], 'd': '1.50', 'n': 'text', 'z': {'k': 1, 'j': 2}}\n"
        "print(name_call(principal='p', scope='s', server='v', kind='k', arguments=arguments, label='l', rules=rules))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert 1 == len(made)
    assert "base=" in made.pop()


# --- names for good


@pytest.mark.parametrize(
    ("rules", "arguments", "changes", "expected"),
    [
        (
            INVOICE,
            CALL,
            {},
            {
                "base": "9bfc700d43501096",
                "identity": "8fa2b7f02d008c82",
                "kind": "684d989522ee3db6",
                "resource": "",
                "payload": "16b0128758ebb76e",
                "content": "4fdf78cfc45a8312",
                "arguments": "4832538015d05cb0",
                "intent": "808d83b82ce665b8259deba7d0058a78a85eff8e662361c902b5f29424ef6be3",
            },
        ),
        (
            SHOP,
            ORDER,
            {"scope": None, "label": "again"},
            {
                "base": "743630cb560e936c",
                "identity": "af7bbdb2f50d7d3a",
                "kind": "684d989522ee3db6",
                "resource": "d545f040ddc9ffa6",
                "payload": "b7fb37cd7458f1b3",
                "content": "d1259035b520e0da",
                "arguments": "3a0c510dd2b1c7c5",
                "intent": "dafc9e5cfa9c21c801dc6de8c81113a0d1c8241ecf0e850060cd75808497d292",
            },
        ),
        (
            Rules(),
            {"\u00e9": [1.5, None, {"n": 10**21}], "t": True},
            {"principal": "j\u00f6rg"},
            {
                "base": "95b2a47036bb11c3",
                "identity": "131179aa669d5c2b",
                "kind": "58e6c11b2ecddeba",
                "resource": "",
                "payload": "b26225b9ae95114d",
                "content": "",
                "arguments": "27fe15d1a6b12d1c",
                "intent": "12463af0953085c4f1501aded3a51d8d10115c4c41304ddd7c14015ee176988d",
            },
        ),
    ],
    ids=["flat", "nested", "text"],
)
def test_a_later_version_gives_the_same_names(
    rules: Rules, arguments: dict[str, Any], changes: dict[str, Any], expected: dict[str, str | None]
) -> None:
    """A name that changes with an upgrade makes every open intent a stranger. These vectors must stand for good."""
    one = names(arguments, rules, **changes)
    made = {f.name: (getattr(one, f.name) or "")[:16] for f in fields(Names)}
    assert expected == {**made, "intent": intent_id(one.base, 3)}


# --- comparing


@pytest.mark.parametrize(
    ("expected", "new"),
    [
        (Payload.SAME, CALL),
        (Payload.SAME, {**CALL, "amount": "120.00"}),
        (Payload.NEAR, {**CALL, "note": "for the services of  may."}),
        (Payload.FAR, {**CALL, "note": "Thank you!"}),
        (Payload.FAR, {**CALL, "note": "For the services of May 2"}),
        (Payload.FAR, {k: v for k, v in CALL.items() if k != "note"}),
        (Payload.FAR, {**CALL, "note": 5}),
        (Payload.TERMS, {**CALL, "amount": 121}),
        (Payload.TERMS, {**CALL, "amount": 121, "note": "Thank you!"}),
        (Payload.TERMS, {**CALL, "currency": "EUR"}),
    ],
)
def test_two_calls_of_one_identity_are_compared(expected: Payload, new: dict[str, Any]) -> None:
    """Terms must hold, content may be reworded."""
    assert expected is compare(CALL, new, INVOICE)
    assert expected is compare(new, CALL, INVOICE)


def test_every_piece_of_content_must_be_near() -> None:
    """One text reworded and another one new is another message."""
    near, far = json.loads(json.dumps(ORDER)), json.loads(json.dumps(ORDER))
    near["mail"]["body"] = "Thank you!"
    far["mail"]["body"], far["items"][0]["remark"] = "Thank you!", "blue"
    assert Payload.NEAR is compare(ORDER, near, SHOP)
    assert Payload.FAR is compare(ORDER, far, SHOP)


def test_stored_arguments_that_were_redacted_can_be_compared() -> None:
    """What is hidden cannot differ to the eye: terms by their stored name, content as nearly equal."""
    rules = replace(INVOICE, normalise={"amount": "decimal", "card.month": "decimal"})
    call = {**CALL, "card": {"number": "4111", "month": 5}}
    for paths in (("card",), ("card.number",), ("amount",), ("customer",)):
        assert Payload.SAME is compare(redact(call, paths, b"s" * 32), call, rules)
        assert Payload.FAR is compare(redact(call, paths, b"s" * 32), {**call, "note": "Other"}, rules)
    assert Payload.NEAR is compare(redact(call, ("note",), b"s" * 32), {**call, "note": "Other"}, rules)
    assert Payload.TERMS is compare(redact(call, ("card",), b"s" * 32), {**call, "amount": 1}, rules)
    nested = redact(ORDER, ("customer", "items[].price"), b"s" * 32)
    assert Payload.SAME is compare(nested, ORDER, SHOP)


def test_an_old_call_that_the_rules_of_today_cannot_read_differs_in_terms() -> None:
    """A contract may be edited between two calls; nothing then shows that both mean the same."""
    assert Payload.TERMS is compare({**CALL, "amount": "twelve"}, CALL, INVOICE)
    assert Payload.TERMS is compare({"note": "x"}, CALL, INVOICE)
