"""A small simulated world: one service, its ledger of effects, a clock, and callers that take one command at a time.

The ledger is the truth: what was committed, when, for which arguments. The service is hostile within its promises: an
effect commits as late and shows as late as the bound and the lag allow, both inclusive. Callers run the real recovery
generator over a real SQLite journal, each with a journal of its own on the same file, so that a test can stop one right
before any command, kill it there, or let it go on as a zombie that the others take for dead. Time passes only by
`World.advance`, or while a caller waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from onceward.drive import Guard
from onceward.errors import GuardError
from onceward.evidence import Act, Code
from onceward.gathering import Settings
from onceward.journal.base import AttemptRow, Holder, IntentRow
from onceward.journal.sqlite import SQLiteJournal
from onceward.outcomes import Reply
from onceward.people import Word, resolve
from onceward.recovery import Answer, Command, Look, Pause, Send, Step, recover
from onceward.toolbox import StaticToolbox
from onceward.tools import Tool

START_S = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of one request: when it commits (None = never), and what is answered how much later."""

    commit_s: float | None = 0.0
    reply: int | str = "ok"  #: ok, lost, error (an MCP tool error), or an HTTP status
    reply_s: float = 0.0
    part: int | None = None  #: so many items of a batch commit, the others never
    before_key: bool = False  #: answered before the key is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """How the service treats idempotency keys."""

    locks: bool = True  #: a second request under the key is told `busy` while the first runs
    retention_s: float = inf
    caches_refusals: bool = True
    replays_errors: bool = True
    resumes: bool = False  #: a partly committed batch goes on under its key; else it is run again as a whole


@dataclass(slots=True, kw_only=True)
class Effect:
    """One line of the ledger."""

    at_s: float
    what: dict[str, Any]
    ours: bool = True


@dataclass(slots=True, kw_only=True)
class _Known:
    """What the service remembers of a key."""

    first_s: float
    done_s: float
    reply: Reply
    request: dict[str, Any]
    left: list[dict[str, Any]]  #: items of a batch that did not commit


KEYS, SETTINGS = Keys(), Settings()


