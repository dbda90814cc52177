"""Recovery: one generator that carries decisions out, for a waiting caller or for background work.

`recover` yields commands and is sent their results; it does no I/O itself. A shell (`drive`) runs it: `Step` is one
durable journal step, `Send` lets a request leave, `Look` asks a read of the service, `Pause` waits. The order is the
promise: a request leaves only after the step that recorded its intent, key and deadline; an answer is given only after
the step that recorded its outcome.

Each step first records the news of the last command, then decides again from all rows as they now stand. So a second
process, a person or a late reply may settle the intent between any two steps, and the next decision sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from math import floor, inf
from typing import Any

from . import applying, gathering, reading
from .commands import Command, Core, Dispatch, Look, Pause, Send, Step
from .decision import decide
from .evidence import Act, AttemptState, Code, Decision, Effect, IntentState, Payload, fold
from .gathering import Request
from .journal.base import IntentRow, Journal, Store
from .outcomes import Reply, Verdict, classify
from .reading import Finding, Question
from .tools import Tool

__all__ = [
    "Answer",
    "Command",
    "Core",
    "Dispatch",
    "Look",
    "Pause",
    "Send",
    "Step",
    "read_back",
    "recover",
    "verdict_of",
]

_POLL_S = (0.004, 0.25)  #: a join looks again after this, doubling up to that


@dataclass(slots=True, kw_only=True)
class Answer:
    """How a guarded call ended."""

    decision: Decision
    state: IntentState
    intent: str | None
    now_s: float
    happened_s: float | None = None
    since_s: float | None = None
    result: str | None = None  #: the stored reply, as JSON
    reply: Reply | None = None  #: the reply as it came, when this call's own attempt brought it
    fresh: bool = False  #: this call's own attempt brought the outcome
    original: str | None = None  #: the original arguments, when they are not the caller's
    foreign: bool = False  #: it is about another caller's intent
    sent: int = 1  #: how many attempts were really sent for it
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What a step decided: an act that takes I/O, or an answer."""

    decision: Decision
    row: IntentRow | None
    now_s: float
    state: IntentState
    dispatch: Dispatch | None = None
    question: Question | None = None
    foreign: bool = False
    tool: Tool | None = None
    about: IntentRow | None = None  #: the intent that the caller is told about, where that is not its own
    sent: int = 1


@dataclass(slots=True)
class News:
    """What the last command brought, to be recorded by the next step."""

    dispatch: Dispatch | None = None
    verdict: Verdict | None = None
    reply: Reply | None = None
    intent: str | None = None
    finding: Finding | None = None
    status: Any = None
    looked: str | None = None  #: "read_back" or "status"
    started_s: float = 0.0
    begun_s: float | None = None  #: the attempt that dated the question; a finding about another one is void


def recover(core: Core, request: Request) -> Generator[Command, Any, Answer]:
    """Carry one call (or one background settlement) to its answer. Raises JournalError; then nothing was sent by it."""
    news: News | None = None
    looked = False
    poll_s = _POLL_S[0]
    while True:
        plan: _Plan = yield Step(_stepper(core, request, news))
        news = None
        decision = plan.decision
        if decision.act is Act.SEND or decision.act is Act.REISSUE or decision.act is Act.SEND_MISSING:
            assert plan.dispatch is not None
            reply: Reply | None = yield Send(plan.dispatch)
            news = _news_of(plan, reply)
            if news is not None and news.verdict and news.verdict.state is AttemptState.HAPPENED and not plan.foreign:
                # The common end: this call's own attempt happened. One step records it, nothing is left to decide.
                done: Answer | None = yield Step(_finisher(core, request, news))
                if done is not None:
                    return done
                news = None
        elif decision.act is Act.READ_BACK:
            if not request.waiting and looked:
                return _answer(request, plan, decision)  # background work looks once a run
            looked = True
            assert plan.question is not None
            news = yield from read_back(core, plan.question, plan.row.id if plan.row else None)
        elif decision.act is Act.READ_STATUS:
            news = yield from _read_status(core, plan)
        elif decision.act is Act.WAIT or decision.act is Act.JOIN:
            if not request.waiting:
                return _answer(request, plan, decision)
            until_s = inf if decision.until_s is None else decision.until_s
            now_s = core.journal.clock()
            if decision.act is Act.JOIN:
                yield Pause(min(poll_s, max(0.0, until_s - now_s) + 0.001))
                poll_s = min(2 * poll_s, _POLL_S[1])
            else:
                yield Pause(min(max(0.001, until_s - now_s + 0.001), max(0.001, request.patience_until_s - now_s)))
        else:
            return _answer(request, plan, decision)


