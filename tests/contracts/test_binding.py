"""Binding: promises that the living tool does not carry are not relied on."""

from typing import Any

import pytest

from onceward.contracts import Mismatch, ServerContracts, bind, mirror_of, mirrored
from onceward.evidence import Code

CHARGE: dict[str, Any] = {
    "customer": {"type": "string"},
    "invoice": {"type": "string"},
    "currency": {"type": "string", "default": "EUR"},
    "options": {"$ref": "#/$defs/Options"},
    "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    "note": {"type": "string"},
    "idempotency_key": {"anyOf": [{"type": "string", "maxLength": 64}, {"type": "null"}], "default": None},
}
LIST: dict[str, Any] = {"customer": {"type": "string"}, "cursor": {"type": "string"}}
READ_BACK: dict[str, Any] = {
    "tool": "list_charges",
    "arguments": {"customer": "customer"},
    "items": "charges",
    "match": {"invoice": "invoice"},
    "stamp": "note",
    "pages": {"argument": "cursor", "next": "next", "size": 50},
    "lag": "0s",
}
DECLARED: dict[str, Any] = {
    "effect": "write",
    "identity": ["customer", "invoice", "items[].sku"],
    "key": {"in": "argument:idempotency_key", "retention": "24h"},
    "read_back": READ_BACK,
    "undo": "refund",
}


def listing(charge: dict[str, Any] = CHARGE, reader: dict[str, Any] = LIST, **more: Any) -> dict[str, Any]:
    options = {"type": "object", "properties": {"capture": {"type": "boolean", "default": True}, "tip": {}}}
    charge_schema = {"type": "object", "properties": charge, "$defs": {"Options": options}}
    tools = [
        {"name": "charge", "inputSchema": charge_schema},
        {"name": "list_charges", "inputSchema": {"type": "object", "properties": reader, **more}},
        {"name": "refund", "inputSchema": {"type": "object"}},
    ]
    return {"tools": tools}


def without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: schema for name, schema in arguments.items() if name not in names}


def contracts(**fields: Any) -> ServerContracts:
    tools = {
        "charge": DECLARED | fields,
        "list_charges": {"effect": "read"},
        "refund": {"effect": "write", "identity": []},
        "get_charge": {"effect": "read"},
    }
    if "progress" not in fields:
        del tools["get_charge"]
    return ServerContracts.model_validate({"version": 1, "server": "pay", "owner": "dana", "tools": tools})


def told(mismatches: list[Mismatch]) -> list[tuple[str, str, bool]]:
    return [(mismatch.field, mismatch.problem, mismatch.voided) for mismatch in mismatches]


def test_a_contract_that_fits_is_bound_whole():
    """Binding takes nothing from a contract that the tool can keep."""
    declared = contracts()
    bound, mismatches = bind(declared, listing())
    assert [] == mismatches
    assert declared.model_dump() == bound.model_dump()
    assert declared.file == bound.file


def test_schema_defaults_become_known():
    """A caller that leaves a default out, and one that writes it, mean the same."""
    declared = contracts(cases=[{"when": {"currency": "EUR"}, "attempts": 1}])
    bound, _ = bind(declared, listing())
    assert {"currency": "EUR", "options.capture": True} == bound.tools["charge"].defaults
    assert {} == declared.tools["charge"].defaults
    assert 1 == bound.tools["charge"].for_arguments({}).attempts
    assert 3 == declared.tools["charge"].for_arguments({}).attempts


def test_a_key_argument_that_is_not_there_voids_the_key():
    """A key that lands nowhere would let the guard re-issue without cover."""
    declared = contracts()
    bound, mismatches = bind(declared, listing(without(CHARGE, "idempotency_key")))
    assert [("key", "`idempotency_key` is no argument of the living tool", True)] == told(mismatches)
    assert {("charge", Code.CONTRACT_MISMATCH)} == {(m.tool, m.code) for m in mismatches}
    assert bound.tools["charge"].decision("d").key is None
    assert declared.tools["charge"].decision("d").key is not None
    assert bound.tools["charge"].read_back is not None


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ({"type": "integer"}, "`idempotency_key` of the living tool takes no text"),
        ({"type": "string", "maxLength": 20}, "`idempotency_key` of the living tool takes no text of 32 characters"),
        ({"type": "string", "minLength": 40}, "`idempotency_key` of the living tool takes no text of 32 characters"),
    ],
)
def test_a_key_argument_that_our_key_does_not_fit_voids_the_key(argument: dict[str, Any], problem: str):
    """The service would refuse the call, or cut the key short."""
    bound, mismatches = bind(contracts(), listing(CHARGE | {"idempotency_key": argument}))
    assert [("key", problem, True)] == told(mismatches)
    assert bound.tools["charge"].key is None


