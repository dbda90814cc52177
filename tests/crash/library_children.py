"""Guarded calls of the library, each in a process of its own: `library_children.py '[[FOLDER, [POINT, ...]], ...]'`.

This process loads the product and forks; folders are worked on side by side, the points of one folder in order. What a
call came to is written to FOLDER/came.N as JSON; prints the wait statuses. The tools are functions of the process that
calls, with the tool server's ledger.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from crash_world import CHARGE, SCOPE
from dying import arm, die, hasten
from ledger_server import commit, entries

from onceward import Guard, GuardError, JournalError, Stopped
from onceward.contracts import compiling, loader

LOADED = (compiling, loader)  #: before the forks, and not in each of them
IN_THE_TOOL = ("before_effect", "before_reply", "full_disk", "after_answer")


def call(folder: Path, point: str) -> dict[str, Any]:
    """Make the guarded call, and die or lose the disk at the point."""

    def charge(invoice: str, amount: int, idempotency_key: str | None = None) -> dict[str, Any]:
        if point == "before_effect":
            die()
        arguments = {"invoice": invoice, "amount": amount, "idempotency_key": idempotency_key}
        number = commit(folder / "ledger", "charge", {k: v for k, v in arguments.items() if v is not None})
        if point == "before_reply":
            die()
        if point == "full_disk":
            _disk(0)
        return {"number": number}

    def list_charges() -> dict[str, Any]:
        return {"charges": entries(folder / "ledger")}

    if point not in IN_THE_TOOL:
        arm(point)
    try:
        guard = Guard(folder / "contracts.yaml", folder / "journal.db", scope=SCOPE)
        guard.tool(list_charges)
        return {"result": guard.tool(charge)(**CHARGE)}
    except Stopped as stopped:
        return {"stopped": type(stopped).__name__, "told": stopped.told, **stopped.data}
    except JournalError as error:
        return {"stopped": "JournalError", "code": error.code.value, "told": str(error)}
    except GuardError as error:
        return {"stopped": type(error).__name__, "told": str(error)}


def _disk(most: int) -> None:
    """Let no file grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def _child(number: int, folder: Path, point: str) -> None:
    came = call(folder, point)
    if point == "full_disk":
        _disk(resource.RLIM_INFINITY)
    (folder / f"came.{number}").write_text(json.dumps(came))
    if point in ("after_answer", "full_disk"):
        die()


def _folder(folder: Path, points: list[str]) -> None:
    os.environ["ONCEWARD_SECRET_FILE"] = str(folder / "secret")
    statuses = []
    for number, point in enumerate(points):
        pid = os.fork()
        if pid == 0:
            try:
                _child(number, folder, point)
            finally:
                os._exit(0 if (folder / f"came.{number}").exists() else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    (folder / "statuses").write_text(json.dumps(statuses))


def main() -> None:
    """Fork for every folder, and wait."""
    hasten()
    pids = []
    for folder, points in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            try:
                _folder(Path(folder), points)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
