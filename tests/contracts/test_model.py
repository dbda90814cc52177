"""The model: what a contract may say, and what its silence means."""

from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from onceward.contracts import Duration, ServerContracts, ToolContract
from onceward.evidence import Contract, Effect, KeySupport, ReadBack

EVERYTHING: dict[str, Any] = {
    "effect": "write",
    "identity": ["customer.id", "items[].sku"],
    "content": ["note"],
    "normalise": {"amount": "decimal", "customer.id": "casefold", "trace": "ignore"},
    "key": {
        "in": "argument:idempotency_key",
        "format": {"token": {"min": 8, "max": 24, "alphabet": "0123456789abcdef"}},
        "retention": "24h",
        "caller": "replace",
        "concurrent": "safe",
        "replay_marker": {"header": "Idempotent-Replayed"},
        "on_mismatch": "reject",
        "on_repeat": "conflict_done",
        "replays_errors": False,
        "caches_refusals": False,
        "resumes_batch": True,
        "boundary": "eu-1",
    },
    "read_back": {
        "tool": "list_charges",
        "arguments": {"customer": "customer.id"},
        "items": "charges[]",
        "match": {"customer": "customer.id", "amount": "amount"},
        "created": "created_at",
        "baseline": True,
        "stamp": {"argument": "metadata.ref", "item": "metadata.reference"},
        "lag": {"assumed": "2m"},
        "pages": {"argument": "cursor", "next": "next_cursor", "size": 100},
    },
    "in_flight": {"assumed": "15m"},
    "resource": ["account"],
    "progress": {
        "tool": "get_charge",
        "arguments": {"id": "result.id"},
        "path": "status",
        "pending": ["processing"],
        "done": ["succeeded", True],
        "failed": ["failed"],
        "reference": "id",
        "accepted_when": {"status": "processing"},
    },
    "kind": "charge",
    "errors": [
        {"status": 409, "as": "done"},
        {"status": [429, 503], "as": "rate_limited"},
        {"code": -32050, "text": "/nonce .* consumed/", "field": {"error.kind": "busy"}, "as": "busy"},
    ],
    "batch": {"items": "items", "identity": ["sku"]},
    "window": "30d",
    "once": "window",
    "attempts": 5,
    "undo": "refund",
    "owner": "dana@example.com",
    "redact": ["card.number"],
    "source": "https://docs.example.com, read 2026-11-01",
    "cases": [{"when": {"region": "eu"}, "key": None, "in_flight": "2m"}],
}


def tool(**fields: Any) -> ToolContract:
    return ToolContract.model_validate({"effect": "write", **fields})


