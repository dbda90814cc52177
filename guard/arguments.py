"""The arguments of a call, made equal and divided into identity, terms and content.

Making equal comes first: nulls dropped, schema defaults filled in, each path in the form that the contract gives it.
Then the arguments are divided, each class keeping the shape of the whole, so that a value stays at its place and two
items of a list stay apart. Most tools name only outermost arguments, and most arguments are texts and numbers; those
calls take `Plan.flat_texts`, which writes the same texts in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from unicodedata import normalize

from .errors import ArgumentsError
from .jcs import canonical, leaf, plain, tidy, tidy_number
from .redaction import is_mark

_IDENTITY, _TERMS, _CONTENT = range(3)
_NONE: Any = object()  #: there is nothing here
_NODE = re.compile(r"\[\]|[^.\[\]]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_Parts = tuple[Any, Any, Any]


class _Node:
    """What the paths of a contract say of one place in the arguments, and of the places below it."""

    __slots__ = ("each", "fields", "form", "role", "roles")

    def __init__(self) -> None:
        self.fields: dict[str, _Node] = {}
        self.each: _Node | None = None
        self.role: int | None = None  #: None: the role of the place above
        self.roles: set[int] = set()  #: roles that are named here or below
        self.form: str | None = None

    @property
    def leaf(self) -> bool:
        return not self.fields and self.each is None

    def at(self, steps: list[str], role: int | None = None) -> _Node:
        node = self
        for step in steps:
            if role is not None:
                node.roles.add(role)
            if step == "[]":
                node.each = node.each or _Node()
                node = node.each
            else:
                node = node.fields.setdefault(step, _Node())
        if role is not None:
            node.roles.add(role)
        return node


class Texts(NamedTuple):
    """The canonical texts of a call's arguments, and of each class of them."""

    whole: str
    identity: str
    terms: str
    content: str  #: empty where there is none
    resource: str | None


