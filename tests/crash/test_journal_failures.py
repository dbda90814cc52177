"""A journal that cannot be written, is gone, or cannot be read: nothing is sent that could not be remembered."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from crash_world import SHAPES, Client, World, block, call_in_turn, text, until

from onceward import Guard, JournalError
from onceward.adapters.cli import main


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    """Make worlds, and end their processes."""
    made: list[World] = []

    def make(shape: str) -> World:
        made.append(World(tmp_path / shape, shape))
        return made[-1]

    yield make
    for world in made:
        world.close()


@contextmanager
def locked(journal: Path, pid: int) -> Iterator[None]:
    """Hold the journal for longer than the proxy waits."""
    with closing(sqlite3.connect(journal, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def full(journal: Path, pid: int) -> Iterator[None]:
    """Let no file of the proxy grow, as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


failures = pytest.mark.parametrize(
    "broken",
    [locked, pytest.param(full, marks=pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux only"))],
    ids=["locked", "full"],
)


@failures
def test_what_cannot_be_remembered_is_not_sent(world_of: Any, broken: Any) -> None:
    """The record comes before the request. Reads need none; and when the journal is back, the call is sent once."""
    world = world_of("neither")
    proxy = world.proxy()
    assert block(proxy.call("charge", {"invoice": "in_1", "amount": 1})) == {}  # everything is loaded and open
    with broken(world.journal, proxy.process.pid):
        answer = proxy.call()
        assert ("new", "journal_unavailable") == (block(answer)["state"], block(answer)["code"])
        assert "charge was not sent" in text(answer)
        assert str(world.journal) in text(answer)
        assert 1 == len(world.effects)
        assert "in_1" in text(proxy.call("list_charges", {}))
    assert '"number": 1' in text(proxy.call())
    assert 2 == len(world.effects)


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "restarted"])
@pytest.mark.parametrize("shape", SHAPES)
@failures
def test_an_outcome_that_cannot_be_remembered_is_unknown_and_not_repeated(
    world_of: Any, broken: Any, shape: str, restarted: bool
) -> None:
    """The effect is there and the journal says "sending": the caller hears unknown, and the next call finds out."""
    world = world_of(shape)
    proxy = world.proxy()
    world.pause("before_reply")
    id = proxy.begin()
    world.reached("before_reply")
    with broken(world.journal, proxy.process.pid):
        world.go("before_reply")
        answer = proxy.answer(id)
        assert ("unknown", "unknown") == (block(answer)["state"], block(answer)["code"])
        assert "not sent" not in text(answer)
        if restarted:
            proxy.kill()
            proxy = None
    if proxy is None:
        proxy = world.proxy()
    answer = proxy.call()
    if shape == "neither" and restarted:
        assert ("unknown", "unverifiable") == (block(answer)["state"], block(answer)["code"])
    else:
        assert not answer["isError"], text(answer)
        if not restarted:
            assert '"number": 0' in text(answer), "the reply was kept until it could be written"
    assert 1 == len(world.effects)
    assert [] == world.problems()


def test_the_library_keeps_the_same_order(world_of: Any) -> None:
    """A full disk after the effect is Unknown, before it JournalError; a process that comes later repeats nothing."""
    worlds = [world_of(shape) for shape in SHAPES]
    call_in_turn({world: ["full_disk", "never"] for world in worlds})
    for world in worlds:
        first, second = (json.loads((world.folder / f"came.{n}").read_text()) for n in (0, 1))
        assert ("Unknown", "unknown") == (first["stopped"], first["code"])
        assert 1 == len(world.effects)
        if "neither" in world.contracts.parent.name:
            assert ("Held", "unverifiable") == (second["stopped"], second["code"])
        else:
            assert second["result"] in ({"number": 0}, None)


# -- gone, damaged, too new ----------------------------------------------------------------------------------------


def delete(journal: Path) -> None:
    """Lose the journal, and its log."""
    for file in journal.parent.glob("journal.db*"):
        file.unlink()


