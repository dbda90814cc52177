"""Lint: promises that are missing, weak or at odds, before a lost reply shows it.

An error is a contract under which a call cannot be guarded soundly; a warning costs holds or duplicates that one more
line would avoid; a note says what rests on the operator's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onceward.evidence import Effect

from .model import ServerContracts, ToolContract
from .parts import KEY_BITS

Severity = Literal["error", "warning", "note"]
DAY_S = 86_400.0
#: Words that name a version or a state: an effect named by one of them can be undone and then meant again.
_STATES = frozenset(
    {
        "version",
        "revision",
        "release",
        "tag",
        "commit",
        "sha",
        "state",
        "status",
        "enabled",
        "active",
        "phase",
        "stage",
        "ref",
        "digest",
        "build",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that should be better said."""

    severity: Severity
    file: str
    tool: str
    field: str  #: dotted, within the tool's contract
    line: int | None
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.severity}: {self.tool}.{self.field}: {self.problem}; {self.remedy}"


#: What a rule reports: severity, dotted field, problem, remedy.
Report = tuple[Severity, str, str, str]


def lint(contracts: ServerContracts) -> list[Finding]:
    """Return what should be better said, in the order of the file."""
    found: dict[tuple[str, str, str], Finding] = {}
    for name, tool in contracts.tools.items():
        for prefix, contract in (("", tool), *((f"cases.{n}.", v) for n, (_, v) in enumerate(tool.variants))):
            for severity, field, problem, remedy in _reports(contract, contracts.owner):
                if (name, field, problem) in found:
                    continue  # the case inherits what was already said of its tool
                line = contracts.line(
                    "tools", name, *(int(p) if p.isdigit() else p for p in f"{prefix}{field}".split("."))
                )
                found[name, field, problem] = Finding(
                    severity=severity,
                    file=contracts.file,
                    tool=name,
                    field=f"{prefix}{field}",
                    line=line,
                    problem=problem,
                    remedy=remedy,
                )
    return sorted(found.values(), key=lambda finding: finding.line or 0)


def _reports(tool: ToolContract, owner: str | None) -> Iterator[Report]:
    if tool.effect is Effect.READ:
        return
    if tool.owner is None and owner is None:
        yield "error", "owner", "nobody is named to be asked when an intent is held", "write `owner: who@example.com`"
    for rule in (_identity, _resource, _key, _read_back, _in_flight, _errors, _assumed):
        yield from rule(tool)


def _identity(tool: ToolContract) -> Iterator[Report]:
    if tool.identity is None:
        problem = "without it every argument names the effect, so a reworded retry is a new one"
        yield "error", "identity", problem, "list the arguments that name the effect, such as [customer, invoice]"


def _resource(tool: ToolContract) -> Iterator[Report]:
    paths = (*(tool.identity or ()), *tool.normalise)
    states = [
        p
        for p in paths
        if _STATES.intersection(p.replace("[]", "").replace("-", "_").lower().replace(".", "_").split("_"))
    ]
    if states and not tool.resource:
        problem = f"`{states[0]}` names a version or a state: going back to it later would be taken for a repeat"
        yield "warning", "resource", problem, "name the thing acted on, such as [service, environment]"


