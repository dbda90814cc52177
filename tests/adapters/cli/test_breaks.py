"""What a model writes must not break the screen of the person who looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.contracts.compiling import toolbox_of
from onceward.contracts.loader import parse
from onceward.drive import Guard
from onceward.errors import Held

SECRET = b"a deployment secret of the tests"
CONTRACT = "version: 1\nserver: shop\nowner: ops\ntools:\n  charge: {effect: unsafe, identity: [customer]}\n"
NASTY = "[/red] \x1b[2J \x9b2J \u202e"


def test_no_command_lets_a_models_words_act_on_the_terminal(tmp_path: Path) -> None:
    """Square brackets were read as markup and ended the command; escapes reached the terminal. No secret file is there
    either: looking needs none, and the folder for it is made where the environment has the secret.
    """
    with Guard(toolbox_of(parse(CONTRACT)), tmp_path / "journal.db", secret=SECRET) as guard:
        with pytest.raises(Held):
            guard.call("charge", {"customer": NASTY}, lambda **arguments: None, scope=NASTY, label=NASTY)
        intent = next(iter(guard.journal.list())).id
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    lookers = [["holds", "list"], ["holds", "show", intent], ["journal", "list"], ["journal", "show", intent]]
    for command in (*lookers, ["receipt"], ["receipt", "--json"], ["journal", "export"]):
        argv = [sys.executable, "-m", "onceward.adapters.cli", *command, "--journal", str(tmp_path / "journal.db")]
        ran = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", env=environ, timeout=60)
        assert (0, "") == (ran.returncode, ran.stderr), command
        assert {"\x1b", "\x9b", "\u202e"}.isdisjoint(ran.stdout), command
        if command[-1] == "--json":
            assert NASTY == json.loads(ran.stdout)["intents"][0]["scope"]
    assert not (tmp_path / "none").exists()
    words = ["resolve", intent, "--void", "--by", "ops", "--why", "nobody wants it"]
    argv = [sys.executable, "-m", "onceward.adapters.cli", "holds", *words, "--journal", str(tmp_path / "journal.db")]
    environ["ONCEWARD_SECRET"] = SECRET.hex()
    ran = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=60)
    assert (0, "") == (ran.returncode, ran.stderr)
