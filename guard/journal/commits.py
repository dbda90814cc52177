"""Group commit: many callers, one transaction.

Every step goes into one queue. Whoever finds the journal idle leads: it takes all that is queued, runs it in one
transaction, hands the results out and passes the lead to the next who waits. So a lone caller pays for no thread
hand-off, and sixty-four callers share one flush of the disk. Callers on an event loop, and notes that nobody waits for,
are led by one background thread, which also beats the heart of the leases. A step that fails costs the others a second
run, never their result: the batch is rolled back and every step runs alone. Nothing here knows a database.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from ..errors import JournalError
from .base import Raced, Store

Work = Callable[[Store], Any]

RACES = 8  #: how often a step that lost a race is run again; a race lost on fresh rows every time is a bug in the step
NOTE_S = 1.0  #: how long a note may wait for a commit to travel with

_log = logging.getLogger(__name__)


class StoreFault(Exception):
    """The store could not begin or commit; nothing of the batch is durable."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy

    def error(self) -> JournalError:
        """Return an error of its own for each caller, so that no two threads raise the same object."""
        error = JournalError(self.problem, remedy=self.remedy)
        error.__cause__ = self.__cause__
        return error


class _Step:
    __slots__ = ("done", "error", "future", "gate", "leads", "loop", "note", "value", "work")

    def __init__(self, work: Work, *, note: bool = False) -> None:
        self.work, self.note = work, note
        self.gate: LockType | None = None  # a thread waits on it: released when the step is done, or leads
        self.leads = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class GroupCommit:
    """Run steps through `transact(works) -> values`, as few transactions as the traffic allows.

    `transact` makes all works durable in one transaction, or none: it raises `StoreFault` when the store failed as a
    whole, and passes on whatever a work raised. `beat` is called every `beat_s` seconds for as long as it returns True
    after `start_beat`.
    """

    def __init__(
        self, transact: Callable[[Sequence[Work]], Sequence[Any]], *, beat: Callable[[], bool], beat_s: float
    ) -> None:
        self._transact, self._beat, self._beat_s = transact, beat, beat_s
        self.reset()

    def reset(self) -> None:
        """Forget every caller and thread: for the child of a fork, which has inherited none of them."""
        self._mutex = allocate_lock()
        self._queue: deque[_Step] = deque()
        self._busy = False
        self._promised = False  # the lead waits for the background thread, which may itself wait for a leader
        self._heirs: deque[LockType] = deque()
        self._bell: SimpleQueue[str] = SimpleQueue()
        self._thread: Thread | None = None
        self._noting = self._beating = False

    def run(self, work: Work) -> Any:
        """Run one step in this thread, or in the thread of whoever leads its batch."""
        step = _Step(work)
        try:
            with self._mutex:
                self._queue.append(step)
                step.leads = not self._busy or self._promised
                self._busy = True
                if step.leads:
                    self._promised = False
                if not step.leads:
                    step.gate = allocate_lock()
                    step.gate.acquire()
            if step.gate is not None:
                step.gate.acquire()  # until the step is done, or leads
            if step.leads:
                self._lead(step)
        except BaseException:
            self._withdraw(step)
            raise
        if step.error is not None:
            raise step.error
        return step.value

    async def run_async(self, work: Work) -> Any:
        """Run one step in the background thread; the loop is woken once per batch."""
        step = _Step(work)
        step.loop = asyncio.get_running_loop()
        step.future = step.loop.create_future()
        with self._mutex:
            self._queue.append(step)
            leads = not self._busy
            self._busy = True
            self._promised = self._promised or leads
        if leads:
            self._ring("lead")
        return await step.future

    def later(self, work: Work) -> None:
        """Queue a step that travels with the next commit, or alone after a second."""
        with self._mutex:
            self._queue.append(_Step(work, note=True))
        if not self._noting:
            self._noting = True
            self._ring("note")

    def start_beat(self) -> None:
        """Have `beat` called until it returns False."""
        if not self._beating:
            self._beating = True
            self._ring("beat")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lead without a transaction: nobody else touches the connection meanwhile."""
        self.take_lead()
        try:
            yield
        finally:
            self.pass_on()

    def take_lead(self) -> None:
        """Wait until no batch runs, and keep the lead."""
        with self._mutex:
            if not self._busy or self._promised:
                self._busy, self._promised = True, False
                return
            gate = allocate_lock()
            gate.acquire()
            self._heirs.append(gate)
        gate.acquire()

    def pass_on(self, leader: _Step | None = None) -> None:
        """Give the lead to whoever waits longest: a holder, a thread, the background thread for a loop, or nobody."""
        with self._mutex:
            if leader is not None:
                leader.leads = False
            if self._heirs:
                self._heirs.popleft().release()
                return
            waiting = False
            for step in self._queue:
                if step.gate is not None:
                    step.leads = True
                    step.gate.release()
                    return
                waiting = waiting or step.future is not None
            self._busy = self._promised = waiting
        if waiting:
            self._ring("lead")

    def flush(self) -> None:
        """Write the notes that wait."""
        if self._queue:
            self.run(_nothing)

    def stop(self) -> None:
        """Let the background thread end."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._bell.put("stop")
            thread.join()

    def _withdraw(self, step: _Step) -> None:
        """Take back the step of a thread that was interrupted, and pass on the lead if it was just given to it."""
        with self._mutex:
            leads = step.leads
            if step in self._queue:
                self._queue.remove(step)
        if leads:
            self.pass_on(step)

    def _lead(self, own: _Step | None = None) -> None:
        with self._mutex:
            batch = list(self._queue)
            self._queue.clear()
        try:
            if batch:
                self._settle(batch)
        except BaseException:
            # Only an interrupt of the leading thread gets here. It concerns nobody but the leader.
            with self._mutex:
                self._queue.extendleft(step for step in reversed(batch) if not step.done and step is not own)
            raise
        finally:
            try:
                self.pass_on(own)
            finally:
                self._hand_out(batch, own)

    def _settle(self, batch: list[_Step]) -> None:
        try:
            values = self._transact([step.work for step in batch])
        except StoreFault as fault:
            for step in batch:
                if not step.note:
                    step.error, step.done = fault.error(), True
            self._keep([step for step in batch if step.note])
        except Exception:  # whose fault it was shows when each runs alone; the offender is told
            for step in batch:
                self._settle_alone(step)
        else:
            for step, value in zip(batch, values, strict=True):
                step.value, step.done = value, True

    def _keep(self, notes: list[_Step]) -> None:
        """Queue notes again that the store could not take: nobody waits for them, and they may say how a call ended."""
        if notes:
            with self._mutex:
                self._queue.extendleft(reversed(notes))
            if not self._noting:
                self._noting = True
                self._ring("note")

    def _settle_alone(self, step: _Step) -> None:
        for _ in range(RACES):
            try:
                (step.value,) = self._transact([step.work])
            except Raced:
                continue
            except StoreFault as fault:
                if step.note:
                    self._keep([step])
                    return
                step.error = fault.error()
            except Exception as error:
                step.error = error
            step.done = True
            return
        step.error = JournalError(
            f"a step lost {RACES} races in a row; nothing of it was written",
            remedy="repeat the call; if it fails again, the step works on rows that it read in an earlier step",
        )
        step.done = True

    def _hand_out(self, batch: list[_Step], own: _Step | None) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[_Step]] = {}
        for step in batch:
            if step is own or not step.done:
                continue
            if step.gate is not None:
                step.gate.release()
            elif step.loop is not None:
                loops.setdefault(step.loop, []).append(step)
            elif step.error is not None:
                _log.warning("a note for the journal was lost: %s", step.error)
        for loop, steps in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve, steps)
            except RuntimeError:  # the loop is closed: its callers are gone, the steps are durable
                _log.debug("%d results came after their event loop was closed", len(steps))

    def _ring(self, why: str) -> None:
        if self._thread is None:
            with self._mutex:
                start = self._thread is None
                if start:
                    self._thread = Thread(target=self._background, args=(self._bell,), name="onceward-journal")
                    self._thread.daemon = True
                    self._thread.start()
        self._bell.put(why)

    def _background(self, bell: SimpleQueue[str]) -> None:
        due: dict[str, float] = {}
        while True:
            wait_s = max(0.0, min(due.values()) - monotonic()) if due else None
            try:
                why = bell.get(timeout=wait_s)
            except Empty:
                why = min(due, key=due.__getitem__)
                del due[why]
                try:
                    self._tick(why, due)
                except Exception as error:  # told to the log: nobody waits, and the next tick tries again
                    _log.warning("the journal's background step failed: %s", error)
                    due[why] = monotonic() + self._beat_s
                continue
            if why == "stop":
                return
            if why == "lead":
                with self._mutex:  # unless a thread that came meanwhile has taken it
                    mine, self._promised = self._promised, False
                if mine:
                    self._lead()
            else:
                due[why] = monotonic() + (NOTE_S if why == "note" else self._beat_s)

    def _tick(self, why: str, due: dict[str, float]) -> None:
        if why == "note":
            # Cleared before the look: a note that comes in between rings again. Under traffic the notes have left with
            # other commits, and the tick that finds nothing is the last.
            self._noting = False
            if self._queue:
                self._noting = True
                self.run(_nothing)
                due[why] = monotonic() + NOTE_S
        else:
            self._beating = False
            if self._beat():
                self._beating = True
                due[why] = monotonic() + self._beat_s


def _nothing(store: Store) -> None:
    """Write nothing; what is queued travels along."""


def _resolve(steps: list[_Step]) -> None:
    for step in steps:
        future = step.future
        if future is None or future.done():
            continue
        if step.error is not None:
            future.set_exception(step.error)
        else:
            future.set_result(step.value)
