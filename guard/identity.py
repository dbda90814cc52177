"""What a call is: the names under which the guard remembers it.

The arguments of a call fall into three classes. *Identity* names the effect (the customer, the invoice), *terms* must
stay the same (the amount), *content* may be reworded on a retry (the text of a mail). Arguments are first made equal
where the contract says how: nulls are dropped, schema defaults filled in, paths normalised; then each class has one
canonical text (`jcs`), and a name is a SHA-256 over such texts. Nothing that a harness changes on a retry is part of a
name: no call id, no time, no connection.

A name is hashed from its own word, then names or texts that end where the next begins: a hex digest has 64 characters
and canonical JSON ends with its own bracket. So no two different calls feed the hash the same bytes. The words carry
the version 1: whoever changes what goes into a name makes every open intent of a running journal a stranger, so the
golden vectors of the tests must stand.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from .arguments import Plan
from .errors import ArgumentsError
from .evidence import Payload
from .jcs import canonical
from .likeness import near, near_content, similar
from .redaction import is_redacted, marked_like, redact, refill

__all__ = [
    "Names",
    "Rules",
    "canonical",
    "compare",
    "intent_id",
    "is_redacted",
    "keyed",
    "keyed_principal",
    "name_call",
    "near",
    "redact",
    "refill",
    "similar",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How two calls of a tool are compared. Paths are dotted, `[]` after a name means every item: `items[].sku`.

    `normalise` gives a path one of these forms. `decimal`: 1, 1.0, "1.00", "+1" and "1e0" are one number, and what is
    no number is refused. `casefold`, `strip`: of text. `email`: both, of the whole address, as no mail service in use
    tells the case of a mailbox. `set`: the order of a list is nothing, how often an item stands in it is something.
    `ignore`: the value is no part of any name. Apart from `decimal`, a value of another kind stays as it is.
    """

    identity: tuple[str, ...] | None = None  #: None: everything but content names the effect
    content: tuple[str, ...] = ()
    normalise: Mapping[str, str] = field(default_factory=dict)
    resource: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: by argument; an argument that is null has its default
    plan: Plan = field(init=False, repr=False, compare=False)  #: these rules, ready to be applied

    def __post_init__(self) -> None:
        plan = Plan(
            identity=self.identity,
            content=self.content,
            normalise=self.normalise,
            resource=self.resource,
            defaults=self.defaults,
        )
        object.__setattr__(self, "plan", plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one call; each is a SHA-256 in hex."""

    base: str  #: of the intent, before its epoch: principal, scope, server, kind, identity, label
    identity: str  #: principal, server, kind, identity: no scope, no label
    kind: str  #: principal, server, kind
    resource: str | None  #: principal, server and the values at the resource paths: no kind, so that an undo meets it
    payload: str  #: identity and terms
    content: str  #: empty where there is none
    arguments: str  #: all of the normalised arguments


def name_call(
    *,
    principal: str,
    scope: str | None,
    server: str,
    kind: str,
    arguments: Mapping[str, Any],
    label: str | None,
    rules: Rules,
) -> Names:
    """Name one call. `scope` is None where sameness is judged across scopes. Raises ArgumentsError."""
    plan = rules.plan
    texts = plan.flat_texts(arguments) or plan.texts(arguments)
    of_kind = _kind(principal, server, kind)
    of_identity = _hash("identity", of_kind, texts.identity)
    return Names(
        base=_hash("base", of_identity, _place(scope, label)),
        identity=of_identity,
        kind=of_kind,
        resource=_hash("resource", _place(principal, server), texts.resource) if texts.resource else None,
        payload=_hash("payload", texts.identity, texts.terms),
        content=_hash("content", texts.content) if texts.content else "",
        arguments=_hash("arguments", texts.whole),
    )


def keyed(names: Names, secret: bytes) -> Names:
    """Return names of which none can be searched through for a value that the journal does not hold in clear.

    Those that name the principal are keyed by it: `keyed_principal`.
    """

    def key(name: str) -> str:
        return hmac.digest(secret, f"onceward/1/name:{name}".encode(), "sha256").hex() if name else ""

    return replace(names, payload=key(names.payload), content=key(names.content), arguments=key(names.arguments))


@lru_cache(maxsize=1024)
def keyed_principal(principal: str, secret: bytes) -> str:
    """Return what stands for a principal in names."""
    message = b"onceward/1/principal:" + principal.encode("utf-8", "surrogatepass")
    return hmac.digest(secret, message, "sha256").hex()


def intent_id(base: str, epoch: int) -> str:
    """Return the id of the intent that a base name means in one epoch."""
    return _hash("intent", base, str(epoch))


def compare(old_arguments: Mapping[str, Any], new_arguments: Mapping[str, Any], rules: Rules) -> Payload:
    """Tell how two calls of equal identity differ.

    The old arguments may be redacted. A mark cannot be read: as a term it counts as equal, since whoever stored it kept
    the payload's name too; as content it counts as nearly equal, since the guard then asks before it sends.
    """
    plan = rules.plan
    *new, new_content = plan.split(plan.made_equal(plan.filled(marked_like(old_arguments, new_arguments))))
    try:
        *old, old_content = plan.split(plan.made_equal(plan.filled(old_arguments)))
    except ArgumentsError:
        return Payload.TERMS  # stored under other rules, so nothing shows that it meant the same
    if list(map(canonical, old)) != list(map(canonical, new)):
        return Payload.TERMS
    if canonical(old_content) == canonical(new_content):
        return Payload.NEAR if is_redacted(old_content) else Payload.SAME
    return Payload.NEAR if near_content(old_content, new_content) else Payload.FAR


def _hash(word: str, *texts: str) -> str:
    return sha256(f"onceward/1/{word}:{''.join(texts)}".encode()).hexdigest()


@lru_cache(maxsize=1024)
def _kind(principal: str, server: str, kind: str) -> str:
    return _hash("kind", canonical([principal, server, kind], "the call"))


@lru_cache(maxsize=1024)
def _place(outer: str | None, inner: str | None) -> str:
    return canonical([outer, inner], "the call")
