"""What the stdio proxy costs: a relayed read, a guarded write, its start and its memory, beside the bare server.

The server is a small one of the MCP SDK, and the client speaks to its pipes without any SDK, so that what is compared
is the way and not the client. Both servers live for the whole run and are asked in turns.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .bench_calls import ROW_TEXT
from .bench_client import client, proxied
from .bench_journal import bare
from .bench_rows import Goal, Missing, Part, Place, Row, Watch, figure

READ = Goal(name="relayed read / direct read", limit=1.3)
WRITE = Goal(name="(guarded write - direct write) / two bare commits at FULL", limit=1.5)
START = Goal(name="start-up: through the proxy - the bare server", unit="s", limit=0.15)
START_SMALL = Goal(name="the same in front of a server without any SDK", unit="s")
MEMORY = Goal(name="resident memory of the proxy after 200 guarded calls", unit="MiB", limit=60.0)

_CONTRACTS = """\
version: 1
server: bench
owner: bench@example.com
tools:
  look_up: {effect: read}
  charge:
    effect: write
    identity: [invoice]
    key: {in: "argument:idempotency_key", retention: 24h, replays_errors: false, caches_refusals: false}
    in_flight: 1m
"""
_SMALL_CONTRACTS = """\
version: 1
server: payments
owner: bench@example.com
tools:
  charge_card: {effect: write, identity: [customer, invoice]}
"""
_SMALL_SERVER = "onceward.adapters.demo.server"


def measure_relay(place: Place) -> Sequence[Row]:
    """Time reads and writes, direct and through the proxy, and pairs of bare commits, turn by turn."""
    watch = Watch()
    server, contracts = _server(), _contracts(place.folder)
    with ExitStack() as stack:
        direct = stack.enter_context(client(server, place.folder))
        guarded = stack.enter_context(client(proxied(server, contracts, place.folder / "relay.db"), place.folder))
        commit = stack.enter_context(bare(place.folder / "bare.db", "FULL", ROW_TEXT))
        for one in (direct, guarded):  # the first calls of a process import and compile
            for number in range(5):
                one.call("look_up", invoice=f"warm-{number}")
                one.call("charge", invoice=f"warm-{number}", amount=2)
        for number in place.rounds(600, least=500, quick=6):
            for name, one in (("direct", direct), ("relayed", guarded)):
                with watch.timing(f"{name} read"):
                    one.call("look_up", invoice=str(number))
            for name, one in (("direct", direct), ("guarded", guarded)):
                with watch.timing(f"{name} write"):
                    one.call("charge", invoice=str(number), amount=2)
            with watch.timing("two commits"):
                commit()
                commit()
    read, direct_read = watch.figure("relayed read"), watch.figure("direct read")
    write, direct_write, floor = map(watch.figure, ("guarded write", "direct write", "two commits"))
    added = (write.median - direct_write.median) / floor.median
    return [
        Row(goal=READ, value=read.median / direct_read.median, figures=(read, direct_read)),
        Row(goal=WRITE, value=added, figures=(write, direct_write, floor)),
    ]


def measure_start(place: Place) -> Sequence[Row]:
    """Time from the start of a process to its first answer, with and without the proxy, turn by turn."""
    watch = Watch()
    small_contracts = place.folder / "small.yaml"
    small_contracts.write_text(_SMALL_CONTRACTS, encoding="utf-8")
    kinds: list[tuple[str, list[str], Path]] = []
    lacking = {}
    for name, command_of, contracts in (
        ("SDK server", _server, _contracts(place.folder)),
        ("small server", lambda: _small_server(place.folder), small_contracts),
    ):
        try:
            kinds.append((name, command_of(), contracts))
        except Missing as missing:
            lacking[name] = str(missing)
    for number in place.rounds(11, least=7, quick=1):
        for name, command, contracts in kinds:
            through = proxied(command, contracts, place.folder / f"start-{name[:3]}-{number}.db")
            for side, whole in (("bare", command), ("with proxy", through)):
                start = time.perf_counter()
                with client(whole, place.folder, at_ease=False) as one:
                    one.hello()
                    watch.add(f"{name}, {side}", time.perf_counter() - start)
    rows = []
    for goal, name in ((START, "SDK server"), (START_SMALL, "small server")):
        if name in lacking:
            rows.append(Row(goal=goal, note=lacking[name]))
            continue
        guarded, alone = (watch.figure(f"{name}, {side}", "ms") for side in ("with proxy", "bare"))
        rows.append(Row(goal=goal, value=(guarded.median - alone.median) / 1e3, figures=(guarded, alone)))
    return rows


def measure_memory(place: Place) -> Sequence[Row]:
    """Read the memory of a proxy when it is ready, and after 200 guarded calls."""
    command = proxied(_server(), _contracts(place.folder), place.folder / "memory.db")
    with client(command, place.folder) as one:
        ready_mib = one.resident_mib()
        for number in place.rounds(200, least=200, quick=10):
            one.call("charge", invoice=str(number), amount=2)
        after_mib = one.resident_mib()
    figures = (figure("after", "MiB", [after_mib]), figure("when ready", "MiB", [ready_mib]))
    return [Row(goal=MEMORY, value=after_mib, figures=figures)]


def _server() -> list[str]:
    if importlib.util.find_spec("mcp") is None:
        raise Missing("the MCP SDK is not installed: pip install 'onceward[dev]'")
    return [sys.executable, str(Path(__file__).with_name("bench_server.py"))]


def _small_server(folder: Path) -> list[str]:
    spec = importlib.util.find_spec(_SMALL_SERVER)
    if spec is None or spec.origin is None:
        raise Missing(f"there is no {_SMALL_SERVER}")
    return [sys.executable, spec.origin, "--ledger", str(folder / "ledger")]


def _contracts(folder: Path) -> Path:
    path = folder / "bench.yaml"
    path.write_text(_CONTRACTS, encoding="utf-8")
    return path


RELAY = Part(goals=(READ, WRITE), measure=measure_relay)
STARTING = Part(goals=(START, START_SMALL), measure=measure_start)
RESIDENT = Part(goals=(MEMORY,), measure=measure_memory)
