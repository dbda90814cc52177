"""Processes that die at one point of a guarded call: `arm(point)` replaces one function of the product, here only.

Run as `dying.py POINT PROXY_ARGUMENTS...` this is the proxy itself, in a process that kills itself at that point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from onceward import applying, recovery
from onceward.adapters.mcp.gate import GuardGate
from onceward.adapters.mcp.main import run
from onceward.drive import Guard
from onceward.gathering import Settings
from onceward.journal import SQLiteJournal
from onceward.shells import Shell


def hasten(*, send_allowance_s: float = 1.5, busy_s: float = 0.3) -> None:
    """Shorten the product's waits, so that a matrix of crashes fits into a minute."""
    _defaults(Settings)["send_allowance_s"] = send_allowance_s
    _defaults(SQLiteJournal)["busy_s"] = busy_s


def arm(point: str) -> None:
    """Make this process die at a point."""
    match point:
        case "never":
            pass
        case "before_intent":  # its rows are written in a transaction, which is not committed
            applying.begin = _dies_after(applying.begin)
        case "after_intent":  # durable, and nothing has left
            Shell.may_leave = _dies  # type: ignore[method-assign,assignment]  # this process ends there
        case "before_outcome":  # the reply is here, and not looked at
            recovery.classify = _dies
        case "in_outcome":  # recorded in a transaction, which is not committed
            applying.record_outcome = _dies_after(applying.record_outcome)
        case "before_answer":  # durable, and not yet told
            GuardGate.handle = _dies_after_async(GuardGate.handle)  # type: ignore[method-assign]
            Guard._finish = _dies  # type: ignore[method-assign,assignment]
        case _:
            raise ValueError(point)


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _dies(*args: Any, **kwargs: Any) -> Any:
    die()


def _dies_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def dying(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        die()

    return dying


def _dies_after_async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def dying(*args: Any, **kwargs: Any) -> Any:
        await function(*args, **kwargs)
        die()

    return dying


def _defaults(of: type) -> dict[str, Any]:
    defaults: dict[str, Any] | None = of.__init__.__kwdefaults__  # type: ignore[misc]  # the class itself is asked
    assert defaults is not None
    return defaults


if __name__ == "__main__":
    hasten()
    arm(sys.argv[1])
    sys.exit(run(sys.argv[2:]))
