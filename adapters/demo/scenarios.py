"""What goes wrong between an agent and a tool server, played twice: without the guard, and with it.

Each scenario is a short play in real processes: a tool server with a fault, an agent whose client gives up and asks
again, and, the second time, `onceward proxy` between them. Nothing else differs. What is counted afterwards are the
lines of the server's ledger. Times are real but short: a client that gives up after two seconds and a half stands for
one that gives up after a minute.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceward import receipts
from onceward.journal import open_journal
from onceward.keys import load_secret
from onceward.texts import BLOCK

from . import client, server
from .client import HttpClient, McpError, StdioClient, ToolResult
from .server import DemoServer, effects, listening

CONTRACT = Path(__file__).with_name("payments.yaml")

TIMEOUT_S = 2.5  #: the agent's client gives up
PATIENCE_S = 2.0  #: the guard answers before that
ATTEMPT_S = 1.0  #: and takes a request for lost early enough to do something about it
LATE_S = 2.8  #: a late effect; within the `in_flight` of the contract
_WAIT_S = 15.0  #: nothing here takes longer
_ASKS = 5  #: a model asks no more often than this
_AT_ONCE = 6  #: scenarios; more would wait for each other's processes

CHARGE = {"customer": "cus_42", "invoice": "in_7", "amount": 100}
MAIL = {"to": "ann@example.com", "subject": "Invoice in_7", "body": "Your invoice in_7 over 100 EUR is attached."}
REWORDED = {**MAIL, "body": "Your invoice in_7 over 100 EUR is attached. Thank you."}
MESSAGE = {"channel": "#billing", "text": "Invoice in_7 went out."}

_KNOWN = ("happened", "refused", "absent")  #: what the guard calls an outcome that is known
_SESSIONS = ("CLAUDE_CODE_SESSION_ID", "COPILOT_AGENT_SESSION_ID")


class Stage:
    """Where one run takes place: a folder with its own ledger, plan, secret and journal."""

    def __init__(self, folder: Path, *, guarded: bool) -> None:
        """Take an empty folder."""
        folder.mkdir(parents=True)
        self.scope, self.guarded = folder.parent.name, guarded
        self.ledger, self.plan, self.log = folder / "ledger.jsonl", folder / "plan.json", folder / "stderr.txt"
        self.journal, self.secret = folder / "journal.db", folder / "secret"
        # Whoever runs the demo inside an agent has a session of their own, and perhaps a journal.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        self.env = {name: value for name, value in kept.items() if name not in _SESSIONS}
        self.env["ONCEWARD_SECRET_FILE"] = str(self.secret)

    def proxy(self, *target: str) -> list[str]:
        """Return the command of the guard in front of a command, or with --listen of a URL."""
        patience = ["--patience", str(PATIENCE_S), "--attempt-timeout", str(ATTEMPT_S)]
        files = ["--contracts", str(CONTRACT), "--journal", str(self.journal), "--scope", self.scope]
        return [sys.executable, "-m", "onceward.adapters.cli", "proxy", *files, *patience, *target]

    def command(self) -> list[str]:
        """Return the command that the agent starts: the server, or the guard in front of it."""
        direct = DemoServer.command(self.ledger, self.plan)
        return self.proxy("--", *direct) if self.guarded else direct

    @contextmanager
    def agent(self) -> Iterator[StdioClient]:
        """Run an agent's client inside the block, connected."""
        with self.log.open("ab") as log, StdioClient(self.command(), env=self.env, log=log) as agent:
            agent.tools()
            yield agent

    @contextmanager
    def agent_over_http(self) -> Iterator[HttpClient]:
        """Do what `agent` does, for a server that runs by itself."""
        with DemoServer.serving(self.ledger, self.plan) as direct:
            if not self.guarded:
                with HttpClient(direct) as agent:
                    agent.tools()
                    yield agent
                return
            guard = self.proxy("--listen", "127.0.0.1:0", "--upstream", direct)
            with listening(guard, self.env) as url, HttpClient(url) as agent:
                agent.tools()
                yield agent

    def wait_for(self, count: int, until_s: float = _WAIT_S) -> None:
        """Wait until so many effects are there, or the time is over."""
        end_s = time.monotonic() + until_s
        while len(effects(self.ledger)) < count and time.monotonic() < end_s:
            time.sleep(0.02)

    def receipt(self) -> list[dict[str, Any]]:
        """Return the receipt of the run, empty without the guard."""
        if not self.journal.exists():
            return []
        journal = open_journal(self.journal, secret=load_secret(self.secret))
        try:
            return receipts.intents(journal)
        finally:
            journal.close()


# --- the plays: what the agent does, and what it was told in the end


def persist(ask: Callable[[], ToolResult]) -> ToolResult:
    """Ask as a model does: again after whatever is not an outcome, and later where it is told to wait."""
    told = ask()
    for number in range(1, _ASKS):
        block = told.body.get("_meta", {}).get(BLOCK, {})
        known = not told.is_error or block.get("permanent") or block.get("state") in _KNOWN
        if told.kind == "answered" and known:
            break
        # It is impatient at first, and waits only when it hears the same again.
        if number > 1 and block.get("not_before"):
            time.sleep(max(0.0, block["not_before"] - time.time()) + 0.05)
        told = ask()
    return told


def _charge(stage: Stage) -> str:
    with stage.agent() as agent:
        return persist(lambda: agent.call("charge_card", CHARGE, TIMEOUT_S)).text


