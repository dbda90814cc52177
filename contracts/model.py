"""Contracts as their operator writes them: one file for one server, one `ToolContract` for each tool.

The models are the file: every field of the file is a field here, and what is absent in the file is absent here. A
missing promise is never filled in with the convenient value; `ToolContract.decision` turns absence into what the
decision must assume (no key, an expired key, an effect that may still commit for ever). Models are frozen, strict, and
refuse unknown fields. What is derived from a contract on every call is computed once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, WithJsonSchema, model_validator

from onceward import evidence
from onceward.evidence import Effect

from .parts import Batch, ErrorRule, Key, Part, Progress, ReadBack
from .values import ArgumentPath, Bound, Duration, Paths, PlainPath, Scalar, Span, Text, value_at, wrong

if TYPE_CHECKING:
    from onceward.identity import Rules

EFFECTS = ("read", "idempotent", "write", "unsafe")


def _effect(written: object) -> Effect:
    if isinstance(written, Effect) and written is not Effect.UNDECLARED:
        return written
    if written not in EFFECTS:
        raise wrong(f"`{written}` is not an effect", f"write one of {', '.join(EFFECTS)}")
    return Effect(written)


DeclaredEffect = Annotated[Effect, BeforeValidator(_effect), WithJsonSchema({"type": "string", "enum": list(EFFECTS)})]


class Promises(Part):
    """The fields that a tool may state, and that a case may state otherwise."""

    identity: Paths | None = Field(
        default=None, description="Argument paths that name the effect; absent = all arguments."
    )
    content: Paths = Field(default=(), description="Argument paths that a model may reword on a retry.")
    normalise: dict[ArgumentPath, Literal["decimal", "casefold", "strip", "email", "set", "ignore"]] = Field(
        default={}, description="How values are made equal before they are compared."
    )
    key: Key | None = Field(default=None, description="Idempotency key; absent = the service knows none.")
    read_back: ReadBack | None = Field(default=None, description="How to see the effect; absent = it cannot be seen.")
    in_flight: Bound | None = Field(
        default=None, description="How long a request may still commit; absent = unbounded."
    )
    resource: Paths = Field(
        default=(), description="Argument paths of the thing acted on: a later effect on it ends replays."
    )
    progress: Progress | None = None
    kind: Text | None = Field(
        default=None, description="Shared by tools that cause the same effect; absent = the tool's name."
    )
    errors: Annotated[tuple[ErrorRule, ...], Strict(False)] = Field(default=(), description="First match wins.")
    batch: Batch | None = None
    window: Span = Field(
        default=Duration(86_400.0), description="How long a finished intent is replayed; 24h if absent."
    )
    once: Literal["scope", "window"] = Field(
        default="scope", description="window: once for whoever asks, in any scope."
    )
    attempts: int = Field(default=3, ge=1, le=100, description="Most attempts for one intent.")
    undo: Text | None = Field(default=None, description="The compensating tool; offered to a person, never run alone.")
    owner: Text | None = Field(
        default=None, description="Who is asked when an intent is held; absent = the server's owner."
    )
    redact: Paths = Field(default=(), description="Argument and result paths that are never stored in clear.")
    source: Text | None = Field(default=None, description="Link and date of the vendor text that this rests on.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for number, path in enumerate(self.content):
            if path in (self.identity or ()):
                raise wrong(
                    f"`{path}` names the effect and may not be reworded", "take it out of one", "content", number
                )
            if path in self.resource:
                raise wrong(f"`{path}` is the thing acted on and may not be reworded", "take it out", "content", number)
        for path, form in self.normalise.items():
            if form == "ignore" and path in (self.identity or ()):
                raise wrong(f"`{path}` names the effect and cannot be ignored", "take it out of one", "normalise", path)
        return self


class Case(Promises):
    """What differs where some arguments have some values. A field given here replaces the tool's whole field."""

    when: dict[PlainPath, Scalar] = Field(min_length=1, description="Argument values, all of which must hold.")
    effect: DeclaredEffect | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields that this case states."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "when"}


