"""Outcomes: what an answer, or the lack of one, says about the attempt it belongs to.

Three classes, and the default is UNKNOWN. A refusal needs proof: nothing left, or an answer that is known to come
before any effect and belongs to this very attempt. "It exists already" means that the effect happened only where our
own key or stamp was sent and the contract reads that answer so. A timeout, a reset, a server error, an error text that
no rule knows: none of them says "no".

`classify` walks four steps: was there an answer at all; does a rule of the contract know it; else the default class;
and then two doubts that can only weaken it. A client that retries beneath us makes every refusal an answer to its last
try alone, and an error that the service replays under our key speaks for an earlier attempt.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Protocol, assert_never

from .evidence import AttemptState


class Search(Protocol):
    """A compiled extractor, such as a JMESPath expression."""

    def search(self, value: Any, /) -> Any:
        """Return what the expression finds in `value`; None when nothing."""
        ...


Extractor = Search | Callable[[Any], Any]
Reading = Literal["refused", "busy", "done", "unknown", "rate_limited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back for one request.

    `kind`: `result` (a value or an MCP result), `rpc_error` (JSON-RPC error object in `body`), `http` (an HTTP response
    that carries no JSON-RPC answer, or any response of an HTTP API), `lost` (bytes left, no answer came: timeout,
    reset, closed stream, dead server, unreadable reply), `not_sent` (proven that no byte of the request left).
    """

    kind: Literal["result", "rpc_error", "http", "lost", "not_sent"]
    body: Any = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  #: lower-case names
    text: str = ""  #: what to show of a failure
    raw: bytes | None = None  #: the bytes of the answer as they came, where the transport has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reply says about its attempt."""

    state: AttemptState
    why: str  #: the rule that decided, in a few words, for the journal
    retry_after_s: float | None = None
    replayed_error: bool = False
    reference: Any = None  #: what an acceptance gave to ask for its progress
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    """One match of a contract: every given condition must hold. A success is matched only by status or field."""

    as_: Reading
    status: int | None = None  #: HTTP status
    code: int | None = None  #: JSON-RPC error code
    text: re.Pattern[str] | None = None  #: searched in all text of the answer
    fields: tuple[tuple[Extractor, Any], ...] = ()  #: what is found in the answer's data, and what it must equal

    def __post_init__(self) -> None:
        """Refuse a rule that would match every answer."""
        if self.status is None and self.code is None and self.text is None and not self.fields:
            raise ValueError("an error rule needs a status, a code, a text or a field")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """How a success that is only an acceptance is known, and where it names what to ask for."""

    when: Extractor | None = None  #: true of such an answer; None = HTTP 202 and task handles alone
    reference: Extractor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRules:
    """What a contract says about the answers of one tool."""

    errors: tuple[ErrorRule, ...] = ()  #: the first that matches decides
    key: bool = False  #: the contract declares a key
    on_repeat: Literal["replay", "conflict_done", "conflict_busy"] | None = None  #: what a 409 under our key means
    replay_marker: str | Extractor | None = None  #: a header's name, or a field, that a replayed answer carries
    accepted: Accepted | None = None


