"""Server-sent events as bytes: cut a stream into events without losing one byte of it.

The raw bytes of all events, and what is left over, are the stream. Lines end in LF, CRLF or CR, chunks anywhere. A CR
may be half of a CRLF whose other half has not come: whether to wait for it is read from the line before, so that the
cut never depends on the chunks, and no event of a well-formed stream waits for the one after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; `raw` holds its bytes, blank line included."""

    raw: bytes
    data: bytes | None = None  #: data lines joined by LF; None = there was none (a comment, a bare id)
    id: bytes | None = None
    event: bytes | None = None
    retry_s: float | None = None


class TooLargeError(ValueError):
    """One event is longer than the cap."""


class Parser:
    """Cuts a stream into events."""

    def __init__(self, *, cap: int) -> None:
        """Begin a stream; an event of more than `cap` bytes is an error."""
        self._cap = cap
        self._buffer = bytearray()
        self._line = self._scan = 0  # where the current line begins, and where to look on
        self._fields: dict[bytes, bytes] = {}
        self._data: list[bytes] = []
        self._first = True  # no line was seen, so a byte order mark may come
        self._lone = False  # the last line ended in a CR without LF
        self._swallow = False  # an event was cut at a CR; an LF right behind it is no line

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that end within `chunk`. Raises TooLargeError."""
        buffer, events, start = self._buffer, [], 0
        buffer += chunk
        if self._swallow and len(buffer) > self._line:
            self._skip()
        while (found := _LINE_END.search(buffer, self._scan)) is not None:
            at, end = found.start(), found.end()
            blank = at == self._line
            if buffer[at] == 0x0D and not (blank and self._lone):
                if end == len(buffer):
                    self._scan = at
                    break
                self._lone = buffer[end] != 0x0A
                end += not self._lone
            else:
                self._swallow = buffer[at] == 0x0D
                self._lone = self._swallow
            if not blank:
                self._field(bytes(buffer[self._line : at]))
            self._line = self._scan = end
            if blank:
                events.append(self._cut(bytes(buffer[start:end])))
                start = end
            if self._swallow and len(buffer) > self._line:
                self._skip()
        else:
            self._scan = len(buffer)
        del buffer[:start]
        self._line -= start
        self._scan -= start
        if len(buffer) > self._cap:
            raise TooLargeError(f"an event of more than {self._cap} bytes")
        return events

    def close(self) -> tuple[list[Event], bytes]:
        """Return the event that only the end of the stream ends, if any, and what is left over."""
        if self._buffer.endswith(b"\r") and self._line == len(self._buffer) - 1:
            return [self._cut(bytes(self._buffer))], b""
        return [], bytes(self._buffer)

    def _skip(self) -> None:
        self._swallow = False
        if self._buffer[self._line] == 0x0A:
            self._line += 1
            self._scan = self._line

    def _field(self, line: bytes) -> None:
        if self._first:
            line = line.removeprefix(BOM)
            self._first = False
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event" or (name == b"id" and b"\0" not in value) or (name == b"retry" and value.isdigit()):
            self._fields[name] = value

    def _cut(self, raw: bytes) -> Event:
        self._first = False
        fields, data = self._fields, self._data
        self._fields, self._data = {}, []
        retry = fields.get(b"retry")
        return Event(
            raw=raw,
            data=b"\n".join(data) if data else None,
            id=fields.get(b"id"),
            event=fields.get(b"event"),
            retry_s=None if retry is None else int(retry[:9]) / 1000,
        )


def encode(data: bytes, *, like: Event | None = None) -> bytes:
    """Return an event that carries `data`, under the name and id of `like`."""
    head = b""
    if like is not None and like.id is not None:
        head += b"id: " + like.id + b"\n"
    head += b"event: " + ((like.event if like is not None else None) or b"message") + b"\n"
    lines = re.split(rb"\r\n|\r|\n", data)
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
