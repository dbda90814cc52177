"""`onceward sweep`: read back what is due, park what was abandoned. It starts the tool server, and only reads."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from onceward import people, receipts
from onceward.outcomes import Reply
from onceward.recovery import Look

from ..mcp.asking import connected
from .common import JournalOption, JsonOption, ScopeOption, opened, printed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": False})
def sweep(
    contracts: Annotated[Path, typer.Option("--contracts", metavar="FILE", help="Contract file of the tool server.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The tool server's command.")
    ] = None,
    upstream: Annotated[str | None, typer.Option("--upstream", metavar="URL", help="Or its HTTP endpoint.")] = None,
    journal: JournalOption = None,
    scope: ScopeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Settle what reads can settle, and hold for its owner what nobody came back for."""
    if bool(command) == bool(upstream):
        raise typer.BadParameter("give the tool server's command after --, or --upstream URL")
    core, toolbox, store = opened(journal, contracts)

    async def run() -> list[people.Swept]:
        async with connected(command, upstream) as asker:

            async def look(asked: Look) -> Reply:
                return await asker.call(asked.name, asked.arguments)

            return await people.settle_due(core, toolbox, look, scope=scope)

    with closing(store):
        try:
            swept = asyncio.run(run())
        except OSError as error:
            server = upstream or " ".join(command or ())
            raise typer.BadParameter(f"{server} cannot be asked: {error}", param_hint="tool server") from error
    if as_json:
        printed([{"before": s.before, "after": s.after, **receipts.describe(s.row)} for s in swept])
        return
    for s in swept:
        typer.echo(f"{s.row.id[:12]} {s.row.tool}: {s.before} -> {s.after}")
    if not swept:
        typer.echo("Nothing is unsettled.")