@pytest.mark.parametrize("argument", [{}, {"type": ["string", "null"]}, {"type": "string", "maxLength": 32}])
def test_a_key_argument_that_takes_our_key_keeps_it(argument: dict[str, Any]):
    """Schemas say `a text, or nothing` in several ways."""
    bound, mismatches = bind(contracts(), listing(CHARGE | {"idempotency_key": argument}))
    assert [] == mismatches
    assert bound.tools["charge"].key is not None


def test_a_key_elsewhere_needs_no_argument():
    """`_meta`, request fields and headers have no schema to look at."""
    bound, mismatches = bind(contracts(key={"in": "meta:key"}), listing(without(CHARGE, "idempotency_key")))
    assert [] == mismatches
    assert bound.tools["charge"].key is not None


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        (
            {"tools": listing()["tools"][:1] + listing()["tools"][2:]},
            "read_back",
            "the server has no tool `list_charges`",
        ),
        (
            listing(reader=without(LIST, "customer")),
            "read_back",
            "`customer` is no argument of the living `list_charges`",
        ),
        (listing(required=["customer", "from"]), "read_back", "the living `list_charges` demands `from`"),
    ],
)
def test_a_read_back_that_cannot_be_asked_is_void(given: dict[str, Any], field: str, problem: str):
    """A read that always fails would look like one that shows nothing."""
    bound, mismatches = bind(contracts(), given)
    assert (field, problem, True) in told(mismatches)
    assert bound.tools["charge"].decision("d").read_back is None
    assert bound.tools["charge"].key is not None


def test_a_read_back_over_arguments_that_are_not_there_is_void():
    """It would compare with nothing, find nothing, and call that absence."""
    bound, mismatches = bind(contracts(), listing(without(CHARGE, "invoice")))
    assert ("read_back", "it needs `invoice`, which is no argument of the living tool", True) in told(mismatches)
    assert ("identity", "`invoice` leads to no argument of the living tool", False) in told(mismatches)
    assert bound.tools["charge"].read_back is None
    assert ("customer", "invoice", "items[].sku") == bound.tools["charge"].identity


def test_a_stamp_argument_that_is_not_there_voids_the_stamp():
    """The match by identity remains."""
    bound, mismatches = bind(contracts(), listing(without(CHARGE, "note")))
    assert [("read_back.stamp", "`note` is no argument of the living tool", True)] == told(mismatches)
    assert bound.tools["charge"].read_back.stamp is None
    assert bound.tools["charge"].read_back.match


def test_a_read_back_by_stamp_alone_falls_with_the_stamp():
    """Nothing would be left that tells our effect from others."""
    alone = contracts(read_back={"tool": "list_charges", "stamp": "note"})
    bound, mismatches = bind(alone, listing(without(CHARGE, "note")))
    assert ["read_back"] == [mismatch.field for mismatch in mismatches]
    assert bound.tools["charge"].read_back is None


def test_a_page_argument_that_is_not_there_leaves_one_page():
    """Then a full page proves nothing, as the size still tells."""
    bound, mismatches = bind(contracts(), listing(reader=without(LIST, "cursor")))
    assert [("read_back.pages", True)] == [(m.field, m.voided) for m in mismatches]
    pages = bound.tools["charge"].read_back.pages
    assert (None, None, 50) == (pages.argument, pages.next, pages.size)


def test_a_status_tool_that_is_not_there_voids_progress():
    """An acceptance is then reported as such."""
    declared = contracts(progress={"tool": "get_charge", "path": "status", "done": ["ok"]})
    bound, mismatches = bind(declared, listing())
    assert ("progress", "the server has no tool `get_charge`", True) in told(mismatches)
    assert not bound.tools["charge"].decision("d").progress


def test_an_undo_that_is_not_there_is_not_offered():
    """A person would be shown a way out that is none."""
    bound, mismatches = bind(contracts(), {"tools": listing()["tools"][:2]})
    assert ("undo", "the server has no tool `refund`", True) in told(mismatches)
    assert ("", "the server has no such tool", False) in told(mismatches)
    assert bound.tools["charge"].undo is None


