"""The command line, as a person runs it: a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """\
version: 1
server: payments
owner: dana@example.com
tools:
  list_charges: {effect: read}
  charge:
    effect: write
    identity: [customer, invoice]
    key: {in: "argument:idempotency_key", retention: 24h}
    read_back: {tool: list_charges, match: {invoice: invoice}, lag: 0s}
    in_flight: {assumed: 15m}
    cases:
      - when: {region: eu}
        key:
"""


def onceward(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onceward.adapters.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def imported(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "payments.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("effect: write", "effect: wirte"))
    return path


def test_show_says_what_is_promised_and_what_silence_means(good: Path):
    """An operator sees what the guard will assume."""
    shown = onceward("contracts", "show", good, "charge")
    assert (0, "") == (shown.returncode, shown.stderr)
    assert "charge: write" in shown.stdout
    assert "argument:idempotency_key, remembered 24h" in shown.stdout
    assert "list_charges, shown at once" in shown.stdout
    assert "15m (assumed)" in shown.stdout
    assert 'where region = "eu":\n      key       none: a re-issue would be another effect' in shown.stdout
    assert "list_charges: read" not in shown.stdout
    assert "list_charges: read" in onceward("contracts", "show", good).stdout


def test_show_prints_json(good: Path):
    """What is printed is the file, with short forms spelt out."""
    (shown,) = json.loads(onceward("contracts", "show", good, "--json").stdout)
    assert ("payments", str(good)) == (shown["server"], shown["file"])
    assert {"list_charges", "charge"} == set(shown["tools"])


def test_a_faulty_file_is_one_line_on_stderr_and_exit_code_2(bad: Path):
    """No traceback: the reader is an operator."""
    shown = onceward("contracts", "show", bad)
    expected = f"error: {bad}:7: tools.charge.effect: `wirte` is not an effect; did you mean `write`?\n"
    assert (2, "", expected) == (shown.returncode, shown.stdout, shown.stderr)


def test_a_tool_that_is_not_there_is_an_error(good: Path):
    """A mistyped name must not look like a tool without contract."""
    shown = onceward("contracts", "show", good, "chrage")
    assert 2 == shown.returncode
    assert "there is no tool `chrage`; name one of list_charges, charge" in shown.stderr


def test_lint_exits_1_on_errors_and_0_on_less(good: Path, bad: Path):
    """A pipeline stops on errors only."""
    linted = onceward("contracts", "lint", good)
    assert (0, "") == (linted.returncode, linted.stderr)
    assert linted.stdout.endswith("0 errors, 1 warning, 3 notes\n")
    both = onceward("contracts", "lint", good, bad, "--json")
    assert 1 == both.returncode
    found = json.loads(both.stdout)
    assert {"severity", "file", "tool", "field", "line", "problem", "remedy"} == set(found[0])
    assert [("error", str(bad), 7)] == [
        (f["severity"], f["file"], f["line"]) for f in found if f["severity"] == "error"
    ]


def test_the_schema_is_printed():
    """For editors: `onceward contracts schema > onceward.schema.json`."""
    assert "Onceward contracts" == json.loads(onceward("contracts", "schema").stdout)["title"]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(words: tuple[str, ...]):
    """Without importing any of them."""
    helped = onceward(*words)
    assert 0 == helped.returncode
    for name in ("demo", "proxy", "contracts", "journal", "holds", "receipt", "sweep"):
        assert f"  {name} " in helped.stdout


def test_the_version_is_printed():
    """Bug reports begin with it."""
    assert onceward("--version").stdout.startswith("onceward ")


def test_a_mistyped_command_is_answered_with_the_likely_one():
    """As everywhere else."""
    failed = onceward("contract")
    assert (
        2,
        "error: there is no command `contract`; did you mean `contracts`?\n",
    ) == (failed.returncode, failed.stderr)


def test_a_wrong_option_exits_2():
    """Usage errors are the terminal's usual ones."""
    assert 2 == onceward("contracts", "lint").returncode
    assert 2 == onceward("contracts", "lint", "--jsno", "a.yaml").returncode


def test_the_proxy_starts_without_the_weight_of_the_others():
    """Every tool server behind the guard pays for what is imported here."""
    code = "import onceward.adapters.cli as cli\ntry: cli.main(['proxy', '--help'])\nexcept SystemExit: pass"
    light = imported(code)
    assert "argparse" in light
    assert not light & {"typer", "rich", "pydantic", "yaml", "jmespath", "mcp", "httpx", "httpx2"}


def test_contracts_import_no_sdk_and_no_cli():
    """The guard reads contracts; it does not need a server or a terminal for that."""
    assert not imported("import onceward.contracts") & {"pydantic", "yaml", "jmespath", "mcp", "typer", "rich"}
    loaded = imported("from onceward.contracts import load, bind, lint\nload, bind, lint")
    assert "pydantic" in loaded
    assert not loaded & {"mcp", "httpx", "httpx2", "typer", "rich", "rapidfuzz", "starlette", "uvicorn"}
