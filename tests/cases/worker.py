"""One process that makes one guarded charge, for test_processes: `worker.py JOURNAL LEDGER FOLDER HOW`.

HOW is `race` (begin once FOLDER/go exists), or `stall` (say FOLDER/left when the request has left, and take effect once
FOLDER/release exists). Prints what the call was answered, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from onceward.drive import Guard
from onceward.errors import Stopped
from onceward.evidence import Contract, Effect
from onceward.gathering import Settings
from onceward.identity import Rules
from onceward.journal.sqlite import SQLiteJournal
from onceward.toolbox import StaticToolbox
from onceward.tools import Tool

SECRET = b"a deployment secret of the tests"
LEASE_S = 0.6


def wait_for(file: Path) -> None:
    """Wait until somebody makes a file."""
    while not file.exists():
        time.sleep(0.002)


def main(journal_path: str, ledger: str, folder: Path, how: str) -> None:
    """Make the charge and print the answer."""
    box = StaticToolbox(
        Tool(
            name="charge",
            server="shop",
            contract=Contract(effect=Effect.WRITE, owner="ops@example.com"),
            rules=Rules(identity=("invoice",)),
        ),
        server="shop",
        owner="ops@example.com",
    )
    lease_s = LEASE_S if how == "stall" else 30.0
    journal = SQLiteJournal(journal_path, lease_s=lease_s)
    journal.new_until_s = 0.0
    settings = Settings(send_allowance_s=0.5, lease_s=lease_s)
    guard = Guard(box, journal, scope="run-1", patience_s=20.0, settings=settings, secret=SECRET)

    def charge(**arguments: Any) -> dict[str, Any]:
        if how == "stall":
            (folder / "left").touch()
            wait_for(folder / "release")
        else:
            time.sleep(0.1)
        handle = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, json.dumps({"tool": "charge", "created": time.time(), **arguments}).encode() + b"\n")
        os.close(handle)
        return {"charged": arguments["invoice"], "by": os.getpid()}

    if how == "race":
        (folder / f"ready-{os.getpid()}").touch()
        wait_for(folder / "go")
    try:
        answer: Any = guard.call("charge", {"invoice": folder.name, "amount": 100}, charge)
    except Stopped as stopped:
        answer = {"stopped": stopped.code.value}
    guard.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
