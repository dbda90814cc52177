"""Many processes on one journal: a crowd that starts at once, a worker that stalls, and one that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import Held, Stopped
from onceward.evidence import Code

WORKER = Path(__file__).with_name("worker.py")
BLIND = "charge: {effect: write, identity: [invoice]}"
SEEN = """
charge:
  effect: write
  identity: [invoice]
  in_flight: 2s
  read_back:
    tool: list_charges
    arguments: {invoice: invoice}
    items: items
    match: {invoice: invoice}
    created: created
    lag: 0.1s
list_charges: {effect: read}
"""


@pytest.fixture
def start(tmp_path: Path, shop: Any) -> Iterator[Any]:
    """Start workers; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(folder: Path, how: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKER), str(tmp_path / "journal.db"), str(shop.ledger), str(folder), how]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(what: Any) -> None:
    limit = time.monotonic() + 30
    while not what():
        assert time.monotonic() < limit, "a worker did not get so far"
        time.sleep(0.005)


def test_eight_processes_that_make_one_intent_at_once_cause_one_effect(
    tmp_path: Path, shop: Any, guard_of: Any, start: Any
) -> None:
    """All begin in the same instant, on one journal file; one sends, and all eight print its answer. Three rounds."""
    guard_of(BLIND)  # makes the journal
    for number in range(3):
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        workers = [start(folder, "race") for _ in range(8)]
        wait_for(lambda folder=folder: len(list(folder.glob("ready-*"))) == 8)
        (folder / "go").touch()
        answers = [json.loads(worker.communicate(timeout=30)[0]) for worker in workers]
        assert [f"round-{n}" for n in range(number + 1)] == [effect["invoice"] for effect in shop.effects]
        assert [answers[0]] * 8 == answers
        assert f"round-{number}" == answers[0]["charged"]


def test_br020_a_worker_that_stalls_past_its_lease_keeps_its_claim(
    tmp_path: Path, shop: Any, guard_of: Any, start: Any
) -> None:
    """Worker A is stopped in mid-call, its heartbeat ends and its lease runs out. Worker B is given the same step
    and does not send: the effect may still come. It does, and A's late answer then settles the intent for everybody.

    https://github.com/langchain-ai/langgraph/issues/7417
    """
    folder = tmp_path / "in_1"
    folder.mkdir()
    worker_b = guard_of(BLIND, patience_s=0.05)
    worker_a = start(folder, "stall")
    wait_for((folder / "left").exists)
    worker_a.send_signal(signal.SIGSTOP)
    codes: list[Code] = []

    def claim_is_lost() -> bool:
        with pytest.raises(Stopped) as stopped:
            worker_b.call("charge", {"invoice": "in_1", "amount": 100})
        codes.append(stopped.value.code)
        return stopped.value.code is not Code.RUNNING

    wait_for(claim_is_lost)
    assert codes[-1] is Code.UNVERIFIABLE
    assert [] == shop.requests
    (folder / "release").touch()
    worker_a.send_signal(signal.SIGCONT)
    answer = json.loads(worker_a.communicate(timeout=30)[0])
    assert {"charged": "in_1", "by": worker_a.pid} == answer
    assert answer == worker_b.call("charge", {"invoice": "in_1", "amount": 100})
    assert len(shop.effects) == 1
    assert [] == shop.requests


def test_br097_a_dead_holder_makes_an_intent_unknown_and_never_free(
    tmp_path: Path, shop: Any, guard_of: Any, start: Any
) -> None:
    """The function dies long before the withdrawal that it asked for happens. Its claim is over, the withdrawal is not:
    the next call waits for the bound, looks, and finds it.

    https://github.com/aws-powertools/powertools-lambda-python/issues/8049
    """
    folder = tmp_path / "in_2"
    folder.mkdir()
    guard = guard_of(SEEN)
    holder = start(folder, "stall")
    wait_for((folder / "left").exists)
    holder.kill()
    holder.wait()
    late = threading.Timer(0.4, shop.take, ("charge", {"invoice": "in_2", "amount": 100}))
    late.start()
    guard.call("charge", {"invoice": "in_2", "amount": 100})
    late.join()
    assert len(shop.effects) == 1
    (row,) = guard.journal.list()
    assert ["found by read-back"] == [a.detail["why"] for a in guard.journal.run(lambda s: s.attempts(row.id))]


def test_br097_where_nothing_can_be_seen_a_dead_holder_leaves_a_hold(
    tmp_path: Path, shop: Any, guard_of: Any, start: Any
) -> None:
    """Without a read-back a person is asked, and the same key is not accepted again however long ago the lease ended.

    https://github.com/aws-powertools/powertools-lambda-python/issues/8049
    """
    folder = tmp_path / "in_3"
    folder.mkdir()
    guard = guard_of(BLIND)
    holder = start(folder, "stall")
    wait_for((folder / "left").exists)
    holder.kill()
    holder.wait()
    for _ in range(2):
        with pytest.raises(Held) as held:
            guard.call("charge", {"invoice": "in_3", "amount": 100})
        assert held.value.code is Code.UNVERIFIABLE
    assert [] == shop.requests == shop.effects
