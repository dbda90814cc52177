"""What the HTTP relay does with a request: forward it, or hand it to the gate.

The rules are in `http`; this is the application that walks them.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from . import rpc
from .http_calls import Handled
from .http_client import JSON, Client, GoneError, RefusedError
from .http_headers import Door, Headers, end_to_end, get, lowered, without
from .http_legs import Broken, Legs, Session
from .http_wire import Response, Wire, is_readable, is_stream, plain, whole
from .sse import Event, Parser, encode
from .wire import Call, Gate

CAP = 64 * 1024 * 1024  #: bytes of a request, of an event, and of a response that has to be read
MOST_CALLS = 1000  #: handled calls at once
MOST_CLIENTS = 1000  #: clients whose next message would acknowledge an answer
MOST_UNDELIVERED = 200  #: answers kept for clients that lost their connection and may resume the stream
LIFE_S, PULSE_S = 5.0, 15.0  #: an answer that takes longer becomes a stream; and how often a comment shows life
HARVEST_S, GIVE_UP_S = 0.2, 2.0  #: at the end: for replies that are nearly here, then for the gate to write down

#: What a body must hold to be worth decoding. An escape may spell any of these otherwise.
_TELLING = (b"tools/call", b"tools/list", b"initialize", b"notifications/cancelled", b"\\u", b"\\/")


class Relay:
    """The ASGI application."""

    def __init__(self, wire: Wire, gate: Gate, door: Door) -> None:
        self._wire, self._gate, self._door = wire, gate, door
        self._legs = Legs(wire, cap=CAP)
        self._calls: set[Handled] = set()  # the gate works on them
        self._undelivered: OrderedDict[Handled, None] = OrderedDict()  # answered after their client had gone
        self._answered: OrderedDict[str, list[Handled]] = OrderedDict()  # by client: not yet acknowledged
        self._work: set[asyncio.Task[None]] = set()
        self._streams: set[Client] = set()  # of GET: they end when we do

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        client = Client(scope, receive, send)
        try:
            refused = self._door.refuses(client.headers)
            if refused is not None:
                return await client.refuse(*refused)
            if not client.target.startswith(b"/"):
                return await client.refuse(400, "only paths are relayed")
            client.headers = self._door.admit(client.headers)
            await self._answer(client)
        except RefusedError as error:
            await client.refuse(error.status, str(error))
        except GoneError:
            pass
        except Exception:  # stderr is told, and the client by a status
            traceback.print_exc()
            await client.refuse(500, "the proxy failed; nothing is known of this request")

    async def _answer(self, client: Client) -> None:
        target = client.target
        if target == b"/" or target == self._wire.path:
            target = self._wire.target
        body = await client.body(CAP)
        message: Any = None
        if client.method == "POST" and (any(word in body for word in _TELLING) or b"\0" in body[:4]):
            message = self._decoded(client, body)
        if client.method in ("POST", "DELETE"):
            self._acknowledge(client, message)
        if client.method == "GET" and (handled := self._parted(client)) is not None:
            return await self._attend(client, handled)
        if client.method == "DELETE" and client.session is not None:
            await self._relay(client, target, body)
            self._legs.forget(client.session)
            return None
        if isinstance(message, list):
            if any(isinstance(each, dict) and each.get("method") == "tools/call" for each in message):
                return await self._batch(client, target, body, message)
        elif isinstance(message, dict):
            if message.get("method") == "tools/call":
                return await self._call(client, target, body, message)
            if self._cancelled(client, rpc.cancels(message)):
                return await client.whole(202, [], b"")
        return await self._relay(client, target, body, message)

    def _decoded(self, client: Client, body: bytes) -> Any:
        encoding = (get(client.headers, b"content-encoding") or b"identity").strip().lower()
        if encoding != b"identity":
            raise RefusedError(415, "a compressed request cannot be guarded; it was not sent")
        try:
            if b"\0" in body[:4]:  # some servers read UTF-16 and UTF-32, so a call may hide in it
                body = body.decode(json.detect_encoding(body)).encode()
            return rpc.decode(body)
        except UnicodeDecodeError:
            return None
        except rpc.UnreadableError as error:
            raise RefusedError(400, f"this message cannot be read: {error}; it was not sent") from None

    # -- plain relaying ----------------------------------------------------------------------------------------------

    async def _relay(self, client: Client, target: bytes, body: bytes, message: Any = None) -> None:
        """Forward a request and its response. A client that goes away takes the request with it."""
        async with client.watched():
            try:
                response = await self._wire.send(client.method, target, self._upstream_headers(client, message), body)
            except Broken as error:
                key = message.get("id") if isinstance(message, dict) else rpc.some_id(body)
                text = f"the tool server could not be reached: {str(error) or type(error).__name__}"
                return await client.whole(502, [JSON], rpc.failed_request(key, text))
            if client.method == "GET" and is_stream(response.headers.raw):
                self._streams.add(client)
            try:
                await self._pass_back(client, response, message, len(body))
            except Broken:
                pass  # a response that is never completed: the client sees the same break
            finally:
                self._streams.discard(client)
                await response.aclose()

    def _upstream_headers(self, client: Client, message: Any) -> Headers:
        headers = end_to_end(client.headers)
        if client.session is not None and (upstream := self._legs.session(client.session).upstream) != client.session:
            headers = without(headers, b"mcp-session-id")
            headers += [(b"mcp-session-id", upstream.encode("latin-1"))] if upstream is not None else []
        if _asks(message, "tools/list"):  # its answer must be read
            headers = [*without(headers, b"accept-encoding"), (b"accept-encoding", b"identity")]
        return headers

    async def _pass_back(self, client: Client, response: Response, message: Any, size: int) -> None:
        raw = _for_client(client, response.headers.raw)
        session = self._legs.session(client.session) if client.session is not None else None
        opened = get(raw, b"mcp-session-id")
        if opened is not None and isinstance(message, dict) and message.get("method") == "initialize":
            self._legs.greeted(opened.decode("latin-1"), message, size)
        if session is not None and response.status_code == 404 and client.method == "POST":
            session.lost = True
        if _asks(message, "tools/list") and response.status_code == 200 and is_readable(raw):
            return await self._listed(client, response, raw)
        await client.start(response.status_code, raw)
        if client.method == "GET" and session is not None and is_stream(raw) and get(raw, b"content-encoding") is None:
            async for event in _events(response):
                if (data := event if isinstance(event, bytes) else await self._seen(session, event)) is not None:
                    await client.write(data)
        else:
            async for chunk in response.aiter_raw():
                await client.write(chunk)
        return await client.end()

    async def _seen(self, session: Session, event: Event) -> bytes | None:
        """Look at what a stream of the session brings: the answer to a handled call is the gate's to give."""
        mine = [each for each in (*self._calls, *self._undelivered) if each.session is session]
        if not mine or event.data is None:
            return event.raw
        if self._legs.is_own(event.data):
            return None
        handled = next((each for each in mine if each.is_answered_by(event)), None)
        if handled is None:
            return event.raw
        handled.resolve(event)
        if not handled.gone:
            return None  # its own response is still open
        await asyncio.shield(handled.answered)
        self._undelivered.pop(handled, None)
        return encode(handled.answered.result(), like=event)

    # -- tool lists --------------------------------------------------------------------------------------------------

    async def _listed(self, client: Client, response: Response, raw: Headers) -> None:
        if is_stream(raw):
            await client.start(200, without(raw, b"content-encoding", b"content-length"))
            async for event in _events(response):
                if isinstance(event, bytes):
                    await client.write(event)
                else:
                    shown = self._shown(event.data) if event.data else None
                    await client.write(event.raw if shown is None else encode(shown, like=event))
            return await client.end()
        body = await whole(response, cap=CAP)
        shown = self._shown(body)
        return await client.whole(200, without(raw, b"content-encoding"), body if shown is None else shown)

    def _shown(self, data: bytes) -> bytes | None:
        """Show a tool list to the gate; return what to send instead, if anything."""
        try:
            message = rpc.decode(data)
            changed = self._gate.tools(message["result"]) if isinstance(message.get("result"), dict) else None
        except Exception:  # stderr is told: a list that cannot be shown goes to the client as it is
            traceback.print_exc()
            return None
        return None if changed is None else rpc.encode({**message, "result": changed})

    # -- handled calls -----------------------------------------------------------------------------------------------

    async def _call(self, client: Client, target: bytes, body: bytes, message: dict[str, Any]) -> None:
        key = rpc.request_id(message)
        if key is None:
            text = "a tools/call needs an id; it was not sent"
            return await client.whole(400, [JSON], rpc.failed_request(None, text, code=-32600))
        headers = end_to_end(client.headers)
        call = Call(raw=body, message=message, headers=lowered(headers), session=client.session, client=client.key)
        try:
            wanted = self._gate.wants(call)
            refused = "Too many calls are open at this proxy. This one was not sent." if self._full() else None
        except Exception:  # the caller is told, and stderr: a call that nobody judged must not leave
            traceback.print_exc()
            wanted, refused = True, "The guard failed before this call was sent. It was not sent."
        if not wanted:
            return await self._relay(client, target, body, message)
        if refused is not None:
            return await client.whole(200, [JSON], rpc.failed_call(key, refused, modern=rpc.MODERN in body))
        session = self._legs.session(client.session) if client.session is not None else None
        handled = Handled(self._gate, call, legs=self._legs, headers=headers, target=target, session=session)
        self._calls.add(handled)
        work = asyncio.create_task(self._work_on(handled))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await self._attend(client, handled)

    async def _attend(self, client: Client, handled: Handled) -> None:
        """Keep the client's connection until the answer, and remember that it was given."""
        try:
            async with client.watched(handled.leave):
                await self._reply(client, handled)
        except asyncio.CancelledError:
            handled.leave()
            raise
        if handled.gone:
            raise GoneError
        if not handled.parted and not handled.call.cancelled:
            self._answered.setdefault(client.key, []).append(handled)
            self._answered.move_to_end(client.key)
            if len(self._answered) > MOST_CLIENTS:
                self._answered.popitem(last=False)

    def _parted(self, client: Client) -> Handled | None:
        """Return the call whose stream was closed early and whose client now comes back for the rest."""
        last_id = get(client.headers, b"last-event-id")
        for each in (*self._calls, *self._undelivered) if last_id and client.session is not None else ():
            if each.parted and each.given_id == last_id and each.call.session == client.session:
                self._undelivered.pop(each, None)
                each.rejoin()
                return each
        return None

    def _full(self) -> bool:
        return len(self._calls) >= MOST_CALLS

    async def _work_on(self, handled: Handled) -> None:
        """Let the gate work, and keep the call in mind until nothing more can come of it."""
        try:
            await handled.work()
        finally:
            self._calls.discard(handled)
            if (handled.gone or handled.parted) and handled.session is not None:
                self._undelivered[handled] = None
                if len(self._undelivered) > MOST_UNDELIVERED:
                    self._undelivered.popitem(last=False)

    async def _reply(self, client: Client, handled: Handled) -> None:
        """Give the client the events of the call as they come, then the gate's answer."""
        streaming = False
        while not handled.gone:
            data = handled.take()
            if (data or handled.streams) and not streaming:
                streaming = True
                await client.start(200, _answer_headers(client, handled, b"text/event-stream"))
            if data:
                await client.write(data)
                continue  # more may have come while the client was slow
            if handled.answered.done():
                break
            if handled.parted and handled.given_id:
                return await client.end()
            if not await handled.news(PULSE_S if streaming else LIFE_S):
                if not streaming and client.accepts_stream():
                    streaming = True
                    await client.start(200, _answer_headers(client, handled, b"text/event-stream"))
                if streaming:
                    await client.write(b": still open\n\n")
        if handled.gone:
            return None
        handled.rejoin()
        if streaming:
            await client.end(handled.as_event())
        elif (challenge := handled.challenge) is not None:
            headers = without(_for_client(client, challenge), b"content-type", b"content-encoding")
            await client.whole(401, [*headers, JSON], handled.answered.result())
        else:
            headers = _answer_headers(client, handled, b"application/json")
            await client.whole(handled.status, headers, handled.answered.result())
        return None

    def _cancelled(self, client: Client, key: rpc.Id | None) -> bool:
        """Take note of a cancellation; True = it ends here, the server must not see it."""
        if key is None:
            return False
        mine = [each for each in self._calls if each.is_call(key) and self._may_be_of(each, client)]
        if len(mine) == 1:
            mine[0].cancel()
        return bool(mine)

    def _may_be_of(self, handled: Handled, client: Client) -> bool:
        # Without a session nothing ties a cancellation to its call for sure, and one that is lost does less harm than
        # one that makes the outcome of a write unknown.
        return handled.call.session == client.session

    def _acknowledge(self, client: Client, message: Any) -> None:
        """Tell the gate which answers arrived, now that their client sent something more."""
        answered = self._answered.pop(client.key, None)
        if answered is None:
            return
        messages = message if isinstance(message, list) else [message]
        withdrawn = {key for each in messages if (key := rpc.cancels(each)) is not None}
        for handled in answered:
            if handled.call.id in withdrawn:  # it crossed the answer, which the client does not look at any more
                handled.cancel()
                continue
            try:
                self._gate.delivered(handled.call)
            except Exception:  # stderr is told: the client's message goes on
                traceback.print_exc()

    async def _batch(self, client: Client, target: bytes, body: bytes, messages: list[Any]) -> None:
        """Relay a batch without guarded calls; answer, in the place of the server, one that holds any."""
        calls = [each for each in messages if isinstance(each, dict) and each.get("method") == "tools/call"]
        headers = lowered(end_to_end(client.headers))
        wanted = False
        for each, raw in zip(messages, rpc.elements(body), strict=True):
            if each in calls:
                call = Call(raw=raw, message=each, headers=headers, session=client.session, client=client.key)
                wanted = wanted or rpc.request_id(each) is None or self._gate.wants(call)
        if not wanted:
            return await self._relay(client, target, body, messages)
        text = "A guarded call cannot be part of a batch. Nothing of this batch was sent; send its parts alone."
        answers = [
            rpc.failed_call(each["id"], text, modern=rpc.MODERN in body)
            if each in calls
            else rpc.failed_request(each["id"], text, code=-32600)
            for each in messages
            if isinstance(each, dict) and "method" in each and rpc.request_id(each) is not None
        ]
        return await client.whole(200, [JSON], b"[" + b",".join(answers) + b"]")

    # -- the end -----------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the streams that only wait for what may come."""
        for client in list(self._streams):
            client.drop()

    async def aclose(self) -> None:
        """Let the gate write down what is known of open calls, and close every connection."""
        if self._work:
            await asyncio.wait(self._work, timeout=HARVEST_S)
        for handled in list(self._calls):
            handled.cancel()
            await handled.stop()
        if self._work:
            await asyncio.wait(self._work, timeout=GIVE_UP_S)
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._wire.aclose()