def wrong(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        tool(**fields)
    return str(caught.value)


def test_every_field_of_the_table_can_be_written_and_read_again():
    """The models are the file format: what they print is a file that means the same."""
    contract = tool(**EVERYTHING)
    printed = contract.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert contract == ToolContract.model_validate(printed)
    assert set(EVERYTHING) == set(printed)
    assert set(EVERYTHING) == {field.alias or name for name, field in ToolContract.model_fields.items()}
    assert {"assumed": "15m"} == printed["in_flight"]


def test_every_promise_reaches_the_decision():
    """The decision reads seconds and booleans, not the file."""
    key = KeySupport(
        retention_s=86_400, concurrent_safe=True, replays_errors=False, caches_refusals=False, resumes_batch=True
    )
    expected = Contract(
        effect=Effect.WRITE,
        owner="dana@example.com",
        key=key,
        read_back=ReadBack(lag_s=120, baseline=True),
        in_flight_s=900,
        attempts=5,
        window_s=2_592_000,
        batch=True,
        progress=True,
    )
    assert expected == tool(**EVERYTHING).decision("nobody")


def test_what_is_absent_is_never_convenient():
    """A promise that was not made must not let the guard send again."""
    contract = tool(key={"in": "meta:key"}, read_back={"tool": "list", "match": {"a": "b"}}).decision("dana")
    assert 0.0 == contract.key.retention_s
    assert (False, True, True, False) == (
        contract.key.concurrent_safe,
        contract.key.replays_errors,
        contract.key.caches_refusals,
        contract.key.resumes_batch,
    )
    assert contract.read_back.lag_s is None
    assert not contract.read_back.baseline
    assert contract.in_flight_s is None


def test_a_bare_contract_promises_nothing():
    """Only the defaults that the design gives are filled in, and those bound what is sent."""
    expected = Contract(effect=Effect.WRITE, owner="dana")
    assert expected == tool().decision("dana")
    assert tool().identity is None
    assert "scope" == tool().once


def test_a_decision_is_computed_once_for_each_owner():
    """It is asked for on every call."""
    contract = tool()
    assert contract.decision("dana") is contract.decision("dana")
    assert "eve" == contract.decision("eve").owner
    assert "dana" == contract.decision("dana").owner


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0s", 0),
        ("2m", 120),
        ("1h30m", 5_400),
        ("24h", 86_400),
        ("30d", 2_592_000),
        ("1d2h3m4s", 93_784),
        ("0.5s", 0.5),
    ],
)
def test_durations_are_read_and_written(written: str, seconds: float):
    """They are printed by `show`, and must be readable there as here."""
    duration = Duration.parse(written)
    assert Duration(seconds) == duration
    assert duration == Duration.parse(str(duration))


@pytest.mark.parametrize("written", ["", "5", "2 m", "2min", "m2", "-1s", "1m1h", "1.5h", "٣m", 5, True, None, []])
def test_what_is_no_duration_is_refused(written: Any):
    """A bound that is misread is worse than none."""
    assert "is not a duration" in wrong(in_flight={"assumed": written})
    assert "is not a duration" in wrong(window=written)


def test_only_a_retention_may_be_forever():
    """An effect that may commit for ever is the absence of a bound, and is written as absence."""
    key = {"in": "meta:key", "retention": "forever"}
    assert inf == tool(key=key).decision("dana").key.retention_s
    assert "`forever` is no bound here" in wrong(in_flight="forever")
    assert "`forever` is no bound here" in wrong(window="forever")
    assert "is not a duration" in wrong(window={"assumed": "1h"})


def test_assumed_bounds_are_remembered_as_assumed():
    """A receipt shows which answers rest on the operator's word."""
    contract = tool(
        key={"in": "meta:key", "retention": {"assumed": "forever"}},
        in_flight={"assumed": "15m"},
        read_back={"tool": "list", "match": {"a": "b"}, "lag": "0s"},
    )
    assert {"key.retention": Duration(inf, True), "in_flight": Duration(900, True)} == contract.assumed


@pytest.mark.parametrize(
    "place", ["argument:k", "meta:dev.example/key", "param:idempotencyKey", "header:Idempotency-Key"]
)
def test_a_key_goes_to_one_of_four_places(place: str):
    """Services differ in where they look."""
    key = tool(key={"in": place}).key
    assert place == f"{key.where}:{key.name}"


@pytest.mark.parametrize("place", ["k", "body:k", "argument:", "header:Two Words", "header:a:b", "argument: k"])
def test_any_other_place_is_refused(place: str):
    """A key that lands nowhere protects nothing."""
    assert "key.in" in wrong(key={"in": place})


@pytest.mark.parametrize(
    ("written", "length"),
    [
        ("uuid", 36),
        ("token", 32),
        ({"token": {}}, 32),
        ({"token": {"max": 16}}, 16),
        ({"token": {"min": 40, "max": 64}}, 40),
        ({"token": {"max": 255}}, 32),
    ],
)
def test_a_key_has_the_length_that_the_service_takes(written: Any, length: int):
    """32 characters, or as near as the service allows."""
    assert length == tool(key={"in": "meta:k", "format": written}).key.format.length


