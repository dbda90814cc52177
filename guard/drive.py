"""The guard as a library: one recovery generator, a sync and an async shell around it.

    guard = Guard("payments.yaml", "journal.db", scope="conversation-17")

    @guard.tool
    def charge_card(customer: str, invoice: str, amount: int, idempotency_key: str | None = None) -> dict: ...

    charge_card("cus_1", "in_7", 100)     # sent once; asked again, answered from the journal

A call returns the tool's result, or raises: the tool's own error when the service refused, else a `Stopped` (`Unknown`,
`Held`, `Conflict`, `Refused`) that says what is known and what the caller must not do.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from . import applying, texts
from .errors import Conflict, GuardError, Held, JournalError, Refused, Stopped, Unknown
from .evidence import Act, AttemptState, Code, Decision, Effect, IntentState
from .gathering import Request, Settings
from .identity import Rules, name_call
from .journal.base import Journal, Store
from .outcomes import Reply, from_exception
from .recovery import Answer, Command, Core, Dispatch, Look, Pause, Send, Step, recover, verdict_of
from .tools import Tool

if TYPE_CHECKING:
    from .toolbox import Toolbox

F = TypeVar("F", bound=Callable[..., Any])

LABEL = "onceward_label"

_scope: ContextVar[str | None] = ContextVar("onceward_scope", default=None)
_sending: ContextVar[Dispatch | None] = ContextVar("onceward_sending", default=None)


def current_key() -> str | None:
    """Return the idempotency key of the call being sent, for tools that carry it outside their arguments."""
    dispatch = _sending.get()
    return dispatch.key if dispatch is not None else None


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Set the scope of the guarded calls inside the block: the run, conversation or job slot they belong to."""
    token = _scope.set(name)
    try:
        yield
    finally:
        _scope.reset(token)


@dataclass(slots=True)
class _Sent:
    """What the shell remembers of one call: its last request, and the exception it ended with."""

    dispatch: Dispatch | None = None
    error: BaseException | None = None
    value: Any = None
    has_value: bool = False
    reply: Reply | None = None  #: to the last request; None while it runs


