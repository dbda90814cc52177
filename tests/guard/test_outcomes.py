"""What a reply proves about its attempt: a table of replies, and the doubts that weaken a "no"."""

import re

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.evidence import AttemptState
from onceward.outcomes import Accepted, ErrorRule, ErrorRules, Reply, classify, error_bytes, view

HAPPENED, ACCEPTED, REFUSED, UNKNOWN, BUSY, RATE_LIMITED, NEVER_SENT = (
    AttemptState.HAPPENED,
    AttemptState.ACCEPTED,
    AttemptState.REFUSED,
    AttemptState.UNKNOWN,
    AttemptState.BUSY,
    AttemptState.RATE_LIMITED,
    AttemptState.NEVER_SENT,
)


def result(body, **more):
    return Reply(kind="result", body=body, **more)


def tool_text(text, *, error=False):
    return result({"content": [{"type": "text", "text": text}], "isError": error})


def rpc(code, message="", **more):
    return Reply(kind="rpc_error", body={"code": code, "message": message}, **more)


def http(status, raw=None, **headers):
    return Reply(kind="http", status=status, raw=raw, headers={k.replace("_", "-"): v for k, v in headers.items()})


def rules(*errors, **more):
    return ErrorRules(errors=errors, **more)


def field(path, expected):
    return (jmespath.compile(path), expected)


LOST, NOT_SENT = Reply(kind="lost"), Reply(kind="not_sent")
DECLINED = rules(ErrorRule(as_="refused", text=re.compile("card declined", re.IGNORECASE)))
EXISTS = rules(ErrorRule(as_="done", text=re.compile("already exists")))
DONE_409, BUSY_409 = rules(key=True, on_repeat="conflict_done"), rules(key=True, on_repeat="conflict_busy")
REPLAY_409 = rules(key=True, on_repeat="replay")
PROCESSING = rules(accepted=Accepted(when=jmespath.compile("status=='processing'"), reference=jmespath.compile("id")))
BY_CALLABLE = rules(ErrorRule(as_="busy", fields=((lambda data: data["state"], "locked"),)))
BY_FIELDS = rules(ErrorRule(as_="refused", fields=(field("error.code", "no_funds"), field("error.final", True))))
STATUS_IN_TEXT = rules(ErrorRule(as_="refused", fields=(field("status", 422),)))
ORDERED = rules(ErrorRule(as_="busy", status=409, text=re.compile("progress")), ErrorRule(as_="done", status=409))
OWN, INNER = {"own_key": True}, {"inner_retries": True}

