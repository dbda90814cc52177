"""What people decide about intents, and the background work that reads for them.

A person's word is evidence with a name and a reason. "It did not happen" is taken only once no attempt can commit any
more; earlier only with an override, which the history keeps. `settle_due` is the sweep: it reads back what is due and
parks what nobody came back for; it never sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import Any, Literal, TypeVar

from . import applying, gathering
from .errors import GuardError
from .evidence import AttemptState, Code, Contract, Effect, Evidence, Found, IntentState, commits_until_s
from .identity import Names
from .journal.base import IntentRow, Store
from .outcomes import Reply
from .reading import Question
from .receipts import utc
from .recovery import Command, Core, Look, Pause, Send, Step, question_of, read_back, recover
from .toolbox import Toolbox
from .tools import Tool

T = TypeVar("T")
COUNTED_S = 86_400.0  #: finished intents are counted for a day

Word = Literal["happened", "did_not_happen", "retry", "void"]

_UNBOUNDED = "no in-flight bound is declared, so it may still take effect at any time; name its contract (--contracts)"


class ResolveError(GuardError):
    """A person's decision cannot be taken as given. Attributes: `until_s`, after which it can (None = never)."""

    def __init__(self, problem: str, *, until_s: float | None = None) -> None:
        super().__init__(problem)
        self.until_s = until_s


def resolve(
    core: Core,
    toolbox: Toolbox,
    intent: str,
    word: Word,
    *,
    by: str,
    why: str,
    override: bool = False,
    only: Code | None = None,
) -> IntentRow:
    """Record what a person decided about an intent. Raises ResolveError when it cannot stand; then nothing changed.

    `only`: the word is about a hold of this code, and is void once the intent waits for nothing, or for something else.
    """
    if not by.strip() or not why.strip():
        raise ResolveError("a decision needs the name of who made it (--by) and a reason (--why)")

    def work(store: Store) -> IntentRow:
        row = store.intent(intent)
        if row is None:
            raise ResolveError(f"no intent {intent}")
        if only is not None and row.code is not only:
            raise ResolveError(f"intent {intent} is not held under {only.value}")
        tool = _tool_of(toolbox, row) or _unpromised(toolbox, row)
        if row.state is IntentState.HAPPENED:
            raise ResolveError(f"it happened already ({row.tool}); to undo it, use the tool's undo")
        _apply(core, store, tool, row, word, override)
        about = {"override": True} if override else {}
        store.event(row.id, f"person:{by.strip()}", word, why.strip(), **about)
        return row

    return core.journal.run(work)


def _tool_of(toolbox: Toolbox, row: IntentRow) -> Tool | None:
    """Return the tool of an intent under the contract for its arguments; None where these contracts say nothing."""
    # A journal may hold intents of many servers, and two servers may have a tool of one name.
    # A tombstone has lost its request.
    return toolbox.declared(row.tool, json.loads(row.request or "{}")) if row.server == toolbox.server else None


def _unpromised(toolbox: Toolbox, row: IntentRow) -> Tool:
    contract = Contract(effect=Effect.UNDECLARED, owner=row.owner or toolbox.owner)
    return Tool(name=row.tool, server=row.server, contract=contract)


def _apply(core: Core, store: Store, tool: Tool, row: IntentRow, word: Word, override: bool) -> None:
    attempts = store.attempts(row.id)
    if word == "happened":
        if not attempts:
            raise ResolveError("nothing was sent for this intent, so it cannot have happened through it")
        sent = next((a for a in reversed(attempts) if a.state.may_commit), attempts[-1])
        detail = {**sent.detail, "why": "a person saw it"}
        store.put_attempt(replace(sent, state=AttemptState.HAPPENED, ended_s=store.now_s, detail=detail))
        row.acknowledged, row.facts = False, {**row.facts, "by_person": True}
        applying.refold(core, store, tool, row)
        return
    keyless = tool.contract.key is None and tool.contract.effect is not Effect.IDEMPOTENT
    # Without a key, a second request beside one that may still land is a second effect, whoever asks for it.
    if (word in ("did_not_happen", "void") or (word == "retry" and attempts and keyless)) and not override:
        until_s = _may_commit_until(core, store, tool, row)
        if store.now_s <= until_s:
            when = (
                f"it may still take effect until {utc(ceil(until_s))}; look after that" if until_s < inf else _UNBOUNDED
            )
            raise ResolveError(f"{when}, or say --override", until_s=until_s)
    facts = dict(row.facts)
    if word == "retry":
        facts["approved" if row.code is Code.NEEDS_APPROVAL else "released"] = True
        row.code = row.owner = None
        row.facts = facts
        store.put_intent(row)
        return
    # The word is about what was begun until now, never about an attempt of the same instant that comes after it.
    facts["asserted_absent_s"] = attempts[-1].begun_s if attempts else store.now_s
    if word == "void":
        facts["void"] = True
    row.facts, row.code, row.owner = facts, None, None
    if attempts:
        applying.refold(core, store, tool, row)
    else:
        row.settled_s = store.now_s
        store.put_intent(row)


