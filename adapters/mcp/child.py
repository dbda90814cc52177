"""The tool server behind the stdio relay: one process at a time, restored when a message needs it and it has gone.

Whatever a dead process owes is answered here: a reply `lost` for the gate, a tool result or error for the client, in
words that no harness takes for a fault of the transport (some would replay the call). A request of which no byte left
is offered to the next process once. A new process gets the handshake that the old one had, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from onceward.outcomes import Reply

from .pipes import Oversize, Reader, Writer, start
from .rpc import MODERN, Id, UnreadableError, decode, encode, failed_call, failed_request, own_message
from .wire import Call

RESTARTS, RESTARTS_S = 5, 60.0  #: a server that dies more often needs a person
HANDSHAKE_S = 30.0  #: a server that takes longer outlasts its client's patience anyway
EXIT_S = 1.0  #: how long a process may take to leave, before SIGTERM and again before SIGKILL


@dataclass(slots=True, eq=False)
class Out:
    """A message on its way to the tool server and, once sent, the request that waits for a response."""

    data: bytes
    key: Id | None = None  #: the id of a request
    method: str = ""
    own: bool = False
    future: asyncio.Future[Reply] | None = None
    before: Callable[[], bool] | None = None
    parts: Sequence[Out] = ()  #: the requests of a batch
    renamed: bool = False  #: the client has another open request of this id, so this one goes out under one of ours
    again: bool = False  #: offered to a second process, after the first broke before a byte of this left
    via: _Process | None = None  #: the process that owes the answer

    def resolve(self, reply: Reply) -> None:
        """Give the reply to the gate, unless it has one or stopped listening for good."""
        if self.future is not None and not self.future.done():
            self.future.set_result(replace(reply, raw=None) if self.renamed else reply)


class _Process:
    """One process of the tool server."""

    def __init__(self, server: ToolServer, popen: subprocess.Popen[bytes], *, cap: int, ready: bool) -> None:
        assert popen.stdin is not None, "started with pipes"
        assert popen.stdout is not None, "started with pipes"
        self.popen, self.ready, self.silent = popen, ready, False
        self.writer: Writer[Out] = Writer(
            server.loop,
            popen.stdin.fileno(),
            broken=partial(server.lost_input, self),
            moved=server.moved,
            begin=partial(server.begin, self),
            unsent=server.unsent,
        )
        self.reader = Reader(
            server.loop, popen.stdout.fileno(), cap=cap, take=server.take_line, ended=partial(server.lost_output, self)
        )

    def hang_up(self) -> None:
        """Close its stdin: it may read to the end and leave."""
        self.writer.close()
        assert self.popen.stdin is not None, "started with pipes"
        with suppress(OSError):
            self.popen.stdin.close()

    async def exited(self, within_s: float) -> bool:
        """Wait for the process to exit."""
        return await until(lambda: self.popen.poll() is not None, within_s)

    async def stop(self) -> None:
        """Make the process leave: SIGTERM, and SIGKILL after a moment."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.popen.send_signal(number)
            if await self.exited(EXIT_S):
                return

    def how(self) -> str:
        """Say how the process ended."""
        code = self.popen.poll()
        if code is None:
            return "stopped answering"
        return f"was killed by signal {-code}" if code < 0 else f"stopped with exit code {code}"


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait for a condition that nobody announces, for the short times around an exit."""
    until_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() >= until_s:
            return False
        await asyncio.sleep(0.005)
    return True


class ToolServer:
    """The tool server as a relay sees it; `exchange` is what a gate sees of it (`wire.Upstream`)."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cap: int,
        line: Callable[[bytes | Oversize], None],
        to_client: Callable[[bytes], None],
        moved: Callable[[], None],
        useless: Callable[[int], None],
    ) -> None:
        """Prepare; `open` starts.

        `line` takes what the server says, `to_client` an answer given in its place, `moved` is called when a backlog
        changes, `useless` when the first process ended without a word before any tool was called.
        """
        self.loop = asyncio.get_running_loop()
        self.take_line, self._to_client, self.moved, self._useless = line, to_client, moved, useless
        self._command, self._env, self._cap = command, env, cap
        self._process: _Process | None = None
        self._processes: set[_Process] = set()  # also those on their way out
        self._inflight: dict[Id, Out] = {}  # sent, not answered
        self._queue: list[Out] = []  # what waits for a new process
        self._queued = 0  # bytes of it
        self._restoring: asyncio.Task[None] | None = None
        self._restarts: deque[float] = deque()
        self._burials: set[asyncio.Task[None]] = set()
        self._initialize: dict[str, Any] | None = None
        self._initialized = b""
        self._shaken = False  # the handshake was answered, so a new process needs it too
        self._owns, self._count = f"onceward-{os.urandom(8).hex()}-", 0
        self._paused = self._leaving = False
        self.tried = False  #: it was given a tool call, or said something

    def open(self, spawned: subprocess.Popen[bytes] | None) -> None:
        """Take the process that was started already, or start one. Raises OSError."""
        self._adopt(spawned or start(self._command, self._env), ready=True)

    # -- sending -----------------------------------------------------------------------------------------------------

    def exchange(
        self,
        call: Call,
        message: dict[str, Any] | None = None,
        *,
        own: bool = False,
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Reply]:
        """See `wire.Upstream`. `before_send` is asked once more where the pipe had no room after its first yes."""
        future: asyncio.Future[Reply] = self.loop.create_future()
        out = Out(b"", call.id, "tools/call", own=own, future=future, before=before_send)
        # Else the answer to the one could be taken for that of the other.
        out.renamed = not own and (call.id in self._inflight or any(each.key == call.id for each in self._queue))
        try:
            if own:
                out.key = self._own_id()
                out.data = encode(own_message(out.key, call, call.message if message is None else message)) + b"\n"
            elif out.renamed:
                out.key = self._own_id()
                out.data = encode({**(call.message if message is None else message), "id": out.key}) + b"\n"
            else:
                out.data = (call.raw if message is None else encode({**message, "id": call.id})) + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            out.resolve(Reply(kind="not_sent", text=f"the message cannot be written as JSON: {error}"))
        else:
            self.send(out)
        return future

    def send(self, out: Out) -> None:
        """Send a message; where there is no process, start one if an answer is owed, else drop the message."""
        process = self._process
        if process is not None and process.ready:
            process.writer.send(out.data, out)
        elif self._leaving:
            self._not_sent(out, "the proxy is about to leave")
        elif process is not None or self._restoring is not None or out.key is not None or out.parts:
            self._queue.append(out)
            self._queued += len(out.data)
            if self._restoring is None and process is None:
                self._restoring = self.loop.create_task(self._restore())
            self.moved()

    def begin(self, process: _Process, out: Out) -> bool:
        """Register a request right before its first byte leaves; False = it must not leave."""
        if out.before is not None:
            try:
                allowed, why = out.before(), "it was stopped right before the write"
            except Exception as error:  # told in the reply: the future never raises
                allowed, why = False, f"the check right before the write failed: {error}"
            if not allowed:
                self._forget(out)
                self._not_sent(out, why)
                return False
        for each in out.parts or (out,):
            if each.key is not None:
                earlier = self._inflight.get(each.key)
                if earlier is not None and earlier is not each:
                    earlier.resolve(Reply(kind="lost", text="the client used the id of this request again"))
                self._inflight[each.key], each.via = each, process
        return True

    def unsent(self, out: Out) -> None:
        """Offer a message of which no byte left to the next process, once."""
        self._forget(out)
        if out.again:
            self._not_sent(out, "two processes in a row stopped before it could be sent")
        else:
            out.again = True
            self.send(out)

    def _forget(self, out: Out) -> None:
        for each in out.parts or (out,):
            if each.key is not None and self._inflight.get(each.key) is each:
                del self._inflight[each.key]

    def _not_sent(self, out: Out, why: str) -> None:
        text = f"This was not sent to the tool server: {why}."
        for each in out.parts or (out,):
            self.give_up(each, Reply(kind="not_sent", text=text))

    def give_up(self, out: Out, reply: Reply) -> None:
        """Answer a request that the server will not answer."""
        if out.future is not None:
            out.resolve(reply)
        elif self._leaving:
            pass  # the client hung up on these, as it would on the server itself
        elif out.method == "tools/call":
            self._to_client(failed_call(out.key, reply.text, modern=MODERN in out.data) + b"\n")
        elif out.key is not None:
            self._to_client(failed_request(out.key, reply.text) + b"\n")

    def _own_id(self) -> str:
        self._count += 1
        return f"{self._owns}{self._count}"

    # -- what is known of requests -----------------------------------------------------------------------------------

    def answered(self, key: Id, *, result: bool) -> Out | None:
        """Take the request that a response answers; None where nobody waits for it."""
        out = self._inflight.pop(key, None)
        if out is not None and out.method == "initialize" and not out.own:
            self._shaken = result
        return out

    def withdraw(self, key: Id) -> bool:
        """Forget a request that the client cancelled; False = it is the gate's, and the server must not be told."""
        out = self._inflight.get(key)
        if out is not None and out.future is not None:
            return False
        self._inflight.pop(key, None)
        return True

    def is_own(self, key: Id) -> bool:
        """Tell whether an id is one of our own."""
        return isinstance(key, str) and key.startswith(self._owns)

    def only_own(self) -> bool:
        """Tell whether all that the server works on is our own."""
        return bool(self._inflight) and all(out.own for out in self._inflight.values())

    def shake(self, message: dict[str, Any], line: bytes) -> None:
        """Remember the client's handshake."""
        if message["method"] == "initialize":
            self._initialize, self._initialized, self._shaken = message, b"", False
        else:
            self._initialized = line

    # -- flow --------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._queued + (self._process.writer.backlog if self._process is not None else 0)

    def pause(self, paused: bool) -> None:
        """Stop reading the server, or read on."""
        self._paused = paused
        if self._process is not None and paused:
            self._process.reader.pause()
        elif self._process is not None:
            self._process.reader.resume()

    # -- death and restoration ---------------------------------------------------------------------------------------

    def lost_input(self, process: _Process) -> None:
        """Note that a process reads no more: it gets nothing new, but has time to say what it owes."""
        self._retire(process)
        process.reader.resume()
        self._watch(self._bury(process, HANDSHAKE_S))

    def lost_output(self, process: _Process, rest: bytes) -> None:
        """Answer for a process whose output has ended."""
        with suppress(UnreadableError):
            if decode(rest) is not None:  # a last message whose newline is missing
                self.take_line(rest + b"\n")
        process.silent = True
        self._retire(process)
        lost = [out for out in self._inflight.values() if out.via is process]
        for out in lost:
            self._forget(out)
        self._watch(self._answer_for(process, lost))

    def _retire(self, process: _Process) -> None:
        if self._process is process and not self._leaving:
            self._process = None
        process.hang_up()

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _answer_for(self, process: _Process, lost: Sequence[Out]) -> None:
        await process.exited(0.1)  # so that the answers can tell how it ended
        text = f"The tool server {process.how()} before it answered. What this request did is not known here."
        for out in lost:
            self.give_up(out, Reply(kind="lost", text=text))
        if not self.tried and not self._leaving:
            self._useless(_exit_code(process.popen))
        await self._bury(process, EXIT_S)

    async def _bury(self, process: _Process, within_s: float) -> None:
        if await process.exited(within_s):
            self._processes.discard(process)
        elif not self._leaving:
            await process.stop()

    async def _restore(self) -> None:
        """Start a new process for what waits."""
        problem = ""
        while not self._leaving:
            now_s = self.loop.time()
            while self._restarts and self._restarts[0] <= now_s - RESTARTS_S:
                self._restarts.popleft()
            if len(self._restarts) >= RESTARTS:
                problem = f"the tool server stopped too often ({RESTARTS} restarts in {RESTARTS_S:.0f} s)"
                break
            self._restarts.append(now_s)
            try:
                process = self._adopt(start(self._command, self._env), ready=False)
            except OSError as error:
                problem = f"the tool server cannot be started: {error}"
                break
            if await self._handshake(process):
                process.ready = True
                break
        queue, self._queue, self._queued, self._restoring = self._queue, [], 0, None
        for out in queue:
            if problem:
                self._not_sent(out, problem)
            else:
                self.send(out)
        self.moved()

    async def _handshake(self, process: _Process) -> bool:
        """Repeat the client's handshake; tell whether the new process took it."""
        if not self._shaken:
            return self._process is process
        future: asyncio.Future[Reply] = self.loop.create_future()
        out = Out(b"", self._own_id(), "initialize", own=True, future=future, again=True)
        out.data = encode({**(self._initialize or {}), "id": out.key}) + b"\n"
        process.writer.send(out.data, out)
        await asyncio.wait([future], timeout=HANDSHAKE_S)
        if not future.done() or future.result().kind != "result" or self._process is not process:
            self._forget(out)
            if self._process is process:
                print("onceward: the restarted tool server did not take the handshake", file=sys.stderr)
                self._process = None
                await process.stop()
            return False
        if self._initialized:
            process.writer.send(self._initialized)
        return True

    def _adopt(self, popen: subprocess.Popen[bytes], *, ready: bool) -> _Process:
        self._process = process = _Process(self, popen, cap=self._cap, ready=ready)
        self._processes.add(process)
        if self._paused:
            process.reader.pause()
        return process

    # -- leaving -----------------------------------------------------------------------------------------------------

    async def leave(self, number: signal.Signals | None) -> int:
        """Close the server's stdin, wait for its last words and its exit; return its code, 0 where we had to end it."""
        self._leaving = True
        if self._restoring is not None:
            self._restoring.cancel()
        process, code = self._process, 0
        if process is not None:
            await until(lambda: process.writer.backlog == 0, EXIT_S)
            process.hang_up()
            if number is not None:
                process.popen.send_signal(number)
            if await process.exited(EXIT_S):
                code = _exit_code(process.popen)
            else:
                await process.stop()
            await until(lambda: process.silent, 0.1)  # a grandchild may hold its stdout open
        for out in (*self._inflight.values(), *self._queue):  # for the gate's record
            kind: Literal["lost", "not_sent"] = "lost" if out.via is not None else "not_sent"
            self.give_up(out, Reply(kind=kind, text="The proxy left before the tool server answered."))
        self._inflight, self._queue = {}, []
        return code

    def kill(self) -> None:
        """End whatever still runs, at once."""
        self._leaving = True
        for task in (*self._burials, *([self._restoring] if self._restoring is not None else [])):
            task.cancel()
        for process in self._processes:
            process.reader.close()
            process.hang_up()
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
            assert process.popen.stdout is not None, "started with pipes"
            process.popen.stdout.close()


def _exit_code(popen: subprocess.Popen[bytes]) -> int:
    """Return the exit code as a shell has it; 1 for a process that has none yet."""
    code = popen.poll()
    return 1 if code is None else 128 - code if code < 0 else code
