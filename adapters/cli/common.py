"""Options and openings that the commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from onceward.errors import JournalError
from onceward.evidence import Code
from onceward.gathering import Settings
from onceward.journal import Journal, SQLiteJournal, default_path, open_journal
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


@contextmanager
def looking(path: Path | None) -> Iterator[SQLiteJournal]:
    """Open the journal that is there: looking makes none, and needs no secret."""
    place = path if path is not None else default_path()
    if not place.exists():
        raise JournalError(
            f"there is no journal at {place}", remedy="name it with --journal", code=Code.JOURNAL_MISSING
        )
    with closing(open_journal(place, create=False)) as journal:
        yield journal


def printed(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(readable(json.dumps(value, indent=2, ensure_ascii=False)))


def readable(value: object) -> str:
    """Return text as a terminal may show it: a model wrote some of it, and control characters rewrite a screen."""
    # The escapes of JSON, so that JSON stays what it was.
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in str(value))


def cells(*values: object) -> list[Text]:
    """Return the cells of a table row; nothing in them is markup."""
    return [Text("" if value is None else readable(value)) for value in values]
