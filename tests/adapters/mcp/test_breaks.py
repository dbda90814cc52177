"""Sequences that once broke the promise of the proxy: an effect too many, a false word, or another user's data.

The ledger belongs to the tool server of the tests, and is the truth.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from onceward.adapters.mcp.gate import GuardGate
from onceward.adapters.mcp.listing import Listing
from onceward.adapters.mcp.main import _call_id_of
from onceward.adapters.mcp.stdio import relay
from onceward.adapters.mcp.wire import Call
from onceward.contracts.compiling import toolbox_of
from onceward.contracts.loader import parse
from onceward.drive import Guard
from onceward.gathering import Settings
from onceward.outcomes import Reply

SECRET = b"a deployment secret of the tests"
PLAIN = "charge: {effect: write, identity: [customer, invoice], in_flight: 0.3s}"
UNSAFE = PLAIN.replace("write", "unsafe")
CALL = {"customer": "c", "invoice": "7"}
ASKS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
YES = {"dev.onceward/approval": {"action": "accept", "content": {"approve": True}}}
LOST = Reply(kind="lost", text="the connection broke")


class Server:
    """A tool server with a ledger; `answers` says what the next calls are answered, `None` = nothing ever."""

    def __init__(self) -> None:
        self.ledger: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[Reply | dict[str, Any]] = []
        self.lists = True

    def exchange(
        self,
        call: Call,
        message: dict[str, Any] | None = None,
        *,
        own: bool = False,
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        message = call.message if message is None else message
        if message["method"] == "tools/list":
            names = ("customer", "invoice", "amount", "key")
            tool = {"name": "charge", "inputSchema": {"type": "object", "properties": {name: {} for name in names}}}
            if self.lists:
                future.set_result(Reply(kind="result", body={"tools": [tool]}))
            return future
        self.messages.append(message)
        self.headers.append({**call.headers, **{name.lower(): text for name, text in (headers or {}).items()}})
        self.ledger.append(message["params"]["arguments"])
        answer = self.answers.pop(0) if self.answers else {"number": len(self.ledger)}
        future.set_result(answer if isinstance(answer, Reply) else _result(answer))
        return future


def _result(data: dict[str, Any]) -> Reply:
    return Reply(kind="result", body={"content": [{"type": "text", "text": "done"}], "structuredContent": data})


class Client:
    """A client of the gate."""

    def __init__(self, gate: GuardGate, server: Server) -> None:
        self.gate, self.server, self._number = gate, server, 0

    def call(
        self,
        arguments: dict[str, Any],
        *,
        name: str = "charge",
        meta: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **params: Any,
    ) -> Any:
        """Make one call; return its result, or its error."""
        self._number += 1
        params = {"name": name, "arguments": arguments, "_meta": meta or {}, **params}
        message = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        call = Call(raw=json.dumps(message).encode(), message=message, headers=headers or {}, client="test")
        response = json.loads(asyncio.run(self.gate.handle(call, self.server)))
        self.gate.delivered(call)
        return response.get("result", response.get("error"))


@pytest.fixture
def client_of(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Make clients of a gate, from the `tools` part of a contract file."""
    guards: list[Guard] = []

    def make(tools: str, *, scope: str | None = "run-1", patience_s: float = 0.2) -> Client:
        box = toolbox_of(parse(f"version: 1\nserver: shop\nowner: ops@example.com\ntools:\n  {tools}\n"))
        settings = Settings(send_allowance_s=0.2, attempt_timeout_s=0.2)
        guard = Guard(box, tmp_path / "journal.db", patience_s=patience_s, settings=settings, secret=SECRET)
        guard.journal.new_until_s = 0.0
        guards.append(guard)
        gate = GuardGate(
            guard,
            Listing(box),
            scope_of=lambda call: call.headers.get("x-scope", scope),
            call_id_of=_call_id_of,
            principal_of=lambda call: call.headers.get("authorization"),
        )
        return Client(gate, Server())

    yield make
    for guard in guards:
        guard.close()


def code(result: Any) -> Any:
    return result["_meta"]["dev.onceward/guard"]["code"]


# --- the yes of a person


def test_a_yes_that_comes_twice_allows_no_second_attempt(client_of: Callable[..., Client]) -> None:
    """Harnesses send a continuation again when its answer is lost; that yes was spent on the first attempt."""
    client = client_of(UNSAFE)
    asked = client.call(CALL, meta=ASKS)
    client.server.answers = [LOST]
    for _ in range(2):
        client.call(CALL, meta=ASKS, requestState=asked["requestState"], inputResponses=YES)
        asyncio.run(asyncio.sleep(0.6))  # the first attempt can commit no more
    client.call(CALL, meta=ASKS, requestState=asked["requestState"], inputResponses=YES)
    assert [CALL] == client.server.ledger


