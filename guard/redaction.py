"""Values that are never stored in clear: in their place stands an HMAC, which still tells equal from different.

A plain hash of a card number can be searched through; an HMAC cannot without the deployment secret, which is not in the
journal. What was redacted is only ever seen again when a caller brings it: `refill`.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from .errors import ArgumentsError
from .jcs import canonical

#: The one member of the object that stands for a redacted value.
MARK = "dev.onceward/hmac"

_ABSENT = object()


def redact(arguments: Mapping[str, Any], paths: Sequence[str], secret: bytes) -> dict[str, Any]:
    """Return a copy with the values at `paths` replaced by marks. Raises nothing: it also runs after an effect.

    It rather hides too much: a path goes through a list whether or not it says `[]`, and text in the place of an object
    that the path leads into is hidden whole, as it may be that object written as text.
    """
    hidden: Any = dict(arguments)
    for path in sorted(paths, key=len):  # the outer ones first, so that no mark is hidden once more
        hidden = _hidden(hidden, path.replace("[]", "").split("."), secret)
    return hidden  # type: ignore[no-any-return]  # a path has at least one name, so the outer object stays


def redact_result(body: Any, paths: Sequence[str], secret: bytes) -> Any:
    """Return a result with the values at `paths` replaced by marks.

    In an MCP result the paths lead into its structured content and into texts that hold JSON. May raise RecursionError.
    """
    if isinstance(body, str):
        try:
            parsed = json.loads(body)
        except ValueError:
            return body
        hidden = redact_result(parsed, paths, secret) if isinstance(parsed, dict | list) else parsed
        return body if hidden == parsed else json.dumps(hidden, ensure_ascii=False)
    for path in sorted(paths, key=len):
        body = _hidden(body, path.replace("[]", "").split("."), secret) if not is_mark(body) else body
    if isinstance(body, Mapping) and "structuredContent" in body:
        body = {**body, "structuredContent": redact_result(body["structuredContent"], paths, secret)}
    if isinstance(body, Mapping) and isinstance(body.get("content"), list):
        body = {**body, "content": [_block(block, paths, secret) for block in body["content"]]}
    return body


def words_of(arguments: Mapping[str, Any], paths: Sequence[str]) -> re.Pattern[str] | None:
    """Return what finds a call's redacted values in any text, as services repeat them in errors; None: no value."""
    found: set[str] = set()
    for path in paths:
        _collect(arguments, path.replace("[]", "").split("."), found)
    longest_first = sorted(found, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)") if found else None


def scrubbed(value: Any, words: re.Pattern[str] | None) -> Any:
    """Return a value in whose texts none of these words stands."""
    if words is None:
        return value
    if isinstance(value, str):
        return words.sub("[redacted]", value)
    if isinstance(value, Mapping):
        return value if is_mark(value) else {name: scrubbed(inner, words) for name, inner in value.items()}
    return [scrubbed(inner, words) for inner in value] if isinstance(value, list | tuple) else value


def refill(redacted: Mapping[str, Any], new_arguments: Mapping[str, Any], secret: bytes) -> dict[str, Any] | None:
    """Return the original arguments, with what was redacted taken from a new call; None where that differs."""
    try:
        return {name: _filled(value, new_arguments.get(name, _ABSENT), secret) for name, value in redacted.items()}
    except _Differs:
        return None


def marked_like(old: Any, new: Any) -> Any:
    """Return new arguments with the marks that the old ones have, at the same places."""
    if is_mark(old):
        return old
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: marked_like(old.get(name), value) for name, value in new.items()}
    if isinstance(old, list) and isinstance(new, list | tuple):
        return [marked_like(old[n] if n < len(old) else None, value) for n, value in enumerate(new)]
    return new


def is_redacted(value: Any) -> bool:
    """Tell whether any value in here was replaced by a mark."""
    if isinstance(value, Mapping):
        return is_mark(value) or any(map(is_redacted, value.values()))
    return isinstance(value, list | tuple) and any(map(is_redacted, value))


def is_mark(value: Any) -> bool:
    """Tell whether this value stands for a redacted one."""
    return isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get(MARK), str)


class _Differs(Exception):
    """It is no error, only the way out of a recursion."""


def _hidden(value: Any, names: Sequence[str], secret: bytes) -> Any:
    if isinstance(value, list | tuple) and names:
        return [_hidden(inner, names, secret) for inner in value]
    if value is None or is_mark(value):
        return value
    if not names or not isinstance(value, Mapping):
        return _mark(value, secret) if not names or isinstance(value, str) else value
    name, *rest = names
    return {**value, name: _hidden(value[name], rest, secret)} if name in value else value


def _block(block: Any, paths: Sequence[str], secret: bytes) -> Any:
    text = block.get("text") if isinstance(block, Mapping) else None
    return {**block, "text": redact_result(text, paths, secret)} if isinstance(text, str) else block


def _collect(value: Any, names: Sequence[str], found: set[str]) -> None:
    if isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, names, found)
    elif isinstance(value, Mapping):
        for name in (names[0],) if names else value:
            if name in value:
                _collect(value[name], names[1:], found)
    elif not names and value is not None and not isinstance(value, bool) and str(value).strip():
        found.add(str(value).strip())


def _mark(value: Any, secret: bytes) -> dict[str, str]:
    try:
        text = canonical(value)
    except ArgumentsError:
        # A result may hold what no argument may, such as NaN: it is hidden all the same.
        text = repr(value)
    message = b"onceward/1/redacted:" + text.encode("utf-8", "surrogatepass")
    return {MARK: hmac.digest(secret, message, "sha256").hex()}


def _filled(stored: Any, new: Any, secret: bytes) -> Any:
    if is_mark(stored):
        if new is _ABSENT or _mark(new, secret) != stored:
            raise _Differs
        return deepcopy(new)
    if isinstance(stored, Mapping):
        there = new if isinstance(new, Mapping) else {}
        return {name: _filled(value, there.get(name, _ABSENT), secret) for name, value in stored.items()}
    if isinstance(stored, list):
        items = new if isinstance(new, list | tuple) else ()
        return [_filled(value, items[n] if n < len(items) else _ABSENT, secret) for n, value in enumerate(stored)]
    return stored