TABLE = [
    # no answer
    (NOT_SENT, ErrorRules(), {}, NEVER_SENT),
    (NOT_SENT, ErrorRules(), INNER, NEVER_SENT),
    (LOST, ErrorRules(), {}, UNKNOWN),
    (LOST, ErrorRules(), OWN, UNKNOWN),
    (
        Reply(kind="lost", text="card declined"),
        DECLINED,
        {},
        UNKNOWN,
    ),  # our own words about a lost answer match nothing
    (Reply(kind="lost", text="Connection closed"), ErrorRules(), {}, UNKNOWN),
    # results
    (result(None), ErrorRules(), {}, HAPPENED),
    (result("charged"), ErrorRules(), {}, HAPPENED),
    (result({"id": "ch_1"}), ErrorRules(), {}, HAPPENED),
    (result({"content": []}), ErrorRules(), {}, HAPPENED),
    (result({"content": [], "resultType": "complete"}), ErrorRules(), INNER, HAPPENED),
    (tool_text("charged"), ErrorRules(), {}, HAPPENED),
    (tool_text("the job log says: card declined, then retried: ok"), DECLINED, {}, HAPPENED),
    (tool_text('{"status": 422, "error": "bad"}'), ErrorRules(), {}, HAPPENED),
    (tool_text('{"status": 422, "error": "bad"}'), STATUS_IN_TEXT, {}, REFUSED),
    (tool_text('{"status": 200}'), STATUS_IN_TEXT, {}, HAPPENED),
    (tool_text('{"status": 422}', error=True), ErrorRules(), {}, UNKNOWN),
    (tool_text('{"status": 422}', error=True), STATUS_IN_TEXT, {}, REFUSED),
    (tool_text("internal error", error=True), ErrorRules(), {}, UNKNOWN),
    (tool_text("", error=True), ErrorRules(), {}, UNKNOWN),
    (result({"isError": True}), ErrorRules(), {}, UNKNOWN),
    (tool_text("Card declined.", error=True), DECLINED, {}, REFUSED),
    (tool_text("Card declined.", error=True), DECLINED, INNER, UNKNOWN),
    (result({"structuredContent": {"error": {"code": "no_funds", "final": True}}}), BY_FIELDS, {}, REFUSED),
    (result({"structuredContent": {"error": {"code": "no_funds", "final": 1}}}), BY_FIELDS, {}, HAPPENED),
    (result({"structuredContent": {"state": "locked"}, "isError": True}), BY_CALLABLE, {}, BUSY),
    (result({"structuredContent": {"state": "open"}, "isError": True}), BY_CALLABLE, {}, UNKNOWN),
    (result({"content": [], "isError": True}), BY_CALLABLE, {}, UNKNOWN),  # nothing there for the extractor to read
    # acceptance, and results that are not final
    (result({"structuredContent": {"status": "processing", "id": 7}}), PROCESSING, {}, ACCEPTED),
    (result({"structuredContent": {"status": "done", "id": 7}}), PROCESSING, {}, HAPPENED),
    (tool_text('{"status": "processing"}', error=True), PROCESSING, {}, UNKNOWN),
    (http(202), ErrorRules(), {}, ACCEPTED),
    (result({"resultType": "task", "taskId": "t1"}), ErrorRules(), {}, ACCEPTED),
    (result({"task": {"taskId": "t1", "status": "working"}}), ErrorRules(), {}, ACCEPTED),
    (result({"task": {"title": "write tests"}}), ErrorRules(), {}, HAPPENED),
    (result({"resultType": "input_required", "requestState": "x"}), ErrorRules(), {}, RATE_LIMITED),
    (result({"resultType": "hologram"}), ErrorRules(), {}, UNKNOWN),
    # JSON-RPC errors
    (rpc(-32601), ErrorRules(), {}, REFUSED),
    (rpc(-32601), ErrorRules(), INNER, UNKNOWN),
    (rpc(-32602), ErrorRules(), {}, UNKNOWN),
    (rpc(-32700), ErrorRules(), {}, UNKNOWN),
    (rpc(-32600), ErrorRules(), {}, UNKNOWN),
    (rpc(-32600), rules(ErrorRule(as_="refused", code=-32600)), {}, REFUSED),
    (rpc(-32600, status=404), ErrorRules(), {}, UNKNOWN),
    (rpc(-32001, status=400), ErrorRules(), {}, REFUSED),
    (rpc(-32001, status=200), ErrorRules(), {}, UNKNOWN),
    (rpc(-32000), ErrorRules(), {}, UNKNOWN),
    (rpc(-32001), ErrorRules(), {}, UNKNOWN),
    (rpc(-32603), ErrorRules(), {}, UNKNOWN),
    (rpc(-32029, "quota"), rules(ErrorRule(as_="rate_limited", code=-32029)), {}, RATE_LIMITED),
    (rpc(-32055, "card declined"), DECLINED, {}, REFUSED),
    (Reply(kind="rpc_error", body="garbage"), ErrorRules(), {}, UNKNOWN),
    # HTTP
    *[(http(status), ErrorRules(), {}, HAPPENED) for status in (200, 201, 204)],
    *[(http(s), ErrorRules(), {}, REFUSED) for s in (400, 401, 402, 403, 404, 405, 413, 415, 422)],
    *[(http(s), ErrorRules(), INNER, UNKNOWN) for s in (400, 403, 404, 422, 429)],
    *[(http(s), ErrorRules(), {}, UNKNOWN) for s in (101, 207, 301, 307, 406, 408, 409, 410, 412, 425, 451)],
    *[(http(s), ErrorRules(), {}, UNKNOWN) for s in (500, 501, 502, 503, 504, 520, None)],
    (http(429), ErrorRules(), {}, RATE_LIMITED),
    (http(503), rules(ErrorRule(as_="refused", status=503)), {}, REFUSED),
    (http(404), rules(ErrorRule(as_="unknown", status=404)), {}, UNKNOWN),
    (http(404, b"No such customer"), ErrorRules(), {}, REFUSED),
    (http(404, b'{"error": "Session not found"}'), ErrorRules(), {}, UNKNOWN),
    (Reply(kind="http", status=404, text="session lost"), ErrorRules(), {}, UNKNOWN),
    (http(200, b'{"id": ', content_type="application/json"), ErrorRules(), {}, UNKNOWN),
    (http(200, b"abc", content_length="10"), ErrorRules(), {}, UNKNOWN),
    (http(200, b"abc", content_length="10", content_encoding="gzip"), ErrorRules(), {}, HAPPENED),
    (http(200, b'{"state": "locked"}'), BY_CALLABLE, {}, BUSY),
    # "it was there already"
    (http(409), DONE_409, {}, UNKNOWN),
    (http(409), DONE_409, OWN, HAPPENED),
    (http(409), DONE_409, {**OWN, **INNER}, HAPPENED),  # whichever try made it, it was ours
    (http(409), BUSY_409, OWN, BUSY),
    (http(409), BUSY_409, {}, UNKNOWN),
    (http(409), REPLAY_409, OWN, UNKNOWN),
    (http(409, b"in progress"), ORDERED, OWN, BUSY),
    (http(409, b"exists"), ORDERED, OWN, HAPPENED),
    (tool_text("invoice already exists", error=True), ErrorRules(), OWN, UNKNOWN),
    (tool_text("invoice already exists", error=True), EXISTS, {}, UNKNOWN),
    (tool_text("invoice already exists", error=True), EXISTS, OWN, HAPPENED),
    (rpc(-32000, "nonce consumed"), rules(ErrorRule(as_="done", text=re.compile("nonce consumed"))), OWN, HAPPENED),
    (rpc(-32000, "nonce consumed"), rules(ErrorRule(as_="done", text=re.compile("nonce consumed"))), {}, UNKNOWN),
]


