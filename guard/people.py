"""What people decide about intents, and the background work that reads for them.

A person's word is evidence with a name and a reason. "It did not happen" is taken only once no attempt can commit any
more; earlier only with an override, which the history keeps. `settle_due` is the sweep: it reads back what is due and
parks what nobody came back for; it never sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from . import applying, gathering
from .errors import GuardError
from .evidence import AttemptState, Code, Effect, Evidence, IntentState, commits_until_s
from .identity import Names
from .journal.base import IntentRow, Store
from .outcomes import Reply
from .recovery import Answer, Core, Look, Pause, Send, Step, recover
from .toolbox import Toolbox
from .tools import Tool

Word = Literal["happened", "did_not_happen", "retry", "void"]


class ResolveError(GuardError):
    """A person's decision cannot be taken as given. Attributes: `until_s`, after which it can (None = never)."""

    def __init__(self, problem: str, *, until_s: float | None = None) -> None:
        super().__init__(problem)
        self.until_s = until_s


def resolve(
    core: Core, toolbox: Toolbox, intent: str, word: Word, *, by: str, why: str, override: bool = False
) -> IntentRow:
    """Record what a person decided about an intent. Raises ResolveError when it cannot stand; then nothing changed."""
    if not by.strip() or not why.strip():
        raise ResolveError("a decision needs the name of who made it (--by) and a reason (--why)")

    def work(store: Store) -> IntentRow:
        row = store.intent(intent)
        if row is None:
            raise ResolveError(f"no intent {intent}")
        tool = toolbox.by_name(row.tool) or toolbox.tool(row.tool, {})
        if row.state is IntentState.HAPPENED:
            raise ResolveError(f"it happened already ({row.tool}); to undo it, use the tool's undo")
        _apply(core, store, tool, row, word, override)
        about = {"override": True} if override else {}
        store.event(row.id, f"person:{by.strip()}", word, why.strip(), **about)
        return row

    return core.journal.run(work)


def _apply(core: Core, store: Store, tool: Tool, row: IntentRow, word: Word, override: bool) -> None:
    attempts = store.attempts(row.id)
    if word == "happened":
        if not attempts:
            raise ResolveError("nothing was sent for this intent, so it cannot have happened through it")
        sent = next((a for a in reversed(attempts) if a.state.may_commit), attempts[-1])
        detail = {**sent.detail, "why": "a person saw it"}
        store.put_attempt(replace(sent, state=AttemptState.HAPPENED, ended_s=store.now_s, detail=detail))
        row.acknowledged = False
        applying.refold(core, store, tool, row)
        return
    if word in ("did_not_happen", "void") and not override:
        until_s = _may_commit_until(core, store, tool, row)
        if store.now_s <= until_s:
            when = "no in-flight bound is declared" if until_s == inf else "an attempt may still take effect"
            raise ResolveError(
                f"{when}, so this cannot be known yet; look again later, or say --override", until_s=until_s
            )
    facts = dict(row.facts)
    if word == "retry":
        facts["approved" if row.code is Code.NEEDS_APPROVAL else "released"] = True
        row.code = row.owner = None
        row.facts = facts
        store.put_intent(row)
        return
    facts["asserted_absent_s"] = store.now_s
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
        tool = toolbox.by_name(row.tool)
        if tool is None or tool.contract.effect is Effect.UNDECLARED:
            continue
        before = row.code.value if row.code else row.state.value
        await _background(core, toolbox, tool, row, look)
        now = core.journal.run(lambda store, id=row.id: store.intent(id))  # type: ignore[misc]  # id is bound early
        if now is not None:
            swept.append(Swept(now, before, now.code.value if now.code else now.state.value))
    return swept


async def _background(
    core: Core, toolbox: Toolbox, tool: Tool, row: IntentRow, look: Callable[[Look], Awaitable[Reply]]
) -> Answer:
    request = gathering.Request(
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
        tools=toolbox.by_name,
    )
    steps = recover(core, request)
    value: object = None
    while True:
        try:
            command = steps.send(value)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
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
