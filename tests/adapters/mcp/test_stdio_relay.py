"""The stdio relay, with real processes: a client (this test), the relay, and a tool server with odd habits."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fidelity import CASES, Case
from relay_client import ENVELOPE, Client, Start, start, text, wait

__all__ = ["start"]  # a fixture


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("relayed"), {}, {})
    yield client
    client.stop()


# -- fidelity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_byte_arrives_as_it_was_sent(relayed: Client, case: Case):
    """A relay that rebuilds messages loses what it does not know; the server answers only the exact bytes."""
    relayed.send(case.request)
    answers = list(case.answers)
    for expected in case.expected:
        assert expected + b"\n" == relayed.line()
        if "method" in json.loads(expected) and "id" in json.loads(expected):
            relayed.send(answers.pop(0))
    assert case.request in relayed.received()


def test_lines_that_are_no_messages_pass_untouched(start: Start):
    """Carriage returns, blank lines and noise belong to whoever wrote them."""
    client = start()
    for noise in (b"", b"\r", b"  ", b"not json \xff\xfe", b'{"method":"tools/call","id":1,'):
        client.send(noise)
        assert b"heard " + noise + b"\n" == client.line()


def test_a_carriage_return_before_the_newline_stays(start: Start):
    """The line is the message and its terminator, so a guarded call keeps its terminator too."""
    client = start("charge")
    client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge"}}', end=b"\r\n")
    assert "charged" == text(client.get())
    assert client.log.read_bytes().endswith(b"}}\r\n")


def test_a_last_line_without_newline_is_still_a_message(start: Start):
    """A client that closes right after its last byte meant it."""
    client = start()
    client.shake_hands()
    client.send(b'{"jsonrpc":"2.0","id":7,"method":"ping"}', end=b"")
    client.hang_up()
    assert "ping" == client.methods()[-1]


# -- guarded calls -------------------------------------------------------------------------------------------------


def test_a_wanted_call_is_answered_by_the_gate_alone(start: Start):
    """What the gate does not send must not leave, and its answer is the only one."""
    client = start("charge")
    client.shake_hands()
    refused = client.call("charge", how="refuse", effect="c1")
    assert "not_sent" in text(refused)
    assert [] == client.effects()
    assert "charged" == text(client.call("charge", effect="c2"))
    assert ["c2"] == client.effects()


def test_a_call_spelled_with_escapes_is_still_seen(start: Start):
    """A JSON encoder may escape the slash, or any letter; the guard must not be blind to it."""
    client = start("charge")
    for number, method in enumerate((rb"tools\/call", rb"tools\u002fcall", rb"\u0074ools/call"), 1):
        head = b'{"id":%d,"m\\u0065thod":"' % number if number == 3 else b'{"id":%d,"method":"' % number
        client.send(head + method + b'","params":{"name":"charge","arguments":{"how":"refuse","effect":"c"}}}')
        assert "not_sent" in text(client.get())
    assert [] == client.effects()


@pytest.mark.parametrize("odd", [b'%s{"t":"\xff",', b"\xef\xbb\xbf%s{", b'\t%s{"n":NaN,'])
def test_a_call_with_stray_bytes_is_still_seen(start: Start, odd: bytes):
    """Servers replace bytes that are no UTF-8, skip a byte order mark, and act on the rest."""
    client = start("charge")
    head = b'{"id":1,"method":"tools/call","params":{"name":"charge","arguments":'
    client.send(odd % head + b'"how":"refuse","effect":"c"}}}')
    assert "not_sent" in text(client.get())
    assert [] == client.effects()


def test_what_cannot_be_judged_is_not_sent(start: Start):
    """A call that is too deep to decode here could still be understood, and carried out, by the server."""
    client = start("charge")
    deep = b"[" * 100_000 + b"]" * 100_000
    client.send(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"charge","arguments":' + deep + b"}}")
    answer = client.get()
    assert 5 == answer["id"]
    assert answer["result"]["isError"]
    client.send(b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"charge","arguments":{"effect":"c"}}}')
    assert -32600 == client.get()["error"]["code"]
    assert "result" not in client.ask("com.example/none")
    assert [] == client.effects()


def test_a_gate_may_change_the_request(start: Start):
    """A key is injected into a copy; the id stays the client's, so that progress still belongs to it."""
    client = start("charge")
    client.call("charge", how="inject")
    sent = json.loads(client.received()[-1])
    assert "k-1" == sent["params"]["arguments"]["key"]
    assert 1 == sent["id"]


def test_a_fault_of_the_gate_is_a_tool_result(start: Start):
    """A guard that fails must say so to the model, and must not end the proxy."""
    client = start("charge")
    answer = client.call("charge", how="raise")
    assert answer["result"]["isError"]
    assert "not known" in text(answer)
    assert "charged" == text(client.call("charge"))


def test_progress_of_a_guarded_call_reaches_the_client(start: Start):
    """Some clients extend their timeout by it."""
    client = start("progress")
    client.request("tools/call", client.params("progress", {"progressToken": 9}, {}))
    assert {"progressToken": 9} == client.get()["params"]
    assert 1 == client.get()["id"]


def test_a_server_may_ask_the_client_during_a_guarded_call(start: Start):
    """Sampling and elicitation belong to the client's own call."""
    client = start("ask")
    id_ = client.request("tools/call", client.params("ask", None, {}))
    assert "sampling/createMessage" == client.get()["method"]
    client.send(b'{"jsonrpc":"2.0","id":"q","result":{"role":"assistant"}}')
    answer = client.get()
    assert id_ == answer["id"]
    assert "assistant" in text(answer)


