"""What the README shows must work as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.adapters.cli import COMMANDS
from onceward.contracts import lint, load

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", README, re.S))


def test_its_contract_has_no_error_and_no_warning(tmp_path: Path):
    """It is what people copy."""
    file = tmp_path / "payments.yaml"
    file.write_text(BLOCKS["yaml"])

    assert [] == [str(f) for f in lint(load(file)) if str(f.severity) not in ("note", "Severity.NOTE")]


def test_its_python_says_what_it_says(tmp_path: Path):
    """The example is run with bodies in place of its dots, against a ledger."""
    (tmp_path / "payments.yaml").write_text(BLOCKS["yaml"])
    code = BLOCKS["python"].replace(
        "-> dict:\n    ...", "-> dict:\n    open('ledger', 'a').write('x'); return {'charges': []}"
    )
    assert code.count("open('ledger'") == 2
    code = code.replace('charge_card("cus_1", "in_7", 200)', "last()")
    code += "\nprint(len(open('ledger').read()))\n"
    lead = "from onceward import Conflict\ndef last():\n"
    lead += "    try: charge_card('cus_1', 'in_7', 200)\n    except Conflict as told: print(told.code.value)\n"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ONCEWARD_SECRET_FILE": str(tmp_path / "secret")}
    done = subprocess.run(
        [sys.executable, "-c", lead + code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )

    # One look of the young journal and one charge; nothing for the repeat, a conflict for the other amount.
    assert ["key_reused", "2"] == done.stdout.split(), done.stderr


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^    onceward (\w+)", README, re.M))))
def test_every_command_it_names_is_there(command: str):
    """A command that was renamed must be renamed here."""
    assert command in COMMANDS
