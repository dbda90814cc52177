"""A handled call: what its gate may send, and what its client is given.

The gate's work, the upstream leg and the client's connection have lives of their own. The client may go: the leg stays
open and the gate learns the answer late. The upstream may break: the client is answered by the gate, with status 200.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from onceward.outcomes import Reply

from . import rpc
from .http_headers import Headers, get
from .http_legs import Ask, Legs, Session, answer_in
from .http_wire import is_stream
from .sse import Event, encode
from .wire import Call, Gate

OUTBOX_MOST = 4 * 1024 * 1024  #: bytes of events that wait for a slow client
LEG_S = 3600.0  #: longer than any patience; a leg that is open so long will hardly end
PARTED_S = 60.0  #: a client that polls and has not come back after so long is gone
POLLING = ("2025-11-25", "2026-07-28")  #: the revisions, from and before, in which a server may close a stream early
SLOW_S = 30.0  #: a client that takes nothing for so long is gone


class Handled:
    """One `tools/call` in the hands of the gate; an `Upstream` for it."""

    def __init__(
        self, gate: Gate, call: Call, *, legs: Legs, headers: Headers, target: bytes, session: Session | None
    ) -> None:
        """Take the call and its request's own headers and target."""
        self.call, self.gate, self.session = call, gate, session
        self._legs, self._headers, self._target = legs, headers, target
        self._tasks: set[asyncio.Task[None]] = set()
        self._leg: tuple[asyncio.Future[Reply], asyncio.Task[None]] | None = None
        self._exchanges = 0
        self._events: deque[Event] = deque()
        self._waiting = 0  # bytes in it
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.gone = False  #: the client's connection is
        self.head: tuple[int, Headers] | None = None  #: of the upstream's response to the client's request
        self.final: Event | None = None  #: the event that carried the upstream's answer
        self.said: Reply | None = None  #: what became of the client's request
        self.parted = False  #: the server closed the stream in order, so the client's was closed too; it comes back
        self.given_id = b""  #: of the last event that had one and went to the client
        self._patience: asyncio.TimerHandle | None = None

    # -- the gate's side ---------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Let the gate answer the call."""
        try:
            answer = await self.gate.handle(self.call, self)
        except Exception:  # the caller is told, and stderr
            traceback.print_exc()
            text = "The guard failed while it handled this call. It is not known whether the call took effect."
            answer = rpc.failed_call(self.call.id, text, modern=rpc.MODERN in self.call.raw)
        if not self.answered.done():
            self.answered.set_result(answer)
        self._wake.set()
        while self._tasks:  # an answer may come late: until then a cancellation must not reach the server
            await asyncio.wait(self._tasks)

    def is_call(self, key: rpc.Id) -> bool:
        """Tell whether the call has this id."""
        return self.call.id == key and isinstance(self.call.id, str) == isinstance(key, str)

    def is_answered_by(self, event: Event) -> bool:
        """Tell whether an event carries the upstream's answer to the call."""
        return answer_in(event.data or b"", self.call.id) is not None

    def exchange(
        self,
        call: Call,
        message: dict[str, Any] | None = None,
        *,
        own: bool = False,
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Reply]:
        """See `wire.Upstream`. Where the client's session is lost, a new one is opened before either kind is sent."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        key: rpc.Id = self._legs.own_id() if own else call.id
        sent = call.message if message is None else message
        try:
            if own:
                sent = rpc.own_message(str(key), call, sent)
            body = call.raw if message is None and not own else rpc.encode({**sent, "id": key})
        except (TypeError, ValueError, RecursionError) as error:
            future.set_result(Reply(kind="not_sent", text=f"the message cannot be written as JSON: {error}"))
            return future
        params = sent.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        ask = Ask(
            body=body,
            key=key,
            target=self._target,
            headers=self._headers,
            method=None if sent is call.message else str(sent.get("method", "tools/call")),
            name=name if isinstance(name, str) else None,
            renamed=name != call.params.get("name"),
            extra=headers or {},
            session=self.session,
            before=before_send,
            head=(lambda status, raw: None) if own else self._set_head,
            part=(lambda: None) if own else self._part,
            event=None if own else self._pass_on,
        )
        task = asyncio.create_task(self._run(ask, future, own=own))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._exchanges += 1
        if not own:
            self._leg = future, task
        return future

    async def _run(self, ask: Ask, future: asyncio.Future[Reply], *, own: bool) -> None:
        reply = Reply(kind="lost", text="the proxy was stopped before an answer came")
        try:
            async with asyncio.timeout(LEG_S):
                reply = await self._legs.ask(ask)
        except TimeoutError:
            reply = Reply(kind="lost", text=f"no answer came within {LEG_S:.0f} s")
        except Exception as error:  # told in the reply, and on stderr
            traceback.print_exc()
            reply = Reply(kind="lost", text=f"the proxy failed: {error!r}")
        finally:
            if not own:
                self.final, self.said = ask.final or self.final, reply
            if not future.done():
                future.set_result(reply)

    def _set_head(self, status: int, headers: Headers) -> None:
        self.head = status, headers
        self._wake.set()

    async def _pass_on(self, event: Event, /) -> None:
        """Queue an event for the client, and wait where the queue is long."""
        if self.gone or self.answered.done():
            return
        self._events.append(event)
        self._waiting += len(event.raw)
        self._wake.set()
        while self._waiting > OUTBOX_MOST and not self.gone:
            self._room.clear()
            try:
                async with asyncio.timeout(SLOW_S):
                    await self._room.wait()
            except TimeoutError:
                self.leave()

    def _part(self) -> None:
        """Close the client's stream as the server closed ours, where the client knows how to come back."""
        version = self.call.headers.get("mcp-protocol-version", "")
        if POLLING[0] <= version < POLLING[1] and not (self.gone or self.parted):
            self.parted = True
            self._patience = asyncio.get_running_loop().call_later(PARTED_S, self.leave)
            self._wake.set()

    def rejoin(self) -> None:
        """Take note that the client is back, on another connection."""
        self.parted = False
        if self._patience is not None:
            self._patience.cancel()

    def resolve(self, event: Event) -> None:
        """Take an answer that came on another stream of the session."""
        if self._leg is None or self._leg[0].done():
            return
        future, task = self._leg
        reply = answer_in(event.data or b"", self.call.id)
        if reply is not None:
            self.final = event
            future.set_result(reply)
            task.cancel()

    async def stop(self) -> None:
        """End every leg; what was not answered is lost."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the client's side -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Take note that the client's connection is gone."""
        self.gone = True
        self._events.clear()
        self._waiting = 0
        self._room.set()
        self._wake.set()
        self.cancel()

    def cancel(self) -> None:
        """Tell the gate, once, that the client does not wait any more."""
        if self.call.cancelled:
            return
        self.call.cancelled = True
        try:
            self.gate.cancelled(self.call)
        except Exception:  # stderr is told: the call goes on
            traceback.print_exc()

    @property
    def streams(self) -> bool:
        """Tell whether the upstream chose to answer with a stream of events."""
        return self.head is not None and self.head[0] < 300 and is_stream(self.head[1])

    @property
    def challenge(self) -> Headers | None:
        """Return the headers with which the upstream asked for credentials, if that is all it ever said."""
        if self.head is None or self._exchanges != 1 or self.head[0] != 401:
            return None
        return self.head[1] if get(self.head[1], b"www-authenticate") is not None else None

    @property
    def status(self) -> int:
        """Return the status of a gate's answer: 200, but where it is the server's own word that a request is wrong."""
        said = self.said
        wrong = said is not None and said.kind == "rpc_error" and said.status == 400
        return 400 if wrong and said is not None and said.raw == self.answered.result() else 200

    async def news(self, within_s: float) -> bool:
        """Wait for events, the head or the answer; False = there was none of them in time."""
        if self._events or self.answered.done() or self.parted:
            return True
        self._wake.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> bytes:
        """Return the events that wait for the client."""
        data = b"".join(event.raw for event in self._events)
        self.given_id = next((event.id for event in reversed(self._events) if event.id is not None), self.given_id)
        self._events.clear()
        self._waiting = 0
        self._room.set()
        return data

    def as_event(self) -> bytes:
        """Return the gate's answer in the place of the upstream's last event."""
        return encode(self.answered.result(), like=self.final)
