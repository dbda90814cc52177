"""The HTTP relay: Streamable HTTP before it, Streamable HTTP behind it, bytes between them.

Every request of every method and path goes to the tool server as it came, and its response comes back as it came:
status, headers, compressed or not, chunk by chunk; redirects are passed on, never followed. Decoded are only bodies
that speak of tool calls, tool lists, handshakes and cancellations. A `tools/call` that the gate wants is answered by
the gate alone, with status 200: a 404 or 5xx makes clients send a call again. Two exceptions keep the server's status:
a 401 that asks for credentials, where it is all that was said, so that the client can renew its token; and a 400 whose
error passes the gate unchanged. Events that belong to such a call reach the client before its answer. When the client
goes away the call goes on.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from .http_headers import Door, is_loopback
from .http_relay import Relay
from .http_wire import Wire
from .wire import Gate

DRAIN_S = 2  #: how long open requests may take when the proxy is stopped


async def serve(
    listen_host: str,
    listen_port: int,
    upstream_url: str,
    gate: Gate,
    *,
    allowed_origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] = (),
    token: str | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Relay until SIGTERM, SIGINT or cancellation.

    The path of a request is kept; `/` alone stands for the endpoint of `upstream_url`. `ready` gets the bound port once
    connections are accepted; port 0 takes a free one. With a `token`, every request must bear it, in `X-Onceward-Token`
    or as the bearer of `Authorization`; it is not forwarded. Raises ValueError where the upstream is no URL, or where
    the address is reachable from other machines and there is no token; OSError where it cannot be bound.
    """
    wire = Wire(upstream_url)
    info = socket.getaddrinfo(listen_host, listen_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    loopback = all(is_loopback(str(address[0])) for *_, address in info)
    if not loopback and not token:
        raise ValueError(f"{listen_host} is reachable from other machines; set a token, or listen on 127.0.0.1")
    door = Door(listen_host, loopback=loopback, hosts=allowed_hosts, origins=allowed_origins, token=token or None)
    relay = Relay(wire, gate, door)
    with _listener(info[0]) as listener:
        config = uvicorn.Config(
            relay,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # nothing it could say may show a header; faults of ours are printed by the relay
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=DRAIN_S,
        )
        server = _Server(config, relay.hang_up, ready)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise
        finally:
            await relay.aclose()


def _listener(info: tuple[Any, ...]) -> socket.socket:
    family, _, _, _, address = info
    # With the protocol named, asyncio switches Nagle's algorithm off; without, each answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """Ends on a signal without raising it again: the journal is still to be closed."""

    def __init__(
        self, config: uvicorn.Config, hang_up: Callable[[], None], ready: Callable[[int], None] | None
    ) -> None:
        super().__init__(config)
        self._hang_up, self._ready = hang_up, ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to signals while serving, where that is ours to do."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in numbers:
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say the port once connections are accepted and signals are heard."""
        await super().startup(sockets)
        if self._ready is not None and sockets:
            self._ready(sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what nobody waits for, and give the rest a moment."""
        self._hang_up()
        await super().shutdown(sockets)