def test_an_absent_format_is_a_token_of_32():
    """The default of the table."""
    key = tool(key={"in": "meta:k"}).key
    assert (32, False) == (key.format.length, key.format.uuid)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"key": {"in": "meta:k", "format": "ulid"}}, "`ulid` is not a key format"),
        ({"key": {"in": "meta:k", "format": {"token": {"min": 9, "max": 8}}}}, "8 is less than the min of 9"),
        ({"key": {"in": "meta:k", "format": {"token": {"alphabet": "aab"}}}}, "a character stands twice"),
        ({"key": {"in": "meta:k", "format": {}}}, "either a token or a uuid"),
        ({"key": {"in": "meta:k", "replay_marker": {}}}, "a header or a field"),
        ({"key": {"in": "meta:k", "replay_marker": {"header": "a", "field": "b"}}}, "a header or a field"),
        ({"key": {"in": "meta:k", "replay_marker": {"header": "a", "value": 1}}}, "a marker by being there"),
        ({"read_back": {"tool": "list"}}, "nothing that tells our effect from others"),
        ({"read_back": {"tool": "list", "match": {"a": "b"}, "pages": {"argument": "c"}}}, "belong together"),
        ({"read_back": {"tool": "list", "match": {"a": "b"}, "pages": {}}}, "it says nothing"),
        ({"read_back": {"tool": "list", "match": {"a[": "b"}}}, "`a[` is not JMESPath: it breaks off at character 3"),
        ({"read_back": {"tool": "list", "match": {"a": "nope(b)"}}}, "calls `nope`, which JMESPath does not have"),
        ({"read_back": {"tool": "list", "match": {"a": "join(b)"}}}, "gives `join` 1 arguments"),
        ({"progress": {"tool": "get", "path": "s", "done": ["x"], "failed": ["x"]}}, "`x` stands twice"),
        ({"progress": {"tool": "get", "path": "s", "done": []}}, "at least 1 item"),
        ({"errors": [{"as": "done"}]}, "it would match every answer"),
        ({"errors": [{"status": 4090, "as": "done"}]}, "from 100 to 599"),
        ({"errors": [{"text": "/a(/", "as": "done"}]}, "is not a regular expression"),
        ({"errors": [{"status": True, "as": "done"}]}, "status"),
        ({"identity": ["a"], "content": ["a"]}, "`a` names the effect and may not be reworded"),
        ({"resource": ["a"], "content": ["a"]}, "`a` is the thing acted on"),
        ({"identity": ["a"], "normalise": {"a": "ignore"}}, "`a` names the effect and cannot be ignored"),
        ({"identity": ["a..b"]}, "identity"),
        ({"identity": "a"}, "identity"),
        ({"attempts": 0}, "attempts"),
        ({"attempts": "3"}, "attempts"),
        ({"cases": [{"when": {}}]}, "when"),
        ({"cases": [{"when": {"items[].sku": 1}}]}, "when"),
        ({"cases": [{"when": {"a": [1]}}]}, "is not a plain value"),
        ({"effect": "undeclared"}, "`undeclared` is not an effect"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], problem: str):
    """A contract that contradicts itself would be trusted in one half of it."""
    assert problem in wrong(**fields)


def test_a_stamp_may_be_named_by_its_argument_alone():
    """Most services show a reference under the name it was given."""
    stamp = tool(read_back={"tool": "list", "stamp": "meta.our-ref"}).read_back.stamp
    assert "r1" == stamp.shown.search({"meta": {"our-ref": "r1"}})


def test_a_query_over_data_that_does_not_fit_finds_nothing():
    """A read-back may answer with anything; that is inconclusive, not a crash."""
    read = tool(read_back={"tool": "list", "match": {"contains(a, 'x')": "b"}}).read_back
    assert [None] == [there.search({"a": 5}) for there in read.match]