@pytest.mark.parametrize(("reply", "rules", "how", "expected"), TABLE)
def test_every_reply_has_its_state(reply, rules, how, expected):
    """One row per rule of the outcome classes: the default is unknown, everything else needs its reason."""
    verdict = classify(reply, rules, **how)
    assert expected is verdict.state
    assert (not expected.counts) is verdict.free
    assert verdict.why


def test_the_table_is_large_enough():
    """A shrunken table would pass unnoticed."""
    assert len(TABLE) >= 60


def test_br004_timeout_code_of_a_client_is_unknown():
    """A task file was written and the client still reported -32001: that code is about waiting, not about the work."""
    assert UNKNOWN is classify(rpc(-32001, "Request timed out")).state


def test_br005_one_failure_text_for_two_worlds_is_unknown():
    """A helper said the same words for "never sent" and for "done, answer lost": words prove neither."""
    refused_connection = dropped_after_commit = tool_text("Failed to create action", error=True)
    assert [UNKNOWN, UNKNOWN] == [classify(r).state for r in (refused_connection, dropped_after_commit)]


def test_br011_neither_a_lost_session_nor_a_closed_connection_says_no():
    """A 404 about the session is no answer to the call, and a closed connection is none at all."""
    assert UNKNOWN is classify(http(404, b'{"error":{"code":-32600,"message":"Session not found"}}')).state
    assert UNKNOWN is classify(Reply(kind="lost", text="ConnectionClosed")).state
    assert UNKNOWN is classify(rpc(-32000, "Connection closed")).state


