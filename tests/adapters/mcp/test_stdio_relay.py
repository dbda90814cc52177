"""The stdio relay, with real processes: a client (this test), the relay, and a tool server with odd habits."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from fidelity import CASES, Case  # noqa: E402  # a neighbour that the echo server imports the same way

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "t", "version": "1"}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
    "com.example/trace": "t-1",
}
SERVER = (sys.executable, str(HERE / "echo_server.py"))
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")


class Client:
    """A client that talks to a relay in lines of bytes."""

    def __init__(self, folder: Path, options: dict[str, Any], env: dict[str, str], *, reads: bool = True) -> None:
        self.folder, self.log = folder, folder / "log"
        options = {"events": str(folder / "events"), **options}
        env = {**os.environ, "ECHO_LOG": str(self.log), "ECHO_EFFECTS": str(folder / "effects"), **env}
        command = [sys.executable, str(HERE / "relay_main.py"), json.dumps(options), *SERVER]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=env
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._next = 0
        if reads:
            self.read()

    def read(self) -> None:
        """Begin to read what the relay sends."""

        def pump() -> None:
            assert self.process.stdout is not None
            with os.fdopen(os.dup(self.process.stdout.fileno()), "rb") as stdout:
                for line in stdout:
                    self._lines.put(line)
            self._lines.put(b"")

        threading.Thread(target=pump, daemon=True).start()

    def send(self, data: bytes, end: bytes = b"\n") -> None:
        """Send one message."""
        assert self.process.stdin is not None
        data += end
        while data:
            data = data[self.process.stdin.write(data) or 0 :]

    def line(self) -> bytes:
        """Return the next line; b"" at the end."""
        return self._lines.get(timeout=20)

    def get(self) -> Any:
        """Return the next message."""
        return json.loads(self.line())

    def request(self, method: str, params: Any = None, id_: Any = None) -> Any:
        """Send a request and return its id."""
        self._next += 1
        message = {"jsonrpc": "2.0", "id": id_ or self._next, "method": method}
        self.send(json.dumps(message if params is None else {**message, "params": params}).encode())
        return message["id"]

    def ask(self, method: str, params: Any = None) -> Any:
        """Send a request and return the next message, which must be its response."""
        id_ = self.request(method, params)
        message = self.get()
        assert message["id"] == id_
        return message

    def call(self, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Call a tool and return the next message, which must be its response."""
        return self.ask("tools/call", self.params(tool, meta, arguments))

    @staticmethod
    def params(tool: str, meta: dict[str, Any] | None, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {})

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def shake_hands(self) -> None:
        """Go through the handshake."""
        assert "result" in self.ask("initialize", INITIALIZE)
        self.notify("notifications/initialized")

    def events(self) -> list[str]:
        """Return what the gate learned so far."""
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def await_event(self, event: str) -> None:
        """Wait until the gate learned this."""
        wait(lambda: event in self.events(), f"{event!r} in {self.events()}")

    def received(self) -> list[bytes]:
        """Return what the tool server received so far, over all its lives."""
        return self.log.read_bytes().splitlines() if self.log.exists() else []

    def methods(self) -> list[str]:
        """Return the methods among what the tool server received."""
        return [json.loads(raw).get("method") for raw in self.received()]

    def effects(self) -> list[str]:
        """Return the effects so far."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def hang_up(self) -> int:
        """Close stdin and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(20)

    def stderr(self) -> str:
        """Return what was said on stderr, after the end."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def memory_kib(self) -> int:
        """Return the resident memory of the relay."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


def wait(condition: Callable[[], bool], claim: str = "") -> None:
    """Wait for something that happens in another process."""
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s, claim
        time.sleep(0.005)


def text(message: Any) -> str:
    """Return the text of a tool result."""
    return str(message["result"]["content"][0]["text"])


Start = Callable[..., Client]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[Client] = []

    def start(*wants: str, env: dict[str, str] | None = None, reads: bool = True, **options: Any) -> Client:
        clients.append(Client(tmp_path, {"wants": wants, **options}, env or {}, reads=reads))
        return clients[-1]

    yield start
    for client in clients:
        client.process.kill()
        client.process.communicate()


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("relayed"), {}, {})
    yield client
    client.process.kill()
    client.process.communicate()


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
    for noise in (b"", b"\r", b"  ", b"not json \xff\xfe", b'{"method":"tools/call","id":1,', b"\xef\xbb\xbf{}"):
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
    """A JSON encoder may escape the solash, or any letter; the guard must not be blind to it."""
    client = start("charge")
    for number, method in enumerate((rb"tools\/call", rb"tools\u002fcall", rb"\u0074ools/call"), 1):
        head = b'{"id":%d,"m\\u0065thod":"' % number if number == 3 else b'{"id":%d,"method":"' % number
        client.send(head + method + b'","params":{"name":"charge","arguments":{"how":"refuse","effect":"c"}}}')
        assert "not_sent" in text(client.get())
    assert [] == client.effects()


def test_a_call_with_a_stray_byte_is_still_seen(start: Start):
    """Servers replace bytes that are no UTF-8 and act on the rest."""
    client = start("charge")
    client.send(b'{"id":1,"method":"tools/call","params":{"name":"charge","arguments":{"how":"refuse","t":"\xff"}}}')
    assert "not_sent" in text(client.get())


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
    """A key is injected into a copy; the id stays the client's, so that progress and cancellation still belong to it."""
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


def alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
