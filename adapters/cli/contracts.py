"""`onceward contracts`: show and check contract files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from onceward.contracts import (
    ContractFileError,
    Duration,
    ServerContracts,
    ToolContract,
    json_schema,
    lint,
    load,
    load_many,
)
from onceward.errors import ContractError
from onceward.evidence import Effect

app = typer.Typer(
    help="Show and check contract files.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def show(
    words: Annotated[
        list[str], typer.Argument(metavar="FILE... [TOOL...]", help="Contract files, then tools to show.")
    ],
    as_json: Json = False,
) -> None:
    """Say what each tool's contract promises, and what its silence means."""
    files = [word for word in words if Path(word).suffix in (".yaml", ".yml", ".json") or Path(word).is_file()]
    wanted = [word for word in words if word not in files]
    if not files:
        raise typer.BadParameter("name a contract file (.yaml or .json)", param_hint="FILE")
    loaded = load_many(files)
    unknown = next((name for name in wanted if not any(name in c.tools for c in loaded)), None)
    if unknown is not None:
        raise ContractError(
            f"there is no tool `{unknown}`",
            file=", ".join(files),
            remedy=f"name one of {', '.join(name for c in loaded for name in c.tools)}",
        )
    if as_json:
        typer.echo(json.dumps([_as_data(contracts, wanted) for contracts in loaded], indent=2, ensure_ascii=False))
        return
    for contracts in loaded:
        asked = f"asks {contracts.owner}" if contracts.owner else "each tool names who is asked"
        typer.echo(f"{contracts.server}  ({contracts.file}; {asked}; without contract: {contracts.uncontracted})")
        for name, tool in contracts.tools.items():
            if not wanted or name in wanted:
                typer.echo("")
                typer.echo("\n".join(_described(name, tool, contracts)))


@app.command("lint")
def lint_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Contract files.")], as_json: Json = False
) -> None:
    """Find promises that are missing, weak or at odds. Exit code 1 if any is an error."""
    findings: list[dict[str, Any]] = []
    lines: list[str] = []
    for file in files:
        try:
            found = lint(load(file))
        except ContractFileError as error:
            findings.extend(_refused(problem) for problem in error.problems)
            lines.extend(f"error: {problem}" for problem in error.problems)
            continue
        findings.extend(asdict(finding) for finding in found)
        lines.extend(map(str, found))
    if as_json:
        typer.echo(json.dumps(findings, indent=2, ensure_ascii=False))
    else:
        severities = [finding["severity"] for finding in findings]
        counts = [(severities.count(severity), severity) for severity in ("error", "warning", "note")]
        typer.echo("\n".join([*lines, ", ".join(f"{n} {severity}{'s' * (n != 1)}" for n, severity in counts)]))
    raise typer.Exit(int(any(finding["severity"] == "error" for finding in findings)))


@app.command()
def schema() -> None:
    """Print the JSON Schema of contract files."""
    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _refused(problem: ContractError) -> dict[str, Any]:
    where = {"file": problem.file, "tool": None, "field": problem.field, "line": problem.line}
    return {"severity": "error", **where, "problem": problem.problem, "remedy": problem.remedy}


def _as_data(contracts: ServerContracts, wanted: list[str]) -> dict[str, Any]:
    data: dict[str, Any] = contracts.model_dump(mode="json", by_alias=True, exclude_unset=True)
    tools = {name: tool for name, tool in data["tools"].items() if not wanted or name in wanted}
    return {"file": contracts.file, **data, "tools": tools}


def _described(name: str, tool: ToolContract, contracts: ServerContracts) -> list[str]:
    """Describe one tool, a promise a line; what is absent is said with what it means."""
    lines = [f"  {name}: {tool.effect.value}"]
    if tool.effect is Effect.READ:
        return lines
    for label, text in _promises(tool, contracts):
        lines.append(f"    {label:<12}{text}")
    for case, (when, variant) in zip(tool.cases, tool.variants, strict=True):
        condition = " and ".join(f"{path} = {json.dumps(value)}" for path, value in when.items())
        lines.append(f"    where {condition}:")
        before = dict(_promises(tool, contracts))
        changed = [(label, text) for label, text in _promises(variant, contracts) if before[label] != text]
        if case.effect is not None:
            changed.insert(0, ("effect", variant.effect.value))
        lines.extend(f"      {label:<10}{text}" for label, text in changed)
    return lines


def _promises(tool: ToolContract, contracts: ServerContracts) -> list[tuple[str, str]]:
    key, read = tool.key, tool.read_back
    identity = "every argument (none declared)" if tool.identity is None else ", ".join(tool.identity) or "no argument"
    again = "no harm" if tool.effect is Effect.IDEMPOTENT else "another effect"
    keyed = f"none: a re-issue would be {again}"
    if key is not None:
        keyed = f"{key.in_}, remembered {_bound(key.retention, 'for an unknown time: not relied on')}"
    seen = "none: the effect cannot be seen"
    if read is not None:
        hidden = f"hidden for up to {_bound(read.lag, 'an unknown time: absence proves nothing')}"
        seen = f"{read.tool}, {'shown at once' if read.lag and not read.lag.seconds else hidden}"
    return [
        ("identity", identity),
        ("may reword", ", ".join(tool.content) or "nothing"),
        ("key", keyed),
        ("read-back", seen),
        ("in flight", _bound(tool.in_flight, "without bound: absence proves nothing")),
        ("window", f"{tool.window}, once in each {tool.once if tool.once == 'scope' else 'window, whoever asks'}"),
        ("attempts", f"{tool.attempts} at most"),
        ("asks", tool.owner_or(contracts.owner or "nobody")),
    ]


def _bound(bound: Duration | None, absent: str) -> str:
    if bound is None:
        return absent
    return f"{bound} (assumed)" if bound.assumed else str(bound)