def _news_of(plan: _Plan, reply: Reply | None) -> News | None:
    if reply is None:
        return None
    assert plan.dispatch is not None
    dispatch = plan.dispatch
    return News(dispatch=dispatch, verdict=verdict_of(dispatch, reply), reply=reply, intent=dispatch.intent)


def verdict_of(dispatch: Dispatch, reply: Reply) -> Verdict:
    """Return what a reply says about the attempt of a dispatch."""
    tool = dispatch.tool
    return classify(
        reply,
        tool.errors,
        own_key=dispatch.key is not None or bool(tool.read and tool.read.stamp_argument),
        inner_retries=tool.inner_retries,
        previous=dispatch.previous,
    )


def _finisher(core: Core, request: Request, news: News) -> Callable[[Store], Answer | None]:
    dispatch, verdict, reply = news.dispatch, news.verdict, news.reply
    assert dispatch is not None and verdict is not None and reply is not None

    def work(store: Store) -> Answer | None:
        row = store.intent(dispatch.intent)
        if row is None:
            return None
        applying.record_outcome(core, store, request.tool, row, dispatch.attempt, verdict, reply, dispatch.arguments)
        if row.state is not IntentState.HAPPENED:
            return None
        own = row.payload == request.names.payload and row.content == request.names.content
        return Answer(
            decision=Decision(act=Act.REPLAY),
            state=row.state,
            intent=row.id,
            now_s=store.now_s,
            happened_s=row.settled_s,
            result=row.result,
            reply=reply,
            fresh=True,
            original=None if own else row.request,
            facts=row.facts,
        )

    return work


def _stepper(core: Core, request: Request, news: News | None) -> Callable[[Store], _Plan]:
    def work(store: Store) -> _Plan:
        if news is not None:
            _record(core, store, request, news)
        return _plan(core, store, request)

    return work


def _record(core: Core, store: Store, request: Request, news: News) -> None:
    if news.intent is None:
        return
    row = store.intent(news.intent)
    if row is None:
        return
    tool = request.tool_of(row)
    if news.dispatch is not None and news.verdict is not None and news.reply is not None:
        sent = news.dispatch.arguments
        applying.record_outcome(core, store, tool, row, news.dispatch.attempt, news.verdict, news.reply, sent)
    elif news.finding is not None and news.begun_s == _dated_s(store, core.journal, tool, row):
        applying.record_finding(core, store, tool, row, news.finding, news.started_s)
    elif news.looked == "status":
        applying.record_status(core, store, tool, row, news.status)


def _plan(core: Core, store: Store, request: Request) -> _Plan:
    """Decide within one step until there is something to do, or to say."""
    # An identity that was never seen has no intents to read, except where the text alone may name an effect.
    # A key that the caller supplied may have come before with other arguments, so under another identity.
    known = request.intent is not None or request.key is not None or store.version(request.names.identity) > 0
    known = known or (request.tool.rules.identity is None and request.tool.contract.effect is not Effect.UNDECLARED)
    row, fresh_epoch = _own_row(store, request) if known else (None, 0)
    earlier: str | None = None
    for _ in range(100):
        attempts = store.attempts(row.id) if row is not None else ()
        others = gathering.others_of(store, core.journal, request, row) if known and request.waiting else ()
        evidence = gathering.gather(store, core, request, row, attempts, others=others, known=known)
        decision = decide(request.tool.contract, evidence, store.now_s)
        state = fold(request.tool.contract, evidence)
        plan = _Plan(decision=decision, row=row, now_s=store.now_s, state=state, tool=request.tool)
        plan.sent = sum(a.state.counts for a in attempts)
        if decision.act is Act.NEW_EPOCH:
            earlier = row.id if row is not None and state is IntentState.HAPPENED else None
            fresh_epoch, row = (row.epoch + 1 if row is not None else fresh_epoch), None
        elif decision.act is Act.SETTLE:
            assert row is not None
            applying.settle(core, store, request.tool, row, attempts, decision)
        elif decision.act is Act.DRIVE:
            driven = _drive(core, store, request, decision)
            if driven is not None:
                return driven
        elif decision.act.sends:
            if earlier is not None and decision.repeat_of is None:
                decision = replace(decision, repeat_of=earlier)
            plan.dispatch = applying.begin(core, store, request, row, attempts, decision, fresh_epoch)
            plan.row = None
            return plan
        elif decision.act is Act.HOLD:
            plan.row = applying.hold(core, store, request, row, decision, fresh_epoch)
            return plan
        else:
            plan.about = _note(store, request, row, decision)
            if decision.act is Act.READ_BACK:
                if row is None:
                    plan.row = row = applying.create(core, store, request, fresh_epoch)
                plan.question = question_of(store, core.journal, request.tool, row, request)
            return plan
    raise AssertionError("a decision that never comes to an act")


