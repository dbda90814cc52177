"""The file of a SQLite journal: made in one step, opened only when it is what it should be.

A new journal is built beside its place and linked into it, so a path holds either nothing or a whole journal, also when
eight processes start at once. Anything else that is found there (an empty file, a foreign one, a newer schema, a
write-ahead log whose journal is gone) is an error with a remedy: an empty start would forget what was sent.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex

from ..errors import JournalError
from ..evidence import Code
from .sqlite_store import SCHEMA, SCHEMA_VERSION

BUSY_S = 10.0  #: how long a commit waits for other processes; beyond that somebody holds the lock and does not work
_PAGE_BYTES = 2_048  # a commit writes whole pages: half the usual size holds an ordinary row and costs less
_CHECKPOINT_PAGES = 8_000  # 16 MB of log: fewer flushes of the main file than SQLite's 4 MB, still read in no time
_CACHE_KIB = 16_000  # the inner pages of every index at a million intents; taken only as the journal grows

_REMEDIES = {
    "SQLITE_FULL": "free space on its disk",
    "SQLITE_BUSY": "find the process that holds the file (lsof), or try again",
    "SQLITE_LOCKED": "find the process that holds the file (lsof), or try again",
    "SQLITE_READONLY": "make the file and its folder writable for this user",
    "SQLITE_CANTOPEN": "make the file and its folder readable and writable for this user",
    "SQLITE_CORRUPT": "keep the file, run `onceward journal check`, and restore a copy",
    "SQLITE_NOTADB": "keep the file, and restore a copy or name another path",
}


def remedy_for(error: sqlite3.Error) -> str:
    """Return what to do about an error of the database."""
    name = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
    return _REMEDIES.get(name, "look at its disk and permissions, and run `onceward journal check`")


def connect(path: Path, synchronous: str, busy_s: float) -> sqlite3.Connection:
    """Open an existing journal file. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def create(path: Path, now_s: float, meta: dict[str, str]) -> bool:
    """Make a new journal at `path`; False when there is a file already, whoever made it."""
    missing_parents = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
    for parent in reversed(missing_parents):
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
    stale = [name for suffix in ("-wal", "-journal") if Path(name := f"{path}{suffix}").exists()]
    if stale and not path.exists():
        raise JournalError(
            f"{path} is gone, but its log {stale[0]} is there",
            remedy='restore the file, or run `onceward journal new --why "..."`, which moves the log aside',
            code=Code.JOURNAL_MISSING,
        )
    draft = path.with_name(f".{path.name}.{token_hex(6)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")
            meta = {"schema_version": str(SCHEMA_VERSION), "id": token_hex(16), "created_s": repr(now_s), **meta}
            connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", meta.items())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        _sync_folder(path.parent)
        return True
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def verify(path: Path) -> None:
    """Look at the file before SQLite does, which would take an empty one for a new database. Raises JournalError."""
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise JournalError(
            f"{path} cannot be read: {error.strerror}", remedy="make it readable for this user"
        ) from error
    if head != b"SQLite format 3\0":
        what = "is empty" if not head else "is not a journal of Onceward"
        raise JournalError(f"{path} {what}", remedy="keep the file, and restore a copy or name another path")


def read_meta(path: Path, connection: sqlite3.Connection) -> dict[str, str]:
    """Return the meta table of a journal this version can read. Raises JournalError."""
    try:
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        version = int(meta["schema_version"])
    except (sqlite3.OperationalError, KeyError, ValueError) as error:
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise
        raise JournalError(
            f"{path} is a SQLite file, but not a journal of Onceward", remedy="name another path with --journal"
        ) from error
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"{path} has schema version {version}, this Onceward reads {SCHEMA_VERSION}",
            remedy="upgrade Onceward on this machine",
        )
    return meta


def move_log_aside(path: Path) -> None:
    """Move what an absent journal left behind out of the way of a new one, and keep it."""
    for suffix in ("-wal", "-shm", "-journal"):
        left = Path(f"{path}{suffix}")
        if left.exists() and not path.exists():
            left.rename(f"{left}.{token_hex(4)}.left")


def too_open(path: Path) -> list[str]:
    """Return one sentence for each file of the journal that others may read."""
    problems = []
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(FileNotFoundError):
            mode = name.stat().st_mode & 0o777
            if os.name == "posix" and mode & 0o077:
                problems.append(f"{name} has mode {mode:04o}: others may read or write it; run chmod 600 on it")
    return problems


def _sync_folder(folder: Path) -> None:
    # A new name is durable only once its folder is. Windows knows no such thing.
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
