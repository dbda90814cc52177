"""The demo's server and client, in real processes; and what the demo shows, counted in the server's ledger."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from onceward.adapters.demo.client import HANDSHAKE_ERA, STATELESS_ERA, HttpClient, StdioClient, ToolResult
from onceward.adapters.demo.scenarios import BLOCK, CONTRACT, SCENARIOS, Row, Run, Scenario, persist, play
from onceward.adapters.demo.server import FAULTS, DemoServer, effects, plan
from onceward.contracts import lint, load

CHARGE = {"customer": "cus_1", "invoice": "in_1", "amount": 100}
SHORT_S = 0.5
ENOUGH_S = 10.0


@contextmanager
def agent(how: str, ledger: Path, *faults: Any, era: str = HANDSHAKE_ERA, **flags: Any) -> Iterator[Any]:
    """Run the server and a client of it, over stdio or HTTP."""
    faults_file = plan(ledger.with_suffix(".plan"), faults)
    if how == "stdio":
        with StdioClient(DemoServer.command(ledger, faults_file, **flags), era=era) as client:
            yield client
    else:
        with DemoServer.serving(ledger, faults_file, **flags) as url, HttpClient(url, era=era) as client:
            yield client


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# -- the server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stdio", "http"])
def test_the_sdks_client_takes_it_for_a_tool_server(how: str, ledger: Path):
    """A demo against a toy that only its own client can talk to would show nothing."""
    mcp = pytest.importorskip("mcp")
    import anyio
    from mcp.client.stdio import StdioServerParameters

    async def session(target: Any) -> tuple[set[str], Any]:
        async with mcp.Client(target) as client:
            listed = await client.list_tools()
            called = await client.call_tool("charge_card", CHARGE)
            return {tool.name for tool in listed.tools}, called.structured_content

    if how == "stdio":
        command, *arguments = DemoServer.command(ledger)
        names, called = anyio.run(session, StdioServerParameters(command=command, args=arguments))
    else:
        with DemoServer.serving(ledger) as url:
            names, called = anyio.run(session, url)
    assert {"charge_card", "list_charges", "send_mail", "list_mail", "post_message"} == names
    [entry] = effects(ledger)
    assert {"id": entry["id"], "created_at": entry["at"], **CHARGE} == called


#: fault: effects of one call, and how the call ends over stdio and over HTTP
EXPECTED = {
    "ok": (1, "answered", "answered"),
    "lost_reply": (1, "timed_out", "timed_out"),
    "late_commit": (0, "timed_out", "timed_out"),
    "die_before": (0, "closed", "closed"),
    "die_after": (1, "closed", "closed"),
    "hang_before": (0, "timed_out", "timed_out"),
    "slow": (1, "answered", "answered"),
    "http_404_after": (1, "failed", "answered"),  # over HTTP the client sends it again by itself
    "503_after": (1, "failed", "failed"),
    "drop_after": (1, "closed", "closed"),
}


@pytest.mark.parametrize("era", [HANDSHAKE_ERA, STATELESS_ERA])
@pytest.mark.parametrize("how", ["stdio", "http"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_does_what_it_says(fault: str, how: str, era: str, ledger: Path):
    """Whoever tests with a fault trusts its name."""
    after_s = ENOUGH_S if fault == "late_commit" else 0.1
    timeout_s = SHORT_S if "timed_out" in EXPECTED[fault] else ENOUGH_S
    with agent(how, ledger, ("charge_card", fault, after_s), era=era) as client:
        told = client.call("charge_card", CHARGE, timeout_s)
        happened = len(effects(ledger))
    expected, *kinds = EXPECTED[fault]
    assert kinds[how == "http"] == told.kind
    assert told.resends == (fault == "http_404_after" and how == "http")
    assert expected + told.resends == happened


def test_a_late_effect_lands(ledger: Path):
    """A timeout is not a no: what the client gave up takes place afterwards."""
    with agent("stdio", ledger, ("charge_card", "late_commit", 1.0)) as client:
        assert "timed_out" == client.call("charge_card", CHARGE, 0.2).kind
        assert [] == effects(ledger)
        end_s = time.monotonic() + ENOUGH_S
        while not effects(ledger) and time.monotonic() < end_s:
            time.sleep(0.02)
    assert [CHARGE] == [entry["arguments"] for entry in effects(ledger)]


def test_a_key_covers_a_repeat_and_only_the_same_arguments(ledger: Path):
    """So do services that know keys; one of them is what the contract in the demo promises."""
    with agent("stdio", ledger) as client:
        keyed = {**CHARGE, "idempotency_key": "k1"}
        first, again = (client.call("charge_card", keyed, ENOUGH_S) for _ in range(2))
        other = client.call("charge_card", {**keyed, "amount": 7}, ENOUGH_S)
    assert first == again
    assert other.is_error
    assert "409" in other.text
    assert ["k1"] == [entry["key"] for entry in effects(ledger)]


def test_a_key_outlives_the_server(ledger: Path):
    """The keys are kept where the effects are, and not in the process that may die."""
    keyed = {**CHARGE, "idempotency_key": "k1"}
    with agent("stdio", ledger, ("charge_card", "die_after")) as client:
        assert "closed" == client.call("charge_card", keyed, ENOUGH_S).kind
        assert "answered" == client.call("charge_card", keyed, ENOUGH_S).kind
        assert 2 == client.starts
    assert 1 == len(effects(ledger))


def test_a_repeat_under_a_running_key_waits_for_the_first(ledger: Path):
    """`concurrent: safe` in the contract is a promise about this."""
    keyed = {**CHARGE, "idempotency_key": "k1"}
    with agent("stdio", ledger, ("charge_card", "late_commit", 1.0)) as client:
        assert "timed_out" == client.call("charge_card", keyed, 0.2).kind
        assert "answered" == client.call("charge_card", keyed, ENOUGH_S).kind
    assert 1 == len(effects(ledger))


def test_a_server_without_keys_offers_none_and_heeds_none(ledger: Path):
    """The other flavour: the same call twice is two effects."""
    with agent("stdio", ledger, keys=False) as client:
        schema = client.tools()[0]["inputSchema"]
        for _ in range(2):
            client.call("charge_card", {**CHARGE, "idempotency_key": "k1"}, ENOUGH_S)
    assert list(CHARGE) == list(schema["properties"])
    assert [None, None] == [entry["key"] for entry in effects(ledger)]


def test_a_fault_is_taken_once_whoever_restarts(ledger: Path):
    """Else a server that dies after each start could never be asked again."""
    faults = [("charge_card", "die_after"), ("send_mail", "ok"), ("charge_card", "die_before")]
    with agent("stdio", ledger, *faults) as client:
        kinds = [client.call("charge_card", CHARGE, ENOUGH_S).kind for _ in range(3)]
    assert ["closed", "closed", "answered"] == kinds
    assert [["send_mail", "ok"]] == json.loads(ledger.with_suffix(".plan").read_text())


def test_a_read_shows_what_is_older_than_the_lag(ledger: Path):
    """A fresh effect may not show yet; that is what a visibility lag is."""
    with agent("stdio", ledger, lag_s=60.0) as client:
        client.call("charge_card", CHARGE, ENOUGH_S)
        hidden = client.call("list_charges", {"customer": "cus_1"}, ENOUGH_S)
    with agent("stdio", ledger) as client:
        shown = client.call("list_charges", {"customer": "cus_1"}, ENOUGH_S)
        others = client.call("list_charges", {"customer": "cus_2"}, ENOUGH_S)
    [entry] = effects(ledger)
    charge = {"id": entry["id"], "created_at": entry["at"], **CHARGE}
    expected = [{"charges": []}, {"charges": [charge]}, {"charges": []}]
    assert expected == [told.body["structuredContent"] for told in (hidden, shown, others)]


def test_a_plan_with_an_unknown_fault_is_refused(tmp_path: Path):
    """A misspelt fault would be an ordinary call, and the test around it would pass for nothing."""
    with pytest.raises(ValueError, match="lost_repyl"):
        plan(tmp_path / "plan", [("charge_card", "lost_repyl")])
    assert not (tmp_path / "plan").exists()


# -- the client --------------------------------------------------------------------------------------------------

NOTES_WHAT_IT_HEARS = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    print(line, end="", file=sys.stderr, flush=True)
    if message["method"] == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}), flush=True)
"""