def test_a_yes_does_not_lift_the_ceiling(client_of: Callable[..., Client]) -> None:
    """It was said once, to one effect."""
    client = client_of(UNSAFE.replace("in_flight", "attempts: 1, in_flight"))
    asked = client.call(CALL, meta=ASKS)
    client.server.answers = [Reply(kind="rpc_error", body={"code": -32601, "message": "no"}, text="no")] * 2
    for _ in range(2):
        told = client.call(CALL, meta=ASKS, requestState=asked["requestState"], inputResponses=YES)
    assert ("retry_ceiling", 1) == (code(told), len(client.server.ledger))


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_yes_is_for_the_terms_that_were_shown(client_of: Callable[..., Client], refused_first: bool) -> None:
    """The person saw 5; the call that came back said 5000."""
    client = client_of(UNSAFE)
    asked = client.call({**CALL, "amount": 5}, meta=ASKS)
    answer = {"requestState": asked["requestState"], "inputResponses": YES}
    if refused_first:
        client.server.answers = [Reply(kind="rpc_error", body={"code": -32601, "message": "no"}, text="no")]
        client.call({**CALL, "amount": 5}, meta=ASKS, **answer)
    told = client.call({**CALL, "amount": 5000}, meta=ASKS, **answer)
    assert "needs_approval" == code(told)
    assert [{**CALL, "amount": 5}] * refused_first == client.server.ledger
    again = client.call({**CALL, "amount": 5000}, meta=ASKS)
    client.call({**CALL, "amount": 5000}, meta=ASKS, requestState=again["requestState"], inputResponses=YES)
    assert {**CALL, "amount": 5000} == client.server.ledger[-1], "asked anew, it may be done"


@pytest.mark.parametrize("seal", ["", "x", "é", "\ud800", "a:b"])
def test_a_forged_answer_is_none(client_of: Callable[..., Client], seal: str) -> None:
    """Whatever stands in the state, nothing is sent, and the question is put again."""
    client = client_of(UNSAFE)
    asked = client.call(CALL, meta=ASKS)
    intent = asked["requestState"].split(":")[1]
    state = f"onceward-approval:{intent}:{seal}"
    told = client.call(CALL, meta=ASKS, requestState=state, inputResponses=YES)
    assert ("input_required", []) == (told["resultType"], client.server.ledger)


def test_a_question_that_was_shortened_says_so(client_of: Callable[..., Client]) -> None:
    """What a person cannot see must not look like all there is."""
    asked = client_of(UNSAFE).call({**CALL, "amount": "5" * 5_000}, meta=ASKS)
    assert "shortened" in asked["inputRequests"]["dev.onceward/approval"]["params"]["message"]


# --- the status tool


def test_the_status_of_nobodys_scope_is_empty(client_of: Callable[..., Client]) -> None:
    """Without a scope it listed every conversation of the journal, arguments and all."""
    client = client_of(PLAIN, scope=None)
    client.call(CALL, headers={"x-scope": "alice"})
    assert 1 == len(
        client.call({}, name="onceward_status", headers={"x-scope": "alice"})["structuredContent"]["intents"]
    )
    for arguments in ({}, {"intent": "0"}, {"intent": ""}):
        assert [] == client.call(arguments, name="onceward_status")["structuredContent"]["intents"]


def test_the_status_of_one_principal_shows_nothing_of_another(client_of: Callable[..., Client]) -> None:
    """Two users of one proxy may run under one configured scope."""
    client = client_of(PLAIN)
    client.call(CALL, headers={"authorization": "alice"})
    mine = client.call({}, name="onceward_status", headers={"authorization": "alice"})["structuredContent"]["intents"]
    for arguments in ({}, {"intent": mine[0]["intent"]}):
        shown = client.call(arguments, name="onceward_status", headers={"authorization": "bob"})
        assert [] == shown["structuredContent"]["intents"]


@pytest.mark.parametrize("wanted", ["\ud800", {"a": 1}, 5, "%", "\0", "z" * 100_000])
def test_the_status_of_what_is_no_intent_is_empty(client_of: Callable[..., Client], wanted: Any) -> None:
    """A model may ask for anything."""
    client = client_of(PLAIN)
    client.call(CALL)
    assert [] == client.call({"intent": wanted}, name="onceward_status")["structuredContent"]["intents"]


# --- keys and promises


@pytest.mark.parametrize("place", ["meta:key", "param:key", "header:Key"])
def test_a_key_that_the_caller_supplies_is_sent_as_it_came(client_of: Callable[..., Client], place: str) -> None:
    """It was replaced by ours everywhere but in the arguments, though the contract passes it."""
    client = client_of(PLAIN.replace("in_flight", f'key: {{in: "{place}", retention: 24h}}, in_flight'))
    where = place.partition(":")[0]
    meta = {"key": "mine"} if where == "meta" else {}
    headers = {"key": "mine"} if where == "header" else {}
    client.call(CALL, meta=meta, headers=headers, **({"key": "mine"} if where == "param" else {}))
    params = client.server.messages[0]["params"]
    found = {"meta": params["_meta"], "param": params, "header": client.server.headers[0]}[where]
    assert "mine" == found["key"]


