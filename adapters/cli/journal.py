"""`onceward journal`: look into the journal, check it, tidy it, and begin a new one where one is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onceward import receipts
from onceward.evidence import IntentState
from onceward.journal import AttemptRow, EventRow, IntentRow, new_journal

from .common import JournalOption, JsonOption, ScopeOption, cells, looking, printed, readable

app = typer.Typer(
    help="Look into the journal, check it, tidy it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_intents(
    journal: JournalOption = None,
    scope: ScopeOption = None,
    state: Annotated[
        list[IntentState] | None, typer.Option("--state", help="Only this state; may be given more than once.")
    ] = None,
    held: Annotated[bool, typer.Option("--held", help="Only what waits for a person.")] = False,
    unsettled: Annotated[bool, typer.Option("--unsettled", help="Only what nobody can say yet.")] = False,
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most this many.")] = 50,
) -> None:
    """List intents, newest first."""
    with looking(journal) as store:
        found = store.list(
            scope=scope,
            states=state or None,
            held=True if held else None,
            unsettled=True if unsettled else None,
            limit=limit,
        )
        rows = [receipts.describe(row) for row in found]
    if as_json:
        printed(rows)
        return
    if not rows:
        typer.echo("No intent in the journal is like that.")
        return
    table = Table("intent", "tool", "state", "code", "begun", "settled", "label", "scope")
    for row in rows:
        times = (row["created"], row["settled"])
        table.add_row(
            *cells(row["intent"][:12], row["tool"], row["state"], row["code"], *times, row["label"], row["scope"])
        )
    Console().print(table)


@app.command()
def show(
    intent: Annotated[str, typer.Argument(metavar="ID", help="The first letters of the intent's id.")],
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one intent: its attempts, and all that was done about it in the order of time."""
    with looking(journal) as store:
        found = store.find(intent)
        if len(found) != 1:
            ids = ", ".join(row.id[:16] for row in found[:5])
            problem = (
                f"{len(found)} intents begin with {intent!r}: {ids}" if found else f"no intent begins with {intent!r}"
            )
            raise typer.BadParameter(problem, param_hint="ID")
        row = found[0]
        described = receipts.describe(row, store)
        attempts = store.run(lambda one: one.attempts(row.id))
        timeline = _timeline(row, attempts, list(store.history(row.id)))
        alive = {attempt.number: store.alive(attempt, store.clock()) for attempt in attempts}
    if as_json:
        printed({**described, "timeline": timeline})
        return
    for name, value in described.items():
        if name not in ("attempts", "notes", "key") and value is not None:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
            typer.echo(readable(f"{name:12} {text}"))
    table = Table("attempt", "state", "begun", "ended", "generation", "holder", title="attempts", title_justify="left")
    for attempt in attempts:
        sending = " (alive)" if alive[attempt.number] else " (its holder is gone)"
        state = attempt.state.value + (sending if attempt.ended_s is None else "")
        times = (receipts.utc(attempt.begun_s) or "", receipts.utc(attempt.ended_s) or "")
        holder = attempt.holder.rsplit("|", 2)[0].replace("|", " pid ")
        table.add_row(*cells(attempt.number, state, *times, attempt.generation, holder))
    Console().print(table)
    table = Table("time", "who", "what", "why", title="timeline", title_justify="left")
    for line in timeline:
        table.add_row(*cells(line["at"], line["who"], line["what"], line["why"]))
    Console().print(table)


@app.command()
def check(journal: JournalOption = None, as_json: JsonOption = False) -> None:
    """Look for damage, contradictions and open permissions. Exit code 1 if there is any."""
    with looking(journal) as store:
        problems = store.check()
    if as_json:
        printed(list(problems))
    else:
        typer.echo("\n".join(problems) or "The journal is sound.")
    if problems:
        raise typer.Exit(1)


@app.command()
def purge(
    journal: JournalOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop what is settled and past its window; what is unknown or held stays."""
    with looking(journal) as store:
        counts = store.purge(dry_run=dry_run)
    if as_json:
        printed(counts)
        return
    would = "would become" if dry_run else "became"
    typer.echo(f"{counts['purged']} settled intents {would} tombstones.")
    typer.echo(f"{counts['tombstones_dropped']} old tombstones {'would be' if dry_run else 'were'} dropped.")


@app.command()
def export(journal: JournalOption = None, scope: ScopeOption = None) -> None:
    """Print everything as JSON, one line for each intent (with its attempts) and each event."""
    with looking(journal) as store:
        for row in store.list(scope=scope):
            attempts = store.run(lambda one, id=row.id: one.attempts(id))  # type: ignore[misc]
            _line("intent", {**asdict(row), "attempts": [asdict(attempt) for attempt in attempts]})
        for event in store.history():
            _line("event", asdict(event))


@app.command()
def new(
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What became of the old one; kept in the history.")],
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides.")] = None,
    journal: JournalOption = None,
) -> None:
    """Begin a new journal where one is gone. What the old one knew of earlier calls is lost."""
    from onceward.keys import load_secret
    from onceward.opening import secret_path

    if not why.strip():
        raise typer.BadParameter("say what became of the old journal", param_hint="--why")
    place = secret_path()
    who = f"person:{by}" if by else "person"
    with closing(new_journal(journal, why=why, who=who, secret=load_secret(place), secret_path=place)) as store:
        typer.echo(f"A new journal begins at {store.path}.")
        typer.echo(
            f"Until {receipts.utc(store.new_until_s)} a first send is preceded by a read-back, where there is one."
        )


def _timeline(row: IntentRow, attempts: Sequence[AttemptRow], events: Sequence[EventRow]) -> list[dict[str, Any]]:
    lines: list[tuple[float, str, str, str]] = [(row.created_s, "guard", "intent begun", "")]
    for attempt in attempts:
        lines.append((attempt.begun_s, "guard", f"attempt {attempt.number} begun", ""))
        if attempt.ended_s is not None:
            why = str(attempt.detail.get("why", ""))
            lines.append((attempt.ended_s, "guard", f"attempt {attempt.number}: {attempt.state.value}", why))
    lines += [(event.at_s, event.who, event.what, event.why) for event in events]
    lines.sort(key=lambda line: line[0])
    return [{"at": receipts.utc(at_s), "who": who, "what": what, "why": why} for at_s, who, what, why in lines]


def _line(kind: str, values: dict[str, Any]) -> None:
    typer.echo(readable(json.dumps({"row": kind, **values}, ensure_ascii=False, default=lambda value: value.value)))
