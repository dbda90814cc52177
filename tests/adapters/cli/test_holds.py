"""`onceward holds`: what a person sees of a real proxy's hold, and what each decision does to the next call."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "crash"))
from crash_world import CHARGE, OWNER, SCOPE, World, block, text

from onceward.adapters.cli import main

WIPE = {"table": "customers"}


class Desk:
    """A person's terminal, beside the world of a proxy."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.world, self._capsys = world, capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Type a command; return exit code, output, errors."""
        self._capsys.readouterr()
        code = main([*words, "--journal", str(self.world.journal)])
        out, err = self._capsys.readouterr()
        return code, out, " ".join(err.replace("│", " ").split())

    def json(self, *words: str) -> Any:
        """Type a command that works, with --json."""
        code, out, err = self.run(*words, "--json")
        assert 0 == code, err
        return json.loads(out)

    def held(self) -> dict[str, Any]:
        """Return the one intent that is held."""
        (row,) = self.json("holds", "list")
        found: dict[str, Any] = row
        return found

    def resolve(self, intent: str, *words: str) -> tuple[int, str, str]:
        """Decide."""
        about = ["--by", "ann", "--why", "looked at the bank's page", "--contracts", str(self.world.contracts)]
        return self.run("holds", "resolve", intent, *about, *words)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    """Set out a desk; nothing has been called yet."""
    monkeypatch.setenv("COLUMNS", "200")
    world = World(tmp_path / "world", "neither")
    monkeypatch.setenv("ONCEWARD_SECRET_FILE", str(world.secret))
    yield Desk(world, capsys)
    world.close()


def lose_a_reply(world: World, *, bound: str | None = None) -> Any:
    """Let a charge take effect and its tool server die; return the proxy, whose answer was a hold."""
    if bound is not None:
        declared = world.contracts.read_text()
        world.contracts.write_text(declared.replace("effect: write", f"effect: write\n    in_flight: {bound}"))
    world.pause("before_reply")
    proxy = world.proxy()
    id = proxy.begin()
    kill(world.reached("before_reply"))
    assert "unverifiable" == block(proxy.answer(id))["code"]
    return proxy


def kill(pid: int) -> None:
    """End a tool server."""
    os.kill(pid, signal.SIGKILL)


def test_list_and_show_tell_all_that_is_known(desk: Desk) -> None:
    """A person decides from this alone: what was asked, for whom it waits, every attempt, the whole history."""
    assert (0, "Nothing is held.\n") == _before_anything(desk)
    lose_a_reply(desk.world)
    row = desk.held()
    assert ("charge", "held", "unverifiable", OWNER, SCOPE) == tuple(
        row[name] for name in ("tool", "state", "code", "owner", "scope")
    )
    assert CHARGE == row["arguments"]
    code, out, _ = desk.run("holds", "list")
    assert (0, True, True) == (code, row["intent"][:12] in out, "unverifiable" in out)
    assert [] == desk.json("holds", "list", "--scope", "another")
    assert [row["intent"]] == [r["intent"] for r in desk.json("holds", "list", "--scope", SCOPE)]

    shown = desk.json("holds", "show", row["intent"][:8])
    assert ["unknown"] == [attempt["state"] for attempt in shown["attempts"]]
    assert [("guard", "held", "unverifiable")] == [(e["who"], e["what"], e["why"]) for e in shown["history"]]
    code, out, _ = desk.run("holds", "show", row["intent"][:8])
    assert 0 == code
    for told in (row["intent"], "in_7", "attempt 1: unknown", OWNER, "guard: held unverifiable"):
        assert told in out
    receipt = desk.json("receipt", "--scope", SCOPE)
    assert (1, ["held", "happened"]) == (receipt["unsettled"], [r["state"] for r in receipt["intents"]])
    code, out, _ = desk.run("receipt")
    assert (0, True) == (code, "1 not settled" in out)


def _before_anything(desk: Desk) -> tuple[int, str]:
    proxy = desk.world.proxy()
    assert '"number": 0' in text(proxy.call("charge", {"invoice": "in_1", "amount": 1}))
    proxy.leave()
    code, out, _ = desk.run("holds", "list")
    return code, out