def _may_commit_until(core: Core, store: Store, tool: Tool, row: IntentRow) -> float:
    attempts = tuple(gathering.attempt_evidence(core.journal, a, None, store.now_s) for a in store.attempts(row.id))
    return commits_until_s(tool.contract, Evidence(attempts=attempts, absent_s=row.facts.get("absent_s")))


@dataclass(slots=True)
class Swept:
    """What a sweep found about one intent."""

    row: IntentRow
    before: str
    after: str


async def settle_due(
    core: Core, toolbox: Toolbox, look: Callable[[Look], Awaitable[Reply]], *, scope: str | None = None
) -> list[Swept]:
    """Read back what is unsettled or held, count what was finished, and hold what was abandoned. Reads only."""
    swept: list[Swept] = []
    seen: set[str] = set()
    rows = [*core.journal.list(scope=scope, unsettled=True), *core.journal.list(scope=scope, held=True)]
    for row in rows:
        if row.id in seen:
            continue
        seen.add(row.id)
        tool = _tool_of(toolbox, row)
        if tool is None or tool.contract.effect is Effect.UNDECLARED:
            continue
        before = row.code.value if row.code else row.state.value
        await _played(core, recover(core, _request(toolbox, tool, row)), look)
        now = core.journal.run(partial(_as_it_stands, core, tool, row.id))
        if now is not None:
            swept.append(Swept(now, before, now.code.value if now.code else now.state.value))
    for row in core.journal.list(scope=scope, states=[IntentState.HAPPENED], since_s=core.journal.clock() - COUNTED_S):
        counted = await _count(core, toolbox, row, look)
        if counted is not None:
            swept.append(counted)
    return swept


def _as_it_stands(core: Core, tool: Tool, intent: str, store: Store) -> IntentRow | None:
    """Return an intent; what a dead process left as running becomes unknown."""
    row = store.intent(intent)
    if row is not None:
        applying.refold(core, store, tool, row)
    return row


async def _count(
    core: Core, toolbox: Toolbox, row: IntentRow, look: Callable[[Look], Awaitable[Reply]]
) -> Swept | None:
    """Count what a finished intent made, once its lag is over: a request that was delivered twice shows only here."""
    tool = _tool_of(toolbox, row)
    lag_s = tool.contract.read_back.lag_s if tool is not None and tool.contract.read_back is not None else None
    done = row.facts.get("counted") or row.facts.get("tombstone")
    if tool is None or lag_s is None or tool.batch is not None or row.settled_s is None or done:
        return None
    if core.journal.clock() <= row.settled_s + lag_s:
        return None
    request = _request(toolbox, tool, row)

    def asked(store: Store) -> Question | None:
        # What began later for the same thing would be counted as ours; with a stamp it cannot be.
        if tool.read is None or (tool.read.stamp_argument is None and store.last(row.identity) != row.id):
            return None
        attempts = store.attempts(row.id)
        whole = question_of(store, core.journal, tool, row, request)
        return replace(whole, begun_s=attempts[0].begun_s, owned=0) if attempts else None

    question = core.journal.run(asked)
    if question is None:
        return None
    news = await _played(core, read_back(core, question, row.id), look)
    finding = news.finding
    if finding is None or finding.found is not Found.FOUND:
        return None
    found = finding.count

    def work(store: Store) -> IntentRow | None:
        now = store.intent(row.id)
        if now is None:
            return None
        twice = found > finding.expected and not now.facts.get("duplicated")
        now.facts = {**now.facts, "counted": found, **({"duplicated": True} if twice else {})}
        store.put_intent(now)
        if twice:
            store.event(now.id, "sweep", "duplicated", f"found {found} times", owner=tool.contract.owner)
        return now if twice else None

    doubled = core.journal.run(work)
    return Swept(doubled, "happened", "duplicated") if doubled is not None else None


def _request(toolbox: Toolbox, tool: Tool, row: IntentRow) -> gathering.Request:
    """Return an intent as background work asks for it."""
    return gathering.Request(
        tool=tool,
        arguments={},
        names=Names(
            base=row.base,
            identity=row.identity,
            kind=row.kind,
            resource=row.resource,
            payload=row.payload,
            content=row.content,
            arguments="",
        ),
        scope=row.scope,
        principal=row.principal,
        label=row.label,
        call=f"sweep-{row.id[:16]}",
        waiting=False,
        boundary=row.facts.get("boundary"),
        intent=row.id,
        tools=toolbox.declared,
    )


async def _played(core: Core, steps: Generator[Command, Any, T], look: Callable[[Look], Awaitable[Reply]]) -> T:
    value: object = None
    while True:
        try:
            command = steps.send(value)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(command, Step):
            value = core.journal.run(command.work)
        elif isinstance(command, Look):
            try:
                value = await asyncio.wait_for(look(command), command.timeout_s)
            except TimeoutError:
                value = Reply(kind="lost", text="the read was not answered in time")
        elif isinstance(command, Pause):
            await asyncio.sleep(command.seconds)
            value = None
        elif isinstance(command, Send):
            raise AssertionError("background work never sends")
