"""Contracts meet the living tools: what a tool does not have cannot be relied on.

A contract is written once, a server changes. At every `tools/list` each promise that needs an argument or another tool
is checked against the schemas that the server shows; one that cannot be kept is taken out of the bound contract and
told as a `Mismatch`. Binding only ever takes promises away.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.evidence import Code

from .model import Promises, ServerContracts, ToolContract
from .parts import Key, Pages, Progress, ReadBack
from .values import Query, value_at

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A promise that the living tool cannot keep, or a path that leads nowhere in it."""

    tool: str
    field: str  #: dotted, within the tool's contract; empty = the tool itself
    problem: str
    voided: bool  #: the bound contract has lost the field
    code: Code = Code.CONTRACT_MISMATCH

    def __str__(self) -> str:
        where = f"{self.tool}.{self.field}" if self.field else self.tool
        return f"{where}: {self.problem}{'; not relied on' if self.voided else ''}"


def bind(contracts: ServerContracts, listing: Mapping[str, Any]) -> tuple[ServerContracts, list[Mismatch]]:
    """Bind contracts to the result of `tools/list`, all pages in one; of a page with `nextCursor` nothing is missed."""
    living = {
        t["name"]: t for t in listing.get("tools") or () if isinstance(t, Mapping) and isinstance(t.get("name"), str)
    }
    binder = _Binder(living, whole=listing.get("nextCursor") is None)
    tools = {name: binder.bound(name, contract) for name, contract in contracts.tools.items()}
    return contracts.altered(tools=tools), binder.mismatches


class _Binder:
    """One binding: the living tools, and the mismatches found so far."""

    def __init__(self, living: Mapping[str, Mapping[str, Any]], *, whole: bool) -> None:
        self.living, self.whole = living, whole
        self.mismatches: list[Mismatch] = []

    def bound(self, name: str, contract: ToolContract) -> ToolContract:
        if name not in self.living:
            if self.whole:
                self._note(name, "", "the server has no such tool", voided=False)
            return contract
        schema = _input_schema(self.living[name])
        cases = []
        for number, case in enumerate(contract.cases):
            field = f"cases.{number}."
            for path in case.when:
                self._check_path(name, schema, f"{field}when", path)
            cases.append(case.model_copy(update=self._changes(name, case, schema, field)))
        changes = self._changes(name, contract, schema, "")
        return contract.altered(defaults=dict(_defaults(schema)), cases=tuple(cases), **changes)

    def _changes(self, name: str, promises: Promises, schema: Schema, field: str) -> dict[str, Any]:
        """Return the fields that this contract loses, or keeps in part."""
        changes: dict[str, Any] = {}
        if promises.key is not None and (problem := _key_problem(promises.key, schema)):
            self._note(name, f"{field}key", problem, voided=True)
            changes["key"] = None
        if promises.read_back is not None:
            kept = self._read_back(name, promises.read_back, schema, f"{field}read_back")
            if kept is not promises.read_back:
                changes["read_back"] = kept
        if promises.progress is not None:
            progress = promises.progress
            if problem := self._reader_problem(progress):
                self._note(name, f"{field}progress", problem, voided=True)
                changes["progress"] = None
        if promises.undo is not None and self.whole and promises.undo not in self.living:
            self._note(name, f"{field}undo", f"the server has no tool `{promises.undo}`", voided=True)
            changes["undo"] = None
        for part in ("identity", "content", "resource", "normalise"):
            for path in getattr(promises, part) or ():
                self._check_path(name, schema, f"{field}{part}", path)
        if promises.batch is not None:
            self._check_path(name, schema, f"{field}batch.items", promises.batch.items)
        return changes

    def _read_back(self, name: str, read: ReadBack, schema: Schema, field: str) -> ReadBack | None:
        problem = self._reader_problem(read) or _reading_problem(read, schema)
        if problem:
            self._note(name, field, problem, voided=True)
            return None
        changes: dict[str, Any] = {}
        if read.stamp is not None and _at(schema, read.stamp.argument) is None:
            problem = f"`{read.stamp.argument}` is no argument of the living tool"
            if not read.match:
                self._note(name, field, f"{problem}, and nothing else tells our effect from others", voided=True)
                return None
            self._note(name, f"{field}.stamp", problem, voided=True)
            changes["stamp"] = None
        pages, reader = read.pages, self.living.get(read.tool)
        if pages and pages.argument and reader and _at(_input_schema(reader), pages.argument) is None:
            problem = f"`{pages.argument}` is no argument of the living `{read.tool}`"
            self._note(name, f"{field}.pages", problem, voided=True)
            changes["pages"] = Pages(size=pages.size) if pages.size is not None else None
        return read.model_copy(update=changes) if changes else read

    def _reader_problem(self, read: ReadBack | Progress) -> str | None:
        """Return why the reading tool cannot be asked, or None."""
        tool = self.living.get(read.tool)
        if tool is None:
            return f"the server has no tool `{read.tool}`" if self.whole else None
        schema = _input_schema(tool)
        unknown = next((argument for argument in read.arguments if _at(schema, argument) is None), None)
        if unknown is not None:
            return f"`{unknown}` is no argument of the living `{read.tool}`"
        missing = next((argument for argument in schema.get("required") or () if argument not in read.arguments), None)
        return f"the living `{read.tool}` demands `{missing}`" if missing is not None else None

    def _check_path(self, name: str, schema: Schema, field: str, path: str) -> None:
        if _at(schema, path) is None:
            self._note(name, field, f"`{path}` leads to no argument of the living tool", voided=False)

    def _note(self, tool: str, field: str, problem: str, *, voided: bool) -> None:
        self.mismatches.append(Mismatch(tool=tool, field=field, problem=problem, voided=voided))