def test_the_promises_of_a_case_are_bound_too():
    """A case must not keep what its tool lost, nor promise what the tool does not have."""
    declared = contracts(key=None, cases=[{"when": {"region": "eu"}, "key": {"in": "argument:request_id"}}])
    bound, mismatches = bind(declared, listing())
    assert [
        ("cases.0.when", "`region` leads to no argument of the living tool", False),
        ("cases.0.key", "`request_id` is no argument of the living tool", True),
    ] == told(mismatches)
    assert bound.tools["charge"].for_arguments({"region": "eu"}).key is None


def test_one_page_of_a_list_proves_nothing_missing():
    """The tool may be on the next page."""
    _, mismatches = bind(contracts(), {"tools": listing()["tools"][:1], "nextCursor": "2"})
    assert [] == mismatches


def test_a_tool_that_takes_anything_is_taken_at_the_operator_s_word():
    """`additionalProperties: true` says that arguments exist which the schema does not name."""
    given = listing()
    given["tools"][0]["inputSchema"] = {"type": "object", "additionalProperties": True}
    assert [] == bind(contracts(), given)[1]
    given["tools"][0]["inputSchema"] = {"type": "object"}
    assert {"key", "read_back", "identity"} == {mismatch.field for mismatch in bind(contracts(), given)[1]}


@pytest.mark.parametrize(
    "given", [{}, {"tools": None}, {"tools": [None, {"name": 5}]}, {"tools": [{"name": "charge"}]}]
)
def test_a_listing_that_makes_no_sense_only_takes_promises_away(given: dict[str, Any]):
    """What a server sends is not trusted to have a shape."""
    bound, mismatches = bind(contracts(), given)
    assert mismatches
    assert contracts().tools["charge"].identity == bound.tools["charge"].identity


def test_a_schema_that_refers_to_itself_is_bound():
    """Trees do."""
    given = listing()
    given["tools"][0]["inputSchema"]["properties"]["options"] = {"$ref": "#"}
    assert [] == bind(contracts(), given)[1]


MIRROR: dict[str, Any] = {
    "inputSchema": {
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "inner": {"type": "object", "properties": {"key": {"type": "string", "x-mcp-header": "Key"}}},
            "bad": {"type": "string", "x-mcp-header": "not a token"},
            "list": {"type": "array", "items": {"type": "string", "x-mcp-header": "Item"}},
        }
    }
}


def test_arguments_that_headers_must_repeat_are_named():
    """A server refuses a request whose header and body differ (SEP-2243)."""
    assert "Mcp-Param-Region" == mirror_of(MIRROR, "region")
    assert "Mcp-Param-Key" == mirror_of(MIRROR, "inner.key")
    assert [None, None, None] == [mirror_of(MIRROR, path) for path in ("bad", "list", "other")]
    assert mirror_of({}, "region") is None


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("eu-1", "eu-1"),
        ("two words", "two words"),
        ("", ""),
        (" edge", "=?base64?IGVkZ2U=?="),
        ("Zürich", "=?base64?WsO8cmljaA==?="),
        ("a\r\nb: c", "=?base64?YQ0KYjogYw==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
    ],
)
def test_header_values_survive_the_way(value: str, header: str):
    """What plain text would not carry goes as base64; a value cannot break out of its header."""
    assert {"Mcp-Param-Region": header} == mirrored(MIRROR, {"region": value, "bad": "x"})


def test_values_that_are_no_texts_are_written_plainly():
    """As JSON writes them; null and what is not there have no header."""
    sent = {"dry": True, "count": 5, "inner": {"key": "k"}, "region": None}
    assert {"Mcp-Param-Dry": "true", "Mcp-Param-Count": "5", "Mcp-Param-Key": "k"} == mirrored(MIRROR, sent)


def test_the_sdk_s_own_headers_are_the_same():
    """Server and guard must write the same bytes."""
    inbound = pytest.importorskip("mcp.shared.inbound")
    sent = {"dry": False, "count": 2**60, "inner": {"key": " ключ"}, "region": "a=b"}
    known = {("region",): "Region", ("dry",): "Dry", ("count",): "Count", ("inner", "key"): "Key"}
    assert inbound.mcp_param_headers(known, sent) == mirrored(MIRROR, sent)
