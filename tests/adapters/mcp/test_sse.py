"""Server-sent events, cut out of a stream of bytes."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.adapters.mcp.sse import Event, Parser, TooLargeError, encode

PIECES = st.sampled_from(
    (
        b"data",
        b"id",
        b"event",
        b"retry",
        b":",
        b": ",
        b"x",
        b"7",
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b"\r\r",
        b"\xef\xbb\xbf",
        b"\0",
        b"\xe2\x80\xa8",
        b"\x85",
        b"data: x\n\n",
        b"id: 1\r\ndata: y\r\n\r\n",
        b": ping\n\n",
    )
)
STREAMS = st.lists(PIECES, max_size=30).map(b"".join)


def parsed(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    parser = Parser(cap=10_000)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    last, rest = parser.close()
    return events + last, rest


def data_by_the_standard(stream: bytes) -> list[bytes]:
    """The text of the HTML standard, as directly as can be, over a whole stream."""
    found, data = [], []
    lines = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        if line == b"":
            found += [b"\n".join(data)] if data else []
            data = []
        elif name == b"data":
            data.append(value.removeprefix(b" "))
    return found


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 200)))
def test_events_do_not_depend_on_chunks(stream: bytes, cuts: list[int]):
    """TCP cuts where it likes, also between CR and LF."""
    edges = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert parsed([stream]) == parsed(chunks)
    assert parsed([stream]) == parsed([stream[at : at + 1] for at in range(len(stream))])


@given(stream=STREAMS)
def test_no_byte_is_lost(stream: bytes):
    """What is relayed event by event must be the stream that came."""
    events, rest = parsed([stream])
    assert stream == b"".join(event.raw for event in events) + rest


@given(stream=STREAMS)
def test_data_is_what_the_standard_says(stream: bytes):
    """A client behind the relay reads by the same rules."""
    events, _ = parsed([stream])
    assert data_by_the_standard(stream) == [event.data for event in events if event.data is not None]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_seen_when_its_last_byte_came(end: bytes):
    """The answer to a call must not wait for the next event, which may never come."""
    parser = Parser(cap=1000)
    [event] = parser.feed(end.join([b"id: 4", b"event: message", b"retry: 1500", b"data: {}", b"data: []", b"", b""]))
    assert (b"{}\n[]", b"4", b"message", 1.5) == (event.data, event.id, event.event, event.retry_s)


def test_a_comment_and_a_bare_id_carry_no_data():
    """Keep-alives and the first event of a resumable stream are not messages."""
    comment, priming, empty = Parser(cap=1000).feed(b": ping\n\nid: 1\n\nid: 2\ndata:\n\n")
    assert (None, None) == (comment.data, comment.id)
    assert (None, b"1") == (priming.data, priming.id)
    assert (b"", b"2") == (empty.data, empty.id)


def test_an_endless_event_is_an_error():
    """Memory is bounded, whatever the server sends."""
    parser = Parser(cap=100)
    assert [] == parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(TooLargeError):
        parser.feed(b"x" * 90)


@given(lines=st.lists(st.sampled_from([b"{", b"}", b'"a": 1', b" ", b""]), min_size=1))
def test_what_is_encoded_is_read_back(lines: list[bytes]):
    """An answer with line breaks takes several data lines."""
    like = Event(raw=b"", id=b"9", event=b"note")
    [event] = Parser(cap=1000).feed(encode(b"\r\n".join(lines), like=like))
    assert (b"\n".join(lines), b"9", b"note") == (event.data, event.id, event.event)