def test_a_decision_that_is_not_clear_is_refused_and_changes_nothing(desk: Desk) -> None:
    """Who, why, what, and about which: none of these is guessed."""
    proxy = lose_a_reply(desk.world, bound="1h")
    wiped = block(proxy.call("wipe", WIPE))["intent"]
    before = desk.json("receipt")
    intent = next(row["intent"] for row in before["intents"] if row["tool"] == "charge")
    by, why, word = ["--by", "ann"], ["--why", "seen"], ["--happened"]
    contracts = ["--contracts", str(desk.world.contracts)]
    for said, words in (
        ("--by", [intent, *why, *word]),
        ("--why", [intent, *by, *word]),
        ("--by", [intent, "--by", "  ", *why, *word]),
        ("exactly one of", [intent, *by, *why]),
        ("exactly one of", [intent, *by, *why, *word, "--void"]),
        ("no intent begins with 'zz'", ["zz", *by, *why, *word]),
        ("2 intents begin with ''", ["", *by, *why, *word]),
        ("nothing was sent for this intent", [wiped, *by, *why, *word]),
        ("until 20", [intent, *by, *why, "--did-not-happen", *contracts]),
        ("until 20", [intent, *by, *why, "--void", *contracts]),
        ("no in-flight bound is declared", [intent, *by, *why, "--did-not-happen"]),
    ):
        code, out, err = desk.run("holds", "resolve", *words)
        assert (2, "") == (code, out), words
        assert said in err, words
    for words in (["show", "zz"], ["show", ""]):
        assert 2 == desk.run("holds", *words)[0]
    assert before == desk.json("receipt")


def test_a_journal_that_is_not_there_is_an_error(desk: Desk) -> None:
    """A path mistyped is no empty list, and makes no file."""
    for words in (["list"], ["show", "a"], ["resolve", "a", "--by", "a", "--why", "b", "--void"]):
        code, out, err = desk.run("holds", *words)
        assert (2, "", True) == (code, out, str(desk.world.journal) in err)
    assert not desk.world.journal.exists()
    assert not desk.world.secret.exists()


def test_happened_makes_the_next_call_a_replay(desk: Desk) -> None:
    """The person saw it: the caller is told so, and nothing is sent."""
    proxy = lose_a_reply(desk.world)
    code, out, _ = desk.resolve(desk.held()["intent"], "--happened")
    assert (0, True) == (code, "charge: happened" in out)
    answer = proxy.call()
    assert answer is not None and not answer["isError"]
    assert "happened" in text(answer)
    assert 1 == len(desk.world.effects)
    assert [] == desk.json("holds", "list")
    code, _, err = desk.resolve(block(answer)["intent"], "--did-not-happen", "--override")
    assert (2, True) == (code, "happened already" in err)


def test_did_not_happen_is_taken_after_the_bound_and_lets_one_call_through(desk: Desk) -> None:
    """Before the bound the request may still land; after it the word counts, and the next call is the first again."""
    proxy = lose_a_reply(desk.world, bound="1h")
    (desk.world.folder / "ledger").unlink()  # as if it had died before the effect
    intent = desk.held()["intent"]
    code, _, err = desk.resolve(intent, "--did-not-happen")
    assert (2, True) == (code, "it may still take effect until 20" in err)
    assert "unverifiable" == block(proxy.call())["code"]

    _an_hour_passes(desk.world)
    assert "did_not_happen" not in str(desk.json("holds", "show", intent))
    assert 0 == desk.resolve(intent, "--did-not-happen")[0]
    assert '"number": 0' in text(proxy.call())
    assert "happened" in text(proxy.call())
    assert 1 == len(desk.world.effects)
    shown = desk.json("holds", "show", intent)
    assert ("person:ann", "looked at the bank's page") == next(
        (e["who"], e["why"]) for e in shown["history"] if e["what"] == "did_not_happen"
    )
    assert not any(e.get("override") for e in shown["history"])


def _an_hour_passes(world: World) -> None:
    with closing(sqlite3.connect(world.journal)) as connection:
        connection.execute("UPDATE attempts SET begun_s = begun_s - 4000, send_before_s = send_before_s - 4000")
        connection.commit()


