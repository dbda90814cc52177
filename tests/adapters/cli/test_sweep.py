"""`onceward sweep` over stdio: it starts the tool server itself, only reads, and settles or parks what it can."""

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
from crash_world import CHARGE, OWNER, SCOPE, World, block, text, until

from onceward.adapters.cli import main


class Sweeper:
    """The command, and the worlds that it is used in."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        self.worlds: list[World] = []

    def world(self, shape: str) -> World:
        """Make a world and point the environment at it."""
        world = World(self._folder / shape, shape)
        self._monkeypatch.setenv("ONCEWARD_SECRET_FILE", str(world.secret))
        self.worlds.append(world)
        return world

    def run(self, world: World, *words: str, contracts: Path | None = None) -> tuple[int, str, str]:
        """Sweep; return exit code, output, errors."""
        self._capsys.readouterr()
        options = ["--contracts", str(contracts or world.contracts), "--journal", str(world.journal)]
        code = main(["sweep", *options, *words, "--", *world.server])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, world: World, *words: str, contracts: Path | None = None) -> list[dict[str, Any]]:
        """Sweep with --json."""
        code, out, err = self.run(world, *words, "--json", contracts=contracts)
        assert 0 == code, err
        swept: list[dict[str, Any]] = json.loads(out)
        return swept

    def receipt(self, world: World) -> list[dict[str, Any]]:
        """Return what the journal holds."""
        self._capsys.readouterr()
        assert 0 == main(["receipt", "--journal", str(world.journal), "--json"])
        rows: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)["intents"]
        return rows


@pytest.fixture
def sweeper(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweeper]:
    """Set out the command."""
    made = Sweeper(tmp_path, capsys, monkeypatch)
    yield made
    for world in made.worlds:
        world.close()


def crash(world: World, step: str, *, effect: bool) -> None:
    """Kill a proxy while its tool server stands at a step; then let the server's effect land, or not."""
    world.pause(step)
    proxy = world.proxy()
    proxy.begin()
    server = world.reached(step)
    proxy.kill()
    if not effect:
        os.kill(server, signal.SIGKILL)
        return
    world.go(step)
    until(lambda: len(world.effects) == 1)


def shift(world: World, by_s: float) -> None:
    """Let time pass: everything in the journal is so much older."""
    with closing(sqlite3.connect(world.journal)) as connection:
        connection.execute(
            "UPDATE attempts SET begun_s = begun_s - ?1, send_before_s = send_before_s - ?1,"
            " lease_until_s = lease_until_s - ?1",
            (by_s,),
        )
        connection.execute("UPDATE intents SET created_s = created_s - ?", (by_s,))
        connection.execute(
            "UPDATE intents SET facts = json_set(facts, '$.not_before_s', json_extract(facts, '$.not_before_s') - ?)"
            " WHERE json_extract(facts, '$.not_before_s') IS NOT NULL",
            (by_s,),
        )
        connection.commit()


def test_a_late_commit_is_found_and_its_next_caller_told(sweeper: Sweeper) -> None:
    """The proxy died before the effect; the sweep sees it, sends nothing, and the next call is a replay."""
    world = sweeper.world("read_back")
    crash(world, "before_effect", effect=True)
    (swept,) = sweeper.json(world)
    assert ("happened", CHARGE) == (swept["after"], swept["arguments"])
    assert 1 == len(world.effects)
    assert [] == sweeper.json(world), "what is settled is not asked about again"
    answer = world.proxy().call()
    assert answer is not None and not answer["isError"]
    assert "happened" in text(answer)
    assert 1 == len(world.effects)


