"""The stdio relay where something ends or fills up: dead tool servers, leaving clients, full pipes, batches."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from relay_client import ENVELOPE, INITIALIZE, Start, alive, start, text, wait

__all__ = ["start"]  # a fixture

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")

# -- death of the tool server --------------------------------------------------------------------------------------

REPLAYS = ("connection closed", "broken pipe", "session not found", "session terminated", "end of file", "transport")


def test_a_lost_call_is_answered_and_never_replayed(start: Start):
    """Harnesses replay after texts that sound like a broken transport; the effect may have happened."""
    client = start("die")
    client.shake_hands()
    answer = client.call("die", effect="d")
    assert "lost" in text(answer)
    assert "exit code 3" in text(answer)
    assert "result" in client.call("echo")
    assert ["d"] == client.effects()


def test_relayed_requests_of_a_dead_server_are_answered(start: Start):
    """A read gets a tool result, anything else an error, and neither sounds like a fault of the transport."""
    client = start()
    client.shake_hands()
    call = client.request("tools/call", client.params("hang", None, {}))
    modern = client.request("tools/call", client.params("hang", ENVELOPE, {}))
    client.request("tools/call", client.params("die", None, {}))
    answers = {answer["id"]: answer for answer in (client.get(), client.get(), client.get())}
    assert answers[call]["result"]["isError"]
    assert "resultType" not in answers[call]["result"]
    assert "complete" == answers[modern]["result"]["resultType"]
    assert not any(word in json.dumps(answers).lower() for word in REPLAYS)


def test_the_handshake_is_repeated_with_the_next_server(start: Start):
    """A new process knows nothing; the client must not notice, and no earlier call may come again."""
    client = start("die")
    client.shake_hands()
    client.call("die")
    seen = json.loads(text(client.call("seen")))
    assert ["initialize", "notifications/initialized", "tools/call"] == [each["method"] for each in seen]
    assert str(seen[0]["id"]).startswith("onceward-")
    repeated = [json.loads(raw) for raw in client.received() if b'"initialize"' in raw]
    assert [INITIALIZE, INITIALIZE] == [each["params"] for each in repeated]


def test_nothing_is_repeated_in_the_stateless_era(start: Start):
    """There was no handshake; each request carries what it needs."""
    client = start("die")
    client.ask("server/discover", {"_meta": ENVELOPE})
    client.call("die", meta=ENVELOPE)
    seen = json.loads(text(client.call("seen", meta=ENVELOPE)))
    assert ["tools/call"] == [each["method"] for each in seen]


def test_the_gate_can_read_back_after_the_death(start: Start):
    """The read-back restores the server by itself; the call is not sent again."""
    client = start("die")
    client.shake_hands()
    answer = client.call("die", how="read after", effect="d")
    assert ["initialize", "notifications/initialized", "tools/call"] == [e["method"] for e in json.loads(text(answer))]
    assert ["d"] == client.effects()


def test_a_server_that_closes_its_output_counts_as_dead(start: Start):
    """It lives, but can answer nothing any more; two of them must not run for long."""
    client = start("mute")
    first = int(text(client.call("pid")))
    assert "lost" in text(client.call("mute"))
    assert first != int(text(client.call("pid")))
    wait(lambda: not alive(first))


def test_restarts_are_bounded(start: Start):
    """A server that dies on every call needs a person, and the model a clear answer."""
    client = start("die")
    client.shake_hands()
    for _ in range(6):
        assert "lost" in text(client.call("die"))
    answer = client.call("die")
    assert "not_sent" in text(answer)
    assert "too often" in text(answer)
    assert client.call("echo")["result"]["isError"]
    assert -32603 == client.ask("ping")["error"]["code"]


def test_a_server_that_cannot_start_ends_the_relay(start: Start):
    """The harness shows the exit and stderr of a server that never worked, as without the guard."""
    client = start(env={"ECHO_STILLBORN": "4"})
    client.request("initialize", INITIALIZE)
    assert 4 == client.process.wait(20)
    assert "echo: cannot start" in client.stderr()


# -- leaving -------------------------------------------------------------------------------------------------------


def test_the_exit_code_is_the_servers(start: Start):
    """The server ended by itself once its stdin was closed."""
    client = start(env={"ECHO_EXIT": "9"})
    client.shake_hands()
    assert 9 == client.hang_up()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both(start: Start, number: signal.Signals):
    """A call in flight is reported to the gate before the process leaves."""
    client = start("hang")
    pid = int(text(client.call("pid")))
    id_ = client.request("tools/call", client.params("hang", None, {"effect": "h"}))
    wait(lambda: client.effects() == ["h"])
    client.process.send_signal(number)
    assert 128 + number == client.process.wait(20)
    assert f"cancelled {id_}" in client.events()
    assert not alive(pid)


def test_a_reply_during_the_last_moment_is_recorded(start: Start):
    """The client hung up, the server still answers what it had."""
    client = start("hang")
    id_ = client.request("tools/call", client.params("hang", None, {"effect": "h"}))
    wait(lambda: client.effects() == ["h"])
    client.request("tools/call", client.params("release", None, {}))
    client.hang_up()
    assert f"reply {id_} result" in client.events()


# -- flow ----------------------------------------------------------------------------------------------------------


@linux
def test_a_client_that_does_not_read_holds_the_server_up(start: Start):
    """The proxy must not become the buffer for what nobody reads."""
    client = start(reads=False)
    client.send(b'{"jsonrpc":"2.0","id":0,"method":"ping"}')
    wait(lambda: client.methods() == ["ping"])
    before_kib = client.memory_kib()
    client.request("tools/call", client.params("flood", None, {"lines": 640, "size": 100_000}))
    time.sleep(1.0)  # enough for the whole 64 MB, were they read
    assert client.memory_kib() - before_kib < 16_384
    client.read()
    lines = [client.line() for _ in range(642)]
    assert 1 == json.loads(lines[-1])["id"]


@linux
def test_a_server_that_does_not_read_holds_the_client_up(start: Start, tmp_path: Path):
    """The same the other way round; everything arrives in the end."""
    client = start()
    assert "result" in client.call("deaf", until=str(tmp_path / "go"))
    before_kib = client.memory_kib()
    noise = b"x" * 100_000
    sender = threading.Thread(target=lambda: [client.send(noise) for _ in range(640)])
    sender.start()
    time.sleep(0.5)
    assert sender.is_alive()
    assert client.memory_kib() - before_kib < 16_384
    (tmp_path / "go").touch()
    assert [b"heard " + noise + b"\n"] * 640 == [client.line() for _ in range(640)]
    sender.join()


def test_a_line_over_the_cap_gets_a_clear_answer(start: Start):
    """It is neither sent in part nor a reason to end."""
    client = start(cap=200_000)
    answer = client.call("echo", text="x" * 300_000)
    assert answer["result"]["isError"]
    assert "at most 200000" in text(answer)
    assert -32600 == client.ask("com.example/m", {"text": "x" * 300_000})["error"]["code"]
    assert [] == client.received()
    assert "result" in client.call("echo", text="x" * 100_000)


def test_an_answer_over_the_cap_is_unreadable(start: Start):
    """The server had the request, so that nothing is known of its effect."""
    client = start("echo", cap=200_000)
    shout = "\u00e9" * 30_000  # six bytes each when the server escapes them, twice
    assert "lost" in text(client.call("echo", text=shout))
    assert "result" in client.call("pid")


# -- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_without_wanted_calls_goes_through_whole(start: Start):
    """Nothing in it concerns the gate."""
    client = start("charge")
    batch = b' [ {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pid"}} , {"id":2,"method":"ping"}]'
    client.send(batch)
    assert [1, 2] == [each["id"] for each in client.get()]
    assert [batch] == client.received()


def test_wanted_calls_are_taken_out_of_a_batch(start: Start):
    """The rest keeps its bytes; each taken call is answered by itself."""
    client = start("charge")
    rest = [b'{"jsonrpc":"2.0", "id":1,"method":"ping","x":1.0}', b'{"method":"notifications/com.example/n"}']
    wanted = b'{"id":2,"method":"tools/call","params":{"name":"charge","arguments":{"how":"refuse","effect":"c"}}}'
    client.send(b"[" + rest[0] + b", " + wanted + b"," + rest[1] + b"]")
    answers = [client.get(), client.get()]
    assert [1] == [each["id"] for each in next(answer for answer in answers if isinstance(answer, list))]
    assert "not_sent" in text(next(answer for answer in answers if isinstance(answer, dict)))
    assert [b"[" + b",".join(rest) + b"]"] == client.received()


def test_a_tool_list_in_a_batch_is_shown_too(start: Start):
    """The gate's tool must not depend on how the client asks."""
    client = start(tools=[{"name": "added"}])
    client.send(b'[{"id":1,"method":"tools/list"},{"id":2,"method":"ping"}]')
    listed, pinged = client.get()
    assert "added" == listed["result"]["tools"][-1]["name"]
    assert 2 == pinged["id"]


def test_a_batch_lost_with_its_server_is_answered(start: Start):
    """Each request in it is open by itself."""
    client = start()
    client.send(b'[{"id":1,"method":"tools/call","params":{"name":"die"}},{"id":2,"method":"ping"}]')
    answers = sorted((client.get(), client.get()), key=lambda answer: answer["id"])
    assert answers[0]["result"]["isError"]
    assert -32603 == answers[1]["error"]["code"]