def test_an_override_is_taken_and_kept_in_the_history(desk: Desk) -> None:
    """A person may know more than the contract; then it is theirs, with name and reason."""
    proxy = lose_a_reply(desk.world)
    (desk.world.folder / "ledger").unlink()
    intent = desk.held()["intent"]
    assert 2 == desk.resolve(intent, "--did-not-happen")[0]
    code, out, _ = desk.resolve(intent, "--did-not-happen", "--override", "--json")
    assert (0, intent, "absent") == (code, json.loads(out)["intent"], json.loads(out)["state"])
    (event,) = (e for e in desk.json("holds", "show", intent)["history"] if e["who"] == "person:ann")
    assert ("did_not_happen", True) == (event["what"], event["override"])
    assert '"number": 0' in text(proxy.call())
    assert 1 == len(desk.world.effects)


def test_retry_issues_the_original_once_more_under_its_key(desk: Desk) -> None:
    """The service remembers keys for an unknown time, so the guard alone would not; a person may. The ledger tells."""
    declared = desk.world.contracts.read_text()
    key = "effect: write\n    key: {in: argument:idempotency_key}"
    desk.world.contracts.write_text(declared.replace("effect: write", key))
    desk.world.pause("before_reply")
    proxy = desk.world.proxy()
    id = proxy.begin()
    kill(desk.world.reached("before_reply"))
    assert "key_expired" == block(proxy.answer(id))["code"]
    code, out, _ = desk.resolve(desk.held()["intent"], "--retry")
    assert (0, True) == (code, "charge: unknown" in out)
    assert '"number": 0' in text(proxy.call()), "the answer of the first one, which the service knew by its key"
    (effect,) = desk.world.effects
    shown = desk.json("receipt")["intents"][0]
    assert [("unknown", 0), ("happened", 0)] == [(a["state"], a["generation"]) for a in shown["attempts"]]
    assert effect["idempotency_key"]


def test_void_closes_an_intent(desk: Desk) -> None:
    """Nobody wants it any more: it leaves the list, and an equal call is an intent of its own."""
    proxy = lose_a_reply(desk.world)
    intent = desk.held()["intent"]
    code, out, _ = desk.resolve(intent, "--void", "--override")
    assert (0, True) == (code, "charge: void" in out)
    assert [] == desk.json("holds", "list")
    assert "void" == desk.json("holds", "show", intent)["state"]
    assert '"number": 1' in text(proxy.call())
    assert [True, False] == [row["intent"] != intent for row in desk.json("receipt")["intents"]]


def test_an_unsafe_tool_waits_for_a_yes_that_is_good_for_one_call(desk: Desk) -> None:
    """Held with nothing sent; `--retry` is the yes; then it passes once, and the next call is a replay."""
    proxy = desk.world.proxy()
    for _ in range(2):
        told = block(proxy.call("wipe", WIPE))
        assert ("new", "needs_approval", OWNER) == (told["state"], told["code"], told["owner"])
    row = desk.held()
    assert (["nothing was sent"], WIPE) == (row["notes"], row["arguments"])
    assert [] == desk.world.effects
    assert 0 == desk.resolve(row["intent"], "--retry")[0]
    assert [] == desk.json("holds", "list")
    assert [] == desk.world.effects, "a yes sends nothing by itself"
    assert '"number": 0' in text(proxy.call("wipe", WIPE))
    assert "Nothing was sent now" in text(proxy.call("wipe", WIPE))
    assert 1 == len(desk.world.effects)
    assert "needs_approval" == block(proxy.call("wipe", {"table": "orders"}))["code"], "another one needs its own yes"


def test_a_yes_that_is_refused_closes_the_question(desk: Desk) -> None:
    """`--void` is the no: nothing was sent, so it needs no bound; an equal call asks anew."""
    proxy = desk.world.proxy()
    first = block(proxy.call("wipe", WIPE))["intent"]
    assert 0 == desk.resolve(first, "--void")[0]
    assert [] == desk.json("holds", "list")
    again = block(proxy.call("wipe", WIPE))
    assert ("needs_approval", True) == (again["code"], again["intent"] != first)
    assert [] == desk.world.effects