def test_a_client_that_gives_up_cancels_and_asks_again_under_another_id(tmp_path: Path):
    """No id of the transport survives a retry, which is why none can name an intent."""
    log = tmp_path / "heard"
    with log.open("wb") as stderr, StdioClient([sys.executable, "-c", NOTES_WHAT_IT_HEARS], log=stderr) as client:
        for _ in range(2):
            client.call("charge_card", CHARGE, 0.1, call_id="call_1")
    heard = [json.loads(line) for line in log.read_text().splitlines()]
    methods = ["tools/call", "notifications/cancelled"] * 2
    assert ["initialize", "notifications/initialized", *methods] == [message["method"] for message in heard]
    first, cancelled, second, _ = heard[2:]
    assert first["id"] == cancelled["params"]["requestId"]
    assert first["id"] != second["id"]
    assert {"callId": "call_1"} == first["params"]["_meta"] == second["params"]["_meta"]


def told(text: str, **block: Any) -> ToolResult:
    return ToolResult(kind="answered", text=text, is_error=True, body={"_meta": {BLOCK: block}})


def test_the_model_asks_until_it_is_told_an_outcome():
    """An answer that says unknown invites a retry; one that says happened, or that a person decides, does not."""
    timed_out = ToolResult(kind="timed_out", text="", is_error=True)
    unknown = told("unknown", state="unknown", permanent=False)
    for last in (
        told("it happened", state="happened", permanent=False),
        told("held", state="unknown", permanent=True),
        ToolResult(kind="answered", text="done", is_error=False),
    ):
        answers = iter([timed_out, unknown, last])
        assert last == persist(lambda answers=answers: next(answers))  # type: ignore[misc]  # a default binds the loop
    asked = count(1)
    assert unknown == persist(lambda: (next(asked), unknown)[1])
    assert 6 == next(asked), "it gives up after five"