def _charge_over_http(stage: Stage) -> str:
    with stage.agent_over_http() as agent:
        return persist(lambda: agent.call("charge_card", CHARGE, TIMEOUT_S)).text


def _mail_late(stage: Stage) -> str:
    with stage.agent() as agent:
        landed_s = time.monotonic() + LATE_S + 1.0
        told = persist(lambda: agent.call("send_mail", MAIL, TIMEOUT_S)).text
        stage.wait_for(2, until_s=landed_s - time.monotonic())  # the server lives until the late one is there
    return told


def _charge_twice_at_once(stage: Stage) -> str:
    with stage.agent() as agent, ThreadPoolExecutor(2) as both:
        first = both.submit(agent.call, "charge_card", CHARGE, TIMEOUT_S)
        time.sleep(0.05)  # while the first runs; so it is always the second whose words are shown
        second = both.submit(agent.call, "charge_card", CHARGE, TIMEOUT_S)
        first.result()
        return second.result().text


def _mail_reworded(stage: Stage) -> str:
    with stage.agent() as agent:
        agent.call("send_mail", MAIL, ATTEMPT_S * 0.8)  # this client does not even wait for the guard
        return persist(lambda: agent.call("send_mail", REWORDED, TIMEOUT_S)).text


def _charge_and_crash(stage: Stage) -> str:
    agent = [sys.executable, "-I", "-S", client.__file__, "--tool", "charge_card", "--arguments", json.dumps(CHARGE)]
    command = [*agent, "--timeout", str(_WAIT_S), "--", *stage.command()]
    with stage.log.open("ab") as log:
        first = subprocess.Popen(command, env=stage.env, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        stage.wait_for(1)
        os.killpg(first.pid, signal.SIGKILL)  # the agent and all that it started, as when the power fails
        first.wait()
        again = subprocess.run(command, env=stage.env, stdout=subprocess.PIPE, stderr=log, check=True)
    return str(json.loads(again.stdout)["text"])


def _post(stage: Stage) -> str:
    with stage.agent() as agent:
        return persist(lambda: agent.call("post_message", MESSAGE, TIMEOUT_S)).text


# --- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: a fault, and a play."""

    name: str
    faults: Sequence[tuple[str, str] | tuple[str, str, float]]
    play: Callable[[Stage], str]
    holds: bool = False  #: the contract allows nothing but to ask a person
    http: bool = False

    @property
    def missing(self) -> bool:
        """Tell whether what it needs is not installed."""
        return self.http and not (find_spec("httpx2") and find_spec("uvicorn"))


SCENARIOS = (
    Scenario(name="lost reply", faults=[("charge_card", "lost_reply")], play=_charge),
    Scenario(name="late commit", faults=[("send_mail", "late_commit", LATE_S)], play=_mail_late),
    Scenario(name="server killed after the effect", faults=[("charge_card", "die_after")], play=_charge),
    Scenario(
        name="HTTP 404 after the effect", faults=[("charge_card", "http_404_after")], play=_charge_over_http, http=True
    ),
    Scenario(name="same call twice at once", faults=[("charge_card", "slow", 0.5)], play=_charge_twice_at_once),
    Scenario(name="reworded retry", faults=[("send_mail", "lost_reply")], play=_mail_reworded),
    Scenario(name="crash and restart of the caller", faults=[("charge_card", "lost_reply")], play=_charge_and_crash),
    Scenario(name="lost reply, no way to look", faults=[("post_message", "lost_reply")], play=_post, holds=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to."""

    effects: int
    told: str
    receipt: Sequence[dict[str, Any]] = ()

    @property
    def held(self) -> bool:
        """Tell whether a person is asked."""
        return any(row["state"] == "held" for row in self.receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A scenario and its two runs."""

    scenario: Scenario
    off: Run
    on: Run | None  #: None: the guard's part could not be run here

    @property
    def met(self) -> bool:
        """Tell whether the row shows what it should: several effects without the guard, one with it."""
        if self.on is None:
            return self.off.effects >= 2
        once = self.on.effects <= 1 and self.on.held if self.scenario.holds else self.on.effects == 1
        return self.off.effects >= 2 and once


def play(scenario: Scenario, folder: Path, *, guarded: bool) -> Run:
    """Run one scenario in a folder that is not there yet. What fails is told in place of what the agent was told."""
    stage = Stage(folder, guarded=guarded)
    server.plan(stage.plan, scenario.faults)
    try:
        told = scenario.play(stage)
    except (McpError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        said = stage.log.read_text(errors="replace").strip() if stage.log.exists() else ""
        told = f"failed: {error} {said[-500:]}".strip()
    return Run(effects=len(effects(stage.ledger)), told=told, receipt=stage.receipt())


def play_all(
    folder: Path, scenarios: Sequence[Scenario] = SCENARIOS, *, step: Callable[[], None] = lambda: None
) -> list[Row]:
    """Run every scenario without and with the guard, several at once, and call `step` after each run."""
    wanted = [(s, guarded) for guarded in (True, False) for s in scenarios if not (guarded and s.missing)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {
            pool.submit(play, s, folder / s.name.replace(" ", "-") / ("on" if guarded else "off"), guarded=guarded): (
                s.name,
                guarded,
            )
            for s, guarded in wanted
        }
        runs: dict[tuple[str, bool], Run] = {}
        for done in as_completed(running):
            runs[running[done]] = done.result()
            step()
    return [Row(scenario=s, off=runs[s.name, False], on=runs.get((s.name, True))) for s in scenarios]
