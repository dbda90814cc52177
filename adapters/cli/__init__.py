"""The command line: `onceward COMMAND`.

Each command is a module of its own, imported when it is asked for, so that `onceward proxy`, which stands in front of
every tool call, starts without the weight of the others. An error that the package raises on purpose is one line on
standard error and exit code 2; only our own bugs show a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """Where a command lives, and what it is for."""

    target: str  #: `module:attribute`, a typer app or a function of the remaining words that returns an exit code
    help: str


COMMANDS = {
    "demo": Command("onceward.adapters.cli.demo:app", "See a card charged twice without the guard, once with it."),
    "proxy": Command("onceward.adapters.mcp.main:run", "Stand in front of one MCP tool server."),
    "contracts": Command("onceward.adapters.cli.contracts:app", "Show and check contract files."),
    "journal": Command("onceward.adapters.cli.journal:app", "Look into the journal, check it, tidy it."),
    "holds": Command("onceward.adapters.cli.holds:app", "See what waits for a person, and settle it."),
    "receipt": Command("onceward.adapters.cli.receipt:app", "Print what a scope did."),
    "sweep": Command("onceward.adapters.cli.sweep:app", "Read back what is due, find what was abandoned."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the console entry."""
    words = list(sys.argv[1:] if argv is None else argv)
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in COMMANDS:
        return _run(name, rest)
    if name in ("--help", "-h", "help"):
        print(_usage())
        return 0
    if name == "--version":
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"onceward {version('onceward')}")
        except PackageNotFoundError:
            print("onceward (not installed: run from its source)")
        return 0
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "`onceward --help` lists the commands"
    return _fail(f"there is no command `{name}`; {hint}")


def _run(name: str, words: list[str]) -> int:
    module, _, attribute = COMMANDS[name].target.partition(":")
    try:
        command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return _fail(f"this installation has no `{name}`; install onceward anew")
    try:
        return int(command(words)) if name == "proxy" else _run_app(command, name, words)
    except Exception as error:
        # The person at the terminal is told; the family is imported late, so that nothing delays a proxy's start.
        from onceward.errors import GuardError

        if not isinstance(error, GuardError):
            raise
        return _fail(str(error))


def _run_app(app: Callable[..., Any], name: str, words: list[str]) -> int:
    """Run a typer app, which leaves by SystemExit."""
    try:
        app(args=words, prog_name=f"onceward {name}")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    return 0


def _fail(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: onceward COMMAND [OPTIONS]",
            "",
            "One intent, at most one effect; and when that cannot be known, a person is asked.",
            "",
            *lines,
            "",
            "`onceward COMMAND --help` says more. `onceward --version` prints the version.",
        ]
    )
