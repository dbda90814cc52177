"""The guard as a library: one recovery generator, a sync and an async shell around it.

    guard = Guard("payments.yaml", "journal.db", scope="conversation-17")

    @guard.tool
    def charge_card(customer: str, invoice: str, amount: int, idempotency_key: str | None = None) -> dict: ...

    charge_card("cus_1", "in_7", 100)     # sent once; asked again, answered from the journal

A call returns the tool's result, or raises: the tool's own error when the service refused, else a `Stopped` (`Unknown`,
`Held`, `Conflict`, `Refused`) that says what is known and what the caller must not do.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from . import applying, texts
from .errors import Conflict, GuardError, Held, Refused, Stopped, Unknown
from .evidence import Act, Code, Decision, Effect, IntentState
from .gathering import Request, Settings, stored
from .identity import Rules, keyed, keyed_principal, name_call
from .journal.base import Store
from .outcomes import Reply, from_exception
from .recovery import Answer, Core, Dispatch, Look, recover
from .shells import Sent, Shell, sending
from .tools import Tool

if TYPE_CHECKING:
    from .toolbox import Toolbox

F = TypeVar("F", bound=Callable[..., Any])

LABEL = "onceward_label"

_scope: ContextVar[str | None] = ContextVar("onceward_scope", default=None)


def current_key() -> str | None:
    """Return the idempotency key of the call being sent, for tools that carry it outside their arguments."""
    dispatch = sending.get()
    return dispatch.key if dispatch is not None else None


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Set the scope of the guarded calls inside the block: the run, conversation or job slot they belong to."""
    token = _scope.set(name)
    try:
        yield
    finally:
        _scope.reset(token)


class Guard(Shell):
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
        self.toolbox, opened, key = open_all(contracts, journal, secret)
        super().__init__(Core(opened, key, settings or Settings()))
        self.scope, self.principal, self.patience_s = scope, principal, patience_s
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
        key: str | None = None,
        call_id: str | None = None,
        waiting: bool = True,
        patience_s: float | None = None,
    ) -> Request:
        """Name one call. `key`: one that came with it outside its arguments. Raises ArgumentsError."""
        principal, given = principal or self.principal, key
        arguments = dict(arguments)
        # Models fill in what they may leave out: an empty label names nothing, and an empty key protects nothing.
        label = label if label and not label.isspace() else None
        place, key = tool.key, None
        if place is not None and place.where == "argument":
            given = arguments.pop(place.name, None)
        if place is not None and given is not None and str(given).strip():
            label = label or f"key:{given}"
            key = None if place.replace else str(given)
        scoped = None if tool.once_per_window else scope
        named = keyed_principal(principal, self.core.secret)
        names = name_call(
            principal=named,
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
                principal=named,
                scope=scoped,
                server=tool.server,
                kind=tool.effect_name,
                arguments={},
                label=f"key:{key}",
                rules=Rules(),
            )
            names = replace(names, base=by_key.base)
        names = keyed(names, self.core.secret)
        if call_id is not None:
            same = json.dumps([scope, principal, tool.server, tool.name, call_id, names.arguments, label, key])
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
            tools=self.toolbox.declared,
        )

    # -- calling --------------------------------------------------------------------------------------------------

    def tool(self, function: F) -> F:
        """Guard a function under the contract of its name; sync and async functions alike."""
        name = function.__name__
        _refuse_generator(function)
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
        self._can_read(tool)
        _refuse_generator(function)
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{name} is asynchronous: nobody would await it here; use `acall`")
        request = self.request(tool, arguments, scope=self._scope_or_stop(scope, tool), label=label, call_id=call_id)
        self.hear()
        sent = Sent()
        answer = self.run_sync(recover(self.core, request), function, self._function, sent)
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
        self._can_read(tool)
        _refuse_generator(function)
        request = self.request(tool, arguments, scope=self._scope_or_stop(scope, tool), label=label, call_id=call_id)
        self.hear()
        sent = Sent()

        async def sender(dispatch: Dispatch) -> Reply:
            token = sending.set(dispatch)
            try:
                sent.value = await _awaited(function(**dispatch.arguments))
                sent.has_value = True
            except Exception as error:  # the service's failure, whatever it is, is evidence; the caller is told below
                sent.error = error
                return from_exception(error, inner_retries=tool.inner_retries)
            finally:
                sending.reset(token)
            return Reply(kind="result", body=sent.value)

        async def looker(look: Look) -> Reply:
            try:
                return Reply(kind="result", body=await _awaited(self._function(look.name)(**look.arguments)))
            except Exception as error:  # a failed read is inconclusive, and recorded as such
                return from_exception(error)

        answer = await self.run_async(recover(self.core, request), request, sender, looker, sent=sent)
        return self._finish(answer, sent, tool)

    def heard(self, intent: str) -> None:
        """Note that the answer of an intent reached its caller; written with the next step of this guard."""
        self._heard.append(intent)

    def hear(self) -> None:
        """Note that the caller went on after its last answers, so they were heard."""
        while self._heard:
            self.journal.later(functools.partial(_acknowledge, self._heard.pop()))

    # -- answering ------------------------------------------------------------------------------------------------

    def _finish(self, answer: Answer, sent: Sent, tool: Tool) -> Any:
        act, code = answer.decision.act, answer.decision.code
        if act is Act.REPLAY:
            assert answer.intent is not None
            self.heard(answer.intent)
            if answer.fresh and sent.has_value:
                return sent.value
            return stored(answer.result) if answer.result is not None else None
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
            sent=answer.sent,
            refusal=refusal or answer.facts.get("refusal"),
            profile=profile,
        )

    def _can_read(self, tool: Tool) -> None:
        """See before anything is sent that the functions which could tell its outcome are there."""
        for plan in (tool.read, tool.progress):
            if plan is not None:
                self._function(plan.tool)

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


def _refuse_generator(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__name__", "the function")
        raise TypeError(f"{name} is a generator: its call does nothing yet, so no outcome could be recorded")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
