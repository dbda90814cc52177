"""The parts of a contract: keys, read-backs, progress, batches, error rules.

Each is a mapping in the file and a frozen model here. A short form (`format: uuid`, `stamp: note`) is spelt out before
it is validated, so that code sees one form only.
"""

from __future__ import annotations

import re
from functools import cached_property
from math import log2
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from onceward import evidence

from .values import (
    Bound,
    Integers,
    JmesPath,
    PlainPath,
    PlainPaths,
    Query,
    Retention,
    Scalar,
    Scalars,
    Text,
    wrong,
)

#: Letters and digits that survive every transport and every case-insensitive store.
KEY_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
KEY_LENGTH = 32
#: The bits below which two intents could come to share a key by accident.
KEY_BITS = 64


class Part(BaseModel):
    """A mapping of the file: frozen, strict, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True)


class Token(Part):
    """The shape of a key that is a token."""

    min: int = Field(default=1, ge=1, description="Shortest key that the service takes.")
    max: int | None = Field(default=None, ge=1, description="Longest key that the service takes.")
    alphabet: str = Field(default=KEY_ALPHABET, min_length=2, description="The characters that may stand in a key.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise wrong(f"{self.max} is less than the min of {self.min}", "swap them", "max")
        if len(set(self.alphabet)) < len(self.alphabet):
            raise wrong("a character stands twice", "name each once", "alphabet")
        return self

    @property
    def length(self) -> int:
        """Return the length of the keys to send: 32, or as near as the service allows."""
        return max(self.min, KEY_LENGTH if self.max is None else min(KEY_LENGTH, self.max))

    @property
    def bits(self) -> float:
        """Return how much such a key can tell apart, in bits."""
        return self.length * log2(len(self.alphabet))


class KeyFormat(Part):
    """What a key looks like: a token of some length, or a UUID."""

    token: Token | None = None
    uuid: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.uuid == (self.token is not None):
            raise wrong("it must be either a token or a uuid", "write `uuid`, `token` or {token: {max: 32}}")
        return self

    @property
    def length(self) -> int:
        """Return the length of a key."""
        return 36 if self.token is None else self.token.length


def _key_format(written: object) -> object:
    match written:
        case "token":
            return {"token": {}}
        case "uuid":
            return {"uuid": True}
        case str():
            raise wrong(f"`{written}` is not a key format", "write `uuid`, `token` or {token: {max: 32}}")
        case _:
            return written


class ReplayMarker(Part):
    """How a replayed answer is told from a fresh one: a header, or a field of the answer."""

    header: Text | None = Field(
        default=None, description="A header that only a replayed answer carries, or carries as true."
    )
    field: JmesPath | None = Field(default=None, description="What to look at in the answer's data.")
    value: Scalar = Field(default=None, description="What the field then holds; without it, anything that is true.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.header is None) == (self.field is None):
            raise wrong("it needs a header or a field, and not both", "write {header: Idempotent-Replayed}")
        if self.header is not None and self.value is not None:
            raise wrong("a header is a marker by being there", "leave `value` out, or use `field`", "value")
        return self


_PLACE = re.compile(r"(argument|meta|param|header):(\S+)")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)


def _place(written: object) -> object:
    if isinstance(written, str):
        place = _PLACE.fullmatch(written)
        if place is None:
            raise wrong(
                f"`{written}` is not a place for a key", "write argument:NAME, meta:NAME, param:NAME or header:NAME"
            )
        if place[1] == "header" and not _HEADER_NAME.fullmatch(place[2]):
            raise wrong(f"`{place[2]}` is not a header name", "write header:Idempotency-Key")
    return written


class Key(Part):
    """What the service promises about idempotency keys."""

    in_: Annotated[
        str, BeforeValidator(_place), WithJsonSchema({"type": "string", "pattern": f"^{_PLACE.pattern}$"})
    ] = Field(alias="in", description="Where the key goes: argument:NAME, meta:NAME, param:NAME or header:NAME.")
    format: Annotated[
        KeyFormat,
        BeforeValidator(_key_format, json_schema_input_type=Literal["token", "uuid"] | KeyFormat),
    ] = Field(default=KeyFormat(token=Token()), description="A token of 32 characters if absent.")
    retention: Retention | None = Field(
        default=None, description="How long a key is remembered; absent = expired at once."
    )
    caller: Literal["pass", "replace"] = Field(
        default="pass", description="What becomes of a key that the caller supplies."
    )
    concurrent: Literal["safe", "unsafe"] = Field(
        default="unsafe", description="safe: a second request waits, is refused as busy or joins while the first runs."
    )
    replay_marker: ReplayMarker | None = None
    on_mismatch: Literal["reject", "replay", "execute"] | None = Field(
        default=None, description="What the service does with the same key and other arguments."
    )
    on_repeat: Literal["replay", "conflict_done", "conflict_busy"] = Field(
        "replay", description="What a repeat under the key is answered."
    )
    replays_errors: bool | None = Field(
        default=None, description="An error is replayed even if the effect ran; absent = yes."
    )
    caches_refusals: bool | None = Field(
        default=None, description="A refusal is remembered under the key; absent = yes."
    )
    resumes_batch: bool = Field(default=False, description="A partly executed batch continues under the same key.")
    boundary: Text | None = Field(
        default=None, description="Region, account or workspace within which keys are shared."
    )

    @property
    def where(self) -> str:
        """Return the kind of place: argument, meta, param or header."""
        return self.in_.partition(":")[0]

    @property
    def name(self) -> str:
        """Return the name at that place."""
        return self.in_.partition(":")[2]

    @cached_property
    def support(self) -> evidence.KeySupport:
        """Return what the decision may rely on: a promise that was not made counts as broken."""
        return evidence.KeySupport(
            retention_s=self.retention.seconds if self.retention else 0.0,
            concurrent_safe=self.concurrent == "safe",
            replays_errors=self.replays_errors is not False,
            caches_refusals=self.caches_refusals is not False,
            resumes_batch=self.resumes_batch,
        )


class Stamp(Part):
    """An argument into which the intent's reference is written, and where an item shows it."""

    argument: PlainPath
    item: JmesPath | None = Field(
        default=None, description="In an item of the read; the argument's own path if absent."
    )

    @cached_property
    def shown(self) -> Query:
        """Return where the reference shows up in an item."""
        return self.item or Query.of_path(self.argument)