def _own_row(store: Store, request: Request) -> tuple[IntentRow | None, int]:
    """Return the caller's own intent, and the epoch that a new one would have."""
    if request.intent is not None:
        row = store.intent(request.intent)
        return row, row.epoch if row is not None else 0
    if request.call_id is not None:
        same = store.by_call(request.call_id)
        if same is not None:
            return same, same.epoch
    row = store.latest(request.names.base)
    return row, row.epoch if row is not None else 0


def _drive(core: Core, store: Store, request: Request, own: Decision) -> _Plan | None:
    """Settle another intent for this caller. None: it is settled, decide again for one's own."""
    assert own.other is not None
    for _ in range(100):
        row = store.intent(own.other)
        if row is None:
            return None
        tool = request.tool_of(row)
        attempts = store.attempts(row.id)
        evidence = gathering.gather(store, core, request, row, attempts, own=False)
        decision = decide(tool.contract, evidence, store.now_s)
        state = fold(tool.contract, evidence)
        plan = _Plan(decision=decision, row=row, now_s=store.now_s, state=state, foreign=True, tool=tool)
        if decision.act is Act.SETTLE:
            applying.settle(core, store, tool, row, attempts, decision)
            continue
        if not state.unsettled:
            applying.refold(core, store, tool, row)
            return None
        if decision.act.sends:
            plan.dispatch = applying.begin(core, store, replace(request, tool=tool), row, attempts, decision, row.epoch)
        elif decision.act is Act.READ_BACK:
            plan.question = question_of(store, core.journal, tool, row, request)
        elif decision.act is Act.HOLD:
            applying.hold(core, store, request, row, decision, row.epoch)
        elif decision.act is Act.ANSWER and decision.code is not Code.RUNNING:
            differs = gathering.payload_of(row, request) is Payload.TERMS
            code = Code.TERMS_CHANGED if differs else Code.UNSETTLED_SIBLING
            plan.decision = replace(decision, act=Act.CONFLICT, code=code, other=row.id)
        return plan
    raise AssertionError("a settlement that never comes to an act")


def _note(store: Store, request: Request, row: IntentRow | None, decision: Decision) -> IntentRow | None:
    """Remember that this caller is told something, so that it is told once. Return the intent that it is told about."""
    if decision.act not in (Act.TELL, Act.CONFLICT):
        return None
    about = store.intent(decision.other) if decision.other else row
    if about is None:
        return None
    if decision.act is Act.TELL or (decision.code is Code.SIMILAR_UNSETTLED and about.state is IntentState.HAPPENED):
        about.acknowledged = True
        about.open = applying.still_open(about)
    if request.names.content not in about.facts.get("told", ()):
        about.facts = {**about.facts, "told": [*about.facts.get("told", ()), request.names.content]}
    store.put_intent(about)
    store.event(about.id, "guard", "told", decision.code.value if decision.code else "", scope=request.scope)
    return about