@pytest.mark.parametrize(
    ("text", "answer", "matches"),
    [
        ("already exists", "It ALREADY EXISTS.", True),
        ("a.b", "axb", False),
        ("/nonce .* consumed/", "nonce 5 was consumed", True),
        ("/^gone$/", "long gone", False),
        ("/", "and/or", True),
    ],
)
def test_an_error_text_is_a_part_of_the_answer_or_a_pattern(text: str, answer: str, matches: bool):
    """Plain words are what an operator copies from a log; dots in them are dots."""
    rule = tool(errors=[{"text": text, "as": "done"}]).errors[0]
    assert matches == bool(rule.pattern.search(answer))


def test_the_first_case_that_holds_changes_the_contract():
    """One platform honours a key, another ignores it."""
    contract = tool(
        key={"in": "meta:k", "retention": "24h"},
        cases=[
            {"when": {"platform": "x", "options.fast": True}, "key": None, "attempts": 1},
            {"when": {"platform": "x"}, "effect": "idempotent"},
        ],
    )
    assert contract.for_arguments({"platform": "y"}).decision("d").key is not None
    fast = contract.for_arguments({"platform": "x", "options": {"fast": True}})
    assert (None, 1, Effect.WRITE) == (fast.key, fast.attempts, fast.effect)
    slow = contract.for_arguments({"platform": "x", "options": {"fast": 1}})
    assert (Effect.IDEMPOTENT, 3) == (slow.effect, slow.attempts)
    assert contract.key == slow.key


def test_a_contract_for_some_arguments_is_built_once():
    """It is asked for on every call."""
    plain, cased = tool(), tool(cases=[{"when": {"a": 1}, "attempts": 1}])
    assert plain is plain.for_arguments({"a": 1})
    assert cased.for_arguments({"a": 1}) is cased.for_arguments({"a": 1})
    assert cased is cased.for_arguments({})
    assert 1 == cased.for_arguments({"a": 1}).decision("d").attempts
    assert 3 == cased.decision("d").attempts


def test_an_altered_contract_keeps_nothing_of_what_was_computed():
    """A bound contract must not answer with the promises that binding took away."""
    contract = tool(key={"in": "meta:k"})
    assert contract.decision("d").key is not None
    assert contract.altered(key=None).decision("d").key is None
    assert contract.decision("d").key is not None


def test_the_owner_of_a_tool_comes_before_the_server_s():
    """A tool may belong to another team."""
    assert "dana" == tool(owner="dana").owner_or("eve")
    assert "eve" == tool().owner_or("eve")
    assert ("charge", "pay") == (tool().kind_or("charge"), tool(kind="pay").kind_or("charge"))


def test_contracts_are_frozen():
    """A contract that changes between decision and send is no contract."""
    contract = tool()
    with pytest.raises(ValidationError):
        contract.attempts = 9  # type: ignore[misc]  # that it is refused is the point
    assert 3 == contract.attempts


@pytest.mark.parametrize(
    "fields", [{"version": 2}, {"server": ""}, {"uncontracted": "warn"}, {"tool": {}}, {"version": "1"}, {"owner": 5}]
)
def test_a_server_s_own_fields_are_strict(fields: dict[str, Any]):
    """They are read as sternly as a tool's."""
    good = {"version": 1, "server": "pay", "owner": "dana", "tools": {"charge": {"effect": "write"}}}
    assert "stop" == ServerContracts.model_validate(good).uncontracted
    with pytest.raises(ValidationError):
        ServerContracts.model_validate(good | fields)


def test_the_rules_of_comparison_are_the_contract_s():
    """Identity reads them on every call, so they are built once."""
    contract = tool(**EVERYTHING).altered(defaults={"currency": "EUR", "options.capture": True})
    rules = contract.rules()
    assert rules is contract.rules()
    assert ("customer.id", "items[].sku") == rules.identity
    assert (("note",), ("account",)) == (rules.content, rules.resource)
    assert {"amount": "decimal", "customer.id": "casefold", "trace": "ignore"} == dict(rules.normalise)
    assert {"currency": "EUR"} == dict(rules.defaults)
    assert tool().rules().identity is None