def _key_problem(key: Key, schema: Schema) -> str | None:
    """Return why our key cannot go into its argument, or None; the other places have no schema."""
    if key.where != "argument":
        return None
    argument = _at(schema, key.name)
    if argument is None:
        return f"`{key.name}` is no argument of the living tool"
    forms = [form for form in _forms(argument, schema) if not {"anyOf", "oneOf", "allOf", "$ref"} & form.keys()]
    texts = [form for form in forms if "string" in _types(form)]
    if forms and not texts:
        return f"`{key.name}` of the living tool takes no text"
    length = key.format.length
    if texts and not any(form.get("minLength", 0) <= length <= form.get("maxLength", length) for form in texts):
        return f"`{key.name}` of the living tool takes no text of {length} characters"
    return None


def _reading_problem(read: ReadBack, schema: Schema) -> str | None:
    """Return which original argument the read-back needs and the living tool does not have, or None."""
    queries: list[Query] = [*read.arguments.values(), *read.match.values()]
    unknown = sorted({name for query in queries for name in query.reads if _at(schema, name) is None})
    return f"it needs `{unknown[0]}`, which is no argument of the living tool" if unknown else None


# --- schemas -----------------------------------------------------------------------------------------------------

_DEEPEST = 16


def _input_schema(tool: Mapping[str, Any]) -> Schema:
    schema = tool.get("inputSchema")
    return schema if isinstance(schema, Mapping) else {}


def _forms(schema: Any, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """Yield a schema and everything it refers to, combines or chooses from."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        yield from _forms(target, root, depth + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(word) or ():
            yield from _forms(branch, root, depth + 1)


def _types(schema: Schema) -> set[str]:
    types = schema.get("type", "string")
    return {types} if isinstance(types, str) else set(types)


def _properties(schema: Any, root: Schema) -> dict[str, Any]:
    """Return the named members of an object, in any of its forms."""
    found: dict[str, Any] = {}
    for form in _forms(schema, root):
        members = form.get("properties")
        found |= members if isinstance(members, Mapping) else {}
    return found


def _at(root: Schema, path: str) -> Any:
    """Return the schema at an argument path; None where it is not named, {} inside what the schema leaves open."""
    at: Any = root
    for index, step in enumerate(path.split(".")):
        name = step.rstrip("[]")
        members = _properties(at, root)
        if name not in members:
            # A tool that names no argument takes none, unless it says otherwise; an inner object may hold anything.
            free = index > 0 and not members
            return {} if free or any(form.get("additionalProperties") for form in _forms(at, root)) else None
        at = members[name]
        for _ in range(step.count("[]")):
            at = next((form["items"] for form in _forms(at, root) if isinstance(form.get("items"), Mapping)), {})
    return at


def _defaults(root: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of the arguments, by plain dotted path."""

    def below(schema: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
        for name, member in _properties(schema, root).items():
            found = [form["default"] for form in _forms(member, root) if form.get("default") is not None]
            if found:
                yield prefix + name, found[0]
            elif depth < _DEEPEST:
                yield from below(member, f"{prefix}{name}.", depth + 1)

    yield from below(root, "", 0)


# --- Mcp-Param-* headers -----------------------------------------------------------------------------------------

# SEP-2243 (modelcontextprotocol.io/seps/2243-http-standardization, read 2026-12-01): a property with
# `x-mcp-header: Name`, reached by `properties` alone, is mirrored into the HTTP header Mcp-Param-Name. A server refuses
# a request whose header and body differ, so whatever the guard writes into such an argument must be mirrored too.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_HEADER_SAFE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")
_ENCODED = re.compile(r"=\?base64\?.*\?=")


def mirror_of(tool: Mapping[str, Any], argument: str) -> str | None:
    """Return the HTTP header that must repeat an argument (a plain dotted path) of a living tool, or None."""
    return dict(_mirrors(tool.get("inputSchema"))).get(argument)


def mirrored(tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTTP headers that must repeat these arguments of a living tool, as they go out."""
    values = {header: value_at(arguments, path) for path, header in _mirrors(tool.get("inputSchema"))}
    return {header: header_value(value) for header, value in values.items() if isinstance(value, str | float | int)}


def header_value(value: str | float) -> str:
    """Write a value as a header carries it: base64 where plain text would not survive."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if _HEADER_SAFE.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="


def _mirrors(schema: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    members = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(members, Mapping) or depth > _DEEPEST:
        return
    for name, member in members.items():
        header = member.get("x-mcp-header") if isinstance(member, Mapping) else None
        if isinstance(header, str) and _TOKEN.fullmatch(header):
            yield prefix + name, f"Mcp-Param-{header}"
        yield from _mirrors(member, f"{prefix}{name}.", depth + 1)