def question_of(store: Store, journal: Journal, tool: Tool, row: IntentRow | None, request: Request) -> Question:
    """Return what an intent wants to know from its read-back."""
    arguments = gathering.stored(row.request) if row is not None else dict(request.arguments)
    begun_s = _dated_s(store, journal, tool, row) if row is not None else None
    owned = 0
    if row is not None and begun_s is not None:
        since_s = _counts_since_s(tool, row, begun_s)
        others = (other for other in store.open_of(row.identity) if other.id != row.id)
        owned = sum(o.state is IntentState.HAPPENED and (o.settled_s or 0.0) >= since_s for o in others)
    items = None
    if tool.batch is not None:
        wanted = reading.at_path(arguments, tool.batch.items)
        items = wanted if isinstance(wanted, list) else []
    return Question(
        tool=tool,
        arguments=arguments,
        reference=reading.reference(row.id if row is not None else request.names.base),
        begun_s=begun_s,
        baseline=row.facts.get("baseline") if row is not None else None,
        owned=owned,
        items=items,
    )


def _dated_s(store: Store, journal: Journal, tool: Tool, row: IntentRow) -> float | None:
    """Return when the first attempt began that may have had an effect: none that was refused, or is proven absent."""
    first = gathering.unresolved_of(store, journal, tool.contract, row, store.now_s)[:1]
    return first[0].begun_s if first else None


def _counts_since_s(tool: Tool, row: IntentRow, begun_s: float) -> float:
    """Return since when an effect of another intent may be among the matches: not in the baseline, or not before us."""
    if "baseline_s" not in row.facts:
        return floor(begun_s)  # a service that counts time in seconds cannot say which came first
    lag_s = tool.contract.read_back.lag_s if tool.contract.read_back else None
    baseline_s: float = row.facts["baseline_s"]
    return -inf if lag_s is None else baseline_s - lag_s


def read_back(core: Core, question: Question, intent: str | None) -> Generator[Command, Any, News]:
    """Read the whole list, page by page, and say what it proves."""
    assert question.tool.read is not None
    read = question.tool.read
    started_s = core.journal.clock()
    arguments = reading.arguments_of(read.arguments, question.arguments)
    items: list[Any] | None = []
    whole = True
    for _ in range(reading.PAGES_MAX):
        reply = yield Look(question.tool, read.tool, arguments, core.settings.attempt_timeout_s)
        value = reading.value_of(reply)
        page = None if value is None else reading.items_of(read, value)
        if page is None or items is None:
            items = None
            break
        items += page
        after = read.page_next.search(value) if read.page_next else None
        if not after or read.page_argument is None:
            whole = read.page_argument is not None or reading.is_whole(read, value, len(page))
            break
        arguments = {**arguments, read.page_argument: after}
    else:
        whole = False
    finding = reading.judge(question, items, whole=whole)
    begun_s = question.begun_s
    return News(intent=intent, finding=finding, looked="read_back", started_s=started_s, begun_s=begun_s)


def _read_status(core: Core, plan: _Plan) -> Generator[Command, Any, News]:
    assert plan.row is not None and plan.tool is not None and plan.tool.progress is not None
    row, progress = plan.row, plan.tool.progress
    data = {
        "arguments": gathering.stored(row.request),
        "result": json.loads(row.result) if row.result else None,
        "reference": row.facts.get("reference"),
    }
    arguments = reading.arguments_of(progress.arguments, data)
    reply = yield Look(plan.tool, progress.tool, arguments, core.settings.attempt_timeout_s)
    value = reading.value_of(reply)
    status = None if value is None else reading.progress_of(progress, value)
    return News(intent=row.id, looked="status", status=status)


def _answer(request: Request, plan: _Plan, decision: Decision) -> Answer:
    row = plan.about or plan.row
    foreign = plan.foreign or (plan.about is not None and plan.about is not plan.row)
    since_s = row.created_s if row is not None else None
    return Answer(
        decision=decision,
        state=plan.about.state if plan.about is not None else plan.state,
        intent=row.id if row is not None else decision.other,
        now_s=plan.now_s,
        happened_s=row.settled_s if row is not None and row.state is IntentState.HAPPENED else None,
        since_s=since_s,
        result=row.result if row is not None and not foreign else None,
        original=_original(row, request),
        foreign=foreign,
        sent=plan.sent,
        facts=row.facts if row is not None else {},
    )


def _original(row: IntentRow | None, request: Request) -> str | None:
    if row is None or (row.payload == request.names.payload and row.content == request.names.content):
        return None
    return row.request
