"""What a Python exception proves about the request: almost always nothing, so the request counts as lost."""

import asyncio
import socket
from contextlib import closing

import httpx2
import pytest

from onceward.evidence import AttemptState
from onceward.outcomes import classify, from_exception


def raised(act):
    try:
        act()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def like(module, name, base=Exception):
    """Make an exception class as a client library has it, known by module and name alone."""
    return type(name, (base,), {"__module__": module})


@pytest.fixture
def closed_port():
    """A port of the loopback at which nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def test_a_refused_connection_was_never_sent(closed_port):
    """Real sockets: no byte of a request can leave on a connection that does not exist."""
    url = f"http://127.0.0.1:{closed_port}/"
    errors = [
        raised(lambda: socket.create_connection(("127.0.0.1", closed_port))),
        raised(lambda: asyncio.run(asyncio.open_connection("127.0.0.1", closed_port))),
        raised(lambda: httpx2.post(url)),
    ]
    assert ["not_sent"] * 3 == [from_exception(e).kind for e in errors]
    assert ["lost"] * 3 == [from_exception(e, inner_retries=True).kind for e in errors]


def test_a_read_that_times_out_is_lost():
    """The server took the connection: the request may have been read, and done."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        error = raised(lambda: httpx2.post(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=0.05))
    assert "lost" == from_exception(error).kind


def test_an_http_error_keeps_status_headers_and_body():
    """What the service answered is classified like any HTTP answer."""
    request = httpx2.Request("POST", "http://x/")
    response = httpx2.Response(429, headers={"Retry-After": "7"}, content=b"slow", request=request)
    reply = from_exception(raised(response.raise_for_status))
    assert ("http", 429, "7", b"slow") == (reply.kind, reply.status, reply.headers["retry-after"], reply.raw)
    assert (AttemptState.RATE_LIMITED, 7.0) == (classify(reply).state, classify(reply).retry_after_s)


def test_an_unread_body_is_not_read_here():
    """Reading it would touch the network inside a pure step, or raise."""
    response = httpx2.Response(500, stream=httpx2.ByteStream(b"x"), request=httpx2.Request("POST", "http://x/"))
    reply = from_exception(raised(response.raise_for_status))
    assert (500, None) == (reply.status, reply.raw)


PROVEN = [
    like("httpx", "ConnectError"),
    like("httpx._exceptions", "ConnectTimeout"),
    like("httpcore", "PoolTimeout"),
    like("requests.exceptions", "ConnectTimeout", OSError),
    like("urllib3.exceptions", "NewConnectionError"),
    like("aiohttp.client_exceptions", "ClientConnectorError", OSError),
    ConnectionRefusedError,
    socket.gaierror,
]
LOOKS_ALIKE = [
    like("httpx", "ReadTimeout"),
    like("httpx", "RemoteProtocolError"),
    like("mytool", "ConnectError"),
    like("requests.exceptions", "ReadTimeout", OSError),
    like("requests.exceptions", "ConnectionError", OSError),
    ConnectionResetError,
    BrokenPipeError,
    TimeoutError,
    OSError,
    ValueError,
    KeyboardInterrupt,
    asyncio.CancelledError,
    Exception,
]


@pytest.mark.parametrize("kind", PROVEN)
def test_known_classes_prove_that_nothing_left(kind):
    """By name, so that no client library need be installed; also below a wrapper that names its cause."""
    wrapped = raised(lambda: _raise_from(RuntimeError("tool failed"), kind("x")))
    grouped = ExceptionGroup("all", [kind("x"), wrapped])
    assert ["not_sent"] * 3 == [from_exception(e).kind for e in (kind("x"), wrapped, grouped)]


@pytest.mark.parametrize("kind", LOOKS_ALIKE)
def test_everything_else_is_lost(kind):
    """A cancel, a reset, a time-out while reading: the request may have done its work."""
    assert "lost" == from_exception(kind("x")).kind


@pytest.mark.parametrize(
    "kind", [like("httpx", "ReadTimeout"), ConnectionResetError, TimeoutError, asyncio.CancelledError]
)
def test_a_time_out_speaks_for_itself(kind):
    """Whatever it names as its cause, this request may have left."""
    assert "lost" == from_exception(raised(lambda: _raise_from(kind("x"), ConnectionRefusedError()))).kind


def _raise_from(error, cause):
    raise error from cause


def test_a_second_try_in_an_except_block_is_no_proof():
    """The first host refused, the second took the request and fell silent: the implicit context is the refusal."""

    def fail_over():
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            raise RuntimeError("backup host did not answer")  # noqa: B904  the missing `from` is the point

    assert "lost" == from_exception(raised(fail_over)).kind


def test_wrappers_of_requests_are_opened():
    """Its ConnectionError says nothing itself: a refused connection and a reset both come in it."""

    def request(inner):
        try:
            raise like("urllib3.exceptions", "MaxRetryError")("retries") from inner
        except Exception:
            raise like("requests.exceptions", "ConnectionError", OSError)("wrapped")  # noqa: B904  as requests does

    refused = raised(lambda: request(like("urllib3.exceptions", "NewConnectionError")("refused")))
    aborted = raised(lambda: request(like("urllib3.exceptions", "ProtocolError")("aborted")))
    assert ["not_sent", "lost"] == [from_exception(e).kind for e in (refused, aborted)]


def test_a_group_proves_nothing_unless_all_of_it_does():
    """One member that may have sent is enough for doubt."""
    assert "lost" == from_exception(ExceptionGroup("two", [ConnectionRefusedError(), TimeoutError()])).kind


def test_a_function_may_vouch_for_itself():
    """The attribute works without importing anything, and also where a client retries by itself."""
    error = ValueError("bad amount")
    error.onceward_not_sent = True
    assert AttemptState.NEVER_SENT is classify(from_exception(error, inner_retries=True), inner_retries=True).state


def test_a_ring_of_causes_ends():
    """Chains are data too."""
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert "lost" == from_exception(first).kind


def test_a_status_on_the_exception_itself_is_read():
    """API clients keep it there, with or without a response."""
    error = Exception("no")
    error.status_code = 402
    assert AttemptState.REFUSED is classify(from_exception(error)).state
