"""Bytes in and out of pipes: lines cut from a stream, and writes that neither block nor pile up unseen.

Everything here works on file descriptors and raw bytes. A line is what stands before a newline byte and that newline;
no other separator counts, because JSON strings may hold U+2028 and a carriage return belongs to whoever wrote it. This
module imports nothing slow, so that a proxy can start its tool server before it imports anything else.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

CHUNK = 65_536  #: what a pipe holds on Linux; a larger buffer costs page faults on every read
Owner = TypeVar("Owner")
ENDS = 4_096  #: how much of a line over the cap is kept at either end, to find its id


def start(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a tool server with pipes on its stdin and stdout; its stderr stays ours. Raises OSError."""
    return subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=None if env is None else dict(env)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversize:
    """A line over the cap: what is left of it."""

    head: bytes
    tail: bytes
    size: int


class Lines:
    """Cut a byte stream into lines, each with its newline; of a line over the cap only the ends are kept."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""

    def feed(self, chunk: bytes) -> list[bytes | Oversize]:
        """Return the lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        lines = [self._complete(end + b"\n") for end in ends]
        self._keep(rest)
        return lines

    @property
    def between(self) -> bool:
        """Tell whether the next chunk begins a line."""
        return not self._size

    def rest(self) -> bytes:
        """Return what stands after the last newline; empty where that was over the cap."""
        return b"".join(self._parts)

    def _complete(self, end: bytes) -> bytes | Oversize:
        if not self._size:
            return end
        self._keep(end)
        size, head, tail = self._size, self._head, self._tail
        line = b"".join(self._parts)
        self._parts, self._size, self._head, self._tail = [], 0, b"", b""
        return line if size <= self._cap else Oversize(head=head, tail=tail, size=size)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._cap:
            if part:
                self._parts.append(part)
            return
        whole = b"".join(self._parts) + part
        self._head = self._head or whole[:ENDS]
        self._tail = (self._tail + whole)[-ENDS:]
        self._parts = []


class Reader:
    """Read lines from a descriptor as they come, until told to pause."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        fd: int,
        *,
        cap: int,
        take: Callable[[bytes | Oversize], None],
        ended: Callable[[bytes], None],
    ) -> None:
        self._loop, self._fd, self._take, self._ended = loop, fd, take, ended
        self._lines = Lines(cap)
        self._open, self._reading = True, False
        self.resume()

    def pause(self) -> None:
        """Stop reading: the writer at the other end is held up once the pipe is full."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read on; without effect after the end or `close`."""
        if self._open and not self._reading:
            self._reading = True
            try:
                self._loop.add_reader(self._fd, self._ready)
            except PermissionError:  # epoll takes no regular file and no /dev/null; those never block
                self._loop.call_soon(self._ready_file)

    def close(self) -> None:
        """Read no more. The descriptor stays open."""
        self.pause()
        self._open = False

    def _ready_file(self) -> None:
        if self._reading:
            self._ready()
            self._loop.call_soon(self._ready_file)

    def _ready(self) -> None:
        # The descriptor is left in blocking mode, which it may share with other processes; a ready read does not block.
        try:
            chunk = os.read(self._fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # a terminal or socket whose other end has gone
            chunk = b""
        if chunk.find(b"\n") == len(chunk) - 1 and chunk and self._lines.between:  # one line, as nearly always
            self._take(chunk)
        elif chunk:
            for line in self._lines.feed(chunk):
                self._take(line)
        else:
            self.close()
            self._ended(self._lines.rest())


@dataclass(slots=True)
class _Block(Generic[Owner]):
    data: memoryview
    owner: Owner | None
    begun: bool = False  #: bytes of it have left


class Writer(Generic[Owner]):
    """Write blocks to a descriptor in order, at once where the pipe has room."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        fd: int,
        *,
        broken: Callable[[], None],
        moved: Callable[[], None],
        begin: Callable[[Owner], bool] = lambda owner: True,
        unsent: Callable[[Owner], None] = lambda owner: None,
    ) -> None:
        """Prepare to write to `fd`.

        `broken` is called once when the reader has gone, `moved` whenever a backlog grows or shrinks. `begin` is asked
        right before the first byte of a block with an owner leaves (again, when the pipe had no room then); False drops
        the block. `unsent` is told of a block of which no byte left before the pipe broke or was closed.
        """
        self._loop, self._fd, self._broken, self._moved = loop, fd, broken, moved
        self._begin, self._unsent = begin, unsent
        self._blocks: deque[_Block[Owner]] = deque()
        self._watching = False
        self.backlog = 0  #: bytes that wait for room
        self.accepted = 0  #: bytes taken so far
        self.closed = False
        self._was_blocking = os.get_blocking(fd) and not os.isatty(fd)  # a terminal is shared with the shell
        if self._was_blocking:
            os.set_blocking(fd, False)

    @property
    def written(self) -> int:
        """Return how many bytes of those accepted have left."""
        return self.accepted - self.backlog

    def send(self, data: bytes, owner: Owner | None = None) -> None:
        """Write one block."""
        count = 0
        if self.closed:
            if owner is not None:
                self._unsent(owner)
            return
        if not self._blocks:
            if owner is not None and not self._begin(owner):
                return
            try:
                count = os.write(self._fd, data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._fail()
                if owner is not None:
                    self._unsent(owner)
                return
            self.accepted += count
            if count == len(data):
                return
        self._blocks.append(_Block(memoryview(data)[count:], owner, begun=count > 0))
        self.accepted += len(data) - count
        self.backlog += len(data) - count
        if not self._watching:
            self._watching = True
            self._loop.add_writer(self._fd, self._ready)
        self._moved()

    def close(self) -> None:
        """Write no more; blocks of which nothing left are reported as unsent. The descriptor stays open."""
        if self.closed:
            return
        self.closed = True
        if self._watching:
            self._loop.remove_writer(self._fd)
        if self._was_blocking:
            with suppress(OSError):
                os.set_blocking(self._fd, True)
        blocks, self._blocks, self.backlog = self._blocks, deque(), 0
        for block in blocks:
            if not block.begun and block.owner is not None:
                self._unsent(block.owner)

    def _ready(self) -> None:
        while self._blocks:
            block = self._blocks[0]
            if not block.begun and block.owner is not None and not self._begin(block.owner):
                self._drop(len(block.data))
                continue
            try:
                count = os.write(self._fd, block.data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._fail()
                return
            if count == len(block.data):
                self._drop(count)
            else:
                block.begun, block.data = True, block.data[count:]
                self.backlog -= count
                break
        if not self._blocks:
            self._watching = False
            self._loop.remove_writer(self._fd)
        self._moved()

    def _drop(self, count: int) -> None:
        self._blocks.popleft()
        self.backlog -= count

    def _fail(self) -> None:
        # The owner of the pipe learns first, so that what is reported as unsent is not offered to it again.
        self._broken()
        self.close()