class Plan:
    """The rules of one tool, compiled to a tree: a call then walks no path that its contract does not name."""

    __slots__ = ("defaults", "flat", "forms", "home", "required", "resource", "roles", "tree")

    def __init__(
        self,
        *,
        identity: tuple[str, ...] | None,
        content: tuple[str, ...],
        normalise: Mapping[str, str],
        resource: tuple[str, ...],
        defaults: Mapping[str, Any],
    ) -> None:
        """Take the fields of `identity.Rules`. Raises ValueError for what is no path or no form."""
        self.tree = _Node()
        self.home = _IDENTITY if identity is None else _TERMS
        self.required = [_steps(path) for path in identity or ()]
        for role, paths in ((_IDENTITY, identity or ()), (_CONTENT, content)):
            for path in paths:
                self.tree.at(_steps(path), role).role = role
        for path, form in normalise.items():
            if form not in _FORMS:
                raise ValueError(f"normalise of {path}: `{form}` is none of {', '.join(_FORMS)}")
            self.tree.at(_steps(path)).form = form
        self.resource = [_steps(path) for path in resource]
        self.defaults: dict[str, Any] = tidy(defaults, "defaults")
        fields = self.tree.fields.items()
        self.flat = all(node.leaf for _, node in fields) and all(len(steps) == 1 for steps in self.resource)
        self.roles = {name: node.role for name, node in fields if node.role is not None}
        self.forms = {name: _FORMS[node.form] for name, node in fields if node.form is not None}

    def flat_texts(self, arguments: Mapping[str, Any]) -> Texts | None:
        """Return what `texts` returns, several times as fast; None where anything is not flat and plain."""
        if not self.flat:
            return None
        if self.defaults:
            arguments = {**self.defaults, **_present(arguments)}
        pieces: dict[str, str] = {}
        parts: tuple[list[str], ...] = ([], [], [])
        roles, forms, home = self.roles, self.forms, self.home
        try:
            names = sorted(arguments)
        except TypeError:
            return None
        for name in names:
            value = arguments[name]
            if value is None:
                continue
            if name in forms:
                value = forms[name](value, f"$.{name}")
                if value is _NONE:
                    continue
            text = leaf(value)
            if text is None or type(name) is not str or not name.isascii():
                return None
            pieces[name] = piece = f"{leaf(name)}:{text}"
            parts[roles.get(name, home)].append(piece)
        if not all(steps[0] in pieces for steps in self.required):
            return None
        whole = _object(pieces.values())
        if not whole.isascii() and _SURROGATE.search(whole):
            return None
        identity, terms, content = parts
        return Texts(
            whole,
            whole if len(identity) == len(pieces) else _object(identity),
            _object(terms),
            _object(content) if content else "",
            _listed(pieces, [steps[0] for steps in self.resource]) if self.resource else None,
        )

    def texts(self, arguments: Mapping[str, Any]) -> Texts:
        """Return the canonical texts of the arguments and of their classes. Raises ArgumentsError."""
        whole = self.filled(arguments)
        for steps in self.required:
            _require(whole, steps, 0, "$")
        whole = self.made_equal(whole)
        identity, terms, content = self.split(whole)
        acted_on = [_values(whole, steps) for steps in self.resource]
        return Texts(
            canonical(whole),
            canonical(identity),
            canonical(terms),
            canonical(content) if content else "",
            # A call that names nothing acts on nothing that we know of: it ends no other call's replays.
            canonical(acted_on) if any(value is not None for value in acted_on) else None,
        )

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with nulls dropped and defaults filled in. Raises ArgumentsError."""
        whole: dict[str, Any] = _present(arguments)
        return {**self.defaults, **(whole if plain(whole) else tidy(whole))}

    def made_equal(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Return filled arguments with every path in its form. Raises ArgumentsError."""
        made = _made_equal(whole, self.tree, self.home, "$")
        return {} if made is _NONE else made

    def split(self, whole: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return identity, terms and content, each in the shape of the whole."""
        identity, terms, content = ({} if part is _NONE else part for part in _split(whole, self.tree, self.home))
        return identity, terms, content


def _present(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _object(members: Iterable[str]) -> str:
    return "{" + ",".join(members) + "}"


def _listed(pieces: Mapping[str, str], names: list[str]) -> str | None:
    values = [pieces[name][len(f"{leaf(name)}:") :] if name in pieces else "null" for name in names]
    return f"[{','.join(values)}]" if any(name in pieces for name in names) else None


def _steps(path: str) -> list[str]:
    steps = _NODE.findall(path)
    if not steps or steps[0] == "[]" or path != "".join(steps[:1] + [s if s == "[]" else f".{s}" for s in steps[1:]]):
        raise ValueError(f"`{path}` is not a path; write names with dots, and [] for every item: items[].sku")
    return [normalize("NFC", step) for step in steps]


def _require(value: Any, steps: list[str], n: int, path: str) -> None:
    """Refuse a call without one of its names: it would share its identity with calls that mean something else."""
    if n == len(steps):
        return
    if steps[n] == "[]":
        if not isinstance(value, list):
            raise ArgumentsError("the identity is declared to be in a list, and this is none", path=path)
        for position, item in enumerate(value):
            _require(item, steps, n + 1, f"{path}[{position}]")
        return
    below = f"{path}.{steps[n]}"
    inner = value.get(steps[n]) if isinstance(value, dict) else None
    if inner is None:
        raise ArgumentsError("missing, and the tool's contract declares it as identity; give it a value", path=below)
    _require(inner, steps, n + 1, below)


def _split(value: Any, node: _Node, role: int) -> _Parts:
    """Divide a value by role. A part keeps the shape of the whole, so that a value stays at its place."""
    role = role if node.role is None else node.role
    if isinstance(value, dict) and node.fields:
        parts: tuple[dict[str, Any], ...] = ({}, {}, {})
        for name, inner in value.items():
            below = node.fields.get(name)
            if below is None:
                parts[role][name] = inner
            elif below.leaf:
                parts[role if below.role is None else below.role][name] = inner
            else:
                for part, piece in zip(parts, _split(inner, below, role), strict=True):
                    if piece is not _NONE:
                        part[name] = piece
        # An object that only became empty by the division is not there.
        return tuple(part if part or (not value and n == role) else _NONE for n, part in enumerate(parts))  # type: ignore[return-value]  # three in, three out
    if isinstance(value, list) and node.each is not None:
        pieces = [_split(item, node.each, role) for item in value]
        # How many items there are is said at least once: by the names of the items, where they have any.
        home = _IDENTITY if _IDENTITY in node.roles else role
        return tuple(  # type: ignore[return-value]  # three in, three out
            [None if piece[n] is _NONE else piece[n] for piece in pieces]
            if n == home or any(piece[n] is not _NONE for piece in pieces)
            else _NONE
            for n in range(3)
        )
    alone = [_NONE, _NONE, _NONE]
    alone[role] = value
    return alone[0], alone[1], alone[2]


def _values(value: Any, steps: list[str]) -> Any:
    for n, step in enumerate(steps):
        if step == "[]":
            return [_values(item, steps[n + 1 :]) for item in value] if isinstance(value, list) else None
        value = value.get(step) if isinstance(value, dict) else None
    return value


# --- the forms: what makes two spellings one value


def _made_equal(value: Any, node: _Node, role: int, path: str) -> Any:
    """Return a tidy or plain value with the forms applied, the inner ones first; `_NONE` where all is ignored."""
    if node.form == "ignore":
        return _NONE
    if is_mark(value):
        return value
    role = role if node.role is None else node.role
    if isinstance(value, dict) and node.fields:
        made = {}
        for name, inner in value.items():
            below = node.fields.get(name)
            equal = inner if below is None else _made_equal(inner, below, role, f"{path}.{name}")
            if equal is not _NONE:
                made[name] = equal
        if value and not made:
            return _NONE
        value = made
    elif isinstance(value, list) and node.each is not None:
        items = [_made_equal(item, node.each, role, f"{path}[{n}]") for n, item in enumerate(value)]
        if items and all(item is _NONE for item in items):
            return _NONE
        value = [None if item is _NONE else item for item in items]
    if node.form is None:
        return value
    if node.form == "set":
        return _in_order(value, node.each, role)
    return _FORMS[node.form](value, path)


def _in_order(value: Any, each: _Node | None, role: int) -> Any:
    """Sort a list by what names its items, then by their terms, so that reworded content moves nothing."""
    if not isinstance(value, list):
        return value
    node = each or _Node()

    def place(item: Any) -> list[str]:
        return ["" if part is _NONE else canonical(part) for part in _split(item, node, role)]

    return sorted(value, key=place)


#: What is a number when it is written as text.
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def _decimal(value: Any, path: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float | Decimal):
        return tidy_number(value, path)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        try:
            return tidy_number(Decimal(value.strip()), path)
        except InvalidOperation:  # an exponent beyond what Decimal holds
            pass
    raise ArgumentsError("not a number, and the tool's contract declares it as a decimal", path=path)


def _of_text(change: Callable[[str], str]) -> Callable[[Any, str], Any]:
    def changed(value: Any, path: str) -> Any:
        # Composed before, as change may tell a composed letter from its parts, and after, as it may take letters apart.
        return normalize("NFC", change(normalize("NFC", value))) if isinstance(value, str) else value

    return changed


#: What a form makes of the value at its path. `set` must know the roles in a list's items: see `_made_equal`.
_FORMS: dict[str, Callable[[Any, str], Any]] = {
    "decimal": _decimal,
    "casefold": _of_text(str.casefold),
    "strip": _of_text(str.strip),
    "email": _of_text(lambda address: address.strip().casefold()),
    "set": lambda value, path: value,
    "ignore": lambda value, path: _NONE,
}
