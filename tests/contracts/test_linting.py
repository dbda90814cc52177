"""Lint: what a contract leaves out, told before a lost reply shows it."""

from typing import Any

import pytest

from onceward.contracts import Finding, ServerContracts, lint, parse

#: A contract about which there is nothing to say.
SOUND: dict[str, Any] = {
    "effect": "write",
    "identity": ["customer", "invoice"],
    "key": {"in": "meta:k", "retention": "30d", "concurrent": "safe", "replays_errors": False},
    "read_back": {
        "tool": "list",
        "items": "x",
        "match": {"a": "a"},
        "created": "at",
        "lag": "0s",
        "pages": {"size": 100},
    },
    "in_flight": "2m",
}


def findings(server_owner: str | None = "dana", **fields: Any) -> list[Finding]:
    tool = {name: value for name, value in (SOUND | fields).items() if value is not None}
    tools = {"list": {"effect": "read"}, "charge": tool}
    return lint(ServerContracts.model_validate({"version": 1, "server": "pay", "owner": server_owner, "tools": tools}))


def key(**fields: Any) -> dict[str, Any]:
    return {"key": SOUND["key"] | fields}


def read(**fields: Any) -> dict[str, Any]:
    return {"read_back": {n: v for n, v in (SOUND["read_back"] | fields).items() if v is not None}}


def test_nothing_is_said_of_a_sound_contract():
    """A lint that always complains is not read."""
    assert [] == findings()


@pytest.mark.parametrize(
    ("fields", "severity", "field", "problem"),
    [
        ({"identity": None}, "error", "identity", "a reworded retry is a new one"),
        ({"server_owner": None}, "error", "owner", "nobody is named"),
        ({"identity": ["service", "version"]}, "warning", "resource", "`version` names a version or a state"),
        ({"identity": ["service", "target_state"]}, "warning", "resource", "`target_state` names a version or a state"),
        ({"identity": ["service.gitCommit", "image-tag"]}, "warning", "resource", "`image-tag` names a version"),
        ({"in_flight": None}, "warning", "in_flight", "absence proves nothing"),
        ({"in_flight": {"assumed": "15m"}}, "note", "in_flight", "15m is assumed"),
        (key(retention=None), "warning", "key.retention", "never relied on"),
        (key(retention="2m"), "error", "key.retention", "forgotten after 2m, while a request may still commit for 2m"),
        (key(retention="23h"), "warning", "key.retention", "forgotten after 23h, before many a resumed run"),
        (key(retention={"assumed": "30d"}), "note", "key.retention", "30d is assumed"),
        (key() | {"window": "60d", "read_back": None}, "note", "key.retention", "within the window of 60d"),
        (key(concurrent="unsafe"), "note", "key.concurrent", "waits until the first request cannot commit"),
        (key(replays_errors=None), "note", "key.replays_errors", "taken to be replayed"),
        (key(on_repeat="conflict_done"), "warning", "key.on_repeat", "no error rule knows that answer"),
        (key(format={"token": {"max": 6}}), "warning", "key.format", "31 bits"),
        (key() | {"effect": "idempotent"}, "note", "key", "same arguments twice are once"),
        ({"batch": {"items": "items"}, "read_back": None}, "warning", "read_back", "ran in part"),
        ({"key": None, "read_back": None}, "warning", "read_back", "neither key nor read-back"),
        (read(lag=None), "warning", "read_back.lag", "absence proves nothing"),
        (read(lag={"assumed": "1m"}), "note", "read_back.lag", "1m is assumed"),
        (read(created=None), "warning", "read_back.created", "an older one that looks the same"),
        (read(pages=None), "warning", "read_back.pages", "as one page"),
        (read(lag="2d"), "warning", "window", "hidden for 2d, longer than the window of 24h"),
        ({"key": None, "errors": [{"status": 409, "as": "done"}]}, "warning", "errors.0.as", "our own key or stamp"),
    ],
)
def test_a_weak_promise_is_told(fields: dict[str, Any], severity: str, field: str, problem: str):
    """Each finding names one field and one remedy."""
    found = findings(**fields)
    assert [(severity, field)] == [(f.severity, f.field) for f in found], [str(f) for f in found]
    assert problem in found[0].problem
    assert found[0].remedy
    assert "charge" == found[0].tool


@pytest.mark.parametrize(
    "fields",
    [
        {"identity": ["service", "version"], "resource": ["service"]},
        key(on_repeat="conflict_done") | {"errors": [{"text": "exists", "as": "done"}]},
        read(created=None, stamp="note"),
        read(created=None, baseline=True),
        read(items=None, pages=None),
        {"key": None, "read_back": None, "effect": "idempotent"},
        {"identity": None, "effect": "read", "key": None, "read_back": None, "in_flight": None},
        {"identity": ["estate", "restaged"]},
    ],
)
def test_a_promise_that_another_line_mends_is_not_told(fields: dict[str, Any]):
    """The remedy that lint gives must silence it."""
    assert [] == findings(**fields)


def test_findings_stand_at_their_line_and_in_their_order():
    """An editor jumps there."""
    text = """\
version: 1
server: pay
owner: dana
tools:
  list: {effect: read}
  charge:
    effect: write
    key: {in: "meta:k", retention: 1h, concurrent: safe, replays_errors: false}
    in_flight: {assumed: 1m}
    cases:
      - when: {region: eu}
        in_flight: {assumed: 2m}
"""
    found = lint(parse(text, file="pay.yaml"))
    expected = [("error", "identity", 6), ("warning", "key.retention", 8), ("note", "in_flight", 9)]
    assert [*expected, ("note", "cases.0.in_flight", 12)] == [(f.severity, f.field, f.line) for f in found]
    assert str(found[0]).startswith("pay.yaml:6: error: charge.identity: without it every argument names the effect")