class World:
    """One service and its clock."""

    def __init__(self, folder: Path, *, lag_s: float = 0.0, keys: Keys = KEYS, settings: Settings = SETTINGS):
        self.folder, self.lag_s, self.keys, self.settings = folder, lag_s, keys, settings
        self.now = START_S
        self.wall_shift_s = 0.0  #: how far the wall clock was set away from steady time
        self.new_until_s = 0.0  #: until then every journal opened here counts as new
        self.dead: set[str] = set()  #: holders that everybody takes for dead
        self.plans: list[Plan] = []  #: for the first, second, ... request that is sent; then all goes well
        self.ledger: list[Effect] = []
        self.sent: list[tuple[float, dict[str, Any], str | None]] = []
        self.told: list[tuple[Caller, Answer]] = []
        self.journals: list[SimulatedJournal] = []
        self._coming: list[tuple[float, int, dict[str, Any]]] = []
        self._known: dict[str, _Known] = {}
        self._counted = 0

    @property
    def ours(self) -> list[dict[str, Any]]:
        """Return the effects that our requests caused, in the order in which they took place."""
        return [effect.what for effect in self.ledger if effect.ours]

    @property
    def claims(self) -> int:
        """Count the intents whose effect a caller was given as its own."""
        return len({(c.request.scope, c.request.label, a.intent) for c, a in self.told if a.decision.act is Act.REPLAY})

    def advance(self, seconds: float) -> None:
        """Let time pass; what was to commit by then has committed."""
        self.now += seconds
        while self._coming and self._coming[0][0] <= self.now:
            at_s, _, what = heapq.heappop(self._coming)
            self.ledger.append(Effect(at_s=at_s, what=what))

    def foreign(self, **what: Any) -> None:
        """Let somebody else cause an effect."""
        self.ledger.append(Effect(at_s=self.now, what=what, ours=False))

    def send(self, tool: Tool, arguments: dict[str, Any], key: str | None) -> tuple[Reply, float]:
        """Take a request; return the answer and how long it takes to come."""
        plan = self.plans[len(self.sent)] if len(self.sent) < len(self.plans) else Plan()
        self.sent.append((self.now, arguments, key))
        known = self._known.get(key) if key is not None and not plan.before_key else None
        if known is not None and self.now < known.first_s + self.keys.retention_s:
            if known.request != arguments:
                return Reply(kind="http", status=422, body={"error": "other arguments under this key"}), 0.0
            if self.now >= known.done_s and (self.keys.resumes or not known.left):
                self._commit_all(known.left, 0.0)
                known.left = []
                return known.reply, 0.0
            if self.keys.locks and self.now < known.done_s:
                return Reply(kind="http", status=409, body={"error": "in progress"}), 0.0
        items = self._items(tool, arguments)
        now = items if plan.part is None else items[: plan.part]
        if plan.commit_s is not None:
            self._commit_all(now, plan.commit_s)
        reply = self._reply(plan)
        arrived = plan.commit_s is not None or reply.kind != "lost"
        if key is not None and arrived and not plan.before_key:
            stored = self._reply(Plan()) if plan.reply == "lost" or not self._keeps(plan) else reply
            if plan.commit_s is not None or self._keeps(plan):
                left = items[len(now) :]
                done_s = self.now + (plan.commit_s or 0.0)
                self._known[key] = _Known(first_s=self.now, done_s=done_s, reply=stored, request=arguments, left=left)
        return reply, plan.reply_s

    def read(self, arguments: dict[str, Any]) -> Reply:
        """Show what is visible now and fits the arguments. What committed `lag_s` ago may still be hidden."""
        self.advance(0)
        seen = [e for e in self.ledger if e.at_s + self.lag_s < self.now or not self.lag_s]
        items = [{**e.what, "created": e.at_s} for e in seen]
        return Reply(kind="result", body=[i for i in items if all(i.get(n) == v for n, v in arguments.items())])

    def journal(self) -> SimulatedJournal:
        """Open the journal for one more process."""
        journal = SimulatedJournal(self)
        self.journals.append(journal)
        return journal

    def close(self) -> None:
        """Close every journal."""
        for journal in self.journals:
            journal.close()

    def _items(self, tool: Tool, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if tool.batch is None:
            return [arguments]
        return list(arguments[tool.batch.items])

    def _commit_all(self, items: Sequence[dict[str, Any]], after_s: float) -> None:
        for item in items:
            self._counted += 1
            heapq.heappush(self._coming, (self.now + after_s, self._counted, item))
        self.advance(0)

    def _keeps(self, plan: Plan) -> bool:
        if isinstance(plan.reply, int) and 400 <= plan.reply < 500:
            return self.keys.caches_refusals
        return plan.reply in ("ok", "lost") or self.keys.replays_errors

    def _reply(self, plan: Plan) -> Reply:
        match plan.reply:
            case "ok":
                return Reply(kind="result", body={"done": True})
            case "lost":
                return Reply(kind="lost", text="no answer came")
            case "error":
                return Reply(kind="result", body={"isError": True, "content": [{"type": "text", "text": "failed"}]})
            case status:
                assert isinstance(status, int)
                return Reply(kind="http", status=status, body={"error": status})


class SimulatedJournal(SQLiteJournal):
    """The journal of one process: real rows on a real file, and a life that the world decides."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(
            world.folder / "journal.db",
            synchronous="NORMAL",  # the simulated crash is one of processes, never of the machine
            time_source=lambda: world.now + world.wall_shift_s,
            monotonic=lambda: world.now,
        )
        self.new_until_s = world.new_until_s

    def alive(self, attempt: AttemptRow, now_s: float) -> bool:
        """Ask the world, and the lease."""
        return attempt.holder not in self.world.dead and now_s <= attempt.lease_until_s

    def extend_leases(self) -> None:
        """Extend nothing: no background thread beats in simulated time."""


@dataclass(slots=True)
class Caller:
    """One guarded call in a process of its own, one command at a time."""

    world: World
    tool: Tool
    arguments: dict[str, Any]
    scope: str = "run-1"
    label: str | None = None
    patience_s: float = 45.0
    journal: SimulatedJournal | None = None
    background: str | None = None  #: the intent that is settled without a caller, as a sweep does
    unheard: tuple[Reply, Any, float] | None = field(init=False, default=None)  #: what comes when patience is over
    guard: Guard = field(init=False)
    request: Any = field(init=False)
    command: Command | None = field(init=False)
    answer: Answer | None = field(init=False, default=None)
    _steps: Any = field(init=False)
    _reply: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Name the call; nothing is decided before the first `advance`."""
        self.journal = self.journal or self.world.journal()
        toolbox = StaticToolbox(self.tool, server=self.tool.server)
        self.guard = Guard(toolbox, self.journal, secret=b"s" * 32, settings=self.world.settings)
        self.request = self.guard.request(
            self.tool, self.arguments, scope=self.scope, label=self.label, patience_s=self.patience_s
        )
        self.request.call = f"call-{len(self.world.told)}-{self.journal.holder.token}"
        if self.background is not None:
            self.request.waiting, self.request.intent, self.request.patience_until_s = False, self.background, inf
        self._steps = recover(self.guard.core, self.request)
        self.command = next(self._steps)

    def leave(self) -> None:
        """Let the bytes of the present request or read leave, and keep what comes back for the next `advance`."""
        command = self.command
        if isinstance(command, Send):
            assert self.background is None, "background work sends"
            dispatch = command.dispatch
            if not self.guard.may_leave(dispatch):
                self._reply = Reply(kind="not_sent"), 0.0
            else:
                self._reply = self.world.send(dispatch.tool, dispatch.arguments, dispatch.key)
        elif isinstance(command, Look):
            self._reply = self.world.read(command.arguments), 0.0

    def advance(self) -> bool:
        """Run one command. False: the call has its answer."""
        value: Any = None
        match self.command:
            case Step(work):
                assert self.journal is not None
                value = self.journal.run(work)
            case Send() | Look():
                if self._reply is None:
                    self.leave()
                value = self._arrived()
            case Pause(seconds):
                self.world.advance(seconds)
            case None:
                return False
        try:
            self.command = self._steps.send(value)
        except StopIteration as end:
            self.command, self.answer = None, end.value
            if self.background is None:
                self.world.told.append((self, end.value))
        return self.command is not None

    def until(self, kind: type[Command]) -> bool:
        """Stop right before the next command of a kind; False when the answer came first."""
        while self.command is not None and not isinstance(self.command, kind):
            self.advance()
        return self.command is not None

    def run(self) -> Answer:
        """Run to the answer."""
        for _ in range(10_000):
            if not self.advance():
                assert self.answer is not None
                return self.answer
        raise AssertionError("a call that never ends")

    def heard(self) -> Answer:
        """Run to the answer, and note that it reached the caller."""
        answer = self.run()
        if answer.decision.act is Act.REPLAY and answer.intent is not None:
            assert self.journal is not None
            self.guard.heard(answer.intent)
            self.guard.hear()
            self.journal.run(lambda store: None)
        return answer

    def crash(self) -> None:
        """Die here: what has left has left, nothing more is done."""
        self.seem_dead()
        self.command = None
        self._steps.close()

    def seem_dead(self) -> None:
        """Be taken for dead by everybody, and go on as a zombie."""
        assert self.journal is not None
        self.world.dead.add(self.journal.holder.name)

    def reborn(self) -> SimulatedJournal:
        """Return the journal for a process that takes the place of this dead one."""
        assert self.journal is not None
        self.journal.holder = Holder.current()
        return self.journal

    def late(self) -> None:
        """Let the reply that the caller waited for no longer come, and record it."""
        assert self.journal is not None
        assert self.unheard is not None
        reply, dispatch, at_s = self.unheard
        self.world.advance(max(0.0, at_s - self.world.now))
        self.journal.run(self.guard._recording(dispatch, reply))

    def person(self, word: Word, intent: str, *, override: bool = False) -> IntentRow | GuardError:
        """Let a person decide about an intent; the error where that cannot stand."""
        try:
            toolbox = self.guard.toolbox
            return resolve(self.guard.core, toolbox, intent, word, by="ada", why="looked", override=override)
        except GuardError as error:
            return error

    @property
    def act(self) -> tuple[Act, Code | None]:
        """Return what the caller was told."""
        assert self.answer is not None
        return self.answer.decision.act, self.answer.decision.code

    def _arrived(self) -> Reply | None:
        (reply, takes_s), self._reply = self._reply, None
        limit_s, left_s = inf, inf
        if isinstance(self.command, Send):
            limit_s = self.command.dispatch.timeout_s
            left_s = max(0.0, self.request.patience_until_s - self.world.now)
        waited_s = min(takes_s, limit_s, left_s)
        self.world.advance(waited_s)
        if takes_s == waited_s:
            return reply
        assert isinstance(self.command, Send)
        self.unheard = reply, self.command.dispatch, self.world.now + takes_s - waited_s
        return None if left_s <= limit_s else Reply(kind="lost", text="timed out")
