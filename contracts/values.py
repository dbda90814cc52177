"""The small values a contract is written in: durations, JMESPath queries, argument paths, scalars.

Each type parses its written form once and knows how to write itself again. What does not parse raises `wrong(...)`,
which carries a problem, a remedy and, where it is about a field below, the way to it; the loader adds file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated, Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from pydantic import AfterValidator, BeforeValidator, PlainSerializer, PlainValidator, Strict, StringConstraints
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

DURATION_PATTERN = r"^(?=\d)(\d+d)?(\d+h)?(\d+m)?(\d+(\.\d+)?s)?$"
_DURATION = re.compile(r"(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_UNITS_S = (86_400, 3_600, 60, 1)
_WRITE_DURATION = "write one such as 0s, 2m, 1h30m, 24h or 30d"


def wrong(problem: str, remedy: str, *at: str | int) -> PydanticCustomError:
    """Return the error for a value that cannot be used; `at` leads from the validated value to the field meant."""
    return PydanticCustomError("contract", "{problem}; {remedy}", {"problem": problem, "remedy": remedy, "at": at})


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, and whether it is only the operator's own word."""

    seconds: float
    assumed: bool = False

    @classmethod
    def parse(cls, written: object, *, assumable: bool = False, endless: bool = False) -> Duration:
        """Read `1h30m`, `forever` where `endless`, `{assumed: 15m}` where `assumable`."""
        if isinstance(written, Duration):
            return written
        if isinstance(written, Mapping) and assumable:
            if set(written) != {"assumed"}:
                raise wrong("only `assumed` can stand here", "write {assumed: 15m}")
            return cls(cls.parse(written["assumed"], endless=endless).seconds, True)
        if not isinstance(written, str):
            raise wrong(f"{_shown(written)} is not a duration", _WRITE_DURATION)
        if written == "forever":
            if not endless:
                raise wrong("`forever` is no bound here", _WRITE_DURATION)
            return cls(inf)
        match = _DURATION.fullmatch(written)
        if match is None:
            raise wrong(f"`{written}` is not a duration", _WRITE_DURATION)
        return cls(float(sum(unit * float(n) for unit, n in zip(_UNITS_S, match.groups(), strict=True) if n)))

    def __str__(self) -> str:
        """Write it as `parse` reads it, without the word of where it comes from."""
        if self.seconds == inf:
            return "forever"
        rest, parts = self.seconds, ""
        # Up to two days read better in hours, as vendors write them.
        for unit, letter in zip(_UNITS_S[:3], "dhm", strict=True):
            if letter == "d" and rest < 2 * unit:
                continue
            count, rest = divmod(rest, unit)
            parts += f"{count:.0f}{letter}" if count else ""
        return parts + (f"{rest:g}s" if rest or not parts else "")

    @property
    def form(self) -> str | dict[str, str]:
        """Return the form in which a contract file states it."""
        return {"assumed": str(self)} if self.assumed else str(self)


def _duration_schema(*, assumable: bool, endless: bool) -> WithJsonSchema:
    plain: dict[str, Any] = {"type": "string", "pattern": DURATION_PATTERN}
    if endless:
        plain = {"anyOf": [plain, {"const": "forever"}]}
    assumed = {
        "type": "object",
        "properties": {"assumed": plain},
        "required": ["assumed"],
        "additionalProperties": False,
    }
    return WithJsonSchema({"anyOf": [plain, assumed]} if assumable else plain)


_write_duration = PlainSerializer(lambda duration: duration.form)

#: A plain length of time.
Span = Annotated[
    Duration, PlainValidator(Duration.parse), _write_duration, _duration_schema(assumable=False, endless=False)
]
#: A bound that a vendor documents, or that the operator assumes.
Bound = Annotated[
    Duration,
    PlainValidator(lambda written: Duration.parse(written, assumable=True)),
    _write_duration,
    _duration_schema(assumable=True, endless=False),
]
#: How long something is remembered.
Retention = Annotated[
    Duration,
    PlainValidator(lambda written: Duration.parse(written, assumable=True, endless=True)),
    _write_duration,
    _duration_schema(assumable=True, endless=True),
]