def test_what_is_not_there_yet_stays_open_until_its_absence_is_proven(sweeper: Sweeper) -> None:
    """Within the bound an empty read is no news; after it nothing happened, and the next call is sent."""
    world = sweeper.world("read_back")
    world.contracts.write_text(world.contracts.read_text().replace("in_flight: 1s", "in_flight: 30s"))
    crash(world, "before_effect", effect=False)
    (swept,) = sweeper.json(world)
    assert ("unknown", None) == (swept["after"], swept["code"])
    assert [] == world.effects
    shift(world, 60.0)  # past the bound
    sweeper.json(world)
    (row,) = sweeper.receipt(world)
    assert ("absent", None) == (row["state"], row["code"]), "absence is proven: nothing is unknown, nobody is asked"
    assert [] == sweeper.json(world)
    assert '"number": 0' in text(world.proxy().call())
    assert 1 == len(world.effects)


def test_a_call_that_only_a_send_could_settle_is_abandoned(sweeper: Sweeper) -> None:
    """Its key would allow a re-issue, but no caller waits for one. When somebody calls, the hold says who decides."""
    world = sweeper.world("key")
    crash(world, "before_reply", effect=True)
    code, out, _ = sweeper.run(world)
    assert (0, True) == (code, out.rstrip().endswith("-> unknown"))
    shift(world, 3_600.0)
    code, out, _ = sweeper.run(world, "--scope", "another")
    assert (0, "Nothing is unsettled.\n") == (code, out)
    (swept,) = sweeper.json(world, "--scope", SCOPE)
    assert ("abandoned", "held", OWNER) == (swept["code"], swept["state"], swept["owner"])
    assert 1 == len(world.effects)
    assert "abandoned" == block(world.proxy().call())["code"]
    assert 1 == len(world.effects)


def test_a_hold_is_released_when_a_later_read_finds_the_effect(sweeper: Sweeper) -> None:
    """Evidence answers what a person was asked."""
    world = sweeper.world("read_back")
    declared = world.contracts.read_text()
    world.contracts.write_text(declared.replace("    in_flight: 1s\n", ""))
    crash(world, "before_effect", effect=False)
    assert "in_flight_unbounded" == block(world.proxy().call())["code"]
    (swept,) = sweeper.json(world)
    assert "in_flight_unbounded" == swept["code"]
    with closing(sqlite3.connect(world.journal)) as connection:
        (begun_s,) = connection.execute("SELECT begun_s FROM attempts").fetchone()
    (world.folder / "ledger").write_text(json.dumps({"tool": "charge", **CHARGE, "created": begun_s + 1}) + "\n")
    shift(world, 60.0)  # past the back-off between two reads
    (swept,) = sweeper.json(world)
    assert ("in_flight_unbounded", "happened", None) == (swept["before"], swept["after"], swept["code"])


def test_another_servers_intents_are_not_judged_by_this_ones_reads(sweeper: Sweeper) -> None:
    """One journal may serve many servers; a tool of the same name elsewhere proves nothing about this one."""
    world = sweeper.world("read_back")
    crash(world, "before_effect", effect=True)
    shift(world, 3_600.0)
    (world.folder / "ledger").unlink()
    other = world.folder / "other.yaml"
    other.write_text(world.contracts.read_text().replace("server: payments", "server: books"))
    before = sweeper.receipt(world)
    assert [] == sweeper.json(world, contracts=other)
    assert before == sweeper.receipt(world)


def test_what_cannot_be_started_is_an_error(sweeper: Sweeper) -> None:
    """Neither a missing command nor a missing journal is a quiet success."""
    world = sweeper.world("read_back")
    code, _, err = sweeper.run(world)
    assert (2, True) == (code, str(world.journal) in "".join(err.replace("│", "").split()))
    world.proxy().call()
    options = ["--contracts", str(world.contracts), "--journal", str(world.journal)]
    assert 2 == main(["sweep", *options])
    world.server = ["/nowhere/server"]
    code, _, err = sweeper.run(world)
    assert (2, True) == (code, "/nowhere/server" in err)
    world.server = ["true"]
    code, _, err = sweeper.run(world)
    assert (2, True) == (code, "true" in err)