def _asks(message: Any, method: str) -> bool:
    return isinstance(message, dict) and message.get("method") == method


def _for_client(client: Client, headers: Headers) -> Headers:
    """Return a response's headers for the client, who keeps its session id whatever the server calls the session."""
    kept, session = end_to_end(headers), client.session
    if session is None or get(kept, b"mcp-session-id") is None:
        return kept
    return [*without(kept, b"mcp-session-id"), (b"mcp-session-id", session.encode("latin-1"))]


def _answer_headers(client: Client, handled: Handled, content_type: bytes) -> Headers:
    """Return the headers of a gate's answer: the upstream's where it took the call, but for what tells of its body."""
    status, headers = handled.head or (0, [])
    kept = _for_client(client, headers) if 200 <= status < 300 or status == 400 else []
    kept = without(kept, b"content-type", b"content-length", b"content-encoding", b"cache-control", b"etag")
    return [*kept, (b"content-type", content_type), (b"cache-control", b"no-cache")]


async def _events(response: Response) -> AsyncIterator[Event | bytes]:
    """Yield the events of a stream, and as bytes what is left of it at the end."""
    parser = Parser(cap=CAP)
    async for chunk in plain(response):
        for event in parser.feed(chunk):
            yield event
    events, rest = parser.close()
    for event in events:
        yield event
    if rest:
        yield rest