def _key(tool: ToolContract) -> Iterator[Report]:
    key = tool.key
    if key is None:
        return
    if key.retention is None:
        problem = "how long the service remembers a key is not said, so the key is never relied on"
        yield "warning", "key.retention", problem, "write the documented time, or {assumed: 24h}"
    else:
        remembered_s, bound_s = key.retention.seconds, tool.in_flight.seconds if tool.in_flight else None
        if bound_s is not None and remembered_s <= bound_s:
            problem = f"a key is forgotten after {key.retention}, while a request may still commit for {tool.in_flight}"
            yield "error", "key.retention", problem, "correct one of them; such a key covers no re-issue"
        elif remembered_s < DAY_S:
            problem = f"a key is forgotten after {key.retention}, before many a resumed run"
            yield "warning", "key.retention", problem, "add a read-back for what comes later"
        if remembered_s < tool.window.seconds and tool.read_back is None and remembered_s >= DAY_S:
            problem = f"a key is forgotten after {key.retention}, within the window of {tool.window}"
            yield "note", "key.retention", problem, "add a read-back for what comes later"
    if key.concurrent == "unsafe":
        problem = "a re-issue waits until the first request cannot commit any more"
        yield "note", "key.concurrent", problem, "write `safe` if the service locks a key while its request runs"
    if key.replays_errors is None:
        problem = "an error is taken to be replayed under the key, even where the effect ran"
        yield "note", "key.replays_errors", problem, "write true or false, as the vendor documents it"
    if key.on_repeat != "replay" and not any(rule.as_ in ("done", "busy") for rule in tool.errors):
        wanted = "done" if key.on_repeat == "conflict_done" else "busy"
        problem = (
            f"a repeat is answered as {key.on_repeat}, but no error rule knows that answer where no HTTP status shows"
        )
        yield "warning", "key.on_repeat", problem, f"add `errors: [{{text: ..., as: {wanted}}}]`"
    if key.format.token is not None and key.format.token.bits < KEY_BITS:
        problem = f"a key holds {key.format.token.bits:.0f} bits, so two intents may come to share one"
        yield "warning", "key.format", problem, f"allow longer keys or more characters, for {KEY_BITS} bits or more"
    if key.on_mismatch == "execute" and tool.identity is None:
        problem = "the service acts anew on the same key with other arguments"
        yield "warning", "key.on_mismatch", problem, "name the identity, so that the guard can compare"
    if tool.effect is Effect.IDEMPOTENT:
        problem = "a key on a tool whose same arguments twice are once"
        yield (
            "note",
            "key",
            problem,
            "leave the key out if the tool is idempotent, or write `effect: write` if it is not",
        )
    if tool.batch is not None and not key.resumes_batch and tool.read_back is None:
        problem = "a batch that ran in part is neither continued under its key nor seen"
        yield "warning", "read_back", problem, "add a read-back, or `key.resumes_batch: true` where the vendor says so"


def _read_back(tool: ToolContract) -> Iterator[Report]:
    read = tool.read_back
    if read is None:
        if tool.key is None and tool.effect in (Effect.WRITE, Effect.UNSAFE):
            problem = "neither key nor read-back: after a lost reply a person must look every time"
            yield "warning", "read_back", problem, "name a read that shows the effect"
        return
    if read.lag is None:
        problem = "how long an effect may stay hidden is not said, so absence proves nothing"
        yield "warning", "read_back.lag", problem, "write 0s if reads are immediate, else the time, or {assumed: 2m}"
    if read.created is None and read.stamp is None and not read.baseline:
        problem = "nothing tells our effect from an older one that looks the same"
        yield "warning", "read_back.created", problem, "write `created`, `stamp` or `baseline: true`"
    if read.pages is None and read.items is not None:
        problem = "a list is read as one page: whether it is full is not known"
        yield "warning", "read_back.pages", problem, "write {argument: cursor, next: next_cursor}, or {size: 100}"
    if read.lag is not None and tool.window.seconds < read.lag.seconds:
        problem = f"an effect may stay hidden for {read.lag}, longer than the window of {tool.window}"
        yield "warning", "window", problem, "make the window longer"


def _in_flight(tool: ToolContract) -> Iterator[Report]:
    if tool.in_flight is None:
        problem = (
            "how long a request may still commit is not said, so absence proves nothing and a held intent stays held"
        )
        yield "warning", "in_flight", problem, "write the documented time, or {assumed: 15m}"


def _errors(tool: ToolContract) -> Iterator[Report]:
    ours = tool.key is not None or (tool.read_back is not None and tool.read_back.stamp is not None)
    for number, rule in enumerate(tool.errors):
        if rule.as_ == "done" and not ours:
            problem = "`done` counts only where our own key or stamp was sent, and there is none"
            yield "warning", f"errors.{number}.as", problem, "add a key or a stamp, or write `unknown`"


def _assumed(tool: ToolContract) -> Iterator[Report]:
    for field, bound in tool.assumed.items():
        yield "note", field, f"{bound} is assumed, not documented", "ask the vendor, and name the page in `source`"
