"""Options and openings that the commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onceward.gathering import Settings
from onceward.journal import Journal, default_path
from onceward.opening import open_all
from onceward.recovery import Core
from onceward.toolbox import StaticToolbox, Toolbox

JournalOption = Annotated[
    Path | None, typer.Option("--journal", metavar="PATH", help="Journal file; $ONCEWARD_JOURNAL, or the state folder.")
]
ContractsOption = Annotated[Path | None, typer.Option("--contracts", metavar="FILE", help="The contract file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScopeOption = Annotated[str | None, typer.Option("--scope", metavar="S", help="Only this scope.")]


def opened(journal: Path | None, contracts: Path | None = None) -> tuple[Core, Toolbox, Journal]:
    """Open the journal that is there, and the contracts. Raises GuardError; looking makes no journal."""
    path = journal if journal is not None else default_path()
    if not path.exists():
        raise typer.BadParameter(f"there is no journal at {path}", param_hint="--journal")
    toolbox, open_one, secret = open_all(contracts if contracts is not None else StaticToolbox(), path)
    return Core(open_one, secret, Settings()), toolbox, open_one


def printed(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