class Guard:
    """Guards the calls of one server's tools. Safe to share between threads and tasks."""

    def __init__(
        self,
        contracts: Any,
        journal: Any,
        *,
        scope: str | None = None,
        principal: str = "default",
        patience_s: float = 45.0,
        settings: Settings | None = None,
        secret: bytes | None = None,
    ) -> None:
        """Take contracts (a file, several, or a Toolbox) and a journal (a path, or a Journal). Raises ContractError or
        JournalError; nothing is guarded by halves.
        """
        from .opening import open_all

        self.toolbox: Toolbox
        self.journal: Journal
        self.toolbox, self.journal, key = open_all(contracts, journal, secret)
        self.scope, self.principal, self.patience_s = scope, principal, patience_s
        self.core = Core(self.journal, key, settings or Settings())
        self._functions: dict[str, Callable[..., Any]] = {}
        self._heard: list[str] = []

    # -- naming ---------------------------------------------------------------------------------------------------

    def request(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        scope: str | None,
        principal: str | None = None,
        label: str | None = None,
        call_id: str | None = None,
        waiting: bool = True,
        patience_s: float | None = None,
    ) -> Request:
        """Name one call. Raises ArgumentsError when the arguments cannot be named."""
        principal = principal or self.principal
        key: str | None = None
        arguments = dict(arguments)
        place = tool.key
        if place is not None and place.where == "argument":
            given = arguments.pop(place.name, None)
            if given is not None:
                label = label or f"key:{given}"
                key = None if place.replace else str(given)
        scoped = None if tool.once_per_window else scope
        names = name_call(
            principal=principal,
            scope=scoped,
            server=tool.server,
            kind=tool.effect_name,
            arguments=arguments,
            label=label,
            rules=tool.rules,
        )
        if key is not None:
            # The service knows a key whatever comes with it, so a caller's key names one intent: with other arguments
            # it is that intent under other terms, and never one of its own.
            by_key = name_call(
                principal=principal,
                scope=scoped,
                server=tool.server,
                kind=tool.effect_name,
                arguments={},
                label=f"key:{key}",
                rules=Rules(),
            )
            names = replace(names, base=by_key.base)
        if call_id is not None:
            same = json.dumps([scope, principal, tool.server, tool.name, call_id, names.arguments])
            call_id = hashlib.sha256(same.encode("utf-8", "surrogatepass")).hexdigest()
        patience = self.patience_s if patience_s is None else patience_s
        return Request(
            tool=tool,
            arguments=arguments,
            names=names,
            scope=scope or "",
            principal=principal,
            label=label,
            key=key,
            call=token_hex(8),
            call_id=call_id,
            patience_until_s=self.journal.clock() + patience if waiting else inf,
            waiting=waiting,
            boundary=tool.boundary,
            tools=self.toolbox.by_name,
        )

    # -- calling --------------------------------------------------------------------------------------------------

    def tool(self, function: F) -> F:
        """Guard a function under the contract of its name; sync and async functions alike."""
        name = function.__name__
        signature = inspect.signature(function)
        self._functions[name] = function

        def named(*args: Any, **kwargs: Any) -> tuple[dict[str, Any], str | None]:
            label = kwargs.pop(LABEL, None)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return dict(bound.arguments), label

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                arguments, label = named(*args, **kwargs)
                return await self.acall(name, arguments, label=label)

            return guarded_async  # type: ignore[return-value]  # the same parameters, checked by signature.bind

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            arguments, label = named(*args, **kwargs)
            return self.call(name, arguments, label=label)

        return guarded  # type: ignore[return-value]  # the same parameters, checked by signature.bind

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        send: Callable[..., Any] | None = None,
        *,
        scope: str | None = None,
        label: str | None = None,
        call_id: str | None = None,
    ) -> Any:
        """Call a tool at most once per intent and return its result.

        `send(**arguments)` does the work; left out, the function registered under `name`. Raises the tool's own error
        when the service refused, `Stopped` when the outcome is not this call's to know, and JournalError when nothing
        was sent because it could not be recorded.
        """
        function = send or self._function(name)
        tool = self.toolbox.tool(name, arguments)
        if tool.contract.effect is Effect.READ:
            return function(**arguments)
        request = self.request(tool, arguments, scope=self._scope_or_stop(scope, tool), label=label, call_id=call_id)
        self.hear()
        sent = _Sent()
        answer = self._run(recover(self.core, request), function, sent, request)
        return self._finish(answer, sent, tool)

    async def acall(
        self,
        name: str,
        arguments: Mapping[str, Any],
        send: Callable[..., Awaitable[Any]] | None = None,
        *,
        scope: str | None = None,
        label: str | None = None,
        call_id: str | None = None,
    ) -> Any:
        """Do what `call` does, for an async function."""
        function = send or self._function(name)
        tool = self.toolbox.tool(name, arguments)
        if tool.contract.effect is Effect.READ:
            return await _awaited(function(**arguments))
        request = self.request(tool, arguments, scope=self._scope_or_stop(scope, tool), label=label, call_id=call_id)
        self.hear()
        sent = _Sent()

        async def sender(dispatch: Dispatch) -> Reply:
            token = _sending.set(dispatch)
            try:
                sent.value = await _awaited(function(**dispatch.arguments))
                sent.has_value = True
            except Exception as error:  # the service's failure, whatever it is, is evidence; the caller is told below
                sent.error = error
                return from_exception(error, inner_retries=tool.inner_retries)
            finally:
                _sending.reset(token)
            return Reply(kind="result", body=sent.value)

        async def looker(look: Look) -> Reply:
            try:
                return Reply(kind="result", body=await _awaited(self._function(look.name)(**look.arguments)))
            except Exception as error:  # a failed read is inconclusive, and recorded as such
                return from_exception(error)

        answer = await self.run_async(recover(self.core, request), request, sender, looker, sent=sent)
        return self._finish(answer, sent, tool)

    def _run(
        self, steps: Generator[Command, Any, Answer], function: Callable[..., Any], sent: _Sent, request: Request
    ) -> Answer:
        value: Any = None
        while True:
            try:
                command = steps.send(value)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if type(command) is Step:
                try:
                    value = self.journal.run(command.work)
                except JournalError as error:
                    return self._unrecorded(error, sent, request)
            elif type(command) is Send:
                value = sent.reply = self._send(command.dispatch, function, sent)
            elif type(command) is Look:
                try:
                    value = Reply(kind="result", body=self._function(command.name)(**command.arguments))
                except Exception as error:  # a failed read is inconclusive, and recorded as such
                    value = from_exception(error)
            elif type(command) is Pause:
                time.sleep(command.seconds)
                value = None

    def _send(self, dispatch: Dispatch, function: Callable[..., Any], sent: _Sent) -> Reply:
        sent.dispatch, sent.error, sent.has_value = dispatch, None, False
        token = _sending.set(dispatch)
        try:
            if not self.may_leave(dispatch):
                return Reply(kind="not_sent", text="too late to send: the deadline of the attempt was over")
            sent.value = function(**dispatch.arguments)
            sent.has_value = True
            return Reply(kind="result", body=sent.value)
        except Exception as error:  # the service's failure, whatever it is, is evidence; the caller is told in _finish
            sent.error = error
            return from_exception(error, inner_retries=dispatch.tool.inner_retries)
        except BaseException as error:  # interrupted by the user or the interpreter: record it, then let it through
            self._record_now(dispatch, from_exception(error))
            raise
        finally:
            _sending.reset(token)

    async def run_async(
        self,
        steps: Generator[Command, Any, Answer],
        request: Request,
        sender: Callable[[Dispatch], Awaitable[Reply]],
        looker: Callable[[Look], Awaitable[Reply]],
        *,
        sent: _Sent | None = None,
    ) -> Answer:
        """Run a recovery with async callables for its requests and reads. Late replies are recorded when they come."""
        sent = sent or _Sent()
        value: Any = None
        while True:
            try:
                command = steps.send(value)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if type(command) is Step:
                try:
                    value = await self.journal.run_async(command.work)
                except JournalError as error:
                    return self._unrecorded(error, sent, request)
            elif type(command) is Send:
                sent.dispatch, sent.error, sent.has_value, sent.reply = command.dispatch, None, False, None
                value = sent.reply = await self._send_async(command.dispatch, sender, request)
            elif type(command) is Look:
                try:
                    value = await asyncio.wait_for(looker(command), command.timeout_s)
                except TimeoutError:
                    value = Reply(kind="lost", text="the read was not answered in time")
            elif type(command) is Pause:
                await asyncio.sleep(command.seconds)
                value = None

    async def _send_async(
        self, dispatch: Dispatch, sender: Callable[[Dispatch], Awaitable[Reply]], request: Request
    ) -> Reply | None:
        if not self.may_leave(dispatch):
            return Reply(kind="not_sent", text="too late to send: the deadline of the attempt was over")
        task = asyncio.ensure_future(sender(dispatch))
        bounded = dispatch.tool.contract.effect is not Effect.UNDECLARED
        left_s = request.patience_until_s - self.journal.clock() if bounded else inf
        limit_s = min(dispatch.timeout_s, left_s) if bounded else None
        try:
            done, _ = await asyncio.wait({task}, timeout=limit_s)
        except asyncio.CancelledError:
            self._harvest(dispatch, task, timed_out=False)
            raise
        if done:
            return task.result()
        self._harvest(dispatch, task, timed_out=left_s > dispatch.timeout_s)
        if left_s <= dispatch.timeout_s:
            return None  # patience is over, the request still runs
        return Reply(kind="lost", text=f"no answer within {dispatch.timeout_s:g} s")

    def _harvest(self, dispatch: Dispatch, task: asyncio.Future[Reply], *, timed_out: bool) -> None:
        """Record a reply that comes after its caller stopped waiting; and, without one, that the time is over."""
        loop = asyncio.get_running_loop()
        self._harvests.add(task)

        def over() -> None:
            if not task.done():
                self._record_later(dispatch, Reply(kind="lost", text=f"no answer within {dispatch.timeout_s:g} s"))

        timer = None if timed_out else loop.call_later(dispatch.timeout_s, over)

        def late(done: asyncio.Future[Reply]) -> None:
            self._harvests.discard(done)
            if timer is not None:
                timer.cancel()
            reply = Reply(kind="lost", text="cancelled") if done.cancelled() else done.result()
            self._record_later(dispatch, reply)

        task.add_done_callback(late)

    @functools.cached_property
    def _harvests(self) -> set[asyncio.Future[Reply]]:
        return set()

    def may_leave(self, dispatch: Dispatch) -> bool:
        """Tell whether a request may still leave: its deadline, which lies within its lease, is not over."""
        return self.journal.clock() <= dispatch.attempt.send_before_s

    # -- recording ------------------------------------------------------------------------------------------------

    def _recording(self, dispatch: Dispatch, reply: Reply) -> Callable[[Store], None]:
        tool = dispatch.tool
        verdict = verdict_of(dispatch, reply)

        def work(store: Store) -> None:
            row = store.intent(dispatch.intent)
            if row is not None:
                applying.record_outcome(self.core, store, tool, row, dispatch.attempt, verdict, reply)
                if verdict.state is AttemptState.HAPPENED:
                    store.event(row.id, "guard", "late_reply", "recorded after its caller had gone")

        return work

    def _record_now(self, dispatch: Dispatch, reply: Reply) -> None:
        try:
            self.journal.run(self._recording(dispatch, reply))
        except JournalError:
            self._record_later(dispatch, reply)

    def _record_later(self, dispatch: Dispatch, reply: Reply) -> None:
        self.journal.later(self._recording(dispatch, reply))

    def _unrecorded(self, error: JournalError, sent: _Sent, request: Request) -> Answer:
        """Nothing was sent: refuse. Something was: its outcome is unknown until the journal can be written again."""
        if sent.dispatch is None:
            raise error
        if sent.reply is not None:  # else it still runs, and is recorded when it comes
            self._record_later(sent.dispatch, sent.reply)
        sent.has_value = False
        return Answer(
            decision=Decision(act=Act.ANSWER, code=Code.UNKNOWN),
            state=IntentState.UNKNOWN,
            intent=sent.dispatch.intent,
            now_s=self.journal.clock(),
        )

    def heard(self, intent: str) -> None:
        """Note that the answer of an intent reached its caller; written with the next step of this guard."""
        self._heard.append(intent)

    def hear(self) -> None:
        """Note that the caller went on after its last answers, so they were heard."""
        while self._heard:
            self.journal.later(functools.partial(_acknowledge, self._heard.pop()))

    # -- answering ------------------------------------------------------------------------------------------------

    def _finish(self, answer: Answer, sent: _Sent, tool: Tool) -> Any:
        act, code = answer.decision.act, answer.decision.code
        if act is Act.REPLAY:
            assert answer.intent is not None
            self.heard(answer.intent)
            if answer.fresh and sent.has_value:
                return sent.value
            return json.loads(answer.result) if answer.result is not None else None
        own_refusal = act is Act.ANSWER and code is Code.REFUSED and sent.error is not None
        if own_refusal:
            assert sent.error is not None
            raise sent.error
        told = self.tell(answer, tool)
        raise error_of(answer, told) from sent.error

    def tell(self, answer: Answer, tool: Tool, *, refusal: str | None = None, profile: str = "default") -> texts.Told:
        """Put an answer into words, and into the machine-readable block."""
        return texts.tell(
            answer.decision,
            owner=tool.contract.owner,
            tool=tool.name,
            intent=answer.intent,
            state=answer.state,
            now_s=answer.now_s,
            happened_s=answer.happened_s,
            since_s=answer.since_s,
            foreign=answer.foreign,
            original=answer.original,
            refusal=refusal or answer.facts.get("refusal"),
            profile=profile,
        )

    def _function(self, name: str) -> Callable[..., Any]:
        try:
            return self._functions[name]
        except KeyError:
            raise LookupError(f"no function for tool {name!r}: register it with @guard.tool, or pass send=") from None

    def _scope_or_stop(self, given: str | None, tool: Tool) -> str:
        name = given or _scope.get() or self.scope
        if name is None:
            decision = Decision(act=Act.CONFLICT, code=Code.NO_SCOPE, permanent=True, owner=tool.contract.owner)
            answer = Answer(decision=decision, state=IntentState.NEW, intent=None, now_s=self.journal.clock())
            raise error_of(answer, self.tell(answer, tool))
        return name

    def close(self) -> None:
        """Write what waits, and close the journal."""
        self.hear()
        self.journal.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def error_of(answer: Answer, told: texts.Told) -> GuardError:
    """Return the exception that stands for an answer."""
    kinds: dict[Act, type[Stopped]] = {Act.HOLD: Held, Act.CONFLICT: Conflict, Act.TELL: Conflict}
    nothing = answer.decision.code in (Code.REFUSED, Code.RETRY_CEILING)
    kind = kinds.get(answer.decision.act, Refused if nothing else Unknown)
    return kind(told.text, told.data)


def _acknowledge(intent: str, store: Store) -> None:
    applying.acknowledge(store, intent)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
