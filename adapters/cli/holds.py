"""`onceward holds`: what waits for a person, and what people decide."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onceward import people, receipts
from onceward.journal import IntentRow, Journal
from onceward.people import Word

from .common import (
    ContractsOption,
    JournalOption,
    JsonOption,
    ScopeOption,
    cells,
    looking,
    opened,
    printed,
    readable,
)

app = typer.Typer(
    help="See what waits for a person, and settle it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_holds(journal: JournalOption = None, scope: ScopeOption = None, as_json: JsonOption = False) -> None:
    """List the intents that are held, newest first."""
    with looking(journal) as store:
        rows = [receipts.describe(row) for row in store.list(scope=scope, held=True)]
    if as_json:
        printed(rows)
        return
    if not rows:
        typer.echo("Nothing is held.")
        return
    table = Table("intent", "tool", "code", "owner", "since", "arguments", "scope")
    for row in rows:
        arguments = str(row["arguments"])
        short = arguments if len(arguments) <= 60 else arguments[:57] + "..."
        about = (row["tool"], row["code"], row["owner"], row["created"], short, row["scope"])
        table.add_row(*cells(row["intent"][:12], *about))
    Console().print(table)


@app.command()
def show(
    intent: Annotated[str, typer.Argument(metavar="ID", help="The first letters of the intent's id.")],
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one intent: its arguments, every attempt, the whole history."""
    with looking(journal) as store:
        row = _one(store, intent)
        described = receipts.describe(row, store)
        history = [
            {"at": receipts.utc(event.at_s), "who": event.who, "what": event.what, "why": event.why, **event.data}
            for event in store.history(row.id)
        ]
    if as_json:
        printed({**described, "history": history})
        return
    for name in ("intent", "tool", "server", "scope", "label", "state", "code", "owner", "created", "settled"):
        if described[name] is not None:
            typer.echo(readable(f"{name:10} {described[name]}"))
    typer.echo(readable(f"{'arguments':10} {described['arguments']}"))
    for attempt in described["attempts"]:
        line = f"attempt {attempt['number']}: {attempt['state']} since {attempt['begun']} ({attempt['why']})"
        typer.echo(readable(line))
    for event in history:
        typer.echo(readable(f"{event['at']}  {event['who']}: {event['what']} {event['why']}"))


@app.command()
def resolve(
    intent: Annotated[str, typer.Argument(metavar="ID", help="The first letters of the intent's id.")],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides.")],
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What was seen; kept in the history.")],
    happened: Annotated[bool, typer.Option("--happened", help="The effect is there.")] = False,
    did_not_happen: Annotated[bool, typer.Option("--did-not-happen", help="The effect is not there.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Allow one more attempt under the original key.")] = False,
    void: Annotated[bool, typer.Option("--void", help="Nobody wants it any more.")] = False,
    override: Annotated[
        bool, typer.Option("--override", help="Take the word though an attempt may still take effect.")
    ] = False,
    journal: JournalOption = None,
    contracts: ContractsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about one intent. For an intent that waits for approval, --retry is the yes."""
    given: dict[Word, bool] = {
        "happened": happened,
        "did_not_happen": did_not_happen,
        "retry": retry,
        "void": void,
    }
    words = [word for word, said in given.items() if said]
    if len(words) != 1:
        raise typer.BadParameter("say exactly one of --happened, --did-not-happen, --retry, --void")
    core, toolbox, store = opened(journal, contracts)
    row = _one(store, intent)
    after = people.resolve(core, toolbox, row.id, words[0], by=by, why=why, override=override)
    if as_json:
        printed(receipts.describe(after))
    else:
        typer.echo(f"{after.id[:12]} {after.tool}: {receipts.shown_state(after)}")
    store.close()


def _one(journal: Journal, prefix: str) -> IntentRow:
    found = journal.find(prefix)
    if not found:
        raise typer.BadParameter(f"no intent begins with {prefix!r}", param_hint="ID")
    if len(found) > 1:
        ids = ", ".join(row.id[:16] for row in found[:5])
        raise typer.BadParameter(f"{len(found)} intents begin with {prefix!r}: {ids}", param_hint="ID")
    return found[0]
