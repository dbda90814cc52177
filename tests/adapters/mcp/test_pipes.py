"""Lines and writes on real pipes: what was sent, and what certainly was not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from onceward.adapters.mcp.pipes import Lines, Oversize, Writer

BIG = b"x" * 300_000  #: more than a pipe holds


def played(play: Callable[[asyncio.AbstractEventLoop, int, int], None]) -> None:
    """Play in a loop with a fresh pipe: read end, write end."""

    async def main() -> None:
        reading, writing = os.pipe()
        try:
            play(asyncio.get_running_loop(), reading, writing)
            await asyncio.sleep(0)
        finally:
            for fd in (reading, writing):
                with suppress(OSError):
                    os.close(fd)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_cut_at_newlines_only(size: int):
    """However the bytes are chunked, and whatever other separators they hold."""
    stream = "a\r\n\n\u2028b\x85\x0bc\n".encode() + b"d" * 50 + b"\nrest"
    lines = Lines(1000)
    found = [line for at in range(0, len(stream), size) for line in lines.feed(stream[at : at + size])]
    assert stream == b"".join(line for line in found if isinstance(line, bytes)) + lines.rest()
    assert all(isinstance(line, bytes) and line.count(b"\n") == 1 for line in found)


def test_of_a_line_over_the_cap_the_ends_are_kept():
    """They tell whom to answer; the rest is never held."""
    lines = Lines(10_000)
    chunks = [b'{"id":1,', *[b"x" * 5_000] * 100, b"end}\nnext\n"]
    oversize, after = [line for chunk in chunks for line in lines.feed(chunk)]
    assert isinstance(oversize, Oversize)
    assert oversize.head.startswith(b'{"id":1,')
    assert oversize.tail.endswith(b"end}\n")
    assert sum(map(len, chunks)) - len("next\n") == oversize.size
    assert after == b"next\n"


def test_a_refused_block_never_leaves():
    """The check stands right before the write."""

    def play(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
        writer: Writer[str] = Writer(loop, writing, broken=lambda: None, moved=lambda: None, begin=lambda owner: False)
        writer.send(b"refused", "owner")
        writer.send(b"free")
        assert b"free" == os.read(reading, 100)

    played(play)


def test_a_block_behind_a_backlog_is_checked_when_its_turn_comes():
    """A fence that fell while the pipe was full must still stop what waits."""
    asked: list[str] = []

    def play(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
        writer: Writer[str] = Writer(
            loop, writing, broken=lambda: None, moved=lambda: None, begin=lambda owner: bool(asked.append(owner))
        )
        writer.send(BIG)
        writer.send(b"late", "late")
        assert [] == asked
        assert len(BIG) + len(b"late") == writer.accepted
        while writer.backlog:
            os.read(reading, 65_536)
            writer._ready()  # what the loop calls when there is room
        assert ["late"] == asked

    played(play)


def test_only_what_never_began_is_reported_as_unsent():
    """A part of a request may be enough for the server; of the next one nothing left."""
    unsent: list[str] = []

    def play(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
        broken: list[bool] = []
        writer: Writer[str] = Writer(
            loop, writing, broken=lambda: broken.append(True), moved=lambda: None, unsent=unsent.append
        )
        writer.send(BIG, "partly")
        writer.send(b"next", "next")
        os.close(reading)
        writer._ready()
        writer.send(b"after", "after")
        assert [True] == broken

    played(play)
    assert ["next", "after"] == unsent