# -- the scenarios -----------------------------------------------------------------------------------------------

by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name.replace(" ", "-"))


def test_the_contract_has_nothing_to_complain_of_but_what_it_leaves_out():
    """It is what people copy. That the message can neither be keyed nor seen is its point."""
    found = lint(load(CONTRACT))
    assert {"post_message"} >= {finding.tool for finding in found if finding.severity != "note"}
    assert not [finding for finding in found if finding.severity == "error"]


@by_name
def test_without_the_guard_it_happens_twice(scenario: Scenario, tmp_path: Path):
    """The fault is real: one thing was meant, and two are in the ledger."""
    assert 2 == play(scenario, tmp_path / "play" / "off", guarded=False).effects


@by_name
@pytest.mark.slow
def test_with_the_guard_it_happens_once(scenario: Scenario, tmp_path: Path):
    """The same server, fault and agent; only the proxy is between them."""
    if scenario.missing:
        pytest.skip("needs onceward[http]")
    run = play(scenario, tmp_path / "play" / "on", guarded=True)
    assert (1, scenario.holds) == (run.effects, run.held), run.told
    assert ["held" if scenario.holds else "happened"] == [row["state"] for row in run.receipt]


def test_a_row_is_met_by_several_effects_without_and_one_with():
    """Else the demo would end well though it shows nothing."""
    plain, holding = SCENARIOS[0], next(s for s in SCENARIOS if s.holds)
    held = ({"state": "held"},)

    def met(scenario: Scenario, off: int, on: int | None, receipt: Any = ()) -> bool:
        with_guard = None if on is None else Run(effects=on, told="", receipt=receipt)
        return Row(scenario=scenario, off=Run(effects=off, told=""), on=with_guard).met

    assert met(plain, 2, 1)
    assert met(plain, 2, None)
    assert not any([met(plain, 1, 1), met(plain, 2, 0), met(plain, 2, 2), met(plain, 2, 0, held)])
    assert met(holding, 2, 0, held)
    assert met(holding, 2, 1, held)
    assert not any([met(holding, 2, 1), met(holding, 2, 2, held)])


@pytest.mark.slow
def test_the_command_prints_what_it_counted(tmp_path: Path):
    """`--json` is for programs: the four fields of each row, and an exit code that tells whether all of them hold."""
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "onceward.adapters.cli", "demo", "--json", "--keep", str(kept)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    rows = json.loads(ran.stdout)
    assert 0 == ran.returncode, rows
    assert [s.name for s in SCENARIOS] == [row["scenario"] for row in rows]
    assert {("scenario", "effects_off", "effects_on", "told")} == {tuple(row) for row in rows}
    for scenario, row in zip(SCENARIOS, rows, strict=True):
        folder = kept / scenario.name.replace(" ", "-")
        assert row["effects_off"] == len(effects(folder / "off" / "ledger.jsonl"))
        if not scenario.missing:
            assert row["effects_on"] == len(effects(folder / "on" / "ledger.jsonl"))


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path):
    """Ledgers of two demos in one file would count both."""
    (tmp_path / "mine").touch()
    command = [sys.executable, "-m", "onceward.adapters.cli", "demo", "--keep", str(tmp_path)]
    assert 2 == subprocess.run(command, stderr=subprocess.PIPE, check=False).returncode
    assert ["mine"] == [path.name for path in tmp_path.iterdir()]