def overwrite(journal: Path) -> None:
    """Make it something else."""
    delete(journal)
    journal.write_bytes(b"not a database" * 400)


def empty(journal: Path) -> None:
    """Leave a file of no bytes."""
    delete(journal)
    journal.touch()


def scramble(journal: Path) -> None:
    """Keep the head of the file, and lose its pages."""
    size = journal.stat().st_size
    with open(journal, "r+b") as file:
        file.seek(100)
        file.write(os.urandom(size - 100))


def age(journal: Path) -> None:
    """Have a later version have written it."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
        connection.commit()


@pytest.mark.parametrize(
    ("damage", "code", "said"),
    [
        (delete, "journal_missing", "is gone"),
        (overwrite, "journal_unavailable", "is not a journal"),
        (empty, "journal_unavailable", "is empty"),
        (scramble, "journal_unavailable", "malformed"),
        (age, "journal_unavailable", "has schema version 99"),
    ],
)
def test_a_journal_that_says_nothing_stops_writes_and_names_its_file(
    world_of: Any, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], code: str, said: str
) -> None:
    """An empty start would forget what was sent. Reads pass, nothing else leaves, and the file stays as it was."""
    world = world_of("both")
    first = world.proxy()
    first.call("charge", {"invoice": "in_1", "amount": 1})
    assert 0 == first.leave()
    damage(world.journal)
    left = world.journal.read_bytes() if world.journal.exists() else None

    proxy = world.proxy()
    for _ in range(2):
        answer = proxy.call()
        assert ("new", code) == (block(answer)["state"], block(answer)["code"])
        assert said in text(answer)
        assert str(world.journal) in text(answer)
    assert "in_1" in text(proxy.call("list_charges", {}))
    assert 1 == len(world.effects)
    until(lambda: said in "".join(proxy.said))  # the operator's log
    monkeypatch.setenv("ONCEWARD_SECRET_FILE", str(world.secret))
    with pytest.raises(JournalError, match=said) as raised:
        Guard(world.contracts, world.journal, scope="s")
    assert code == raised.value.code.value
    assert left == (world.journal.read_bytes() if world.journal.exists() else None)


def test_a_new_journal_begins_when_a_person_says_why(
    world_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes pass again; and what the lost journal knew is looked for before anything is sent."""
    world = world_of("both")
    first = world.proxy()
    first.call()
    first.leave()
    delete(world.journal)
    monkeypatch.setenv("ONCEWARD_SECRET_FILE", str(world.secret))
    words = ["journal", "new", "--journal", str(world.journal)]
    assert 2 == main(words)
    assert "--why" in capsys.readouterr().err
    assert not world.journal.exists()
    assert 0 == main([*words, "--why", "the disk died", "--by", "ann"])
    assert "begins at" in capsys.readouterr().out

    proxy = world.proxy()
    assert "found_before_send" == block(proxy.call())["code"]
    assert 1 == len(world.effects)
    assert '"number": 1' in text(proxy.call("charge", {"invoice": "in_8", "amount": 1}))
    assert 2 == len(world.effects)


def test_a_proxy_that_runs_takes_up_a_new_journal_after_a_restart_only(world_of: Any) -> None:
    """It was told that its journal is gone, and says so until it is started anew."""
    world = world_of("neither")
    first = world.proxy()
    first.call("wipe", {"table": "t"})  # is held, which needs a journal
    first.leave()
    delete(world.journal)
    proxy = world.proxy()
    assert "journal_missing" == block(proxy.call())["code"]
    new = ["journal", "new", "--why", "moved", "--journal", str(world.journal)]
    command = [sys.executable, "-m", "onceward.adapters.cli", *new]
    subprocess.run(command, env=world.environ, capture_output=True, check=True)
    assert "journal_missing" == block(proxy.call())["code"]
    assert [] == world.effects
    proxy.process.send_signal(signal.SIGTERM)
    again: Client = world.proxy()
    assert '"number": 0' in text(again.call())
