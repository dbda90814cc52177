"""`onceward receipt`: what a scope did, and what of it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from onceward import receipts

from .common import JournalOption, JsonOption, ScopeOption, cells, looking, printed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def receipt(journal: JournalOption = None, scope: ScopeOption = None, as_json: JsonOption = False) -> None:
    """Print every intent of a scope (or of all): state, attempts, and what is uncertain."""
    with looking(journal) as store:
        rows = receipts.intents(store, scope=scope)
    if as_json:
        printed({"scope": scope, "intents": rows, "unsettled": len(receipts.unsettled(rows))})
        return
    Console().print(table_of(rows))
    open_rows = receipts.unsettled(rows)
    if open_rows:
        typer.echo(f"{len(open_rows)} not settled: onceward holds list; onceward sweep")


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the receipt as a table."""
    table = Table("intent", "tool", "state", "attempts", "when", "notes", title="receipt", title_justify="left")
    for row in rows:
        attempts = ", ".join(a["state"] for a in row["attempts"]) or "-"
        notes = [row["code"]] if row["code"] else []
        told = "; ".join([*notes, *row["notes"]])
        when = row["settled"] or row["created"]
        table.add_row(*cells(row["intent"][:12], row["tool"], row["state"], attempts, when, told))
    return table