def _stamp(written: object) -> object:
    return {"argument": written} if isinstance(written, str) else written


class Pages(Part):
    """How a long list is read on."""

    argument: Text | None = Field(default=None, description="The read tool's argument that asks for the next page.")
    next: JmesPath | None = Field(default=None, description="In the read's result: what that argument is given.")
    size: int | None = Field(default=None, ge=1, description="Items on a full page.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.argument is None) != (self.next is None):
            raise wrong("`argument` and `next` belong together", "write both, or only `size`")
        if self.argument is None and self.size is None:
            raise wrong("it says nothing", "write {argument: cursor, next: next_cursor} or {size: 100}")
        return self


class ReadBack(Part):
    """The read that shows whether the effect exists."""

    tool: Text
    arguments: dict[str, JmesPath] = Field(
        default={}, description="For each argument, JMESPath over the original arguments."
    )
    items: JmesPath | None = Field(
        default=None, description="Where the list is in the result; absent = the result itself."
    )
    match: dict[JmesPath, JmesPath] = Field(
        default={}, description="What in an item (JMESPath) must equal what in the original arguments (JMESPath)."
    )
    created: JmesPath | None = Field(default=None, description="The creation time in an item.")
    baseline: bool = Field(default=False, description="Count the matches once before the first attempt.")
    stamp: Annotated[Stamp, BeforeValidator(_stamp, json_schema_input_type=PlainPath | Stamp)] | None = None
    lag: Bound | None = Field(
        default=None, description="How long an effect may stay hidden; 0s if reads are immediate."
    )
    pages: Pages | None = None

    @model_validator(mode="after")
    def _matches(self) -> Self:
        if not self.match and self.stamp is None:
            raise wrong("it names nothing that tells our effect from others", "write `match`, or `stamp`")
        return self

    @property
    def support(self) -> evidence.ReadBack:
        """Return what the decision may rely on."""
        return evidence.ReadBack(lag_s=self.lag.seconds if self.lag else None, baseline=self.baseline)


class Progress(Part):
    """How to ask what became of a request that was only accepted."""

    tool: Text
    arguments: dict[str, JmesPath] = Field(default={}, description="JMESPath over {arguments, result, reference}.")
    path: JmesPath = Field(description="Where the status is in the status tool's result.")
    pending: Scalars = ()
    done: Scalars = Field(min_length=1)
    failed: Scalars = ()
    reference: JmesPath | None = Field(
        default=None, description="In the accepting result: what names the accepted work."
    )
    accepted_when: dict[JmesPath, Scalar] | None = Field(
        default=None,
        description="What in a result (JMESPath) has which value when it only accepts; absent = HTTP 202 alone.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        values = [(value, name) for name in ("pending", "done", "failed") for value in getattr(self, name)]
        for index, (value, name) in enumerate(values):
            if any(value == earlier for earlier, _ in values[:index]):
                raise wrong(f"`{value}` stands twice among the statuses", "give each status one meaning", name)
        return self


class Batch(Part):
    """A call that causes several effects, one for each item of a list."""

    items: PlainPath = Field(description="The list argument.")
    identity: PlainPaths = Field(default=(), description="Paths within an item that name it; absent = the whole item.")


def _text(written: object) -> object:
    if isinstance(written, str) and len(written) > 2 and written[0] == written[-1] == "/":
        try:
            re.compile(written[1:-1])
        except re.error as error:
            raise wrong(
                f"`{written}` is not a regular expression: {error}", "write plain text, or correct it"
            ) from None
    return written


class ErrorRule(Part):
    """What an answer of the service means. All conditions that are given must hold."""

    status: Integers | None = Field(default=None, min_length=1, description="HTTP status, one or a list.")
    code: Integers | None = Field(default=None, min_length=1, description="JSON-RPC error code, one or a list.")
    text: Annotated[Text, BeforeValidator(_text)] | None = Field(
        default=None, description="A part of the answer's text, in any case; between slashes, a regular expression."
    )
    field: dict[JmesPath, Scalar] | None = Field(
        default=None, min_length=1, description="What in the answer's data (JMESPath) has which value."
    )
    as_: Literal["refused", "busy", "done", "unknown", "rate_limited"] = Field(alias="as")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.status is None and self.code is None and self.text is None and self.field is None:
            raise wrong("it would match every answer", "give it a status, code, text or field")
        if any(not 100 <= status <= 599 for status in self.status or ()):
            raise wrong("an HTTP status has three digits, from 100 to 599", "for JSON-RPC use `code`", "status")
        return self

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """Return `text` compiled; matched anywhere in an answer's text."""
        if self.text is None:
            return None
        if len(self.text) > 2 and self.text[0] == self.text[-1] == "/":
            return re.compile(self.text[1:-1])
        return re.compile(re.escape(self.text), re.IGNORECASE)