def test_br059_a_timeout_in_the_output_of_a_tool_is_not_a_failed_call():
    """A tool that prints "Connection timed out" has run: restarting the task for it would do everything again."""
    rule = rules(ErrorRule(as_="rate_limited", text=re.compile("timed out")))
    assert HAPPENED is classify(tool_text("ping: Connection timed out"), rule).state


def test_br109_a_success_that_was_too_large_is_still_a_success():
    """A reply replaced by "saved to file" is short and odd, but it is the answer to a write that worked."""
    assert HAPPENED is classify(tool_text("Output too large (31 KB). Full output saved to file: out.txt")).state
    assert HAPPENED is classify(tool_text("x" * 3_000_000)).state


def test_acceptance_keeps_its_reference():
    """Without the reference nobody can ask later what became of it."""
    assert 7 == classify(result({"structuredContent": {"status": "processing", "id": 7}}), PROCESSING).reference
    assert 9 == classify(Reply(kind="http", status=202, body={"id": 9}), PROCESSING).reference
    assert "/ops/1" == classify(http(202, location="/ops/1")).reference
    assert "t1" == classify(result({"task": {"taskId": "t1"}})).reference


def test_a_request_for_input_is_free_and_named():
    """The same call comes again with the answers: it must use up no attempt, and the driver must know it."""
    verdict = classify(result({"resultType": "input_required", "inputRequests": {}}), rules(key=True), own_key=True)
    assert (RATE_LIMITED, "input_required", True) == (verdict.state, verdict.why, verdict.free)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:30 GMT", "date": "Tue, 01 Dec 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Tue, 01 Dec 2026 09:00:00 GMT", "date": "Tue, 01 Dec 2026 10:00:00 GMT"}, 0.0),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:30 GMT"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon", "date": "today"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_without_a_clock(headers, expected):
    """A date is measured against the answer's own date: the service's clock need not be ours."""
    assert expected == classify(Reply(kind="http", status=429, headers=headers)).retry_after_s


KEYED = rules(key=True)
MARKED = rules(key=True, replay_marker="Idempotent-Replayed")


def test_a_marked_error_speaks_for_an_earlier_attempt():
    """A stored 500, and even a stored 402, does not show whether the attempt it belonged to took effect."""
    for status in (500, 402, 429):
        verdict = classify(http(status, idempotent_replayed="true"), MARKED, own_key=True)
        assert (UNKNOWN, True) == (verdict.state, verdict.replayed_error)


@pytest.mark.parametrize("value", ["false", "0", "miss", "no", ""])
def test_a_marker_that_says_no_marks_nothing(value):
    """Some services always send the header and tell in it whether the key was seen before."""
    verdict = classify(http(402, idempotent_replayed=value), MARKED, own_key=True)
    assert (REFUSED, False) == (verdict.state, verdict.replayed_error)


def test_a_marker_may_be_a_field():
    """Tool servers have no headers of their own."""
    marked = rules(key=True, replay_marker=jmespath.compile("meta.replayed"))
    reply = result({"structuredContent": {"meta": {"replayed": True}}, "isError": True})
    assert classify(reply, marked, own_key=True).replayed_error
    assert not classify(reply, marked).replayed_error  # without our key it cannot be a replay of ours


def test_a_marked_success_happened():
    """A replayed success is the best news there is."""
    verdict = classify(http(200, idempotent_replayed="true"), MARKED, own_key=True)
    assert (HAPPENED, False) == (verdict.state, verdict.replayed_error)


def test_an_equal_error_counts_as_replayed():
    """Without a marker, the same bytes under the same key are taken for the stored error."""
    first, other = http(500, b'{"error": "boom", "id": "req_1"}'), http(500, b'{"error": "boom", "id": "req_2"}')
    previous = error_bytes(first)
    assert classify(first, KEYED, own_key=True, previous=previous).replayed_error
    assert UNKNOWN is classify(first, KEYED, own_key=True, previous=previous).state
    assert not classify(other, KEYED, own_key=True, previous=previous).replayed_error
    assert not classify(first, KEYED, own_key=True).replayed_error
    assert not classify(first, KEYED, previous=previous).replayed_error
    assert not classify(first, ErrorRules(), own_key=True, previous=previous).replayed_error
    assert not classify(first, MARKED, own_key=True, previous=previous).replayed_error


