"""One text for one JSON value, so that two processes that mean the same write the same bytes.

The text is RFC 8785 (JCS), read 2026-12-01: members sorted by UTF-16 code units, no space, the shortest number. It is
narrowed and widened on purpose. Text is NFC, as two keyboards may spell one word in two ways. A member that is null is
as good as left out. Integers beyond 2^53 and decimals keep every digit, where JCS would let two account numbers meet in
one double. What cannot be said in JSON is refused, as a guess at its meaning would become part of an intent's name.

Most calls are small and plain: for them the C encoder of the standard library writes exactly this text (`plain` tells),
and everything else takes the slow way through `tidy`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from json.encoder import encode_basestring as _quote  # what the encoder itself writes texts with
from typing import Any
from unicodedata import is_normalized, normalize

from .errors import ArgumentsError

DEEPEST = 200
#: From here on ECMAScript, and so JCS, writes a number with an exponent.
_LONG = 10**21

#: Writes plain values as JCS does.
encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def canonical(value: Any, path: str = "$") -> str:
    """Return the canonical text of a JSON value. Raises ArgumentsError, naming the place below `path`."""
    return encode(value) if plain(value) else _written(tidy(value, path))


def plain(value: Any, depth: int = 0) -> bool:
    """Tell whether the C encoder writes this value canonically: ASCII text, small integers, no nulled member."""
    kind = type(value)
    if kind is str:
        return str.isascii(value)
    if kind is int:
        return bool(-_LONG < value < _LONG)
    if kind is float:
        # In this range Python and ECMAScript agree; a whole float would be written as 1.0, an infinity fails both.
        return 1e-4 <= abs(value) < 1e16 and not value.is_integer()
    if kind is dict:
        if depth >= DEEPEST:
            return False
        for name, inner in value.items():
            if type(name) is not str or not name.isascii():
                return False
            kind = type(inner)
            # The common leaves are judged here: a call of this function costs more than the answer.
            if kind is str:
                if not inner.isascii():
                    return False
            elif kind is not bool and (inner is None or not plain(inner, depth + 1)):
                return False
        return True
    if kind is list:
        return depth < DEEPEST and all(plain(inner, depth + 1) for inner in value)
    return kind is bool or value is None


def leaf(value: Any) -> str | None:
    """Return the canonical text of text, a number or a boolean; None where only `canonical` can tell it."""
    kind = type(value)
    if kind is str:
        # A lone surrogate passes here: it cannot be encoded, so whoever hashes the text finds it.
        return _quote(value) if value.isascii() or is_normalized("NFC", value) else None
    if kind is int:
        return str(value) if -_LONG < value < _LONG else None
    if kind is bool:
        return "true" if value else "false"
    if kind is float and abs(value) < 1e15:
        if value.is_integer():
            return str(int(value))
        return repr(value) if abs(value) >= 1e-4 else None
    return None


def tidy(value: Any, path: str = "$", depth: int = 0) -> Any:
    """Return a copy made of dict, list, str, bool, None, int, float and Decimal in canonical form.

    Raises ArgumentsError. A number is an int, else a float where that is exact, else a Decimal.
    """
    if isinstance(value, str):
        return _text(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -_LONG < value < _LONG else _big(int(value), path)
    if isinstance(value, float | Decimal):
        return tidy_number(value, path)
    if depth >= DEEPEST and isinstance(value, Mapping | list | tuple):
        raise ArgumentsError(f"nested more than {DEEPEST} deep", path=path)
    if isinstance(value, Mapping):
        return _members(value, path, depth + 1)
    if isinstance(value, list | tuple):
        return [tidy(inner, f"{path}[{n}]", depth + 1) for n, inner in enumerate(value)]
    raise ArgumentsError(f"a {type(value).__name__} is not JSON; pass text, a number or a list", path=path)


def tidy_number(number: float | Decimal, path: str) -> int | float | Decimal:
    """Return a number in the one form that all numbers of its value share. Raises ArgumentsError for NaN."""
    # The shortest decimal that reads back as this double is what JCS writes, and what its author meant.
    exact = number if isinstance(number, Decimal) else Decimal(float.__repr__(number))
    if not exact.is_finite():
        raise ArgumentsError(f"{exact} is not a JSON number", path=path)
    if exact.adjusted() < 21 and exact == exact.to_integral_value():
        return int(exact)
    if -4 <= exact.adjusted() < 16:
        double = float(exact)
        if Decimal(repr(double)) == exact:
            return double
    return exact


def _text(value: str, path: str) -> str:
    text = normalize("NFC", str.__str__(value))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ArgumentsError("a lone surrogate is not text", path=path) from None
    return text


def _big(value: int, path: str) -> Decimal:
    try:
        return Decimal(str(value))
    except ValueError:  # Python refuses to write integers of more than 4300 digits
        raise ArgumentsError("an integer of this length is not supported; pass it as text", path=path) from None


def _members(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, inner in value.items():
        if not isinstance(name, str):
            raise ArgumentsError(f"the key {name!r} is not text", path=path)
        if inner is None:
            continue
        below = f"{path}.{name}"
        name = _text(name, below)  # two spellings of a name must not both go on
        if name in members:
            raise ArgumentsError("two keys are the same text in NFC", path=below)
        members[name] = tidy(inner, below, depth)
    return members


def _written(value: Any) -> str:
    """Write a tidy value."""
    if isinstance(value, Decimal):
        return _digits(value)
    if isinstance(value, dict):
        # UTF-16 orders characters beyond the basic plane before some within it.
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{encode(name)}:{_written(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return encode(value)


def _digits(number: Decimal) -> str:
    """Write a number as ECMAScript's Number::toString does, with every digit."""
    sign, parts, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    padded = "".join(map(str, parts)).lstrip("0")
    digits = padded.rstrip("0")
    if not digits:
        return "0"
    point = len(padded) + exponent  # how many digits stand before the point
    minus = "-" if sign else ""
    if len(digits) <= point <= 21:
        return minus + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{minus}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{minus}{digits[0]}{fraction}e{point - 1:+d}"
