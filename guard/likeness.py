"""When two calls are alike though not equal: what a model does to a call that it writes a second time.

It rewords a text, adds a default, leaves an argument out. It does not, as a rule, change a number: another number is
another invoice. To be alike never makes two calls one. It makes the guard ask before it sends, so a doubt counts as
likeness.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unicodedata import normalize

from .jcs import canonical
from .redaction import is_mark

#: Two texts are nearly equal from here on: "is due" against "is now due." scores 90, an unrelated sentence 30 to 60.
NEAR_PERCENT = 80.0
#: A shorter text is a name or a code, where one letter is a difference.
LONG = 16

_DIGITS = re.compile(r"\d+")


def near(a: str, b: str) -> bool:
    """Tell whether two texts say nearly the same: similar at 0.8 or above, with the same numbers in them.

    Case, outer space and the width of inner space are nothing. Similar is what the longest common subsequence keeps of
    both texts; it forgives words put in, left out or replaced, not words moved about.
    """
    a, b = _folded(a), _folded(b)
    if a == b:
        return True
    if sorted(_DIGITS.findall(a)) != sorted(_DIGITS.findall(b)):
        return False
    # Imported late: few calls ever need it, and it takes longer to load than the rest of this package.
    from rapidfuzz.fuzz import ratio

    return ratio(a, b, score_cutoff=NEAR_PERCENT) >= NEAR_PERCENT


def near_content(a: Any, b: Any) -> bool:
    """Tell whether two pieces of content are of one shape, all texts in them nearly equal and all else equal."""
    if isinstance(a, str) and isinstance(b, str):
        return near(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(near_content(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(near_content, a, b))
    return equal(a, b)


def similar(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a call may be another call once more, where nobody declared what names the effect.

    The arguments of one must be among those of the other, and each shared value equal, or a long text that is nearly
    equal, or contained in the other. A stored value that was redacted cannot be compared and counts as equal.
    """
    a, b = _present(old), _present(new)
    if len(a) > len(b):
        a, b = b, a
    return a.keys() <= b.keys() and all(_alike(a[name], b[name]) for name in a)


def equal(a: Any, b: Any) -> bool:
    """Tell whether two JSON values have one canonical text."""
    # Python finds True == 1; only numbers and texts of one type may take the short way.
    return (type(a) is type(b) and isinstance(a, str | int) and a == b) or canonical(a) == canonical(b)


def _alike(a: Any, b: Any) -> bool:
    if is_mark(a) or is_mark(b):
        return True
    if isinstance(a, str) and isinstance(b, str):
        return equal(a, b) or (min(len(a), len(b)) >= LONG and (_within(a, b) or near(a, b)))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return similar(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    return equal(a, b)


def _within(a: str, b: str) -> bool:
    short, long = sorted((_folded(a), _folded(b)), key=len)
    # Invoice 17 is not within invoice 175.
    return short in long and Counter(_DIGITS.findall(short)) <= Counter(_DIGITS.findall(long))


def _present(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _folded(text: str) -> str:
    return " ".join(normalize("NFC", text).casefold().split())
