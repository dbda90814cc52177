"""Single HTTP requests to the tool server: no redirects, no retries, no cookies, no proxies of the environment.

Beneath httpx2's client, whose defaults would add headers, lies its transport; and that one says when the first byte of
a request is about to leave, which parts "nothing was sent" from "who knows".
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2

from .http_headers import Headers, get, without

#: Below the idle time of common servers (uvicorn and Node: 5 s), so that no call meets a connection about to close.
KEEPALIVE_S = 2.0
CONNECT_S, WRITE_S = 10.0, 60.0
_TIMEOUT = {"connect": CONNECT_S, "read": None, "write": WRITE_S, "pool": None}
_KNOWN = (b"gzip", b"x-gzip", b"deflate")
_ABOUT_TO_SEND = "http11.send_request_headers.started"

HTTPError = httpx2.HTTPError
Response = httpx2.Response


class StoppedError(Exception):
    """The last check before the first byte said no."""


class UnreadableBodyError(ValueError):
    """A body is too large, or in an encoding that is not known here."""


class Sending:
    """Whether a byte of one request may have left."""

    def __init__(self, before: Callable[[], bool] | None = None) -> None:
        self.started = False
        self._before = before

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Take note of what httpcore does; raises StoppedError when the request must not leave."""
        if name != _ABOUT_TO_SEND:
            return
        if self._before is not None:
            try:
                allowed = self._before()
            except Exception as error:  # told in the reply
                raise StoppedError(f"the check right before the write failed: {error}") from error
            if not allowed:
                raise StoppedError("it was stopped right before the write")
        self.started = True


class Wire:
    """The way to one tool server."""

    def __init__(self, url: str) -> None:
        """Take the endpoint's URL. Raises ValueError where it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"upstream URL {url!r} is not http(s)://host[:port]/path; credentials belong in headers")
        self.path = (parts.path or "/").encode("ascii")
        self.target = self.path + (b"?" + parts.query.encode("ascii") if parts.query else b"")
        self._host = parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")
        self._url = httpx2.URL(f"{parts.scheme}://{parts.netloc}/")
        self._transport = httpx2.AsyncHTTPTransport(
            verify=parts.scheme == "https",  # loading certificates takes time, and plain HTTP has none
            trust_env=False,
            retries=0,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S),
        )

    async def send(
        self, method: str, target: bytes, headers: Headers, body: bytes = b"", *, sending: Sending | None = None
    ) -> Response:
        """Send a request; return once the response's head came. Raises HTTPError, or StoppedError."""
        out = [(b"host", self._host), *without(headers, b"host", b"content-length")]
        if body or method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
            out.append((b"content-length", b"%d" % len(body)))
        extensions: dict[str, Any] = {"timeout": _TIMEOUT, "target": target}
        if sending is not None:
            extensions["trace"] = sending
        request = httpx2.Request(method, self._url, headers=out, stream=httpx2.ByteStream(body), extensions=extensions)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


def is_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Tell whether a response is a stream of events."""
    return (get(headers, b"content-type") or b"").split(b";")[0].strip().lower() == b"text/event-stream"


def is_readable(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Tell whether `plain` can decompress a body."""
    return _encoding(headers) in (b"identity", *_KNOWN)


def _encoding(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return (get(headers, b"content-encoding") or b"identity").strip().lower()


async def plain(response: Response) -> AsyncIterator[bytes]:
    """Yield the body, decompressed where it is compressed in a way that is known here. Raises UnreadableBodyError."""
    encoding = _encoding(response.headers.raw)
    if encoding == b"identity":
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in _KNOWN:
        raise UnreadableBodyError(f"its content encoding {encoding.decode('latin-1')} is not known here")
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects gzip and zlib
    async for chunk in response.aiter_raw():
        while chunk:  # in steps, so that a small body cannot become a huge one at once
            try:
                yield decoder.decompress(chunk, 1 << 20)
            except zlib.error as error:
                raise UnreadableBodyError(f"it cannot be decompressed: {error}") from None
            chunk = decoder.unconsumed_tail


async def whole(response: Response, *, cap: int) -> bytes:
    """Return the body. Raises UnreadableBodyError, HTTPError."""
    body = bytearray()
    async for chunk in plain(response):
        body += chunk
        if len(body) > cap:
            raise UnreadableBodyError(f"it has more than {cap} bytes")
    return bytes(body)
