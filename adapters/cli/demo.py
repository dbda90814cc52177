"""`onceward demo`: what happens to one tool call without the guard, and with it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from onceward.adapters.demo.scenarios import CONTRACT, SCENARIOS, Row, play_all

from .common import JsonOption, printed
from .receipt import table_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_TOLD = "what the agent was told with the guard"
_WIDE = 50  #: columns that are enough for it in the table
_NOT_RUN = "not run here: pip install 'onceward[http]'"


@app.command()
def demo(
    as_json: JsonOption = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep ledgers and journals in this new folder.")
    ] = None,
) -> None:
    """See a card charged twice without the guard, once with it: real processes, real faults, the ledger is counted.

    Exit code 1 if a row does not show that.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise typer.BadParameter(f"{keep} is not empty", param_hint="--keep")
    with ExitStack() as stack:
        folder = (
            keep if keep is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-")))
        )
        bar = stack.enter_context(
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        )
        task = bar.add_task("playing", total=2 * len(SCENARIOS) - sum(s.missing for s in SCENARIOS))
        rows = play_all(folder, step=lambda: bar.advance(task))
    if as_json:
        printed([_as_data(row) for row in rows])
    else:
        _show(rows, keep)
    raise typer.Exit(int(not all(row.met for row in rows)))


def _as_data(row: Row) -> dict[str, object]:
    return {
        "scenario": row.scenario.name,
        "effects_off": row.off.effects,
        "effects_on": None if row.on is None else row.on.effects,
        "told": _told(row),
    }


def _show(rows: list[Row], keep: Path | None) -> None:
    console = Console()
    left = console.width - max(len(s.name) for s in SCENARIOS) - len("withoutwith + hold") - 4 * 3 - 1
    table = Table(title="effects in the tool server's ledger, where one was meant", title_justify="left")
    table.add_column("scenario", no_wrap=True)
    table.add_column("without", justify="right", no_wrap=True)
    table.add_column("with", justify="right", no_wrap=True)
    if left >= _WIDE:
        table.add_column(_TOLD)
    for row in rows:
        on = "-" if row.on is None else f"{row.on.effects}{' + hold' if row.on.held else ''}"
        counts = (f"[red]{row.off.effects}[/]", f"[{'green' if row.met else 'red'}]{on}[/]")
        table.add_row(row.scenario.name, *counts, *([escape(_told(row, left))] if left >= _WIDE else []))
    console.print(table)
    if left < _WIDE:
        console.print(f"\n{_TOLD}:", style="bold")
        for row in rows:
            console.print(escape(f"  {row.scenario.name}:\n    {_told(row, console.width - 4)}"), highlight=False)
    receipt = [entry for row in rows if row.on is not None for entry in row.on.receipt]
    if receipt:
        console.print()
        console.print(table_of(receipt))
    for row in rows:
        if not row.met:
            console.print(f"[red]not as expected:[/] {row.scenario.name}: {escape(_told(row))}", soft_wrap=True)
    if keep is not None:
        console.print(f"\nLedgers and journals: {escape(str(keep))}", soft_wrap=True)
    console.print("\nNext: put it in front of a tool server of your own. Where your agent's configuration says")
    console.print("    COMMAND ARGUMENTS", style="bold")
    console.print("say")
    console.print("    onceward proxy --contracts tools.yaml -- COMMAND ARGUMENTS", style="bold")
    console.print(f"and write tools.yaml after {escape(str(CONTRACT))}", soft_wrap=True)


def _told(row: Row, width: int | None = None) -> str:
    told = _NOT_RUN if row.on is None else row.on.told
    return told if width is None else shorten(told, width, placeholder="…")
