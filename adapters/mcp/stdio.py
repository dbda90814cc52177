"""The stdio relay: one client before it, one tool server behind it, lines of bytes between them.

Lines go through as they came. Decoded are the client's requests and notifications, responses that are tracked for a
reason, and little else; re-encoded is only what a gate changed. A `tools/call` that the gate wants is answered by the
gate alone. The relay outlives its tool server (`child`): every open request is answered, and the next message that
needs a server starts a new one and repeats the handshake, never a call.

Batches (arrays, revision 2025-03-26) go through whole, unless the gate must see a part: wanted calls and cancellations
of handled calls are taken out, the rest is forwarded as a smaller batch with the bytes of its elements, and the answers
of the taken calls are sent singly, which that revision allows, each when it is ready.

Not restored after a restart is what only the old process knew: log level, resource subscriptions, and its own open
requests to the client.
"""

from __future__ import annotations

import asyncio
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from onceward.outcomes import Reply

from .child import Out, ToolServer, until
from .pipes import Oversize, Reader, Writer
from .rpc import (
    MODERN,
    Id,
    UnreadableError,
    answered_id,
    cancels,
    decode,
    elements,
    encode,
    failed_call,
    failed_request,
    may_ask,
    reply,
    request_id,
    some_id,
)
from .wire import Call, Gate

CAP = 64 * 1024 * 1024  #: the longest line that is relayed
HIGH, LOW = 1024 * 1024, 256 * 1024  #: a side is not read above, and read again below, this many bytes of backlog
MOST_CALLS = 1000  #: handled calls at once; above, the client is not read
DRAIN_S = 0.2  #: harnesses kill a child about 0.25 s after they closed its stdin
HANGUP_S = 0.02  #: a killed client's descriptors do not all close in the same instant
ASKING_USER = ("sampling/createMessage", "elicitation/create")


async def relay(
    command: Sequence[str],
    gate_ready: Callable[[], Gate] | Awaitable[Gate],
    *,
    env: Mapping[str, str] | None = None,
    spawned: subprocess.Popen[bytes] | None = None,
    cap: int = CAP,
    stdin: int = 0,
    stdout: int = 1,
) -> int:
    """Relay between a client on `stdin` and `stdout` and the tool server that `command` starts; return the exit code.

    Relaying begins at once, with `spawned` where the caller started the server already, with pipes. A callable
    `gate_ready` runs in a thread; calls and tool lists wait for the gate it returns, nothing else does. What it raises
    ends the relay and is raised here. `env` is the whole environment of the server. The journal is the gate's to close.
    """
    if sys.platform == "win32":
        raise RuntimeError("the stdio relay needs Linux or macOS; on Windows run it under WSL, or relay over HTTP")
    return await _Relay(command, env, cap, stdin, stdout).run(gate_ready, spawned)


