"""The gate: every `tools/call` that may change the world goes through a guarded call here.

It reads scope and call id from what the harness sends, runs one recovery per call, puts the key where the contract
says, and answers with one JSON-RPC response. An answer of the tool server passes as it came; everything else is a tool
result that says what is known, because a JSON-RPC error makes harnesses send the call again.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from onceward import people, texts
from onceward.drive import Guard
from onceward.errors import ArgumentsError, GuardError, JournalError
from onceward.evidence import Act, Code, Decision, Effect, IntentState
from onceward.outcomes import Reply, all_text
from onceward.recovery import Answer, Dispatch, Look, recover
from onceward.tools import Tool

from . import approval
from .listing import LABEL, STATUS_TOOL, Listing
from .rpc import encode
from .status import status_result
from .wire import Call, Upstream

if TYPE_CHECKING:
    from onceward.gathering import Request

#: A client that gave up after t is answered before this share of t from then on.
_LEARNED = 0.8
_PATIENCE_LEAST_S = 2.0
_PAGES_MOST = 100
_LIST_S = 10.0  #: a tool server that takes longer to list its tools is not waited for
_REASON_MOST = 500  #: characters of a tool's own error text that are passed on


class GuardGate:
    """Guards the calls of one client-side connection to one tool server."""

    def __init__(
        self,
        guard: Guard,
        listing: Listing,
        *,
        scope_of: Callable[[Call], str | None],
        call_id_of: Callable[[Call], str | None],
        principal_of: Callable[[Call], str | None] = lambda call: None,
        nameless: Callable[[Call], str | None] = lambda call: None,
        profile: str = "default",
    ) -> None:
        """Take the guard, the tool list it binds to, and how to read scope, call id and principal from a call."""
        self._guard, self._listing, self._profile = guard, listing, profile
        self._scope_of, self._call_id_of, self._principal_of = scope_of, call_id_of, principal_of
        self._nameless = nameless  # why a call has no principal; what a contract covers is then not sent
        self._patience_s = guard.patience_s
        self._relayed: WeakKeyDictionary[Call, _Relayed] = WeakKeyDictionary()
        self._begun: WeakKeyDictionary[Call, float] = WeakKeyDictionary()
        self._answers: WeakKeyDictionary[Call, str] = WeakKeyDictionary()  # told, and not known to be heard

    def wants(self, call: Call) -> bool:
        """Guard everything that is not a declared read."""
        if call.name == STATUS_TOOL:
            return True
        return self._tool(call).contract.effect is not Effect.READ

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        """Bind the contracts to the living tools, and offer the label argument and the status tool."""
        return self._listing.shown(result)

    def cancelled(self, call: Call) -> None:
        """The client gave up: its answer was not heard, and the next one comes earlier."""
        relayed = self._relayed.pop(call, None)
        if relayed is not None:
            relayed.given_up()
        begun_s = self._begun.pop(call, None)
        self._answers.pop(call, None)
        if begun_s is not None:
            waited_s = time.monotonic() - begun_s
            least_s = min(_PATIENCE_LEAST_S, self._patience_s)
            self._patience_s = max(least_s, min(self._patience_s, _LEARNED * waited_s))

    def delivered(self, call: Call) -> None:
        """The client heard the answer."""
        self._begun.pop(call, None)
        intent = self._answers.pop(call, None)
        if intent is not None:
            self._guard.heard(intent)
            self._guard.hear()

    async def handle(self, call: Call, upstream: Upstream) -> bytes:
        """Answer one call; never raises."""
        self._begun[call] = time.monotonic()
        try:
            return await self._handle(call, upstream)
        except JournalError as error:
            return self._stopped(call, error.code, str(error))
        except ArgumentsError as error:
            return self._stopped(call, Code.BAD_ARGUMENTS, str(error))
        except GuardError as error:
            return self._stopped(call, Code.CONTRACT_MISMATCH, str(error))
        except Exception as error:  # our own bug: the operator reads it on stderr, the caller must not repeat the call
            # What an error says may hold arguments or results: where it was raised says enough.
            where = "".join(traceback.format_tb(error.__traceback__))
            print(
                f"onceward: internal error while guarding {call.name}: {type(error).__name__}\n{where}", file=sys.stderr
            )
            return self._stopped(call, Code.UNKNOWN, "internal error of the guard")

    async def _handle(self, call: Call, upstream: Upstream) -> bytes:
        if call.name == STATUS_TOOL:
            loop = asyncio.get_running_loop()
            scope, principal = self._scope_of(call), self._principal_of(call) or self._guard.principal
            result = await loop.run_in_executor(
                None, status_result, self._guard.journal, scope, principal, call.arguments
            )
            return _response(call, result)
        secret, asked = self._guard.core.secret, call
        answered = approval.answer_in(call, secret)
        if answered is not None:
            # The relay and the bookkeeping know the call as it came; the tool server must not see our question.
            call = approval.without_answer(call)
            if answered[1]:
                self._approve(answered[0])
        if not self._listing.known:
            await self._list(call, upstream)
        tool = self._tool(call)
        scope = self._scope_of(call)
        nameless = self._nameless(call)
        if (scope is None or nameless) and tool.contract.effect is not Effect.UNDECLARED:
            return self._stopped(call, Code.NO_SCOPE, nameless or "")
        # Nothing is promised about a tool without contract, so its connection is scope enough.
        scope = scope if scope is not None else f"connection:{call.session or call.client}"
        arguments = {name: value for name, value in call.arguments.items() if name != LABEL}
        label = call.arguments.get(LABEL)
        request = self._guard.request(
            tool,
            arguments,
            scope=scope,
            principal=self._principal_of(call),
            label=str(label) if label is not None else None,
            key=_given_key(call, tool),
            call_id=self._call_id_of(call),
            patience_s=self._patience_s,
        )
        self._relayed[asked] = relayed = _Relayed(
            self._guard, self._listing, call, upstream, stripped=label is not None
        )
        answer = await self._guard.run_async(recover(self._guard.core, request), request, relayed.send, relayed.look)
        if answer.intent is not None and answer.decision.act is Act.REPLAY:
            self._answers[asked] = answer.intent
        if answer.decision.code is Code.NEEDS_APPROVAL and answer.intent and not answered and approval.can_ask(call):
            return _response(call, approval.question(call, answer.intent, secret))
        return self._answer(call, request, answer, relayed.last)

    def _approve(self, intent: str) -> None:
        with suppress(people.ResolveError):  # gone or settled meanwhile: the decision that follows says so
            people.resolve(
                self._guard.core,
                self._listing.toolbox,
                intent,
                "retry",
                by="client",
                why="approved in the client",
                only=Code.NEEDS_APPROVAL,  # a yes that comes again, as harnesses repeat calls, is no second one
            )

    async def _list(self, call: Call, upstream: Upstream) -> None:
        """Learn the tools before the first call of a client that did not ask for them: a contract holds only for a tool
        that is there, and defaults are part of an identity.
        """
        cursor: Any = None
        for _ in range(_PAGES_MOST):
            params = {"cursor": cursor} if cursor is not None else {}
            message = {"jsonrpc": "2.0", "id": call.id, "method": "tools/list", "params": params}
            future = upstream.exchange(call, message, own=True)
            await asyncio.wait({future}, timeout=min(_LIST_S, self._patience_s))
            reply = future.result() if future.done() else Reply(kind="lost")
            if reply.kind != "result" or not isinstance(reply.body, dict):
                self._listing.unlisted()
                return
            self._listing.shown(reply.body)
            cursor = reply.body.get("nextCursor")
            if cursor is None:
                return

    def _answer(self, call: Call, request: Request, answer: Answer, last: Reply | None) -> bytes:
        tool, decision = request.tool, answer.decision
        passes = answer.fresh or (decision.act is Act.ANSWER and decision.code is Code.REFUSED)
        if tool.contract.effect is Effect.UNDECLARED and decision.act is Act.ANSWER:
            passes = True
        if passes and last is not None and last.kind in ("result", "rpc_error"):
            notice = None
            if answer.fresh and answer.original is not None:
                notice = texts.reissued_original(tool=tool.name, intent=answer.intent, original=answer.original)
            return _passed(call, last, notice)
        if decision.act is Act.REPLAY and _not_kept(answer):
            gone = texts.replayed(tool.name, intent=answer.intent, happened_s=answer.happened_s, kept=False)
            return self._told(call, gone)
        if decision.act is Act.REPLAY and answer.result is None:
            person = bool(answer.facts.get("by_person"))
            told = texts.found(tool.name, intent=answer.intent, happened_s=answer.happened_s, by_person=person)
            return self._told(call, told)
        if decision.act is Act.REPLAY and answer.result is not None:
            stored = json.loads(answer.result)
            told = texts.replayed(tool=tool.name, intent=answer.intent, happened_s=answer.happened_s)
            if isinstance(stored, dict) and ("content" in stored or "structuredContent" in stored):
                return _response(call, texts.mark_replay(stored, told))
            return self._told(call, told)
        refusal = (all_text(last) or last.text)[:_REASON_MOST] if last is not None else None
        return self._told(call, self._guard.tell(answer, tool, refusal=refusal, profile=self._profile))

    def _told(self, call: Call, told: texts.Told) -> bytes:
        schema = self._listing.has_output_schema(call.name)
        return _response(call, texts.mcp_result(told, output_schema=schema, profile=self._profile))

    def _stopped(self, call: Call, code: Code, problem: str) -> bytes:
        tool = self._tool(call)
        decision = Decision(act=Act.CONFLICT if code is not Code.UNKNOWN else Act.ANSWER, code=code)
        # Our own bug may have struck after the request had left.
        state = IntentState.UNKNOWN if code is Code.UNKNOWN else IntentState.NEW
        answer = Answer(decision=decision, state=state, intent=None, now_s=self._guard.journal.clock())
        return self._told(call, self._guard.tell(answer, tool, refusal=problem or None, profile=self._profile))

    def _tool(self, call: Call) -> Tool:
        return self._listing.toolbox.tool(call.name, call.arguments)


class ClosedGate:
    """Stands in where the journal cannot be opened: reads pass, nothing else is sent."""

    def __init__(self, listing: Listing, error: JournalError, *, profile: str = "default") -> None:
        """Take the tool list, and why nothing can be guarded."""
        self._listing, self._error, self._profile = listing, error, profile

    def wants(self, call: Call) -> bool:
        """Stop everything that is not a read."""
        return self._listing.toolbox.tool(call.name, call.arguments).contract.effect is not Effect.READ

    async def handle(self, call: Call, upstream: Upstream) -> bytes:
        """Say why nothing was sent."""
        tool = self._listing.toolbox.tool(call.name, call.arguments)
        told = texts.tell(
            Decision(act=Act.CONFLICT, code=self._error.code),
            tool=tool.name,
            intent=None,
            state=IntentState.NEW,
            now_s=time.time(),
            owner=tool.contract.owner,
            refusal=str(self._error),
            profile=self._profile,
        )
        schema = self._listing.has_output_schema(call.name)
        return _response(call, texts.mcp_result(told, output_schema=schema, profile=self._profile))

    def tools(self, result: dict[str, Any]) -> dict[str, Any] | None:
        """Show the list as a working guard would."""
        return self._listing.shown(result)

    def cancelled(self, call: Call) -> None:
        """Nothing was sent."""

    def delivered(self, call: Call) -> None:
        """Nothing was sent."""


def _not_kept(answer: Answer) -> bool:
    """Tell whether the answer came, but is no longer there: too large to store, no JSON, or purged with its row."""
    marks = ('{"dev.onceward/digest"', '{"dev.onceward/unstorable"')
    return "tombstone" in answer.facts or (answer.result or "").startswith(marks)


def _given_key(call: Call, tool: Tool) -> str | None:
    """Return the key that came with a call outside its arguments, where its contract says that keys go."""
    place = tool.key
    if place is None or place.where == "argument":
        return None
    if place.where == "header":
        return call.headers.get(place.name.lower())
    given = (call.meta if place.where == "meta" else call.params).get(place.name)
    return str(given) if isinstance(given, str | int) else None


class _Relayed:
    """How one call's requests and reads reach the tool server."""

    def __init__(self, guard: Guard, listing: Listing, call: Call, upstream: Upstream, *, stripped: bool) -> None:
        self._guard, self._listing, self._call, self._upstream = guard, listing, call, upstream
        self._stripped = stripped
        self._used = False
        self._dispatch: Dispatch | None = None
        self.last: Reply | None = None

    async def send(self, dispatch: Dispatch) -> Reply:
        """Send the request of an attempt: as it came where nothing is to change, under the client's id once."""
        call, own = self._call, self._used
        self._used, self._dispatch, self.last = True, dispatch, None
        message, headers = self._written(dispatch)
        future = self._upstream.exchange(
            call,
            message,
            own=own,
            headers=headers,
            before_send=lambda: self._guard.may_leave(dispatch),
        )
        reply = await future
        # The bytes of an answer to a request of our own carry our id, not the client's.
        self.last = replace(reply, raw=None) if own else reply
        return reply

    def given_up(self) -> None:
        """Note that the client no longer waits: for a tool without contract, that is an outcome nobody knows."""
        dispatch = self._dispatch
        if dispatch is not None and self.last is None and dispatch.tool.contract.effect is Effect.UNDECLARED:
            self._guard.lost(dispatch, "the client stopped waiting")

    async def look(self, look: Look) -> Reply:
        """Ask a read tool on the guard's own account."""
        message = {
            "jsonrpc": "2.0",
            "id": self._call.id,
            "method": "tools/call",
            "params": {"name": look.name, "arguments": look.arguments},
        }
        headers = self._listing.mirrored_headers(look.name, look.arguments)
        return await self._upstream.exchange(self._call, message, own=True, headers=headers)

    def _written(self, dispatch: Dispatch) -> tuple[dict[str, Any] | None, Mapping[str, str]]:
        place = dispatch.tool.key
        headers: dict[str, str] = {}
        carried = place is None or dispatch.key is None or place.where == "argument"
        if carried and dispatch.first and not self._stripped and dispatch.arguments == self._call.arguments:
            return None, headers
        message = copy.copy(self._call.message)
        params = message["params"] = dict(self._call.params)
        params["name"] = dispatch.tool.name
        params["arguments"] = dispatch.arguments
        if place is not None and dispatch.key is not None:
            if place.where == "meta":
                params["_meta"] = {**self._call.meta, place.name: dispatch.key}
            elif place.where == "param":
                params[place.name] = dispatch.key
            elif place.where == "header":
                headers[place.name] = dispatch.key
        headers.update(self._listing.mirrored_headers(dispatch.tool.name, dispatch.arguments))
        return message, headers


def _passed(call: Call, reply: Reply, notice: texts.Told | None) -> bytes:
    """Return the tool server's answer under the client's id: its own bytes where nothing changes."""
    if reply.raw is not None and notice is None:
        return reply.raw
    part = "error" if reply.kind == "rpc_error" else "result"
    body = reply.body
    if notice is not None and isinstance(body, dict):
        body = texts.mark_replay(body, notice)
    return encode({"jsonrpc": "2.0", "id": call.id, part: body})


def _response(call: Call, result: dict[str, Any]) -> bytes:
    if "resultType" not in result and "io.modelcontextprotocol/protocolVersion" in call.meta:
        result = {"resultType": "complete", **result}
    return encode({"jsonrpc": "2.0", "id": call.id, "result": result})
