"""Everything Onceward raises. Three families: declared wrong, could not be remembered, a person must look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .evidence import Code


class GuardError(Exception):
    """Root of all errors of this package; never raised itself."""


class ContractError(GuardError):
    """A contract cannot be trusted as written. Nothing was sent.

    Attributes: `file`, `field` (dotted path or None), `line` (1-based or None), `problem`, `remedy`.
    """

    def __init__(
        self, problem: str, *, file: Path | str, field: str | None = None, line: int | None = None, remedy: str
    ) -> None:
        where = f"{file}:{line}" if line else f"{file}"
        super().__init__(f"{where}: {field + ': ' if field else ''}{problem}; {remedy}")
        self.file, self.field, self.line, self.problem, self.remedy = str(file), field, line, problem, remedy


class ArgumentsError(GuardError):
    """Arguments cannot be named: not JSON, NaN, too deep, or an identity field is missing. Nothing was sent.

    Attributes: `path` (where in the arguments), `problem`.
    """

    def __init__(self, problem: str, *, path: str = "$") -> None:
        super().__init__(f"arguments at {path}: {problem}")
        self.path, self.problem = path, problem


class JournalError(GuardError):
    """The journal could not be read or written.

    Attributes: `code` (`journal_unavailable` or `journal_missing`), `remedy`. Before a send it means that nothing left.
    """

    def __init__(self, problem: str, *, remedy: str, code: Code = Code.JOURNAL_UNAVAILABLE) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.code, self.remedy = code, remedy


class Stopped(GuardError):
    """The call was not sent, or its outcome is not known: the caller must not repeat it blindly.

    Attributes: `code`, `intent` (id or None), `permanent`, `until_s` (epoch seconds or None), `owner`, `told` (the
    sentence for the caller), `data` (the machine-readable block, as put on the wire).
    """

    def __init__(self, told: str, data: dict[str, Any]) -> None:
        super().__init__(told)
        self.told, self.data = told, data
        self.code = Code(data["code"])
        self.intent: str | None = data.get("intent")
        self.permanent: bool = bool(data.get("permanent"))
        self.until_s: float | None = data.get("not_before")
        self.owner: str | None = data.get("owner")


class Unknown(Stopped):
    """Something was sent and its outcome is not known yet."""


class Held(Stopped):
    """The intent is parked until a person looks."""


class Conflict(Stopped):
    """The call was not sent; the caller must decide what it meant."""


class Refused(Stopped):
    """The service refused, or it is proven that nothing happened."""