def test_an_equal_refusal_stays_a_refusal():
    """It was judged when it first came; that it came from a store takes nothing back."""
    refusal = http(422, b"amount too small")
    verdict = classify(refusal, KEYED, own_key=True, previous=error_bytes(refusal))
    assert (REFUSED, True) == (verdict.state, verdict.replayed_error)


@pytest.mark.parametrize(
    "page",
    [
        http(500, b"<html><body>Sorry</body></html>"),
        http(503, b"  <!DOCTYPE html><p>busy"),
        http(503, b"oops", content_type="text/html; charset=utf-8"),
        http(502, b"error code: 502"),
        http(504, b"timeout"),
        http(503, b"upstream connect error or disconnect/reset before headers"),
        http(503, b"no healthy upstream"),
        http(500, b""),
        http(429, b"slow down"),
    ],
)
def test_what_proxies_write_is_never_a_replay(page):
    """A gateway answers every failure with the same bytes, and so does a rate limiter."""
    assert not classify(page, KEYED, own_key=True, previous=error_bytes(page)).replayed_error


def test_errors_over_mcp_are_compared_without_transport_ids():
    """A re-issue has another JSON-RPC id, so the raw bytes would never be equal."""
    first = rpc(-32603, "boom", raw=b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"boom"}}')
    again = rpc(-32603, "boom", raw=b'{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"boom"}}')
    assert classify(again, KEYED, own_key=True, previous=error_bytes(first)).replayed_error


def test_a_rule_without_conditions_is_refused():
    """It would read every answer, also the good ones, as whatever it says."""
    with pytest.raises(ValueError, match="status, a code, a text or a field"):
        ErrorRule(as_="refused")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (result({"content": [{"type": "text", "text": '{"a": 1}'}]}), {"a": 1}),
        (result({"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 2}}), {"a": 2}),
        (result({"content": [{"type": "text", "text": "hello"}]}), None),
        (result({"content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}), None),
        (result({"a": 1}), {"a": 1}),
        (rpc(-1, "x"), {"code": -1, "message": "x"}),
        (http(200, b'{"a": 1}'), {"a": 1}),
        (http(200, b"\xff"), None),
        (LOST, None),
    ],
)
def test_extractors_see_the_data_of_an_answer(reply, expected):
    """A contract names fields of the data, not of the envelope it came in."""
    assert expected == view(reply)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
envelopes = st.dictionaries(
    st.sampled_from(
        ["content", "isError", "structuredContent", "resultType", "task", "taskId", "code", "message", "data"]
    ),
    json_values,
)
replies = st.builds(
    Reply,
    kind=st.sampled_from(["result", "rpc_error", "http", "lost", "not_sent"]),
    body=json_values | envelopes,
    status=st.none() | st.integers(),
    headers=st.dictionaries(
        st.sampled_from(["retry-after", "date", "content-length", "content-type", "location"]), st.text(max_size=12)
    ),
    text=st.text(max_size=8),
    raw=st.none() | st.binary(max_size=12),
)


@given(reply=replies, own_key=st.booleans(), inner_retries=st.booleans())
def test_no_reply_can_break_the_classifier(reply, own_key, inner_retries):
    """Whatever a server sends, there is a verdict; and beneath hidden retries never a "no" to a sent request."""
    every = rules(
        *ORDERED.errors,
        *BY_FIELDS.errors,
        *EXISTS.errors,
        key=True,
        on_repeat="conflict_done",
        accepted=PROCESSING.accepted,
    )
    verdict = classify(reply, every, own_key=own_key, inner_retries=inner_retries, previous=error_bytes(reply))
    assert verdict.free is not verdict.state.counts
    if inner_retries and reply.kind != "not_sent" and verdict.why != "input_required":
        assert verdict.state not in (REFUSED, RATE_LIMITED, NEVER_SENT)
