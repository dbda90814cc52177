"""A small shop to play public reports against: a service with a ledger, a guard, and a proxy's gate with its harness.

The ledger is a file outside the guard, and the truth. A plan says how the shop treats one request: whether it takes
effect, when, and what the caller hears. The tests come from reports of people who run agents; each names its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.adapters.mcp.gate import GuardGate
from onceward.adapters.mcp.listing import Listing
from onceward.adapters.mcp.main import _call_id_of
from onceward.adapters.mcp.wire import Call
from onceward.contracts.compiling import ContractToolbox, toolbox_of
from onceward.contracts.loader import parse
from onceward.drive import Guard
from onceward.evidence import Effect
from onceward.gathering import Settings
from onceward.outcomes import Reply

SECRET = b"a deployment secret of the tests"
HEAD = "version: 1\nserver: shop\nowner: ops@example.com\ntools:\n"


class ShopHttpError(Exception):
    """What an HTTP client raises for a status."""

    def __init__(self, status: int, body: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.response = SimpleNamespace(status_code=status, headers=dict(headers or {}), _content=body.encode())


@dataclass(frozen=True)
class Treatment:
    """How the shop treats one request."""

    effect: bool = True
    late_s: float = 0.0  #: the effect comes so long after the request
    takes_s: float = 0.0  #: the answer comes so long after the request
    answer: Any = None  #: an exception, a Reply or a value; None = the ordinary result


class Shop:
    """A service that does what its plans say, then what it is asked."""

    Plan, HttpError = Treatment, ShopHttpError

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.plans: list[Treatment] = []
        self.requests: list[dict[str, Any]] = []  #: every request that arrived, also those without effect
        self.reads = 0
        self.lag_s = 0.0  #: how long an effect stays hidden from the shop's lists
        self.older: list[dict[str, Any]] = []  #: what the lists show besides the ledger
        self.results: dict[str, Any] = {}  #: by idempotency key
        self.keyed = False  #: the shop knows keys
        self._lock, self._timers = threading.Lock(), list[threading.Timer]()

    def plan(self, *plans: Treatment) -> None:
        """Say how the next requests are treated."""
        self.plans += plans

    def lose(self, error: BaseException | None = None, **how: Any) -> None:
        """Let the next request take effect, and its answer get lost."""
        self.plan(Treatment(answer=error or TimeoutError("read timed out"), **how))

    @property
    def effects(self) -> list[dict[str, Any]]:
        """What really happened, after everything that is still under way."""
        for timer in self._timers:
            timer.join()
        return self._rows()

    def take(self, tool: str, arguments: Mapping[str, Any], key: str | None = None) -> tuple[Treatment, Any]:
        """Take one request; return its plan and its result."""
        with self._lock:
            plan = self.plans.pop(0) if self.plans else Treatment()
            self.requests.append({"tool": tool, "key": key, **arguments})
            if self.keyed and key is not None and key in self.results:
                return plan, self.results[key]
            result = {"done": len(self.requests), "tool": tool}
            if not plan.effect:
                return plan, result
            if key is not None:
                self.results[key] = result
        if plan.late_s:
            timer = threading.Timer(plan.late_s, self._commit, (tool, arguments))
            self._timers.append(timer)
            timer.start()
        else:
            self._commit(tool, arguments)
        return plan, result

    def listed(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a list of the shop shows now."""
        self.reads += 1
        now = time.time()
        rows = [r for r in self._rows() if now - r["created"] >= self.lag_s]
        return {"items": [r for r in [*self.older, *rows] if all(r.get(k) == v for k, v in wanted.items())]}

    def request(self, tool: str) -> Callable[..., Any]:
        """Return a function that asks the shop, as a plain client would."""

        def ask(**arguments: Any) -> Any:
            key = arguments.pop("idempotency_key", None)
            plan, result = self.take(tool, arguments, key)
            if plan.takes_s:
                time.sleep(plan.takes_s)
            return _raised(plan.answer, result)

        ask.__name__ = tool
        return ask

    def arequest(self, tool: str) -> Callable[..., Any]:
        """Return the same as a coroutine function."""

        async def ask(**arguments: Any) -> Any:
            key = arguments.pop("idempotency_key", None)
            plan, result = self.take(tool, arguments, key)
            await asyncio.sleep(plan.takes_s)
            return _raised(plan.answer, result)

        ask.__name__ = tool
        return ask

    def reader(self, tool: str) -> Callable[..., Any]:
        """Return a function that lists what happened."""

        def look(**wanted: Any) -> dict[str, Any]:
            return self.listed(wanted)

        look.__name__ = tool
        return look

    def _commit(self, tool: str, arguments: Mapping[str, Any]) -> None:
        line = json.dumps({"tool": tool, "created": time.time(), **arguments}, default=str) + "\n"
        handle = os.open(self.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line.encode())
        os.close(handle)

    def _rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []


def _raised(answer: Any, result: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return result if answer is None else answer


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "ledger.jsonl")


def toolbox(tools: str) -> ContractToolbox:
    return toolbox_of(parse(HEAD + indent(tools, "  ")))


@pytest.fixture
def guard_of(tmp_path: Path, shop: Shop) -> Iterator[Callable[..., Guard]]:
    """Make guards of the shop's tools, from the `tools` part of a contract file; all on one journal."""
    made: list[Guard] = []

    def make(
        tools: str, *, scope: str = "run-1", patience_s: float = 5.0, journal: str = "journal.db", **settings: Any
    ) -> Guard:
        box = toolbox(tools)
        times = Settings(**{"send_allowance_s": 0.5, "attempt_timeout_s": 5.0, **settings})
        guard = Guard(box, tmp_path / journal, scope=scope, patience_s=patience_s, settings=times, secret=SECRET)
        guard.journal.new_until_s = 0.0
        for name, tool in box.contracts.tools.items():
            guard.tool(shop.reader(name) if tool.effect is Effect.READ else shop.request(name))
        made.append(guard)
        return guard

    yield make
    for guard in made:
        guard.close()


