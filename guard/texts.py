"""What the model is told, all of it: facts in plain words.

A text says what is known, that the action must not be repeated, where the uncertainty is tracked, and that the user
should hear of it. It never promises that anything will be looked up or sent later: a model that reads such a promise
drops its own caution, and does the thing again. A conflict says what the caller must decide, and how.

`tell` composes a text from the state of the intent (what is known), its code (why nothing more was done) and what to
do. Each text travels with a block for machines, the same on every surface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor, inf
from typing import Any, assert_never

from .evidence import Act, Code, Decision, IntentState

BLOCK = "dev.onceward/guard"  #: where the block for machines stands, in `_meta` and in `structuredContent`
LABEL = "onceward_label"  #: the argument that makes an equal call a second action

#: harness profiles that close a tool server after a few `isError` answers in a row
_NEVER_IS_ERROR = frozenset({"hermes"})
_ARGUMENTS_SHOWN, _REFUSAL_SHOWN = 300, 500  #: characters; enough to recognise, too few to flood a context

_DO_NOT = "Do not repeat it, reworded or by other means."
_SECOND = f"To do it a second time on purpose, call again with the argument `{LABEL}` set to a new name."
_EARLIER = "To go on with the earlier one, repeat its arguments exactly."
_SEPARATE = f"If this one is a separate action, make the same call with the argument `{LABEL}` set to a new name."

_CERTAIN = frozenset({IntentState.NEW, IntentState.HAPPENED, IntentState.REFUSED, IntentState.ABSENT})

#: why an intent is held, after a sentence that says how it stands
_HELD = {
    Code.NEEDS_APPROVAL: "It needs the yes of a person.",
    Code.ERROR_CACHED: "The service keeps an earlier error under the key of this action, so the key is of no more use.",
    Code.IN_FLIGHT_UNBOUNDED: "How long it may still take effect is not declared.",
    Code.LAG_UNKNOWN: "How long its effect may stay invisible is not declared.",
    Code.READ_BACK_INCONCLUSIVE: "Reading whether its effect exists gave no clear answer.",
    Code.UNVERIFIABLE: "There is no way to see from here whether it took effect.",
    Code.KEY_EXPIRED: "The service may have forgotten the key of this action, so sending it again could do it twice.",
    Code.KEY_OUT_OF_BOUNDARY: "The key of this action is known only in the region or account that saw it first.",
    Code.ABANDONED: "Nobody waited for its answer any more.",
    Code.ORIGINAL_UNAVAILABLE: "The original request can no longer be rebuilt.",
    Code.RETRY_CEILING: "The limit of attempts is used up.",
}

#: what the caller must decide, and how
_DECIDE = {
    Code.TERMS_CHANGED: f"Decide which of the two is meant. {_EARLIER} Other terms are possible only once the earlier"
    f" one is settled; `{LABEL}` does not change that.",
    Code.KEY_REUSED: "The earlier one is done and stays as it is. If a second action with these arguments is meant,"
    f" call again with the argument `{LABEL}` (or the idempotency key) set to a new name.",
    Code.CONTENT_DIFFERS: f"If it is the same action in other words, it is done: do nothing. {_SECOND}",
    Code.UNSETTLED_SIBLING: f"Decide which is meant. {_EARLIER} {_SEPARATE}",
    Code.SIMILAR_UNSETTLED: f"Decide which is meant. {_EARLIER} {_SEPARATE}",
    Code.NO_CONTRACT: f"Nothing is declared about this tool, so an equal call could do it twice. {_DO_NOT} If a"
    f" separate second action is meant, call again with the argument `{LABEL}` set to a new name.",
    Code.FOUND_BEFORE_SEND: "If that is the one you mean, it is done: do nothing. If one more is meant, make exactly"
    " this call once more.",
}

#: why nothing could be decided, or not be recorded
_NOT_READY = {
    Code.NO_SCOPE: "Nothing names this conversation or run in a way that outlasts a restart, so a repeat could not be"
    " recognised. The operator must configure a scope.",
    Code.JOURNAL_UNAVAILABLE: "The record that keeps it from happening twice cannot be read or written.",
    Code.JOURNAL_MISSING: "The record of earlier actions is gone, so it may have been done before. The operator must"
    " start a new record (`onceward journal new --why REASON`).",
    Code.CONTRACT_MISMATCH: "What is declared about this tool does not fit the tool as it is. The operator must correct"
    " it.",
    Code.BAD_ARGUMENTS: "Its arguments cannot be read, so a repeat could not be recognised. Correct them, then call"
    " again.",
}


@dataclass(slots=True, kw_only=True)
class Told:
    """One text, its block for machines, and whether it stands for something that was not done."""

    text: str
    data: dict[str, Any]
    error: bool


def tell(
    decision: Decision,
    *,
    tool: str,
    intent: str | None,
    state: IntentState,
    now_s: float,
    happened_s: float | None = None,
    since_s: float | None = None,
    foreign: bool = False,
    original: str | None = None,
    refusal: str | None = None,
    owner: str | None = None,
    sent: int = 1,
    profile: str = "default",
) -> Told:
    """Say a decision that ends a call. Raises ValueError for one that does not.

    `intent`, `state`, `happened_s`, `since_s` (first sent) and `original` (its arguments) are those of the intent that
    is spoken of: the earlier one where the decision names an `other`. `foreign`: another run, or another label, asked
    for it. `sent`: how often its request left. `refusal`: what the service, or the guard, gave as its reason. `owner`
    stands in where the decision has none.
    """
    code = decision.code
    match decision.act:
        case Act.REPLAY:
            return replayed(tool, intent=intent, happened_s=happened_s)
        case Act.TELL | Act.CONFLICT | Act.ANSWER | Act.HOLD if code is not None:
            pass
        case Act.TELL | Act.CONFLICT | Act.ANSWER | Act.HOLD:
            raise ValueError(f"{decision.act} needs a code to be told")
        case (
            Act.PASS | Act.SEND | Act.SEND_MISSING | Act.REISSUE | Act.READ_BACK | Act.READ_STATUS | Act.WAIT | Act.JOIN
        ) | (Act.DRIVE | Act.NEW_EPOCH | Act.SETTLE):
            raise ValueError(f"{decision.act} is no answer")
        case _:
            assert_never(decision.act)
    intent, owner = decision.other or intent, decision.owner or owner
    until_s = decision.until_s if decision.until_s is not None and now_s < decision.until_s < inf else None
    standing = _standing(tool, state, happened_s, since_s)
    earlier = _standing(f"The earlier {tool}", state, happened_s, since_s)
    arguments = f"The earlier arguments: {_shortened(original, _ARGUMENTS_SHOWN)}" if original else ""
    because = f"The reason given: {_shortened(refusal, _REFUSAL_SHOWN)}" if refusal else ""
    asker = "It was asked for by another run or under another label." if foreign else ""
    later = f"Without a late answer it cannot be known before {_utc(ceil(until_s))}." if until_s is not None else ""
    tracked, certain = _tracked(intent, owner), "Nothing is uncertain." if state in _CERTAIN else ""
    sent_or_not = "Do not do it by other means." if state is IntentState.NEW else _DO_NOT
    match code:
        case (
            Code.NEEDS_APPROVAL
            | Code.ERROR_CACHED
            | Code.IN_FLIGHT_UNBOUNDED
            | Code.LAG_UNKNOWN
            | Code.READ_BACK_INCONCLUSIVE
            | Code.UNVERIFIABLE
            | Code.KEY_EXPIRED
            | Code.KEY_OUT_OF_BOUNDARY
            | Code.ABANDONED
            | Code.ORIGINAL_UNAVAILABLE
            | Code.RETRY_CEILING
        ):
            held = "It is held until a person decides." if decision.act is Act.HOLD else certain
            parts = [standing, _HELD[code], held, asker, arguments, because, _DO_NOT, tracked, _report(state)]
        case (
            Code.TERMS_CHANGED
            | Code.KEY_REUSED
            | Code.CONTENT_DIFFERS
            | Code.UNSETTLED_SIBLING
            | Code.SIMILAR_UNSETTLED
        ):
            parts = [
                f"Nothing was sent now: {_DIFFERS[code]}",
                earlier,
                asker,
                arguments,
                later,
                _DECIDE[code],
                tracked,
                "Report this to the user.",
            ]
        case Code.NO_CONTRACT:
            stands = f"This stop stands until {_utc(ceil(until_s))}." if until_s is not None else ""
            parts = [
                f"Nothing was sent now: {_DIFFERS[code]}",
                earlier,
                asker,
                arguments,
                stands,
                _DECIDE[code],
                tracked,
                "Report this to the user.",
            ]
        case Code.FOUND_BEFORE_SEND:
            start = f"{tool} was not sent: reading first showed that such an effect exists, and no record here made it."
            parts = [start, _DECIDE[code], tracked, "Report this to the user."]
        case Code.ALREADY_HAPPENED:
            done = f"{tool} happened{_at(happened_s)}; no second one was made for this call."
            parts = [done, asker, arguments, _DO_NOT, _SECOND, tracked, "Report this to the user."]
        case Code.RUNNING:
            again = "was not repeated" if sent <= 1 else f"was sent {sent} times as one and the same request"
            runs = f"{tool} has been running{_since(since_s)} and {again}. No answer has come yet."
            parts = [runs, asker, _DO_NOT, tracked, "Report to the user that it still runs."]
        case Code.ACCEPTED:
            parts = [standing, asker, later, _DO_NOT, tracked, "Report to the user that it is accepted, not done."]
        case Code.REFUSED:
            early = f"It is too early for another attempt before {_utc(ceil(until_s))}." if until_s is not None else ""
            parts = [standing, because, certain, early, tracked, "Report this to the user."]
        case Code.UNKNOWN:
            parts = [standing, asker, because, later, _DO_NOT, tracked, _report(state)]
        case (
            Code.NO_SCOPE
            | Code.JOURNAL_UNAVAILABLE
            | Code.JOURNAL_MISSING
            | Code.CONTRACT_MISMATCH
            | Code.BAD_ARGUMENTS
        ):
            parts = [standing, _NOT_READY[code], because, sent_or_not, tracked, _report(state)]
        case _:
            assert_never(code)
    error = code is not Code.ACCEPTED
    # Where the answer may not be marked as an error, its first words have to say so.
    if error and profile in _NEVER_IS_ERROR:
        parts.insert(0, "This is no answer of the tool.")
    return Told(
        text=_joined(parts),
        data=_block(intent, state, code, permanent=decision.permanent, owner=owner, until_s=until_s),
        error=error,
    )


#: how a call differs from the earlier one that stands in its way
_DIFFERS = {
    Code.TERMS_CHANGED: "an earlier call for the same thing had other terms.",
    Code.KEY_REUSED: "an earlier call for the same thing, or under the same label, had other arguments.",
    Code.CONTENT_DIFFERS: "an earlier call had nearly the same content.",
    Code.UNSETTLED_SIBLING: "an earlier call for the same thing had other content.",
    Code.SIMILAR_UNSETTLED: "an earlier call was much like this one.",
    Code.NO_CONTRACT: "an earlier call was equal to this one.",
}


def replayed(tool: str, *, intent: str | None, happened_s: float | None, kept: bool = True) -> Told:
    """Preface an answer that is given again, or say that it was not kept."""
    answer = "The answer from then follows." if kept else "The answer from then was not kept."
    text = f"Nothing was sent now: {tool} happened{_at(happened_s)}. {answer} {_SECOND}"
    return _notice("replayed", text, intent, code=Code.ALREADY_HAPPENED)


def found(tool: str, *, intent: str | None, happened_s: float | None, by_person: bool = False) -> Told:
    """Say that an effect happened whose own answer nobody has: a read shows it, or a person saw it."""
    by = f" by {_utc(ceil(happened_s))}" if happened_s is not None else ""
    seen = "a person saw it" if by_person else "reading the service shows it"
    text = f"{tool} happened{by}: {seen}. Its own answer was lost, so details are not known here."
    return _notice("found", f"{text} {_DO_NOT}", intent, code=Code.ALREADY_HAPPENED)


def reissued_original(tool: str, *, intent: str | None, original: str | None = None) -> Told:
    """Say that the first wording was what was sent, not that of this call."""
    wording = f" It was: {_shortened(original, _ARGUMENTS_SHOWN)}" if original else ""
    text = f"{tool} was sent with the original wording of the earlier call, not with that of this one.{wording}"
    return _notice("reissued_original", text, intent, code=Code.CONTENT_DIFFERS)


def duplicated(tool: str, *, intent: str | None, count: int, expected: int = 1, owner: str | None = None) -> Told:
    """Say that an effect was found more often than it was meant."""
    text = (
        f"{tool} took effect {count} times where {expected} was meant. Do not repeat it, and do not undo it unasked."
        f" {_tracked(intent, owner)} Report this to the user."
    )
    return _notice("duplicated", text, intent, owner=owner)


def straggler(tool: str, *, intent: str | None) -> Told:
    """Say that an earlier request may still overwrite what was done now."""
    text = (
        f"{tool} happened. An earlier request for the same thing may still take effect after it: how long that can take"
        " is not declared. Report this to the user."
    )
    return _notice("straggler", text, intent)


def repeat_of(tool: str, *, intent: str | None, earlier: str, happened_s: float | None) -> Told:
    """Say that the same thing had been done before."""
    text = f"{tool} happened now. The same thing was done before{_at(happened_s)}, as intent {earlier[:12]}."
    return _notice("repeat_of", text, intent)


def mcp_result(
    told: Told, *, output_schema: bool, is_error: bool | None = None, profile: str = "default"
) -> dict[str, Any]:
    """Build the result of `tools/call` that carries a text.

    `output_schema`: the tool declares one. Then the answer is always an error, in every profile, and has no structured
    content: clients reject a success without conforming content, and the TypeScript SDK checks that of errors too.
    """
    if is_error is None:
        is_error = told.error and profile not in _NEVER_IS_ERROR
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": told.text}],
        "isError": is_error or output_schema,
        "_meta": {BLOCK: told.data},
    }
    if not output_schema:
        # Some clients show only the one, some only the other.
        result["structuredContent"] = {"message": told.text, BLOCK: told.data}
    return result


def mark_replay(result: Mapping[str, Any], told: Told, *more: Told) -> dict[str, Any]:
    """Return a stored success with texts in front; its structured content stays as it was, so it still conforms."""
    notices = [told, *more]
    block = {**told.data, "notices": [name for n in notices for name in n.data.get("notices", [])]}
    return {
        **result,
        "content": [*({"type": "text", "text": n.text} for n in notices), *(result.get("content") or [])],
        "_meta": {**(result.get("_meta") or {}), BLOCK: block},
    }


# --- parts


def _standing(subject: str, state: IntentState, happened_s: float | None, since_s: float | None) -> str:
    match state:
        case IntentState.NEW:
            return f"{subject} was not sent."
        case IntentState.IN_FLIGHT:
            return f"{subject} has been running{_since(since_s)}; no answer has come yet."
        case IntentState.ACCEPTED:
            taken = f"{subject} was accepted by the service{_at(since_s)}."
            return f"{taken} It is not done yet, and may still be done or fail."
        case IntentState.HAPPENED:
            return f"{subject} happened{_at(happened_s)}."
        case IntentState.REFUSED:
            return f"{subject} was refused and did not happen."
        case IntentState.ABSENT:
            return f"{subject} did not happen."
        case IntentState.UNKNOWN:
            return f"{subject} has an unknown outcome: it was sent{_at(since_s)} and may or may not have happened."
        case _:
            assert_never(state)


def _report(state: IntentState) -> str:
    return (
        "Report to the user that the outcome is unknown."
        if state is IntentState.UNKNOWN
        else "Report this to the user."
    )


def _tracked(intent: str | None, owner: str | None) -> str:
    if not intent:
        return f"The person to ask is {owner}." if owner else ""
    return f"It is tracked as intent {intent[:12]}" + (f"; the person to ask is {owner}." if owner else ".")


def _notice(name: str, text: str, intent: str | None, code: Code | None = None, owner: str | None = None) -> Told:
    block = _block(intent, IntentState.HAPPENED, code, permanent=False, owner=owner, until_s=None)
    return Told(text=text, data={**block, "notices": [name]}, error=False)


def _block(
    intent: str | None,
    state: IntentState,
    code: Code | None,
    *,
    permanent: bool,
    owner: str | None,
    until_s: float | None,
) -> dict[str, Any]:
    block: dict[str, Any] = {
        "intent": intent,
        "state": state.value,
        "code": code.value if code else None,
        "permanent": permanent,
        "owner": owner,
        "not_before": until_s,
    }
    return block if until_s is None else {**block, "not_before_text": _utc(ceil(until_s))}


def _at(seconds: float | None) -> str:
    return "" if seconds is None else f" at {_utc(floor(seconds))}"


def _since(seconds: float | None) -> str:
    return "" if seconds is None else f" since {_utc(floor(seconds))}"


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _shortened(text: str, limit: int) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _joined(parts: list[str]) -> str:
    return " ".join(part for part in parts if part)
