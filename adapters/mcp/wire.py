"""The seam between a relay, which moves bytes, and a gate, which guards calls.

A relay (stdio or HTTP) forwards every message untouched, except that it shows each `tools/call` to its gate first. A
call that the gate does not want is relayed like anything else. A call that it wants is answered by the gate alone; to
reach the tool server the gate asks the relay's `Upstream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onceward.outcomes import Reply


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Call:
    """A `tools/call` request as it came from the client."""

    raw: bytes  #: the message's bytes (a line without its newline, or an HTTP body)
    message: dict[str, Any]  #: the same, decoded
    headers: Mapping[str, str] = field(default_factory=dict)  #: HTTP only, lower-case names
    session: str | None = None  #: HTTP only: the Mcp-Session-Id the client sent
    client: str = ""  #: names the client connection, for acknowledgements
    cancelled: bool = False  #: the client cancelled, or went away

    @property
    def id(self) -> int | str:
        """Return the JSON-RPC id."""
        value: int | str = self.message["id"]
        return value

    @property
    def params(self) -> dict[str, Any]:
        """Return the request's params; {} where they are missing or not an object."""
        params = self.message.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def name(self) -> str:
        """Return the tool's name."""
        return str(self.params.get("name", ""))

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the tool's arguments; {} where they are missing."""
        arguments = self.params.get("arguments")
        return arguments if isinstance(arguments, dict) else {}

    @property
    def meta(self) -> dict[str, Any]:
        """Return the request's `_meta`."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


class Upstream(Protocol):
    """The way to the tool server, as a gate may use it."""

    def exchange(
        self,
        call: Call,
        message: dict[str, Any] | None = None,
        *,
        own: bool = False,
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Reply]:
        """Send one request and return the future of its reply; the future stays open after a waiter gave up.

        `message` None sends `call.raw` unchanged; otherwise the message is encoded. With `own` the request is the
        guard's (a re-issue, a read-back): it goes out under an id of the relay's own, in the protocol era, session and
        `_meta` envelope of `call`, the upstream is restored first where it is gone, and nothing of it reaches the
        client. Without, it keeps the client's id, and progress notifications and server requests that belong to it
        reach the client. `headers` are set on the HTTP request (and Mcp-Name etc. made to match). `before_send` is
        called right before the first byte leaves; False = nothing leaves, reply kind `not_sent`. The future never
        raises: whatever goes wrong is a Reply (`lost`, `http`, `not_sent`).
        """
        ...


class Gate(Protocol):
    """What decides about calls."""

    def wants(self, call: Call) -> bool:
        """Tell at once, without I/O, whether this call is the gate's to answer."""
        ...

    async def handle(self, call: Call, upstream: Upstream) -> bytes:
        """Answer a wanted call with the bytes of one JSON-RPC response (no newline). Never raises."""
        ...

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        """See a `tools/list` result on its way to the client; return what to send instead, None to leave its bytes."""
        ...

    def cancelled(self, call: Call) -> None:
        """Learn that the client cancelled a handled call or went away before its answer. Nothing is forwarded."""
        ...

    def delivered(self, call: Call) -> None:
        """Learn that the answer of a handled call was written in full, the client did not cancel it, and sent something
        later or closed in good order.
        """
        ...
