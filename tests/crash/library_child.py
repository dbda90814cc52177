"""One guarded call of the library in a process of its own: `library_child.py FOLDER POINT`.

Prints what the call came to, as JSON. The tools are functions of this process, with the tool server's ledger.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import ledger_server
from crash_world import CHARGE, SCOPE
from dying import arm, die, hasten

from onceward import Guard, GuardError, JournalError, Stopped

FOLDER, POINT = Path(sys.argv[1]), sys.argv[2]


def charge(invoice: str, amount: int, idempotency_key: str | None = None) -> dict[str, Any]:
    """Charge, and die or lose the disk on the way where that is asked for."""
    if POINT == "before_effect":
        die()
    arguments = {"invoice": invoice, "amount": amount, "idempotency_key": idempotency_key}
    number = ledger_server.commit("charge", {name: value for name, value in arguments.items() if value is not None})
    if POINT == "before_reply":
        die()
    if POINT == "full_disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return {"number": number}


def list_charges() -> dict[str, Any]:
    """List the ledger."""
    return {"charges": ledger_server.entries()}


def main() -> None:
    """Make the call."""
    hasten()
    if POINT not in ("before_effect", "before_reply", "full_disk", "after_answer"):
        arm(POINT)
    try:
        guard = Guard(FOLDER / "contracts.yaml", FOLDER / "journal.db", scope=SCOPE)
        guard.tool(list_charges)
        came: dict[str, Any] = {"result": guard.tool(charge)(**CHARGE)}
    except Stopped as stopped:
        came = {"stopped": type(stopped).__name__, "told": stopped.told, **stopped.data}
    except JournalError as error:
        came = {"stopped": "JournalError", "code": error.code.value, "told": str(error)}
    except GuardError as error:
        came = {"stopped": type(error).__name__, "told": str(error)}
    print(json.dumps(came), flush=True)
    if POINT in ("after_answer", "full_disk"):
        die()


if __name__ == "__main__":
    main()
