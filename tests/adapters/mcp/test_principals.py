"""Whose account a call over HTTP acts for: two users never meet, and one user stays one when a token is renewed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from onceward.adapters.mcp.main import _gate, parser
from onceward.adapters.mcp.wire import Call
from onceward.outcomes import Reply

CONTRACT = """\
version: 1
server: shop
owner: ops@example.com
tools:
  charge: {effect: write, identity: [invoice]}
"""
NINE, TEN = {"authorization": "Bearer of-nine"}, {"authorization": "Bearer of-ten"}


class Shop:
    """A tool server whose first answer gets lost, with its ledger."""

    def __init__(self, ledger: Path) -> None:
        self.ledger, self.lost = ledger, False

    def exchange(self, call: Call, message: Any = None, **_: Any) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        message = message or call.message
        if message["method"] == "tools/list":
            tools = [{"name": "charge", "inputSchema": {"type": "object", "properties": {"invoice": {}}}}]
            future.set_result(Reply(kind="result", body={"tools": tools}))
            return future
        with self.ledger.open("a") as ledger:
            ledger.write(json.dumps(message["params"]) + "\n")
        reply = Reply(kind="result", body={"content": []}) if self.lost else Reply(kind="lost", text="reset")
        self.lost = True
        future.set_result(reply)
        return future

    @property
    def effects(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0


def play(tmp_path: Path, monkeypatch: Any, principal: str | None, *headers: dict[str, str], tool: str = "charge"):
    monkeypatch.setitem(os.environ, "ONCEWARD_SECRET_FILE", str(tmp_path / "secret"))
    (tmp_path / "c.yaml").write_text(CONTRACT)
    words = ["--contracts", str(tmp_path / "c.yaml"), "--journal", str(tmp_path / "j.db"), "--patience", "1"]
    options = parser().parse_args([*words, *(["--principal", principal] if principal else [])])
    shop = Shop(tmp_path / "ledger")

    async def calls() -> list[str]:
        gate = _gate(options, lambda call: "run-1", http=True)
        codes = []
        for number, header in enumerate(headers):
            params = {"name": tool, "arguments": {"invoice": "in_1"}}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            call = Call(raw=json.dumps(message).encode(), message=message, headers=header)
            result = json.loads(await gate.handle(call, shop))["result"]
            codes.append(result.get("_meta", {}).get("dev.onceward/guard", {}).get("code"))
        return codes

    return asyncio.run(calls()), shop.effects


def test_credentials_are_nobodys_name(tmp_path: Path, monkeypatch: Any):
    """A token that is renewed between a lost reply and its retry would make the retry somebody else's first call."""
    assert (["no_scope", "no_scope"], 0) == play(tmp_path, monkeypatch, None, NINE, TEN)


@pytest.mark.parametrize(
    ("principal", "who"), [("acct-7", {}), ("header:X-Account", {"x-account": "7"})], ids=["name", "header"]
)
def test_a_renewed_token_is_the_same_user(tmp_path: Path, monkeypatch: Any, principal: str, who: dict[str, str]):
    """One effect: the retry meets its own unknown."""
    told, effects = play(tmp_path, monkeypatch, principal, {**NINE, **who}, {**TEN, **who})

    assert (["unverifiable", "unverifiable"], 1) == (told, effects)


def test_two_accounts_do_not_meet(tmp_path: Path, monkeypatch: Any):
    """What is unknown for one is no news of the other."""
    told, effects = play(tmp_path, monkeypatch, "header:X-Account", {"x-account": "7"}, {"x-account": "8"})

    assert (["unverifiable", None], 2) == (told, effects)


def test_a_missing_account_is_refused(tmp_path: Path, monkeypatch: Any):
    """Else all who leave it out would be one."""
    assert (["no_scope"], 0) == play(tmp_path, monkeypatch, "header:X-Account", NINE)


def test_a_tool_without_contract_passes_all_the_same(tmp_path: Path, monkeypatch: Any):
    """Nothing is promised about it, so its credentials are name enough."""
    assert 1 == play(tmp_path, monkeypatch, None, NINE, tool="post")[1]
