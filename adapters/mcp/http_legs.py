"""The upstream leg of a handled call: one POST, its answer wherever it appears, and the session it runs in.

A call leaves once. What may be repeated are reads of its answer: where a stream of events is cut behind an event with
an id, it is taken up again with `Last-Event-ID`. A 404 under a session id says that the session is gone, not what
became of the call; the next message of ours, or the next handled call, then opens a new session first, from the
handshake that the client made, and the client's session id stands for the new one from there on.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from onceward.outcomes import Reply

from . import rpc
from .http_headers import Headers, for_message, get, lowered, without
from .http_wire import HTTPError, Response, Sending, StoppedError, UnreadableBodyError, Wire, is_stream, plain, whole
from .rpc import Id
from .sse import Event, Parser, TooLargeError

MOST_SESSIONS = 1000
HELLO_MOST = 64 * 1024  #: bytes of a handshake that are remembered
RESTORE_S, PING_S, DRAIN_S = 30.0, 5.0, 1.0
RESUMES = 8  #: readings in a row that brought no event; with the pauses about half a minute
RESUME_PAUSE_S, RESUME_PAUSE_MOST_S = 0.25, 8.0
RETRY_MOST_S = 30.0  #: a server may ask to be polled later than that, but a call has a deadline
_SHOWN = 4096

Broken = (HTTPError, UnreadableBodyError, TooLargeError, OSError)


@dataclass(slots=True, eq=False)
class Session:
    """A session, as the client named it and as the server knows it now."""

    id: str
    upstream: str | None = None  #: None = the server gave the new session no id
    hello: dict[str, Any] | None = None  #: the client's `initialize`; None = made before this proxy started
    lost: bool = False
    doubt: bool = False  #: the last message ended in silence; the server may be another by now
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """At first both names are one."""
        self.upstream = self.id


@dataclass(slots=True, kw_only=True, eq=False)
class Ask:
    """One request of a handled call, its own or ours."""

    body: bytes
    key: Id
    target: bytes
    headers: Headers  #: of the client's request
    method: str | None  #: None = the body is the client's own
    name: str | None
    renamed: bool  #: it calls another tool than the client did
    extra: Mapping[str, str]
    session: Session | None
    before: Callable[[], bool] | None
    head: Callable[[int, Headers], None]
    part: Callable[[], None]  #: called where the server closed the stream in order and wants to be asked again
    event: Callable[[Event], Awaitable[None]] | None  #: takes what else the stream of the answer holds; None = ours
    final: Event | None = None  #: the event that carried the answer


class Legs:
    """Asks the tool server, and remembers sessions."""

    def __init__(self, wire: Wire, *, cap: int) -> None:
        self._wire, self._cap = wire, cap
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._owns, self._count = f"onceward-{os.urandom(8).hex()}-", 0
        self._drains: set[asyncio.Task[None]] = set()

    # -- sessions ----------------------------------------------------------------------------------------------------

    def session(self, name: str) -> Session:
        """Return the session that the client calls so."""
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = Session(name)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(name)
        return found

    def greeted(self, name: str, hello: dict[str, Any], size: int) -> None:
        """Remember the handshake that opened a session."""
        self._sessions.pop(name, None)
        self.session(name).hello = hello if size <= HELLO_MOST else None

    def forget(self, name: str) -> None:
        """Forget a session that the client closed."""
        self._sessions.pop(name, None)

    def own_id(self) -> str:
        """Return an id for a request of ours."""
        self._count += 1
        return f"{self._owns}{self._count}"

    def is_own(self, data: bytes) -> bool:
        """Tell whether a message mentions an id of ours."""
        return self._owns.encode() in data

    async def _restored(self, session: Session, ask: Ask) -> str | None:
        """Make sure, before anything is sent, that there is a session to send it in; return why there is none."""
        if not (session.lost or session.doubt):
            return None
        async with session.lock:
            if session.doubt and not session.lost:
                await self._ping(session, ask)
            if not session.lost:
                return None
            try:
                async with asyncio.timeout(RESTORE_S):
                    return await self._greet(session, ask)
            except (*Broken, TimeoutError) as error:
                return f"a new session could not be opened: {_said(error)}"

    async def _ping(self, session: Session, ask: Ask) -> None:
        """Ask after a silence whether the session still is: a call that meets a lost one would end in doubt."""
        ping = rpc.encode({"jsonrpc": "2.0", "id": self.own_id(), "method": "ping"})
        with suppress(*Broken, TimeoutError):
            async with asyncio.timeout(PING_S):
                response = await self._post(ask, ping, "ping", session.upstream)
                await response.aclose()
                session.lost = response.status_code == 404
                session.doubt = False

    async def _greet(self, session: Session, ask: Ask) -> str | None:
        hello = session.hello or _hello(ask.headers)
        response = await self._post(ask, rpc.encode(hello), "initialize", None)
        try:
            reply = await self._answer(response, hello["id"])
        finally:
            await response.aclose()
        if reply is None or reply.kind != "result" or not isinstance(reply.body, dict):
            return f"a new session was refused with HTTP {response.status_code}"
        opened = get(response.headers.raw, b"mcp-session-id")
        session.upstream = None if opened is None else opened.decode("latin-1")
        version = str(reply.body.get("protocolVersion", ""))
        ready = rpc.encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
        name = "notifications/initialized"
        response = await self._post(ask, ready, name, session.upstream, mcp_protocol_version=version)
        await response.aclose()
        session.lost = session.doubt = False
        return None

    async def _post(self, ask: Ask, body: bytes, method: str, session: str | None, **extra: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in extra.items()}
        headers = for_message(ask.headers, session=session, extra=named, method=method)
        if method == "initialize":
            headers = without(headers, b"mcp-protocol-version")
        return await self._wire.send("POST", ask.target, headers, body)

    async def decline(self, ask: Ask, event: Event) -> None:
        """Answer a question to the client that a request of ours caused: no client waits for that request."""
        try:
            message = rpc.decode(event.data) if event.data and rpc.may_ask(event.data) else None
        except rpc.UnreadableError:
            return
        key = rpc.request_id(message) if isinstance(message, dict) and "method" in message else None
        if key is None:
            return
        no = rpc.failed_request(key, "nobody can be asked: this request is the guard's own", code=-32601)
        with suppress(*Broken):
            response = await self._post(ask, no, "", ask.session.upstream if ask.session is not None else None)
            await response.aclose()

    # -- one request -------------------------------------------------------------------------------------------------

    async def ask(self, ask: Ask) -> Reply:
        """Send a request once and return what became of it. Never raises but when cancelled."""
        session = ask.session
        if session is not None and (problem := await self._restored(session, ask)) is not None:
            return Reply(kind="not_sent", text=f"This was not sent to the tool server: {problem}.")
        headers = for_message(
            ask.headers,
            session=session.upstream if session is not None else None,
            extra=ask.extra,
            method=ask.method,
            name=ask.name,
            renamed=ask.renamed,
        )
        sending = Sending(ask.before)
        try:
            response = await self._wire.send("POST", ask.target, headers, ask.body, sending=sending)
        except StoppedError as error:
            return Reply(kind="not_sent", text=f"This was not sent to the tool server: {error}.")
        except Exception as error:  # told in the reply
            if session is not None:
                session.doubt = True
            if not sending.started:
                return Reply(kind="not_sent", text=f"The tool server could not be reached: {_said(error)}.")
            return Reply(kind="lost", text=f"The connection broke before an answer came: {_said(error)}.")
        raw = response.headers.raw
        ask.head(response.status_code, raw)
        if session is not None:
            session.doubt = False
        if is_stream(raw) and response.is_success:
            reply = await self._follow(response, ask)
        else:
            try:
                reply = await self._plain_reply(response, ask)
            finally:
                await response.aclose()
        if session is not None:
            session.doubt = reply.kind == "lost"
        return replace(reply, status=response.status_code, headers=lowered(raw))

    async def _plain_reply(self, response: Response, ask: Ask) -> Reply:
        status, body, flaw = response.status_code, b"", ""
        try:
            body = await whole(response, cap=self._cap)
        except Broken as error:
            flaw = _said(error)
        if status == 404 and ask.session is not None and ask.session.upstream is not None:
            ask.session.lost = True
            return Reply(kind="http", text=f"mcp session lost: {_text(body)}", raw=body[:_SHOWN])
        found = None if flaw else answer_in(body, ask.key)
        if found is not None:
            return found
        if response.is_success:
            text = f"its answer could not be read: {flaw}" if flaw else "no answer to the call came with it"
            return Reply(kind="lost", text=f"HTTP {status}, but {text}.")
        return Reply(kind="http", text=_text(body), raw=body[: 16 * _SHOWN])

    async def _answer(self, response: Response, key: Id) -> Reply | None:
        if not is_stream(response.headers.raw):
            return answer_in(await whole(response, cap=self._cap), key)
        async for event in self._events(response):
            if (reply := answer_in(event.data or b"", key)) is not None:
                return reply
        return None

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _events(self, response: Response) -> AsyncIterator[Event]:
        parser = Parser(cap=self._cap)
        async for chunk in plain(response):
            for event in parser.feed(chunk):
                yield event
        for event in parser.close()[0]:
            yield event

    async def _follow(self, response: Response, ask: Ask) -> Reply:
        """Read a stream until the answer, over as many connections as it takes."""
        place, current = _Place(), response
        while True:
            if (reply := await self._listen(current, ask, place)) is not None:
                return reply
            while True:
                if not place.last_id or place.tries >= RESUMES:
                    return Reply(
                        kind="lost", text=f"The stream broke off before the answer: {place.why or 'it ended'}."
                    )
                place.tries += 1
                if not place.why:
                    ask.part()
                await asyncio.sleep(place.pause_s())
                try:
                    current = await self._resumed(ask, place.last_id)
                except Broken as error:
                    place.why = _said(error)
                    continue
                break
            if not (current.is_success and is_stream(current.headers.raw)):
                await current.aclose()
                why = f"HTTP {current.status_code} instead of its rest"
                return Reply(kind="lost", text=f"The stream broke off before the answer: {why}.")

    async def _listen(self, response: Response, ask: Ask, place: _Place) -> Reply | None:
        """Read one connection; None = it ended without the answer."""
        events, drained = self._events(response), False
        try:
            async for event in events:
                place.pass_by(event)
                if event.data and (reply := answer_in(event.data, ask.key)) is not None:
                    ask.final, drained = event, True
                    task = asyncio.create_task(_drain(events, response))
                    self._drains.add(task)
                    task.add_done_callback(self._drains.discard)
                    return reply
                await (self.decline(ask, event) if ask.event is None else ask.event(event))
            place.why = ""
        except TooLargeError as error:
            return Reply(kind="lost", text=f"The stream of the answer holds {error}.")
        except Broken as error:
            place.why = _said(error)
        finally:
            if not drained:
                await response.aclose()
        return None

    async def _resumed(self, ask: Ask, last_id: bytes) -> Response:
        upstream = ask.session.upstream if ask.session is not None else None
        headers = for_message(ask.headers, session=upstream, extra={}, method="")
        headers = without(headers, b"accept", b"content-type")
        headers += [(b"accept", b"text/event-stream"), (b"last-event-id", last_id)]
        return await self._wire.send("GET", ask.target, headers)


@dataclass(slots=True)
class _Place:
    """How far a stream was read."""

    last_id: bytes = b""
    retry_s: float | None = None
    tries: int = 0  #: connections in a row that brought no new id
    why: str = ""

    def pass_by(self, event: Event) -> None:
        if event.id is not None:
            self.last_id, self.tries = event.id, 0
        if event.retry_s is not None:
            self.retry_s = event.retry_s

    def pause_s(self) -> float:
        if self.retry_s is not None:
            return min(self.retry_s, RETRY_MOST_S)
        return min(RESUME_PAUSE_S * 2.0 ** (self.tries - 1), RESUME_PAUSE_MOST_S)


async def _drain(events: AsyncIterator[Event], response: Response) -> None:
    """Read what follows the answer, so that the server ends in order and the connection can be used again."""
    with suppress(*Broken, TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in events:
                pass
    await response.aclose()


def answer_in(data: bytes, key: Id) -> Reply | None:
    """Return the answer to the request `key`, where the data holds it."""
    known = rpc.answered_id(data)
    if known is not None:
        return rpc.reply(data) if _same(known[0], key) else None
    try:
        message = rpc.decode(data)
        parts = list(zip(rpc.elements(data), message, strict=True)) if isinstance(message, list) else [(data, message)]
    except rpc.UnreadableError:
        return None
    for raw, each in parts:
        answers = isinstance(each, dict) and "method" not in each and ("result" in each or "error" in each)
        if answers and _same(rpc.request_id(each), key):
            return rpc.reply(raw)
    return None


def _same(one: Id | None, other: Id) -> bool:
    return one == other and isinstance(one, str) == isinstance(other, str)


def _hello(headers: Headers) -> dict[str, Any]:
    """Return a handshake for a session whose own was not seen."""
    version = (get(headers, b"mcp-protocol-version") or b"2025-11-25").decode("latin-1")
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "onceward", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def _text(body: bytes) -> str:
    return body[:_SHOWN].decode("utf-8", "replace")


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
