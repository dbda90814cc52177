"""Cases that need real pipes: the proxy as a process, a tool server behind it, a client that speaks JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("shop_server.py")
CONTRACTS = """
version: 1
server: shop
owner: ops@example.com
tools:
  update: {effect: write, identity: [id]}
"""


class Client:
    """An MCP client in a few lines."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ}, text=True
        )
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.send(0, "initialize", hello)
        self.answers(1)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, id: int, method: str, params: dict[str, Any]) -> None:
        self._write({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def update(self, id: int, arguments: dict[str, Any], tool_use: str) -> None:
        meta = {"claudecode/toolUseId": tool_use}
        self.send(id, "tools/call", {"name": "update", "arguments": arguments, "_meta": meta})

    def cancel(self, id: int) -> None:
        self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    def answers(self, count: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        assert self.process.stdout is not None
        while len(found) < count:
            line = self.process.stdout.readline()
            assert line, "the proxy ended"
            message = json.loads(line)
            if "id" in message and "method" not in message:
                found[message["id"]] = message
        return found

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


@pytest.fixture
def client_of(tmp_path: Path, shop: Any) -> Iterator[Any]:
    """Start clients of a proxy of their own, all on one journal."""
    contracts = tmp_path / "shop.yaml"
    contracts.write_text(CONTRACTS)
    made: list[Client] = []

    def make(*options: str) -> Client:
        proxy = [sys.executable, "-m", "onceward.adapters.cli", "proxy", "--contracts", str(contracts)]
        proxy += ["--journal", str(tmp_path / "journal.db"), "--scope", "s-1", *options]
        environ = {"ONCEWARD_SECRET_FILE": str(tmp_path / "secret")}
        made.append(Client([*proxy, "--", sys.executable, str(SERVER), str(shop.ledger)], environ))
        return made[-1]

    yield make
    for client in made:
        client.process.kill()
        client.process.communicate()


def test_br046_two_dispatches_a_few_milliseconds_apart_on_one_stdio_server_are_one(client_of: Any, shop: Any) -> None:
    """The client sends each call twice, under two tool use ids; the server sees one, both get its answer.

    https://github.com/anthropics/claude-code/issues/36149
    """
    client = client_of()
    client.update(1, {"id": 7, "title": "New"}, "toolu_1")
    time.sleep(0.003)
    client.update(2, {"id": 7, "title": "New"}, "toolu_2")
    answers = client.answers(2)
    assert len(shop.effects) == 1
    texts = [json.loads(answers[id]["result"]["content"][-1]["text"]) for id in (1, 2)]
    assert [{"updated": 7}] * 2 == texts


def test_br011_a_server_that_dies_after_dispatch_is_answered_unknown_and_not_asked_again(
    client_of: Any, shop: Any, block: Any
) -> None:
    """The pipe closes after the effect. The client gets an answer and not a dead pipe, and its replay sends nothing.

    https://github.com/MoonshotAI/kimi-code/pull/2387
    """
    client = client_of()
    for id in (1, 2):
        client.update(id, {"id": 8, "how": "die"}, "toolu_1")
        (answer,) = client.answers(1).values()
        assert ("unknown", "unverifiable") == (block(answer)["state"], block(answer)["code"])
    assert len(shop.effects) == 1
    client.update(3, {"id": 9}, "toolu_3")  # the server is there again for what is another intent
    assert {"updated": 9} == json.loads(client.answers(1)[3]["result"]["content"][-1]["text"])


def test_br007_a_cancelled_call_that_is_triggered_again_reaches_the_server_once(
    client_of: Any, shop: Any, block: Any
) -> None:
    """The server never answers and ignores cancellation; the client cancels, and triggers the same call again.

    https://github.com/srbhptl39/MCP-SuperAssistant/issues/155
    """
    client = client_of("--patience", "2.5", "--attempt-timeout", "1")
    for id in (1, 2):
        client.update(id, {"id": 10, "how": "hang"}, f"toolu_{id}")
        time.sleep(0.2)
        client.cancel(id)
    client.update(3, {"id": 10, "how": "hang"}, "toolu_3")
    answer = client.answers(1)[3]
    assert len(shop.effects) == 1
    assert "unknown" == block(answer)["state"]
