"""Headers on their way through the HTTP relay, and who may come in.

A browser that was tricked into resolving an attacker's name to this machine still sends that name in `Host`, and the
page's address in `Origin`: so both are checked here, before anything is forwarded, whatever the tool server checks.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
TOKEN_HEADER = b"x-onceward-token"

_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization te trailer transfer-encoding upgrade expect".split()
)
_PLAIN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def get(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first header of that (lower-case) name."""
    return next((value for key, value in headers if key.lower() == name), None)


def without(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> Headers:
    """Return the headers but those of these (lower-case) names."""
    return [(key, value) for key, value in headers if key.lower() not in names]


def end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that are not for the next hop alone."""
    named = get(headers, b"connection")
    if named is None:
        return without(headers, *_HOP)
    return without(headers, *_HOP, *(token.strip().lower() for token in named.split(b",")))


def lowered(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers as text under lower-case names; repeated ones are joined."""
    found: dict[str, str] = {}
    for key, value in headers:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def for_message(
    headers: Headers,
    *,
    session: str | None,
    extra: Mapping[str, str],
    method: str | None,
    name: str | None = None,
    renamed: bool = True,
) -> Headers:
    """Return the headers of a request whose body may not be the client's: mirrored ones match it, `extra` wins.

    `method` None: the body is the client's, so what mirrors it is too, right or wrong. `renamed`: it calls another tool
    than the client did, so no mirrored argument of the client's is its own.
    """
    replaced = {key.lower().encode("latin-1"): value.encode("latin-1") for key, value in extra.items()}
    drop = {b"content-length", b"host", b"accept-encoding", b"mcp-session-id", b"last-event-id", *replaced}
    mirrors = method is not None and get(headers, b"mcp-method") is not None
    if mirrors:
        drop |= {b"mcp-method", b"mcp-name"}
    out = [
        (key, value)
        for key, value in headers
        if key.lower() not in drop and not (renamed and key.lower().startswith(b"mcp-param-"))
    ]
    # An answer that must be read is asked for in a form that can be read.
    out.append((b"accept-encoding", b"identity"))
    if session is not None:
        out.append((b"mcp-session-id", session.encode("latin-1")))
    if mirrors and method:
        out.append((b"mcp-method", method.encode()))
        if name is not None:
            out.append((b"mcp-name", mirrored_value(name)))
    return out + list(replaced.items())


def mirrored_value(value: str) -> bytes:
    """Return a value as SEP-2243 writes it into a header: base64 where it would not survive as it is."""
    if _PLAIN.fullmatch(value) and not value.startswith("=?base64?"):
        return value.encode()
    return b"=?base64?" + base64.b64encode(value.encode()) + b"?="


class Door:
    """Who may come in."""

    def __init__(
        self, listen_host: str, *, loopback: bool, hosts: Sequence[str], origins: Sequence[str], token: str | None
    ) -> None:
        """Take the rules. Beyond the loopback the token guards, and any Host is right unless `hosts` names some."""
        self._names = {name.lower() for name in (*LOOPBACK_NAMES, listen_host, *hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._any_host = not loopback and not hosts
        self._token = None if token is None else token.encode()

    def refuses(self, headers: Headers) -> tuple[int, str] | None:
        """Return the status and reason with which a request is turned away; None = it may come in."""
        host = (get(headers, b"host") or b"").decode("latin-1").lower()
        if not self._any_host and not {host, _hostname(f"//{host}")} & self._names:
            return 403, "this Host is not allowed here; allow it with --allow-host"
        origin = get(headers, b"origin")
        if origin is not None and not self._knows(origin.decode("latin-1").lower(), host):
            return 403, "this Origin is not allowed here; allow it with --allow-origin"
        if self._token is not None:
            given = get(headers, TOKEN_HEADER) or (get(headers, b"authorization") or b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, self._token):
                return 401, "the token of this proxy is missing or wrong"
        return None

    def admit(self, headers: Headers) -> Headers:
        """Return the headers without our own token, which is not the tool server's business."""
        if self._token is None:
            return headers
        ours = (b"Bearer " + self._token, self._token)
        kept = without(headers, TOKEN_HEADER)
        return [(key, value) for key, value in kept if not (key == b"authorization" and value in ours)]

    def _knows(self, origin: str, host: str) -> bool:
        name = _hostname(origin)
        return origin in self._origins or name in self._names or (self._any_host and name == _hostname(f"//{host}"))


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is reachable from this machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
