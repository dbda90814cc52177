"""The two shells around the recovery generator: one for threads, one for event loops.

A shell runs what the generator asks for: a journal step, a send, a read, a pause. Both check an attempt's deadline
right before its request leaves, and both see to it that a reply which comes after its caller has gone is recorded.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any

from . import applying
from .errors import JournalError
from .evidence import Act, AttemptState, Code, Decision, Effect, IntentState
from .gathering import Request
from .journal.base import Journal, Store
from .outcomes import Reply, from_exception
from .recovery import Answer, Command, Core, Dispatch, Look, Pause, Send, Step, verdict_of

sending: ContextVar[Dispatch | None] = ContextVar("onceward_sending", default=None)


@dataclass(slots=True)
class Sent:
    """What a shell remembers of one call: its last request, and how that ended."""

    dispatch: Dispatch | None = None
    error: BaseException | None = None
    value: Any = None
    has_value: bool = False
    reply: Reply | None = None


class _Remembered:
    """A step that keeps the request which it made ready, for a caller that is interrupted before it can send it."""

    __slots__ = ("_work", "dispatch")

    def __init__(self, work: Callable[[Store], Any]) -> None:
        self._work = work
        self.dispatch: Dispatch | None = None

    def __call__(self, store: Store) -> Any:
        plan = self._work(store)
        self.dispatch = getattr(plan, "dispatch", None)
        return plan


class Shell:
    """Runs recoveries on one journal."""

    def __init__(self, core: Core) -> None:
        """Take what every recovery needs."""
        self.core = core
        self.journal: Journal = core.journal
        self._harvests: set[asyncio.Future[Reply]] = set()

    def run_sync(
        self,
        steps: Generator[Command, Any, Answer],
        function: Callable[..., Any],
        reader: Callable[[str], Callable[..., Any]],
        sent: Sent,
    ) -> Answer:
        """Run a recovery in this thread: `function` does the work, `reader` finds the functions that read."""
        value: Any = None
        while True:
            try:
                command = steps.send(value)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if type(command) is Step:
                step = _Remembered(command.work)
                try:
                    value = self.journal.run(step)
                except Exception as error:
                    return self._unrecorded(error, sent)
                except BaseException:
                    self._withdraw(step)
                    raise
            elif type(command) is Send:
                value = sent.reply = self._send(command.dispatch, function, sent)
            elif type(command) is Look:
                try:
                    value = Reply(kind="result", body=reader(command.name)(**command.arguments))
                except Exception as error:  # a failed read is inconclusive, and recorded as such
                    value = from_exception(error)
            elif type(command) is Pause:
                time.sleep(command.seconds)
                value = None

    def _send(self, dispatch: Dispatch, function: Callable[..., Any], sent: Sent) -> Reply:
        sent.dispatch, sent.error, sent.has_value = dispatch, None, False
        token = sending.set(dispatch)
        try:
            if not self.may_leave(dispatch):
                return Reply(kind="not_sent", text="too late to send: the deadline of the attempt was over")
            sent.value = function(**dispatch.arguments)
            if inspect.iscoroutine(sent.value):
                sent.value.close()
                raise TypeError(f"{dispatch.tool.name} returned a coroutine that nobody awaits; use `acall`")
            sent.has_value = True
            return Reply(kind="result", body=sent.value)
        except Exception as error:  # the service's failure, whatever it is, is evidence; the caller is told in _finish
            sent.error = error
            return from_exception(error, inner_retries=dispatch.tool.inner_retries)
        except BaseException as error:  # interrupted by the user or the interpreter: record it, then let it through
            self._record_now(dispatch, from_exception(error))
            raise
        finally:
            sending.reset(token)

    async def run_async(
        self,
        steps: Generator[Command, Any, Answer],
        request: Request,
        sender: Callable[[Dispatch], Awaitable[Reply]],
        looker: Callable[[Look], Awaitable[Reply]],
        *,
        sent: Sent | None = None,
    ) -> Answer:
        """Run a recovery with async callables for its requests and reads. Late replies are recorded when they come."""
        sent = sent or Sent()
        value: Any = None
        while True:
            try:
                command = steps.send(value)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if type(command) is Step:
                step = _Remembered(command.work)
                try:
                    value = await self.journal.run_async(step)
                except Exception as error:
                    return self._unrecorded(error, sent)
                except BaseException:
                    self._withdraw(step)
                    raise
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
        if done and not task.cancelled():
            return task.result()
        if done:  # by the tool's own doing: this caller still waits
            return Reply(kind="lost", text="the tool's work was cancelled")
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

    def lost(self, dispatch: Dispatch, why: str) -> None:
        """Note that nobody waits for an answer any more; one that still comes is recorded."""
        self._record_later(dispatch, Reply(kind="lost", text=why))

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
                sent = dispatch.arguments
                applying.record_outcome(self.core, store, tool, row, dispatch.attempt, verdict, reply, sent)
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

    def _withdraw(self, step: _Remembered) -> None:
        """Note that a request will not be sent, whose caller was interrupted while its step was being written."""

        def work(store: Store) -> None:
            dispatch = step.dispatch
            row = store.intent(dispatch.intent) if dispatch is not None else None
            if dispatch is None or row is None:
                return
            mine = [a for a in store.attempts(row.id) if a.call == dispatch.attempt.call]
            if any(a.number == dispatch.attempt.number and a.state is AttemptState.SENDING for a in mine):
                reply = Reply(kind="not_sent", text="its caller was interrupted before it was sent")
                verdict = verdict_of(dispatch, reply)
                applying.record_outcome(self.core, store, dispatch.tool, row, dispatch.attempt, verdict, reply)

        self.journal.later(work)

    def _unrecorded(self, error: Exception, sent: Sent) -> Answer:
        """Nothing was sent: refuse. Something was: its outcome is unknown until the journal can be written again."""
        if sent.dispatch is None:
            raise error
        if not isinstance(error, JournalError):  # a fault of ours; without this the attempt would seem to run for ever
            why = f"what came back could not be recorded: {type(error).__name__}"
            self._record_later(sent.dispatch, Reply(kind="lost", text=why))
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