def test_tool_lists_are_shown_to_the_gate(start: Start):
    """It binds contracts to what is there, and adds its own tool; only then are bytes changed."""
    client = start(tools=[{"name": "added"}])
    names = [tool["name"] for tool in client.ask("tools/list")["result"]["tools"]]
    assert "added" == names[-1]
    assert [f"tools {len(names) - 1}"] == client.events()


# -- requests of our own -------------------------------------------------------------------------------------------


def test_own_requests_are_invisible_to_the_client(start: Start):
    """A read-back is the guard's: neither its progress nor its answer is news for the client."""
    client = start("charge")
    meta = {**ENVELOPE, "progressToken": "p", "threadId": "th"}
    answer = client.call("charge", meta=meta, how="read first", read="progress")
    assert "charged" == text(answer)
    assert "own result" in client.events()
    own = json.loads(client.received()[-2])
    assert str(own["id"]).startswith("onceward-")
    copied = {key: value for key, value in ENVELOPE.items() if key.startswith("io.") and "logLevel" not in key}
    assert copied == own["params"]["_meta"]
    assert 2 == client.ask("ping")["id"]


def test_a_question_caused_by_an_own_request_is_declined(start: Start):
    """No client waits for that request, so no user can be asked on its behalf."""
    client = start("charge")
    assert "charged" == text(client.call("charge", how="read first", read="ask"))
    assert -32601 == json.loads(client.received()[-2])["error"]["code"]


# -- cancellation and acknowledgement ------------------------------------------------------------------------------


def test_cancelling_a_guarded_call_ends_at_the_gate(start: Start):
    """A server that stops half-way leaves an effect nobody knows; the reply is harvested instead, and not sent on."""
    client = start("hang")
    id_ = client.request("tools/call", client.params("hang", None, {"effect": "h"}))
    wait(lambda: client.effects() == ["h"])
    client.notify("notifications/cancelled", requestId=id_, reason="timeout")
    client.await_event(f"cancelled {id_}")
    client.call("release")
    client.await_event(f"reply {id_} result")
    client.ask("ping")
    assert "notifications/cancelled" not in client.methods()
    assert f"delivered {id_}" not in client.events()


def test_cancelling_a_relayed_call_is_relayed(start: Start):
    """The gate did not want it, so it is between client and server."""
    client = start()
    id_ = client.request("tools/call", client.params("hang", None, {"effect": "h"}))
    wait(lambda: client.effects() == ["h"])
    client.notify("notifications/cancelled", requestId=id_)
    client.call("release")
    assert "notifications/cancelled" in client.methods()


def test_a_late_reply_is_harvested(start: Start):
    """The gate answered when its patience ended; what the server says later is an outcome."""
    client = start("hang")
    assert "not known yet" in text(client.call("hang", how="answer first"))
    client.call("release")
    client.await_event("late 1 result")
    assert "error" in client.ask("ping")


def test_an_answer_counts_as_delivered_when_the_client_goes_on(start: Start):
    """Before that the client may have been dead, or have given up."""
    client = start("charge")
    client.call("charge")
    assert not any(event.startswith("delivered") for event in client.events())
    client.ask("ping")
    assert "delivered 1" in client.events()


def test_a_cancellation_that_crosses_the_answer_is_no_delivery(start: Start):
    """The client timed out and did not look at the answer."""
    client = start("charge")
    client.call("charge")
    client.notify("notifications/cancelled", requestId=1)
    client.ask("ping")
    assert "cancelled 1" in client.events()
    assert "delivered 1" not in client.events()


def test_hanging_up_in_good_order_is_a_delivery(start: Start):
    """A client that closes stdin and still reads has seen everything."""
    client = start("charge")
    client.call("charge")
    assert 0 == client.hang_up()
    assert "delivered 1" == client.events()[-1]


def test_a_killed_client_got_nothing(start: Start):
    """Its answer may lie unread in the pipe."""
    client = start("charge", reads=False)
    client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{}}}')
    client.await_event("reply 1 result")
    assert client.process.stdout is not None
    client.process.stdout.close()
    client.hang_up()
    assert "delivered 1" not in client.events()


# -- before the gate is ready --------------------------------------------------------------------------------------


def test_only_calls_and_lists_wait_for_the_gate(start: Start, tmp_path: Path):
    """Contracts load while the handshake already runs."""
    client = start("charge", gate_after=str(tmp_path / "go"))
    client.shake_hands()
    listed = client.request("tools/list")
    charged = client.request("tools/call", client.params("charge", None, {"effect": "c"}))
    withdrawn = client.request("tools/call", client.params("charge", None, {"effect": "w"}))
    client.notify("notifications/cancelled", requestId=withdrawn)
    assert "error" in client.ask("ping")
    assert [] == client.effects()
    (tmp_path / "go").touch()
    assert {listed, charged} == {client.get()["id"], client.get()["id"]}
    client.ask("ping")
    assert ["c"] == client.effects()


def test_a_gate_that_cannot_be_loaded_ends_the_relay(start: Start):
    """Unguarded is worse than down, and the reason must be readable."""
    client = start(broken="tools.yaml: effect is missing")
    assert 1 == client.process.wait(20)
    assert "effect is missing" in client.stderr()