def test_a_key_argument_is_not_relied_on_while_the_tools_cannot_be_listed(client_of: Callable[..., Client]) -> None:
    """Nobody has seen that the living tool takes it; and a list that never comes must not hang the call."""
    keyed = PLAIN.replace("in_flight", 'key: {in: "argument:key", retention: 24h, concurrent: safe}, in_flight')
    client = client_of(keyed.replace("safe", "safe, replays_errors: false"))
    client.server.lists, client.server.answers = False, [LOST]
    assert client.call(CALL)["isError"] is True
    assert [CALL] == client.server.ledger


# --- what is said


def test_a_result_with_half_a_character_is_passed_and_replayed(
    client_of: Callable[..., Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """It could not be written down, so the call seemed to run for ever, and stderr showed the whole result."""
    client = client_of(PLAIN)
    client.server.answers = [{"text": "cut \ud83d", "token": "tok_SECRET"}]
    first, again = client.call(CALL), client.call(CALL)
    assert first["structuredContent"] == again["structuredContent"]
    assert ([CALL], "") == (client.server.ledger, capsys.readouterr().err)


def test_an_answer_that_is_not_kept_is_not_promised(client_of: Callable[..., Client]) -> None:
    """The words said that it follows, or that reading the service had shown the effect; neither was so."""
    client = client_of(PLAIN)
    client.server.answers = [{"long": "x" * 400_000}]
    client.call(CALL)
    large = client.call(CALL)
    client.call({**CALL, "onceward_label": "second"})
    guard = client.gate._guard
    guard.hear()
    real = guard.journal._time  # type: ignore[attr-defined]
    guard.journal._time = lambda: real() + 200_000  # type: ignore[attr-defined]
    assert 2 == guard.journal.purge()["purged"]
    purged = client.call({**CALL, "onceward_label": "second"})
    for told in (large, purged):
        words = told["content"][0]["text"]
        assert ("already_happened", False, False) == (code(told), "follows" in words, "reading" in words)
    assert [CALL, CALL] == client.server.ledger


@pytest.mark.parametrize("label", ["", " ", None])
def test_an_empty_label_argument_names_nothing(client_of: Callable[..., Client], label: str | None) -> None:
    """Models fill in every field of a schema."""
    client = client_of(PLAIN)
    for _ in range(2):
        client.call({**CALL, "onceward_label": label})
    client.call(CALL)
    assert [CALL] == client.server.ledger


# --- the relay


SWAPS = """
    import json, sys
    held = []
    for line in sys.stdin:
        call = json.loads(line)
        who = call["params"]["arguments"]["who"]
        text = [{"type": "text", "text": who}]
        held.append({"jsonrpc": "2.0", "id": call["id"], "result": {"content": text}})
        if len(held) == 2:
            for answer in reversed(held):
                print(json.dumps(answer), flush=True)
"""


class Passing:
    """A gate that sends every call on and answers with what came back."""

    def wants(self, call: Call) -> bool:
        return call.name == "charge"

    async def handle(self, call: Call, upstream: Any) -> bytes:
        reply = await upstream.exchange(call)
        asked, body = call.arguments["who"], reply.body
        return reply.raw or json.dumps({"jsonrpc": "2.0", "id": call.id, "result": {**body, "asked": asked}}).encode()

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def cancelled(self, call: Call) -> None: ...

    def delivered(self, call: Call) -> None: ...


@pytest.mark.parametrize("first", ["charge", "get_charge"])
def test_an_answer_to_one_call_is_never_taken_for_that_of_another_with_its_id(tmp_path: Path, first: str) -> None:
    """A client that uses an id again while it is open would have one effect reported as done by another's answer."""
    script, inbox, outbox = tmp_path / "server.py", tmp_path / "in", tmp_path / "out"
    script.write_text(dedent(SWAPS))
    calls = [
        {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": {"who": who}}}
        for name, who in ((first, "first"), ("charge", "second"))
    ]
    inbox.write_text("".join(json.dumps(call) + "\n" for call in calls))

    async def ready() -> Any:
        return Passing()

    async def play() -> None:
        with inbox.open("rb") as stdin, outbox.open("wb") as stdout:
            await relay([sys.executable, str(script)], ready(), stdin=stdin.fileno(), stdout=stdout.fileno())

    asyncio.run(asyncio.wait_for(play(), 20))
    answers = [json.loads(line) for line in outbox.read_text().splitlines()]
    assert [7, 7] == [answer["id"] for answer in answers]
    assert {"second"} == {a["result"]["content"][0]["text"] for a in answers if a["result"].get("asked") == "second"}