_REFUSED_STATUS = frozenset({400, 401, 402, 403, 404, 405, 413, 415, 422})
_SAYS_NO = frozenset({AttemptState.REFUSED, AttemptState.RATE_LIMITED})
_SESSION_STATUS = frozenset({400, 401, 404})
_METHOD_NOT_FOUND = -32601
_LOST_SESSION = re.compile(r"\bsession", re.IGNORECASE)
# Proxies write these in the name of a server that may have done the work: equal bytes show no replay.
_GATEWAY_STATUS = frozenset({502, 504, *range(520, 528)})
_GATEWAY_TEXT = re.compile(
    rb"\s*<(!doctype|html|\?xml[^>]*>\s*<!doctype)"
    rb"|bad gateway|gateway time-?out|upstream (connect|request)|no healthy upstream",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LENGTH = re.compile(r"[0-9]{1,15}")
_SHOWN = 500  #: characters of a failure that are kept for people


def classify(
    reply: Reply,
    rules: ErrorRules = ErrorRules(),
    *,
    own_key: bool = False,
    inner_retries: bool = False,
    previous: bytes | None = None,
) -> Verdict:
    """Return what a reply says about its attempt. Pure; never raises for any reply.

    `own_key`: our own key or stamp was in the request. `inner_retries`: a client below us may have sent the request
    more than once. `previous`: `error_bytes` of the last error under the same key, to recognise it when it is replayed.
    """
    match reply.kind:
        case "not_sent":
            return _verdict(AttemptState.NEVER_SENT, reply.text or "nothing of the request left")
        case "lost":
            return _verdict(AttemptState.UNKNOWN, reply.text or "no readable answer came")
        case "result" | "rpc_error" | "http":
            state, why, reference = _by_rule(reply, rules, own_key) or _by_default(reply, rules, own_key)
        case _:
            assert_never(reply.kind)
    retry_after_s, replayed = _retry_after_s(reply.headers), False
    if state in _SAYS_NO and inner_retries:
        state, why = AttemptState.UNKNOWN, f"{why}; but only the answer to a client's last try"
    if why != "input_required" and own_key and (rules.key or rules.replay_marker is not None):
        if state in _SAYS_NO | {AttemptState.UNKNOWN} and _marked(reply, rules.replay_marker):
            # Whoever used the key first got this answer. Whether that attempt took effect, it does not show.
            state, why, replayed = AttemptState.UNKNOWN, f"{why}; replayed under the key", True
        elif rules.replay_marker is None and state in (AttemptState.REFUSED, AttemptState.UNKNOWN):
            replayed = previous is not None and previous == error_bytes(reply) and not _gateway_page(reply)
    return _verdict(state, why, retry_after_s=retry_after_s, replayed_error=replayed, reference=reference)


def _verdict(state: AttemptState, why: str, **more: Any) -> Verdict:
    return Verdict(state=state, why=why[:_SHOWN], free=not state.counts, **more)


_Found = tuple[AttemptState, str, Any]  # state, why, reference


def _by_rule(reply: Reply, rules: ErrorRules, own_key: bool) -> _Found | None:
    if not rules.errors:
        return None  # a large answer is not decoded for nothing
    data, text, success = view(reply), all_text(reply), _success(reply)
    for number, rule in enumerate(rules.errors, 1):
        # Prose is no proof against a success: "timed out" may stand in the log that a tool gives back.
        if success and rule.status is None and not rule.fields:
            continue
        if not (
            (rule.status is None or rule.status == reply.status)
            and (rule.code is None or (reply.kind == "rpc_error" and rule.code == _code(reply)))
            and (rule.text is None or rule.text.search(text))
            and all(_same(_look(extractor, data), expected) for extractor, expected in rule.fields)
        ):
            continue
        why = f"error rule {number}: {rule.as_}"
        match rule.as_:
            case "refused":
                return AttemptState.REFUSED, why, None
            case "busy":
                return AttemptState.BUSY, why, None
            case "rate_limited":
                return AttemptState.RATE_LIMITED, why, None
            case "unknown":
                return AttemptState.UNKNOWN, why, None
            case "done" if own_key:
                return AttemptState.HAPPENED, why, None
            case "done":
                return AttemptState.UNKNOWN, f"{why}, but perhaps by somebody else: no key or stamp of ours", None
            case _:
                assert_never(rule.as_)
    return None


def _by_default(reply: Reply, rules: ErrorRules, own_key: bool) -> _Found:
    if _success(reply):
        return _succeeded(reply, rules.accepted)
    if reply.status == 409 and own_key and rules.on_repeat == "conflict_done":
        return AttemptState.HAPPENED, "HTTP 409 under our key: done before", None
    if reply.status == 409 and own_key and rules.on_repeat == "conflict_busy":
        return AttemptState.BUSY, "HTTP 409 under our key: the first request still runs", None
    why = f"HTTP {reply.status}"
    if reply.status in _SESSION_STATUS and _LOST_SESSION.search(f"{reply.text} {all_text(reply)}"):
        return AttemptState.UNKNOWN, f"{why}: the session is lost, which is no answer to the call", None
    if reply.kind == "rpc_error":
        code = _code(reply)
        # With such a status the error is the transport's, which looks at a request before any tool does; but a 404 with
        # an error is how servers say that they do not know the session.
        no = code == _METHOD_NOT_FOUND or (reply.status in _REFUSED_STATUS and reply.status != 404)
        return AttemptState.REFUSED if no else AttemptState.UNKNOWN, f"JSON-RPC {code}", None
    if reply.kind == "http":
        if reply.status == 429:
            return AttemptState.RATE_LIMITED, why, None
        return AttemptState.REFUSED if reply.status in _REFUSED_STATUS else AttemptState.UNKNOWN, why, None
    return AttemptState.UNKNOWN, "a tool error that no rule knows", None


def _succeeded(reply: Reply, accepted: Accepted | None) -> _Found:
    body = reply.body if isinstance(reply.body, dict) else {}
    kind = body.get("resultType") if reply.kind == "result" else None
    if kind == "input_required":
        return AttemptState.RATE_LIMITED, "input_required", None  # the call comes again with its answers: free
    task = body.get("task")
    if kind == "task" or (reply.kind == "result" and isinstance(task, dict) and "content" not in body):
        handle = task if isinstance(task, dict) else body
        if "taskId" in handle:
            return AttemptState.ACCEPTED, "a task handle", handle["taskId"]
    if kind not in (None, "complete"):
        return AttemptState.UNKNOWN, f"result type {kind}", None
    if reply.kind == "http" and (flaw := _unreadable(reply)):
        return AttemptState.UNKNOWN, f"HTTP {reply.status}, {flaw}", None
    data = view(reply) if accepted is not None else None
    if reply.status == 202 or (accepted and accepted.when is not None and _look(accepted.when, data)):
        named = _look(accepted.reference, data) if accepted and accepted.reference is not None else None
        where = reply.headers.get("operation-location") or reply.headers.get("location")
        return AttemptState.ACCEPTED, "accepted, not done", where if named is None else named
    if reply.status == 207:
        return AttemptState.UNKNOWN, "HTTP 207: parts of it may have failed", None
    return AttemptState.HAPPENED, f"HTTP {reply.status}" if reply.kind == "http" else "a result", None


def _success(reply: Reply) -> bool:
    if reply.kind == "http":
        return reply.status is not None and 200 <= reply.status < 300
    return reply.kind == "result" and not (isinstance(reply.body, dict) and reply.body.get("isError"))


def _unreadable(reply: Reply) -> str | None:
    """Return what is wrong with the bytes of a 2xx answer; None = nothing that can be seen."""
    if reply.raw is None:
        return None
    length = reply.headers.get("content-length", "")
    short = _LENGTH.fullmatch(length) and len(reply.raw) < int(length)
    if short and "content-encoding" not in reply.headers:
        return "truncated"
    is_json = reply.raw.strip() and "json" in reply.headers.get("content-type", "") and reply.body is None
    return "unreadable" if is_json and _parsed(reply.raw) is None and reply.raw.strip() != b"null" else None


# --- reading an answer


def view(reply: Reply) -> Any:
    """Return the data of an answer as extractors see it.

    The error object of JSON-RPC; the structured content of an MCP result, else its only text where that is JSON; the
    decoded body of an HTTP response; a plain value as it is.
    """
    body = reply.body
    if reply.kind == "http" and (body is None or isinstance(body, (str, bytes))):
        return _parsed(reply.raw if body is None else body)
    if reply.kind != "result" or not _is_mcp(body):
        return body
    if body.get("structuredContent") is not None:
        return body["structuredContent"]
    texts = _texts(body)
    return _parsed(texts[0]) if len(texts) == 1 else None


def all_text(reply: Reply) -> str:
    """Return all text of an answer: what text rules search, and what a person is shown of a refusal."""
    body = reply.body
    if reply.kind == "rpc_error" and isinstance(body, dict):
        data = body.get("data")
        return "\n".join(part for part in (body.get("message"), data) if isinstance(part, str)) or reply.text
    if reply.kind == "result" and _is_mcp(body):
        return "\n".join(_texts(body)) or reply.text
    if isinstance(body, str):
        return body
    if reply.raw is not None:
        return reply.raw.decode("utf-8", "replace")
    return _dumped(body) if body is not None else reply.text


def error_bytes(reply: Reply) -> bytes | None:
    """Return the bytes by which an error is known again, without ids of transport; None for what is no error answer."""
    if reply.kind in ("lost", "not_sent") or _success(reply):
        return None
    if reply.kind == "http" and reply.raw is not None:
        return reply.raw or None  # an empty body is like any other, so it shows nothing
    return _dumped(reply.body).encode() if reply.body is not None else None


def _marked(reply: Reply, marker: str | Extractor | None) -> bool:
    if marker is None:
        return False
    value = reply.headers.get(marker.lower()) if isinstance(marker, str) else _look(marker, view(reply))
    # Some services always send the header and say in it whether the key was seen before.
    return value.strip().lower() not in ("", "false", "0", "no", "miss") if isinstance(value, str) else bool(value)


def _gateway_page(reply: Reply) -> bool:
    if reply.kind != "http":
        return False
    html = "html" in reply.headers.get("content-type", "")
    return html or reply.status in _GATEWAY_STATUS or _GATEWAY_TEXT.match((error_bytes(reply) or b"")[:300]) is not None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After: seconds, or a date relative to the answer's own Date (our clock may differ from theirs)."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        until, sent = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (until - sent).total_seconds())
    except (ValueError, TypeError):  # no date, or one with and one without a zone
        return None


def _look(extractor: Extractor, data: Any) -> Any:
    """Apply an extractor; an answer that it cannot read holds nothing for it."""
    try:
        return extractor(data) if callable(extractor) else extractor.search(data)
    except (ValueError, TypeError, LookupError, AttributeError):  # JMESPath's own errors are ValueErrors
        return None


def _same(found: Any, expected: Any) -> bool:
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)  # 1 is not true