class Query:
    """A JMESPath expression, compiled once. Equal to another with the same text."""

    __slots__ = ("_parsed", "reads", "text")

    def __init__(self, text: str) -> None:
        try:
            self._parsed = jmespath.compile(text)
        except JMESPathError as error:
            at = getattr(error, "lex_position", None)
            where = f"it breaks off at character {at + 1}" if isinstance(at, int) else "it is not complete"
            raise wrong(f"`{text}` is not JMESPath: {where}", "see jmespath.org for the syntax") from None
        _check_functions(text, self._parsed.parsed)
        self.text = text
        self.reads = frozenset(_reads(self._parsed.parsed))  #: the top-level fields that it looks at

    def search(self, data: Any, /) -> Any:
        """Return what is found, or None; data that a function cannot work on holds nothing."""
        try:
            return self._parsed.search(data)
        except JMESPathError:
            return None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Query({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @classmethod
    def parse(cls, written: object) -> Query:
        """Read a query from its text."""
        if isinstance(written, Query):
            return written
        if not isinstance(written, str):
            raise wrong(f"{_shown(written)} is not a JMESPath text", f"for a constant write '`{_shown(written)}`'")
        return cls(written)

    @classmethod
    def of_path(cls, path: str) -> Query:
        """Return the query that finds what lies at a dotted path."""
        return cls(".".join(f'"{name}"' for name in path.split(".")))


def _check_functions(text: str, node: Mapping[str, Any]) -> None:
    """Refuse what the library would only refuse when the query runs, after a call was lost."""
    if node["type"] == "function_expression":
        known = Functions.FUNCTION_TABLE.get(node["value"])
        if known is None:
            raise wrong(f"`{text}` calls `{node['value']}`, which JMESPath does not have", "see jmespath.org")
        signature, given = known["signature"], len(node["children"])
        variadic = bool(signature) and bool(signature[-1].get("variadic"))
        if given < len(signature) or (given > len(signature) and not variadic):
            raise wrong(f"`{text}` gives `{node['value']}` {given} arguments", f"give it {len(signature)}")
    for child in _children(node):
        _check_functions(text, child)


def _children(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [child for child in node.get("children", ()) if isinstance(child, Mapping)]  # a slice's are its numbers


#: Nodes that look at the value they are given, part by part; any other node hands on what its first child found.
_PARTS = frozenset(
    {
        "multi_select_list",
        "multi_select_dict",
        "key_val_pair",
        "or_expression",
        "and_expression",
        "not_expression",
        "comparator",
        "function_expression",
    }
)


def _reads(node: Mapping[str, Any]) -> set[str]:
    if node["type"] == "field":
        return {node["value"]}
    children = _children(node) if node["type"] in _PARTS else _children(node)[:1]
    return {name for child in children for name in _reads(child)} if node["type"] != "expref" else set()


#: A JMESPath expression.
JmesPath = Annotated[
    Query,
    PlainValidator(Query.parse),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "description": "JMESPath"}),
]

#: Dotted names, `[]` after a name for every item of a list: `customer.id`, `items[].sku`.
ArgumentPath = Annotated[str, StringConstraints(pattern=r"^[^\s.\[\]]+(\[\])*(\.[^\s.\[\]]+(\[\])*)*$")]
#: Dotted names without lists.
PlainPath = Annotated[str, StringConstraints(pattern=r"^[^\s.\[\]]+(\.[^\s.\[\]]+)*$")]
Paths = Annotated[tuple[ArgumentPath, ...], Strict(False)]
PlainPaths = Annotated[tuple[PlainPath, ...], Strict(False)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise wrong(f"{_shown(value)} is not a plain value", "write a text, a number, true, false or null")


#: A text, number, boolean or null.
Scalar = Annotated[Any, AfterValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]
Scalars = Annotated[tuple[Scalar, ...], Strict(False)]


def _listed(value: object) -> object:
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


#: One integer or a list of them.
Integers = Annotated[
    tuple[int, ...],
    Strict(False),
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]}),
]


def value_at(document: Mapping[str, Any], path: str, missing: Any = None) -> Any:
    """Return the value at a plain dotted path of JSON data, or `missing`."""
    value: Any = document
    for name in path.split("."):
        # Not Mapping: this runs on every call, and JSON objects are dicts.
        if not isinstance(value, dict) or name not in value:
            return missing
        value = value[name]
    return value


def _shown(value: object) -> str:
    names = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return names[value]
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else str(value)
