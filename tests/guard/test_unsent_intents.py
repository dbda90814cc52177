"""Intents that exist in the journal before anything was sent for them: held for a yes, or looked for first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceward import receipts
from onceward.drive import Guard
from onceward.errors import Conflict, Held
from onceward.evidence import Code, Contract, Effect, ReadBack
from onceward.identity import Rules
from onceward.toolbox import StaticToolbox
from onceward.tools import KeyPlace, ReadPlan, Tool

SECRET = b"a deployment secret of the tests"


class Field:
    """An extractor: one member of a mapping."""

    def __init__(self, name: str) -> None:
        self.name = name

    def search(self, data: Any, /) -> Any:
        return data.get(self.name)


def guard_of(path: Path, tool: Tool) -> Guard:
    return Guard(StaticToolbox(tool, server="shop"), path / "journal.db", scope="run-1", secret=SECRET)


def test_a_call_that_waits_for_a_yes_is_found_again(tmp_path: Path) -> None:
    """The second call must meet the same hold, though nothing was ever sent under that identity."""
    contract = Contract(effect=Effect.UNSAFE, owner="ops@example.com")
    with guard_of(
        tmp_path, Tool(name="wipe", server="shop", contract=contract, rules=Rules(identity=("id",)))
    ) as guard:
        held = []
        for _ in range(2):
            with pytest.raises(Held) as stopped:
                guard.call("wipe", {"id": 1}, lambda **_: pytest.fail("it was sent"))
            held.append((stopped.value.code, stopped.value.intent))
        assert [(Code.NEEDS_APPROVAL, held[0][1])] * 2 == held
        assert 1 == len(receipts.intents(guard.journal))


def test_on_a_new_journal_a_first_send_comes_after_a_look(tmp_path: Path) -> None:
    """The look makes the intent's row; the send that follows in the same call must find it."""
    read = ReadPlan(
        tool="list_charges",
        items=Field("items"),
        match=((Field("id"), Field("id")),),
        created=Field("created"),
    )
    contract = Contract(effect=Effect.WRITE, owner="ops@example.com", read_back=ReadBack(lag_s=0.0), in_flight_s=1.0)
    tool = Tool(name="charge", server="shop", contract=contract, rules=Rules(identity=("id",)), read=read)
    with guard_of(tmp_path, tool) as guard:
        steps: list[str] = []

        @guard.tool
        def list_charges() -> dict[str, Any]:
            steps.append("look")
            return {"items": []}

        def charge(**arguments: Any) -> str:
            steps.append("send")
            return "charged"

        assert "charged" == guard.call("charge", {"id": 1}, charge)
        assert "charged" == guard.call("charge", {"id": 1}, charge)
        assert ["look", "send"] == steps


@pytest.mark.parametrize("identity", [None, ("customer",)], ids=["no identity", "an identity"])
def test_a_callers_key_names_one_intent_whatever_comes_with_it(
    tmp_path: Path, identity: tuple[str, ...] | None
) -> None:
    """The service would take the second for a replay of the first, so it may not leave: not for other terms, and not
    for another customer.
    """
    tool = Tool(
        name="charge",
        server="shop",
        contract=Contract(effect=Effect.WRITE, owner="ops@example.com"),
        rules=Rules(identity=identity),
        key=KeyPlace(where="argument", name="key"),
    )
    sent: list[dict[str, Any]] = []
    with guard_of(tmp_path, tool) as guard:
        guard.journal.new_until_s = 0.0
        guard.call("charge", {"customer": "c1", "amount": 1, "key": "K1"}, lambda **a: sent.append(a))
        guard.hear()
        for other in ({"customer": "c1", "amount": 2}, {"customer": "c2", "amount": 1}):
            with pytest.raises(Conflict) as stopped:
                guard.call("charge", {**other, "key": "K1"}, lambda **a: sent.append(a))
            assert stopped.value.code is Code.KEY_REUSED
        guard.call("charge", {"customer": "c2", "amount": 1, "key": "K2"}, lambda **a: sent.append(a))
    assert ["K1", "K2"] == [arguments["key"] for arguments in sent]