def _code(reply: Reply) -> Any:
    return reply.body.get("code") if isinstance(reply.body, dict) else None


def _is_mcp(body: Any) -> bool:
    return isinstance(body, dict) and (isinstance(body.get("content"), list) or "structuredContent" in body)


def _texts(body: Mapping[str, Any]) -> list[str]:
    items = body.get("content")
    return [t for i in items if isinstance(i, dict) and isinstance(t := i.get("text"), str)] if items else []


def _parsed(text: str | bytes | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except (ValueError, TypeError, RecursionError):  # a plain value may be anything
        return repr(value)


# --- Python exceptions

_CLIENTS = {  # classes, by library, that are raised before a byte of the request leaves
    **{lib: {"ConnectError", "ConnectTimeout", "PoolTimeout"} for lib in ("httpx", "httpx2", "httpcore", "httpcore2")},
    "requests": {"ConnectTimeout"},
    "urllib3": {"NewConnectionError", "ConnectTimeoutError", "NameResolutionError"},
    "aiohttp": {"ClientConnectorError", "ConnectionTimeoutError"},
}
_WRAPPERS = {"requests": {"ConnectionError"}, "urllib3": {"MaxRetryError"}}  # say nothing themselves: look inside


def from_exception(exc: BaseException, *, inner_retries: bool = False) -> Reply:
    """Turn what a guarded function raised into a reply: `not_sent` where that is proven, `http`, else `lost`.

    Proof is a refused connection, an unknown host, a connection that an HTTP client could not open, or an attribute
    `onceward_not_sent = True`. It holds for a function that makes one request: a function that makes two raises for the
    second (a redirect it follows is one) what says nothing about the first. With `inner_retries` only the attribute
    counts.
    """
    text = f"{type(exc).__name__}: {exc}"[:_SHOWN]
    if getattr(exc, "onceward_not_sent", False) is True:
        return Reply(kind="not_sent", text=text)
    response = getattr(exc, "response", None)
    status = getattr(response, "status_code", None) or getattr(exc, "status_code", None)
    if isinstance(status, int) and not isinstance(status, bool):
        # Not `.content`: on an unread stream that reads the network, or raises. What was read is kept here.
        raw = getattr(response, "_content", None)
        pairs = getattr(response, "headers", None) or getattr(exc, "headers", None)
        headers = {str(k).lower(): str(v) for k, v in pairs.items()} if isinstance(pairs, Mapping) else {}
        return Reply(
            kind="http", status=status, headers=headers, text=text, raw=raw if isinstance(raw, bytes) else None
        )
    return Reply(kind="not_sent" if not inner_retries and _never_left(exc) else "lost", text=text)


def _never_left(exc: BaseException | None) -> bool:
    for _ in range(20):  # a chain may be a ring
        match exc:
            case None:
                return False
            case BaseExceptionGroup():
                return all(_never_left(e) for e in exc.exceptions)
            case ConnectionRefusedError() | socket.gaierror():
                return True
        if _is_one_of(exc, _CLIENTS):
            return True
        if _is_one_of(exc, _WRAPPERS):
            exc = exc.__cause__ or exc.__context__
        elif isinstance(exc, OSError) or not isinstance(exc, Exception) or any(r in _CLIENTS for r, _ in _names(exc)):
            return False  # it speaks for itself: a time-out, a reset or a cancel of a request that may have left
        else:
            # Only an explicit `raise ... from`: the implicit context of a failed second try is the refused first one.
            exc = exc.__cause__
    return False


def _is_one_of(exc: BaseException, classes: Mapping[str, set[str]]) -> bool:
    return any(name in classes.get(root, ()) for root, name in _names(exc))


def _names(exc: BaseException) -> Iterator[tuple[str, str]]:
    """Yield the top-level package and the name of an exception's classes, so that no client need be imported."""
    return ((c.__module__.partition(".")[0], c.__name__) for c in type(exc).__mro__)
