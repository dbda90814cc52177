"""Opening a journal by name, and noticing that one is gone.

Keys are derived from a secret that outlives the journal. A secret whose journal has vanished would send under the same
keys with no memory of what they did, so the secret keeps a list of its journals beside it (`SECRET.journals`, one JSON
object a line, only ever appended to). A journal that is on the list and not on the disk is an error until a person says
why a new one may begin.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

from ..errors import JournalError
from ..evidence import Code
from .sqlite import SQLiteJournal
from .sqlite_file import move_log_aside


class SecretLike(Protocol):
    """What a journal needs of a secret."""

    @property
    def fingerprint(self) -> str:
        """Return what tells this secret from another, and does not give it away."""


def default_path() -> Path:
    """Return where the journal is when nobody says: `ONCEWARD_JOURNAL`, else the user's state folder."""
    named = os.environ.get("ONCEWARD_JOURNAL")
    if named:
        return _path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "onceward" / "journal.db"


def open_journal(
    where: Path | str | None = None,
    *,
    secret: SecretLike | None = None,
    secret_path: Path | None = None,
    expected: bool = False,
    **options: Any,
) -> SQLiteJournal:
    """Open the journal at a path or `sqlite:` URL, or at the default place; begin one where there was none.

    `secret_path` is the file of `secret`; the list of its journals is kept beside it. `expected` says that a journal
    must be there (for a secret without a file). `options` are those of `SQLiteJournal`. Raises JournalError, code
    `journal_missing` when the journal is gone.
    """
    path = _path(where)
    listed = None if secret_path is None else _listed(secret_path).get(str(path))
    if (expected or listed is not None) and not path.exists():
        known = f", and {secret_path} knows it as {listed}" if listed else ""
        raise JournalError(
            f"the journal {path} is gone{known}",
            remedy='restore it, or run `onceward journal new --why "..."`: what it knew of earlier calls is lost',
            code=Code.JOURNAL_MISSING,
        )
    journal = SQLiteJournal(path, secret_fingerprint=None if secret is None else secret.fingerprint, **options)
    if secret_path is not None and journal.id != listed:
        if listed is not None:
            journal.close()
            raise JournalError(
                f"{path} is another journal than the one {secret_path} knows there ({journal.id}, not {listed})",
                remedy='restore that one, or move this one away and run `onceward journal new --why "..."`',
                code=Code.JOURNAL_MISSING,
            )
        _enlist(secret_path, journal)
    return journal


def new_journal(
    where: Path | str | None = None,
    *,
    why: str,
    who: str = "guard",
    secret: SecretLike | None = None,
    secret_path: Path | None = None,
    **options: Any,
) -> SQLiteJournal:
    """Begin a new journal where one is gone, and write into it who wanted that and why.

    Until `new_until_s` first sends are preceded by a read-back. Raises JournalError where a journal still exists.
    """
    path = _path(where)
    move_log_aside(path)
    fingerprint = None if secret is None else secret.fingerprint
    journal = SQLiteJournal(path, secret_fingerprint=fingerprint, create=True, **options)
    journal.run(lambda store: store.event(None, who, "journal_new", why, journal=journal.id))
    if secret_path is not None:
        _enlist(secret_path, journal)
    return journal


def _path(where: Path | str | None) -> Path:
    if where is None:
        return default_path()
    text = str(where)
    scheme, colon, rest = text.partition(":")
    if isinstance(where, str) and colon and len(scheme) > 1:  # one letter is a drive
        if scheme != "sqlite":
            raise JournalError(f"no journal is kept at {scheme}: addresses", remedy="name a path, or sqlite:PATH")
        text = rest[2:] if rest.startswith("//") else rest
    return Path(text).expanduser().absolute()


def _list_path(secret_path: Path) -> Path:
    return secret_path.with_name(f"{secret_path.name}.journals")


def _listed(secret_path: Path) -> dict[str, str]:
    """Return the id of the last journal at each path."""
    file = _list_path(secret_path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return {entry["path"]: entry["journal"] for entry in map(json.loads, filter(None, lines))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"{file} cannot be read: {error}", remedy="restore it; each line names a journal that must not get lost"
        ) from error


def _enlist(secret_path: Path, journal: SQLiteJournal) -> None:
    file = _list_path(secret_path)
    entry = {"journal": journal.id, "path": str(journal.path), "created_s": journal.new_since_s}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # not there yet where the environment has the secret
        # One short append is atomic, so processes that start together need no lock.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, json.dumps(entry).encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        journal.close()
        raise JournalError(
            f"{file} cannot be written: {error.strerror}", remedy="make the secret's folder writable for this user"
        ) from error
