"""Read-backs: what to ask, and what an answer proves.

An item of the answer is ours only when it carries the intent's reference, or was created no earlier than our first
attempt, or when there are more matches than the baseline and the other intents of the identity account for. An empty
list is `ABSENT` only if it is the whole list. Whatever is neither is `INCONCLUSIVE`: it proves nothing either way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor
from typing import Any

from .errors import ArgumentsError
from .evidence import Found, Progress
from .identity import canonical
from .outcomes import Reply
from .tools import Extractor, ProgressPlan, ReadPlan, Tool

#: An item this much older than our first attempt may still be ours (the service's clock is not ours), but need not be.
SKEW_S = 5.0
PAGES_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one intent wants to know from its read-back."""

    tool: Tool
    arguments: Mapping[str, Any]  #: the original ones
    reference: str
    begun_s: float | None  #: begin of the first attempt; None before it
    baseline: int | None  #: matches before the first attempt
    owned: int  #: matches that may be those of other intents of the identity
    items: Sequence[Any] | None = None  #: the items of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the answer shows."""

    found: Found
    count: int = 0
    matches: int = 0  #: all that match, whoever caused them
    expected: int = 1
    seen: tuple[int, ...] = ()  #: positions of the batch items that were found
    why: str = ""


def reference(intent: str) -> str:
    """Return the short reference of an intent that a stamp writes into a request."""
    return f"ow-{intent[:16]}"


def value_of(reply: Reply) -> Any:
    """Return the data of a read's reply: structured content, else JSON in its text, else the value; None on failure."""
    if reply.kind not in ("result", "http") or (reply.status is not None and reply.status >= 300):
        return None
    body = reply.body
    if not isinstance(body, Mapping) or not ("content" in body or "structuredContent" in body):
        return body
    if body.get("isError"):
        return None
    if body.get("structuredContent") is not None:
        return body["structuredContent"]
    for block in body.get("content") or ():
        if isinstance(block, Mapping) and block.get("type") == "text":
            try:
                return json.loads(block["text"])
            except (ValueError, KeyError):
                return None
    return None


def arguments_of(extractors: Mapping[str, Extractor], data: Any) -> dict[str, Any]:
    """Return the arguments of a read; values that are not there are left out."""
    found = {name: extractor.search(data) for name, extractor in extractors.items()}
    return {name: value for name, value in found.items() if value is not None}


def items_of(plan: ReadPlan, value: Any) -> list[Any] | None:
    """Return the list in an answer, or None where there is none to see."""
    items = plan.items.search(value) if plan.items else value
    if isinstance(items, Mapping):
        return [items]
    return list(items) if isinstance(items, list | tuple) else None


#: what services call the sign that a list goes on
_MORE = (
    *("has_more", "hasMore", "more", "truncated", "isTruncated", "next", "next_page", "next_cursor", "nextCursor"),
    *("next_page_token", "nextPageToken", "next_token", "nextToken", "cursor"),
)


def is_whole(plan: ReadPlan, value: Any, count: int) -> bool:
    """Tell whether one page can be the whole list: shorter than a page, and saying nothing of more.

    Where the contract does not say how long a page is, a round number of items may be a full one.
    """
    if isinstance(value, Mapping) and any(value.get(name) for name in _MORE):
        return False
    if plan.page_size is not None:
        return count < plan.page_size
    return count == 0 or not (count % 10 == 0 or count % 25 == 0 or (count >= 16 and count & (count - 1) == 0))


def judge(question: Question, items: list[Any] | None, *, whole: bool) -> Finding:
    """Say what a read-back proves. `items` None: the read failed; `whole`: no item can be missing from the list."""
    if items is None:
        return Finding(found=Found.INCONCLUSIVE, why="the read failed or shows no list")
    if question.items is not None:
        return _judge_batch(question, items, whole=whole)
    plan = _plan(question)
    if blind := _blind(plan, items, question.arguments):
        return Finding(found=Found.INCONCLUSIVE, why=blind)
    matching = [item for item in items if _matches(plan, item, question.arguments)]
    if plan.stamp_argument is not None:
        ours = [i for i in matching if question.reference in str((plan.stamp_item or _WHOLE).search(i) or "")]
        return _verdict(question, len(ours), len(ours), len(matching), whole, "carries the reference")
    if plan.created is not None:
        return _judge_created(question, plan, matching, whole)
    count = len(matching)
    if question.begun_s is None and (whole or not plan.baseline):
        return _verdict(question, count, count, count, whole, "a match before anything was sent")
    if question.baseline is not None:
        return _less_owned(question, count - question.baseline, count, whole, "more matches than accounted for")
    if matching:
        return Finding(found=Found.INCONCLUSIVE, matches=len(matching), why="a match, but nothing says whose it is")
    return _verdict(question, 0, 0, 0, whole, "")


def _judge_created(question: Question, plan: ReadPlan, matching: list[Any], whole: bool) -> Finding:
    if question.begun_s is None:
        count = len(matching)
        return _verdict(question, count, count, count, whole, "a match before anything was sent")
    sure = unclear = 0
    for item in matching:
        created = moment(plan.created.search(item)) if plan.created else None
        if created is None:
            unclear += 1
        elif created >= (floor(question.begun_s) if created == floor(created) else question.begun_s):
            sure += 1
        elif created >= question.begun_s - SKEW_S:
            unclear += 1
    if unclear and sure <= question.owned:
        why = "a match of about the time of the first attempt"
        return Finding(found=Found.INCONCLUSIVE, matches=len(matching), why=why)
    return _less_owned(question, sure, len(matching), whole, "created since the first attempt")