class _Relay:
    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cap: int, stdin: int, stdout: int
    ) -> None:
        self._loop, self._cap, self._stdin, self._stdout = asyncio.get_running_loop(), cap, stdin, stdout
        self._gate: Gate | None = None
        self._early: list[Callable[[], None]] = []  # what waits for the gate
        self._early_bytes = 0
        self._early_ids: set[Id] = set()
        self._withdrawn: set[Id] = set()  # cancelled while they waited for the gate
        self._calls: dict[Id, Call] = {}  # with the gate
        self._answered: list[tuple[Call, int]] = []  # and where in the output the answer ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[Callable[[], Awaitable[int]]] = self._loop.create_future()
        self._client: Writer[None] = Writer(self._loop, stdout, broken=self._client_gone, moved=self._throttle)
        self._server = ToolServer(
            command,
            env=env,
            cap=cap,
            line=self._server_line,
            to_client=self._client.send,
            moved=self._throttle,
            useless=self._useless,
        )

    async def run(
        self, gate_ready: Callable[[], Gate] | Awaitable[Gate], spawned: subprocess.Popen[bytes] | None
    ) -> int:
        """Relay until either side ends; return the exit code."""
        self._server.open(spawned)
        self._reader = Reader(self._loop, self._stdin, cap=self._cap, take=self._client_line, ended=self._client_ended)
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, RuntimeError):  # not in the main thread: whoever is there has the signals
                self._loop.add_signal_handler(number, self._end, partial(self._leave, number=number))
        if callable(gate_ready):
            threading.Thread(target=self._load, args=(gate_ready,), daemon=True).start()
        else:
            self._keep(self._loop.create_task(self._await_gate(gate_ready)))
        try:
            return await (await self._done)()
        finally:
            self._reader.close()
            self._server.kill()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._client.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the gate ----------------------------------------------------------------------------------------------------

    def _load(self, gate_ready: Callable[[], Gate]) -> None:
        loaded: Callable[[], None]
        try:
            loaded = partial(self._open_gate, gate_ready())
        except BaseException as error:  # raised by relay()
            loaded = partial(self._fail, error)
        with suppress(RuntimeError):  # the relay ended meanwhile
            self._loop.call_soon_threadsafe(loaded)

    async def _await_gate(self, gate_ready: Awaitable[Gate]) -> None:
        try:
            self._open_gate(await gate_ready)
        except Exception as error:  # raised by relay()
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _open_gate(self, gate: Gate) -> None:
        self._gate = gate
        early, self._early, self._early_bytes = self._early, [], 0
        for act in early:
            act()
        self._early_ids, self._withdrawn = set(), set()
        self._throttle()

    def _wait_for_gate(self, act: Callable[[], None], size: int, ids: Sequence[Id] = ()) -> None:
        self._early.append(act)
        self._early_bytes += size
        self._early_ids.update(ids)
        self._throttle()

    # -- from the client ---------------------------------------------------------------------------------------------

    def _client_line(self, line: bytes | Oversize) -> None:
        if isinstance(line, Oversize):
            return self._refuse(line.head + line.tail, f"it has {line.size} bytes, at most {self._cap} are relayed")
        try:
            message = decode(line) if may_ask(line) else None
        except UnreadableError as error:
            return self._refuse(line, str(error))
        if self._answered:
            messages = message if isinstance(message, list) else [message]
            self._acknowledge({key for each in messages if (key := cancels(each)) is not None})
        if isinstance(message, list):
            self._batch(line, message)
        elif not isinstance(message, dict):
            self._server.send(Out(line))  # an answer to the server, a blank line, or nothing that is ours to judge
        elif (out := self._show(line, line[:-1], message)) is not None:
            self._server.send(out)
        return None

    def _show(self, line: bytes, raw: bytes, message: dict[str, Any]) -> Out | None:
        """Look at one message; return what to send of it, None where nothing is sent now."""
        method, key = message.get("method"), request_id(message)
        if method == "tools/call":
            return self._call(line, raw, message, key)
        if method == "notifications/cancelled":
            return None if self._cancel(cancels(message)) else Out(line)
        if method == "notifications/initialized" or (method == "initialize" and key is not None):
            self._server.shake(message, raw + b"\n")
        return Out(line, key, method) if isinstance(method, str) and key is not None else Out(line)

    def _call(self, line: bytes, raw: bytes, message: dict[str, Any], key: Id | None) -> Out | None:
        self._server.tried = True
        if key is None:
            self._client.send(failed_request(None, "a tools/call needs an id; it was not sent", code=-32600) + b"\n")
            return None
        if self._gate is None:
            self._wait_for_gate(partial(self._call_late, line, raw, message, key), len(line), (key,))
            return None
        call = Call(raw=raw, message=message, client="stdio")
        try:
            wanted = self._gate.wants(call)
        except Exception:  # the caller is told, and stderr: a call that nobody judged must not leave
            traceback.print_exc()
            text = "The guard failed before this call was sent. It was not sent."
            self._client.send(failed_call(key, text, modern=MODERN in raw) + b"\n")
            return None
        if not wanted:
            return Out(line, key, "tools/call")
        self._calls[key] = call
        self._keep(self._loop.create_task(self._handle(self._gate, call)))
        self._throttle()
        return None

    def _call_late(self, line: bytes, raw: bytes, message: dict[str, Any], key: Id) -> None:
        if key not in self._withdrawn and (out := self._call(line, raw, message, key)) is not None:
            self._server.send(out)

    async def _handle(self, gate: Gate, call: Call) -> None:
        try:
            answer = await gate.handle(call, self._server)
        except Exception:  # the caller is told, and stderr
            traceback.print_exc()
            text = "The guard failed while it handled this call. It is not known whether the call took effect."
            answer = failed_call(call.id, text, modern=MODERN in call.raw)
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        if not call.cancelled:
            self._client.send(answer + b"\n")
            self._answered.append((call, self._client.accepted))
        self._throttle()

    def _cancel(self, key: Id | None) -> bool:
        """Take note of a cancellation; True = it ends here, the server must not see it."""
        if key is None:
            return False
        if key in self._early_ids:
            self._withdrawn.add(key)
            return True
        call = self._calls.get(key)
        if call is not None and not call.cancelled:
            self._withdraw(call)
        return not self._server.withdraw(key) or call is not None

    def _withdraw(self, call: Call) -> None:
        call.cancelled = True
        assert self._gate is not None, "only a gate handles calls"
        _tell(self._gate.cancelled, call)

    def _acknowledge(self, cancelled: set[Id]) -> None:
        """Tell the gate which answers arrived, now that the client sent something more."""
        answered, self._answered = self._answered, []
        for call, end in answered:
            assert self._gate is not None, "only a gate answers calls"
            if call.id in cancelled:  # it crossed the answer, which the client does not look at any more
                self._withdraw(call)
            elif end <= self._client.written:
                _tell(self._gate.delivered, call)
            else:
                self._answered.append((call, end))

    def _batch(self, line: bytes, messages: list[Any]) -> None:
        calls = any(isinstance(each, dict) and each.get("method") == "tools/call" for each in messages)
        if self._gate is None and calls:
            return self._wait_for_gate(partial(self._batch, line, messages), len(line))
        outs = [
            self._show(raw, raw, each) if isinstance(each, dict) else Out(raw)
            for raw, each in zip(elements(line), messages, strict=True)
        ]
        rest = [out for out in outs if out is not None]
        if len(rest) < len(outs):
            line = b"[" + b",".join(out.data for out in rest) + b"]\n"
        if rest or not messages:
            self._server.send(Out(line, parts=[out for out in rest if out.key is not None]))
        return None

    def _refuse(self, line: bytes, why: str) -> None:
        """Answer a message that cannot be relayed."""
        key, text = some_id(line), f"This message was not sent to the tool server: {why}."
        if b'"tools/call"' in line and key is not None:
            self._client.send(failed_call(key, text, modern=MODERN in line) + b"\n")
        else:
            self._client.send(failed_request(key, text, code=-32600) + b"\n")

    # -- from the server ---------------------------------------------------------------------------------------------

    def _server_line(self, line: bytes | Oversize) -> None:
        self._server.tried = True
        if isinstance(line, Oversize):
            return self._too_long(line)
        known = answered_id(line)
        if known is None and (b'"id"' in line or b"\\u" in line):
            try:
                message = decode(line)
            except UnreadableError:
                message = None  # the server's word to its client, whatever it is
            if isinstance(message, list):
                return self._server_batch(line, message)
            key = request_id(message) if isinstance(message, dict) else None
            if key is not None and "method" not in message:
                known = key, "result" in message
            elif key is not None and message["method"] in ASKING_USER and self._server.only_own():
                return self._decline(key)
        if known is None:
            return self._client.send(line)
        key, result = known
        out = self._server.answered(key, result=result)
        if out is not None and out.future is not None:
            out.resolve(reply(line[:-1]))
        elif out is not None and out.method == "tools/list":
            self._list(line)
        elif out is not None or not self._server.is_own(key):
            self._client.send(line)
        return None

    def _list(self, line: bytes) -> None:
        if self._gate is None:
            self._wait_for_gate(partial(self._list, line), len(line))
        else:
            self._client.send(self._shown(self._gate, line) or line)

    def _shown(self, gate: Gate, line: bytes) -> bytes | None:
        """Show a tool list to the gate; return the line to send instead, if any."""
        try:
            message = decode(line)
            changed = gate.tools(message["result"]) if isinstance(message.get("result"), dict) else None
        except Exception:  # stderr is told: a list that cannot be shown goes to the client as it is
            traceback.print_exc()
            return None
        return None if changed is None else encode({**message, "result": changed}) + b"\n"

    def _server_batch(self, line: bytes, messages: list[Any]) -> None:
        if self._gate is None:
            return self._wait_for_gate(partial(self._server_batch, line, messages), len(line))
        kept, changed = [], False
        for raw, message in zip(elements(line), messages, strict=True):
            key = request_id(message) if isinstance(message, dict) and "method" not in message else None
            out = None if key is None else self._server.answered(key, result="result" in message)
            if out is not None and out.future is not None:
                out.resolve(reply(raw))
                changed = True
                continue
            shown = self._shown(self._gate, raw) if out is not None and out.method == "tools/list" else None
            changed = changed or shown is not None
            kept.append(raw if shown is None else shown[:-1])
        if kept or not messages:
            self._client.send(b"[" + b",".join(kept) + b"]\n" if changed else line)
        return None

    def _too_long(self, line: Oversize) -> None:
        """Answer in place of a response that cannot be relayed."""
        known = answered_id(line.head) or answered_id(line.head[:64] + line.tail)
        out = self._server.answered(known[0], result=False) if known is not None else None
        if out is None:
            print(f"onceward: dropped a line of {line.size} bytes from the tool server", file=sys.stderr)
        else:
            text = f"The answer has {line.size} bytes, at most {self._cap} are relayed; the request did arrive."
            self._server.give_up(out, Reply(kind="lost", text=text))

    def _decline(self, key: Id) -> None:
        """Answer a question to the user that a request of our own caused: no client waits for that request."""
        text = "nobody can be asked: this request is the guard's own"
        self._server.send(Out(failed_request(key, text, code=-32601) + b"\n"))

    # -- flow and end ------------------------------------------------------------------------------------------------

    def _throttle(self) -> None:
        """Stop reading whoever fills a backlog that the other side does not empty."""
        down = self._client.backlog + self._early_bytes
        if down > HIGH or down < LOW:
            self._server.pause(down > HIGH)
        up = max(down, self._server.backlog)
        if up > HIGH or len(self._calls) >= MOST_CALLS:
            self._reader.pause()
        elif up < LOW:
            self._reader.resume()

    def _end(self, leave: Callable[[], Awaitable[int]]) -> None:
        if not self._done.done():
            self._done.set_result(leave)

    def _client_ended(self, rest: bytes) -> None:
        with suppress(UnreadableError):
            if decode(rest) is None:
                self._server.send(Out(rest))
            else:  # a last message whose newline is missing
                self._client_line(rest + b"\n")
        self._end(self._leave)

    def _client_gone(self) -> None:
        self._server.pause(False)  # what it still says may be an outcome
        self._end(partial(self._leave, gone=True))

    def _useless(self, code: int) -> None:
        """Leave as the tool server did, which ended before it was of any use."""

        async def same() -> int:
            return code

        self._end(same)

    async def _leave(self, *, number: signal.Signals | None = None, gone: bool = False) -> int:
        """Let handled calls finish for a moment, tell the gate how its answers fared, and end the tool server."""
        self._reader.close()
        if self._calls:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        for call in self._calls.values():
            if not call.cancelled:
                self._withdraw(call)
        if self._answered and number is None and not gone:
            await asyncio.sleep(HANGUP_S)
            if _is_read(self._stdout):
                self._acknowledge(set())
        code = await self._server.leave(number)
        if self._calls:  # replies that came at last, or were lost for good, are worth recording
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        await until(lambda: self._client.backlog == 0, DRAIN_S)
        return 128 + number if number is not None else code


def _tell(listener: Callable[[Call], None], call: Call) -> None:
    """Tell the gate something; a message of the client must not be lost with what goes wrong there."""
    try:
        listener(call)
    except Exception:  # stderr is told
        traceback.print_exc()


def _is_read(fd: int) -> bool:
    """Tell whether somebody still reads what is written to `fd`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return not any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