class ToolContract(Promises):
    """What is declared about one tool."""

    effect: DeclaredEffect = Field(description="read, idempotent, write, or unsafe (a person must say yes first).")
    cases: Annotated[tuple[Case, ...], Strict(False)] = Field(default=(), description="First whose `when` holds wins.")

    _defaults: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Return the defaults of the living tool's arguments; known once the contract is bound."""
        return self._defaults

    def altered(self, *, defaults: Mapping[str, Any] | None = None, **changes: Any) -> ToolContract:
        """Return a copy with other fields, none of what was computed for this one."""
        fields = {name: getattr(self, name) for name in type(self).model_fields} | changes
        copy = type(self).model_construct(_fields_set=self.model_fields_set | changes.keys(), **fields)
        copy._defaults = dict(self._defaults if defaults is None else defaults)
        return copy

    @cached_property
    def variants(self) -> tuple[tuple[dict[str, Any], ToolContract], ...]:
        """Return each case's condition with the contract that then holds."""
        return tuple((case.when, self.altered(cases=(), **case.changes)) for case in self.cases)

    def for_arguments(self, arguments: Mapping[str, Any]) -> ToolContract:
        """Return the contract that holds for these arguments: the first matching case, or this one."""
        for when, variant in self.variants:
            if all(
                _equal(value_at(arguments, path, self._defaults.get(path)), wanted) for path, wanted in when.items()
            ):
                return variant
        return self

    def owner_or(self, default: str) -> str:
        """Return who is asked about this tool."""
        return self.owner or default

    def kind_or(self, name: str) -> str:
        """Return the kind of its effect, for a tool of this name."""
        return self.kind or name

    @cached_property
    def decided(self) -> dict[str, evidence.Contract]:
        """Keep what `decision` computed, by owner."""
        return {}

    def decision(self, owner_default: str) -> evidence.Contract:
        """Return this contract as the decision reads it. What is absent is inconvenient."""
        found = self.decided.get(owner_default)
        if found is None:
            found = self.decided[owner_default] = evidence.Contract(
                effect=self.effect,
                owner=self.owner_or(owner_default),
                key=self.key.support if self.key else None,
                read_back=self.read_back.support if self.read_back else None,
                in_flight_s=self.in_flight.seconds if self.in_flight else None,
                attempts=self.attempts,
                window_s=self.window.seconds,
                batch=self.batch is not None,
                progress=self.progress is not None,
            )
        return found

    @cached_property
    def _rules(self) -> Rules:
        from onceward.identity import Rules

        return Rules(
            identity=self.identity,
            content=self.content,
            normalise=self.normalise,
            resource=self.resource,
            # Only whole arguments: a default inside an object that the caller left out is not the caller's word.
            defaults={path: value for path, value in self._defaults.items() if "." not in path},
        )

    def rules(self) -> Rules:
        """Return how two calls of this tool are compared."""
        return self._rules

    @property
    def assumed(self) -> dict[str, Duration]:
        """Return the bounds that rest on the operator's word alone, by field."""
        bounds = {
            "key.retention": self.key.retention if self.key else None,
            "read_back.lag": self.read_back.lag if self.read_back else None,
            "in_flight": self.in_flight,
        }
        return {field: bound for field, bound in bounds.items() if bound is not None and bound.assumed}


class ServerContracts(Part):
    """The contracts of one server, as one file states them."""

    version: Literal[1] = Field(description="Version of the file's format.")
    server: Text = Field(description="The server's name; part of every intent.")
    owner: Text | None = Field(
        default=None, description="Who is asked when an intent is held, where a tool names nobody else."
    )
    uncontracted: Literal["stop", "pass"] = Field(
        default="stop",
        description="What becomes of an equal call after an ambiguous failure of a tool without contract.",
    )
    source: Text | None = Field(default=None, description="Link and date of the vendor text that the file rests on.")
    principal: Text | None = Field(default=None, description="Whose account it is, where it is always the same.")
    tools: dict[str, ToolContract] = Field(description="The tools, by name.")

    _file: str = PrivateAttr(default="<contracts>")
    _lines: dict[tuple[str | int, ...], int] = PrivateAttr(default_factory=dict)

    @property
    def file(self) -> str:
        """Return the file that these contracts were read from."""
        return self._file

    def line(self, *field: str | int) -> int | None:
        """Return the line of a field in the file, or of what it lies in; None where no file was read."""
        return next((self._lines[field[:n]] for n in range(len(field), -1, -1) if field[:n] in self._lines), None)

    def located(self, file: str, lines: Mapping[tuple[str | int, ...], int]) -> ServerContracts:
        """Return these contracts with the place that they came from."""
        return self.altered(file=file, lines=lines)

    def altered(
        self, *, file: str | None = None, lines: Mapping[tuple[str | int, ...], int] | None = None, **changes: Any
    ) -> ServerContracts:
        """Return a copy with other fields."""
        fields = {name: getattr(self, name) for name in type(self).model_fields} | changes
        copy = type(self).model_construct(_fields_set=self.model_fields_set | changes.keys(), **fields)
        copy._file = self._file if file is None else file
        copy._lines = dict(self._lines if lines is None else lines)
        return copy


def _equal(value: Any, wanted: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