def _less_owned(question: Question, count: int, matches: int, whole: bool, why: str) -> Finding:
    """Take off what may be another intent's; what then is nobody's for sure proves neither way."""
    if 0 < count <= question.owned:
        return Finding(found=Found.INCONCLUSIVE, matches=matches, why="a match that may be another intent's")
    return _verdict(question, count - question.owned, count - question.owned, matches, whole, why)


def _judge_batch(question: Question, items: list[Any], *, whole: bool) -> Finding:
    """Count a batch item by item: equal items are a multiset, each match counts once."""
    plan, batch = _plan(question), question.tool.batch
    assert question.items is not None and batch is not None
    free = list(items)
    seen: list[int] = []
    for position, wanted in enumerate(question.items):
        for found in free:
            if _same_item(batch.identity, wanted, found) and _ours_by_time(plan, found, question.begun_s):
                free.remove(found)
                seen.append(position)
                break
    expected = len(question.items)
    if seen and plan.created is None and question.begun_s is not None and question.baseline != 0:
        return Finding(found=Found.INCONCLUSIVE, matches=len(seen), why="matches, but nothing says whose they are")
    if len(seen) == expected:
        return Finding(found=Found.FOUND, count=expected, matches=len(seen), expected=expected, seen=tuple(seen))
    if seen:
        return Finding(
            found=Found.PARTLY if whole else Found.INCONCLUSIVE,
            count=len(seen),
            matches=len(seen),
            expected=expected,
            seen=tuple(seen),
            why="some items are there",
        )
    return _verdict(question, 0, 0, 0, whole, "")


def _verdict(question: Question, sure: int, count: int, matches: int, whole: bool, why: str) -> Finding:
    if sure > 0:
        return Finding(found=Found.FOUND, count=count, matches=matches, why=why)
    if not whole:
        return Finding(found=Found.INCONCLUSIVE, matches=matches, why="the list may go on")
    return Finding(found=Found.ABSENT, matches=matches)


def progress_of(plan: ProgressPlan, value: Any) -> Progress | None:
    """Read the status of an accepted request; None where the answer says nothing that the contract names."""
    status = plan.path.search(value)
    if status in plan.done:
        return Progress.DONE
    if status in plan.failed:
        return Progress.FAILED
    return Progress.PENDING if status in plan.pending else None


def moment(value: Any) -> float | None:
    """Read a creation time: seconds or milliseconds since the epoch, or ISO 8601 (naive = UTC); else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value / 1000 if value > 1e11 else float(value)
    try:
        when = datetime.fromisoformat(str(value).strip())
    except ValueError:
        return moment(float(value)) if str(value).replace(".", "", 1).isdigit() else None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


class _Whole:
    def search(self, data: Any, /) -> Any:
        return data


_WHOLE = _Whole()


def _plan(question: Question) -> ReadPlan:
    assert question.tool.read is not None
    return question.tool.read


def _blind(plan: ReadPlan, items: list[Any], arguments: Mapping[str, Any]) -> str | None:
    """Return why a match can never hold: a field that no item has, or an argument that the call lacks. None = it can.

    A misspelt field would otherwise make every list look like one without our effect, and absence is acted on.
    """
    for there, here in plan.match:
        if here.search(arguments) is None:
            return f"the call has no `{here}` to look for"
        if items and all(there.search(item) is None for item in items):
            return f"no item of the list has `{there}`"
    return None


def _matches(plan: ReadPlan, item: Any, arguments: Mapping[str, Any]) -> bool:
    return all(_equal(there.search(item), here.search(arguments)) for there, here in plan.match)


def _equal(there: Any, here: Any) -> bool:
    """Compare leniently in form, strictly in value: 5, 5.0 and "5" are one, texts are compared without outer space."""
    if there is None or here is None:
        return False
    if isinstance(there, str | int | float) and isinstance(here, str | int | float):
        a, b = str(there).strip(), str(here).strip()
        if a == b:
            return True
        try:
            return float(a) == float(b)
        except ValueError:
            return False
    try:
        return canonical(there) == canonical(here)
    except ArgumentsError:  # the service sends what is no JSON: it equals nothing of ours
        return False


def _same_item(identity: tuple[str, ...], wanted: Any, found: Any) -> bool:
    if not identity:
        keys = wanted.keys() if isinstance(wanted, Mapping) else None
        if keys is None or not isinstance(found, Mapping):
            return _equal(found, wanted)
        return all(_equal(found.get(key), wanted[key]) for key in keys)
    return all(_equal(_at(found, path), _at(wanted, path)) for path in identity)


def _at(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = item.get(name) if isinstance(item, Mapping) else None
    return item


def _ours_by_time(plan: ReadPlan, item: Any, begun_s: float | None) -> bool:
    if plan.created is None or begun_s is None:
        return True
    created = moment(plan.created.search(item))
    return created is None or created >= floor(begun_s)


def at_path(arguments: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    return _at(arguments, path)


def with_path(arguments: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of the arguments with another value at a dotted path."""
    head, _, rest = path.partition(".")
    inner = arguments.get(head)
    return {**arguments, head: with_path(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


def stamped(arguments: dict[str, Any], path: str, mark: str) -> dict[str, Any]:
    """Return a copy of the arguments that carries the intent's reference at `path`; a text there keeps its words."""
    old = _at(arguments, path)
    return with_path(arguments, path, mark if old in (None, "") else f"{old} [{mark}]")