@pytest.fixture
def insist() -> Callable[..., list[Any]]:
    """Call again and again, whatever comes, as a retrying client does; return what each call was answered."""

    def again(times: int, call: Callable[[], Any]) -> list[Any]:
        answers: list[Any] = []
        for _ in range(times):
            try:
                answers.append(call())
            except Exception as error:  # the test looks at each
                answers.append(error)
        return answers

    return again


class Upstream:
    """The way to the shop as a relay offers it to a gate: every message that leaves is kept."""

    def __init__(self, shop: Shop, tools: Iterable[str]) -> None:
        schema = {"type": "object", "additionalProperties": True}
        self.shop, self.tools = shop, [{"name": name, "inputSchema": schema} for name in tools]
        self.sent: list[dict[str, Any]] = []

    def exchange(
        self,
        call: Call,
        message: dict[str, Any] | None = None,
        *,
        own: bool = False,
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        if before_send is not None and not before_send():
            future.set_result(Reply(kind="not_sent", text="too late"))
            return future
        message = call.message if message is None else message
        if message["method"] == "tools/list":
            future.set_result(Reply(kind="result", body={"tools": self.tools}))
            return future
        self.sent.append(message)
        params = message["params"]
        arguments = dict(params.get("arguments") or {})
        if params["name"].startswith(("list_", "get_")):
            future.set_result(_result(self.shop.listed(arguments), None))
            return future
        key = arguments.pop("idempotency_key", None) or (params.get("_meta") or {}).get("idempotency_key")
        plan, result = self.shop.take(params["name"], arguments, key)
        if isinstance(plan.answer, Reply):
            reply = plan.answer
        elif isinstance(plan.answer, BaseException):
            reply = Reply(kind="lost", text=str(plan.answer))
        else:
            reply = _result(result if plan.answer is None else plan.answer, None if own else call.id)
        loop.call_later(plan.takes_s, lambda: None if future.done() else future.set_result(reply))
        return future


def _result(value: Any, id: int | str | None) -> Reply:
    body: dict[str, Any] = {"content": [{"type": "text", "text": json.dumps(value)}], "isError": False}
    if isinstance(value, dict):
        body["structuredContent"] = value
    raw = None if id is None else json.dumps({"jsonrpc": "2.0", "id": id, "result": body}).encode()
    return Reply(kind="result", body=body, raw=raw)


class Harness:
    """A client of the proxy: it numbers its requests anew, keeps its own call ids, and may give up or send again."""

    def __init__(self, gate: GuardGate, upstream: Upstream) -> None:
        self.gate, self.upstream = gate, upstream
        self._number = 0
        self._left: list[asyncio.Future[bytes]] = []

    async def call(
        self, name: str, arguments: dict[str, Any], *, timeout_s: float | None = None, heard: bool = True, **meta: Any
    ) -> Any:
        """Send one `tools/call` and return the response; None when this client gave up waiting."""
        self._number += 1
        params = {"name": name, "arguments": arguments, "_meta": {"progressToken": self._number, **meta}}
        message = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        call = Call(raw=json.dumps(message).encode(), message=message, client="harness")
        assert self.gate.wants(call)
        answer = asyncio.ensure_future(self.gate.handle(call, self.upstream))
        done, _ = await asyncio.wait({answer}, timeout=timeout_s)
        if not done:
            call.cancelled = True
            self.gate.cancelled(call)
            self._left.append(answer)
            return None
        if heard:
            self.gate.delivered(call)
        response = json.loads(answer.result())
        assert call.id == response["id"]
        return response

    async def rest(self) -> None:
        """Wait for the calls that nobody waits for any more."""
        if self._left:
            await asyncio.wait(self._left)


@pytest.fixture
def harness_of(tmp_path: Path, shop: Shop) -> Iterator[Callable[..., Harness]]:
    """Make gates over the shop, each with the harness before it; all on one journal."""
    made: list[Guard] = []

    def make(tools: str, *, scope: str = "thread-1", patience_s: float = 5.0, **settings: Any) -> Harness:
        box = toolbox(tools)
        times = replace(Settings(send_allowance_s=0.5, attempt_timeout_s=5.0), **settings)
        guard = Guard(box, tmp_path / "journal.db", patience_s=patience_s, settings=times, secret=SECRET)
        guard.journal.new_until_s = 0.0
        made.append(guard)
        gate = GuardGate(guard, Listing(box), scope_of=lambda call: scope, call_id_of=_call_id_of)
        return Harness(gate, Upstream(shop, box.contracts.tools))

    yield make
    for guard in made:
        guard.close()


@pytest.fixture
def block() -> Callable[[Any], dict[str, Any]]:
    """Read the machine-readable block of a response; the caller must have got a tool result, never a JSON-RPC error."""

    def read(response: Any) -> dict[str, Any]:
        assert "error" not in response, response
        found: dict[str, Any] = response["result"]["_meta"]["dev.onceward/guard"]
        return found

    return read


@pytest.fixture
def answer_of() -> Callable[[Any], Any]:
    """Read the shop's own answer in a response, with or without words of the guard before it."""

    def read(response: Any) -> Any:
        assert response["result"]["isError"] is False, response
        return json.loads(response["result"]["content"][-1]["text"])

    return read
