"""The journal on one SQLite file: many threads, many processes, one machine.

Write-ahead log, synchronous=FULL, so a step that `run` has returned from survives the loss of power. There is one
connection, owned by whoever leads the group commit (see commits.py); it is closed before a fork and opened anew on both
sides, because SQLite's locks do not survive one. The clock is the wall clock that never goes back: it runs on the
monotonic clock from the highest time it has ever shown or read, so a wall clock set back shortens no wait.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar
from weakref import WeakSet

from ..errors import JournalError
from ..evidence import Code, IntentState
from . import sqlite_file, sqlite_upkeep
from .base import AttemptRow, EventRow, Holder, IntentRow, Journal, Store, process_started
from .commits import GroupCommit, StoreFault, Work
from .sqlite_store import SELECT_INTENT, SQLiteStore, event_row, intent_row

T = TypeVar("T")

NEW_FOR_S = 900.0  #: how long a new journal reads before a first send, unless the caller knows bound + lag
_PAGE = 200  # rows per read: a long list never keeps a begin waiting

# Rows are written in the order of time, or are indexed by it, except the ends of unsettled attempts: those are few.
_HIGHEST = """SELECT max(
    coalesce((SELECT created_s FROM intents ORDER BY seq DESC LIMIT 1), 0),
    coalesce((SELECT settled_s FROM intents WHERE keep_until_s IS NOT NULL ORDER BY keep_until_s DESC LIMIT 1), 0),
    coalesce((SELECT max(tombstone_s) FROM intents WHERE tombstone_s IS NOT NULL), 0),
    coalesce((SELECT max(at_s) FROM (SELECT at_s FROM events ORDER BY seq DESC LIMIT 100)), 0),
    coalesce((SELECT max(max(begun_s, coalesce(ended_s, 0))) FROM attempts
              WHERE intent IN (SELECT seq FROM intents WHERE open = 1)), 0),
    coalesce((SELECT max(max(begun_s, coalesce(ended_s, 0))) FROM
              (SELECT begun_s, ended_s FROM attempts ORDER BY intent DESC LIMIT 100)), 0))"""

_EXTEND = (
    "UPDATE attempts SET lease_until_s = ?1 WHERE intent = (SELECT seq FROM intents WHERE id = ?2) AND number = ?3"
    " AND state = 'sending' AND lease_until_s BETWEEN ?4 AND ?1"
)


class SQLiteJournal(Journal):
    """A journal in the SQLite file `path`.

    `create`: None makes the file when it is missing, False demands that it exists, True that it does not. The journal
    keeps the fingerprint of the first secret it was opened with, and refuses another. `busy_s` is how long a commit
    waits for other processes. `commits` counts transactions.
    Raises JournalError for anything at `path` that is not a journal this version reads.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        secret_fingerprint: str | None = None,
        create: bool | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        lease_s: float = 30.0,
        new_for_s: float = NEW_FOR_S,
        busy_s: float = sqlite_file.BUSY_S,
        time_source: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path).absolute()
        self.holder = Holder.current()
        self.lease_s = lease_s
        self.commits = 0
        self._synchronous, self._busy_s = synchronous, busy_s
        self._time, self._monotonic = time_source, monotonic
        self._offset, self._clock_lock = time_source() - monotonic(), Lock()
        self._live: set[tuple[str, int]] = set()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._store: SQLiteStore | None = None
        self._closed = False
        self._commits = GroupCommit(self._transact, beat=self._beat, beat_s=lease_s / 3)
        try:
            self._find_file(create)
            meta = self._open_first(secret_fingerprint)
        except sqlite3.Error as error:
            self._drop_connection()
            raise self._fault(error).error() from error
        except OSError as error:
            raise JournalError(
                f"{self.path} cannot be made: {error.strerror}", remedy="name a folder on a local disk that is writable"
            ) from error
        except JournalError:
            self._drop_connection()
            raise
        self.id = meta["id"]
        self.new_since_s = float(meta["new_since_s"])
        self.new_until_s = self.new_since_s + new_for_s
        _open_journals.add(self)

    def run(self, work: Callable[[Store], T]) -> T:
        """Run one step in this thread, or in the thread that leads its batch."""
        result: T = self._commits.run(work)
        return result

    async def run_async(self, work: Callable[[Store], T]) -> T:
        """Run one step in the background thread."""
        result: T = await self._commits.run_async(work)
        return result

    def later(self, work: Callable[[Store], Any]) -> None:
        """Queue a step that nobody waits for."""
        self._commits.later(work)

    def clock(self) -> float:
        """Return the wall clock, or the monotonic one where that is ahead."""
        mono = self._monotonic()
        now_s = self._offset + mono
        wall_s = self._time()
        return self._advance(wall_s) if wall_s > now_s else now_s

    def alive(self, attempt: AttemptRow, now_s: float) -> bool:
        """Look at the lease, the host, the pid and the start time of the process."""
        if now_s > attempt.lease_until_s:
            return False
        if attempt.holder == self.holder.name:
            return True
        try:
            holder = Holder.parse(attempt.holder)
        except ValueError:
            return True  # nobody we know how to look up: its lease speaks for it
        if holder.host != self.holder.host:
            return True
        started = process_started(holder.pid)
        # An empty start time says that the system could not tell, so only the pid counts there.
        return started is not None and (started == holder.started or "" in (started, holder.started))

    def extend_leases(self) -> None:
        """Extend what this process still sends, with one update each; a background thread does it as well."""
        if self._live:
            self.run(self._extend)

    def forget(self, attempt: AttemptRow) -> None:
        """Extend the lease of this attempt no more: its end could not be written, so it shall become unknown."""
        self._live.discard((attempt.intent, attempt.number))

    def list(
        self,
        *,
        scope: str | None = None,
        states: Sequence[IntentState] | None = None,
        held: bool | None = None,
        unsettled: bool | None = None,
        since_s: float | None = None,
        limit: int | None = None,
    ) -> Iterator[IntentRow]:
        """Yield intents newest first, in pages, so that a long list keeps no begin waiting."""
        # A plus keeps the planner from walking the whole table in order, where a small index holds all that is asked.
        seq = "+seq" if held or unsettled else "seq"
        where, values = [f"{seq} < ?"], []
        if scope is not None:
            where.append("scope = ?")
            values.append(scope)
        if states is not None:
            where.append(f"state IN ({', '.join('?' * len(states))})")
            values += [state.value for state in states]
        if held is not None:
            where.append("code IS NOT NULL" if held else "code IS NULL")
        if unsettled is not None:
            these = ", ".join(f"'{state.value}'" for state in IntentState if state.unsettled)
            # An unsettled intent is always open, which is indexed.
            where.append(f"open = 1 AND state IN ({these})" if unsettled else f"state NOT IN ({these})")
        if since_s is not None:
            where.append("created_s >= ?")
            values.append(since_s)  # type: ignore[arg-type]  # parameters are text or numbers
        sql = f"{SELECT_INTENT} WHERE {' AND '.join(where)} ORDER BY {seq} DESC LIMIT {_PAGE}"
        for number, row in enumerate(self._pages(sql, 2**62, tuple(values))):
            if number == limit:
                return
            yield intent_row(row)

    def history(self, intent: str | None = None) -> Iterator[EventRow]:
        """Yield events, oldest first, in pages."""
        where = "seq > ?" if intent is None else "seq > ? AND intent = ?"
        sql = f"SELECT seq, at_s, intent, who, what, why, data FROM events WHERE {where} ORDER BY seq LIMIT {_PAGE}"
        for row in self._pages(sql, 0, () if intent is None else (intent,)):
            yield event_row(row[1:])

    def find(self, prefix: str) -> Sequence[IntentRow]:
        """Read a range of the index over ids."""
        sql = f"{SELECT_INTENT} WHERE id >= ? AND id < ? ORDER BY id"
        with self._connected() as connection:
            rows = connection.execute(sql, (prefix, prefix + "\U0010ffff")).fetchall()
        return [intent_row(row) for row in rows]

    def purge(
        self, *, margin_s: float = 3_600.0, tombstone_s: float = 2_592_000.0, dry_run: bool = False
    ) -> dict[str, int]:
        """Do what `Journal.purge` says, in batches; with `dry_run` only count."""

        def step(act: Callable[[Any, float, float], int], age_s: float) -> int:
            total = 0
            while True:
                done = self.run(lambda store: act(store.execute, store.now_s, age_s))  # type: ignore[attr-defined]
                total += done
                if done < sqlite_upkeep.BATCH:
                    return total

        if dry_run:
            with self._connected() as connection:
                purged, dropped = sqlite_upkeep.count_due(connection.execute, self.clock(), margin_s, tombstone_s)
        else:
            dropped = step(sqlite_upkeep.drop_tombstones, tombstone_s)
            purged = step(sqlite_upkeep.entomb, margin_s)
            if purged or dropped:
                why = "settled, and past the window and its margin"
                self.run(lambda store: store.event(None, "guard", "purged", why, purged=purged, dropped=dropped))
        return {"purged": purged, "tombstones_dropped": dropped}

    def check(self) -> Sequence[str]:
        """Look at the permissions, the pages and the rows."""
        with self._connected() as connection:
            return [*sqlite_file.too_open(self.path), *sqlite_upkeep.problems(connection.execute)]

    def close(self) -> None:
        """Write the notes, and close the file."""
        if self._closed:
            return
        try:
            self._commits.flush()
        finally:
            self._commits.stop()
            with self._commits.alone():
                self._closed = True
                self._drop_connection()
            _open_journals.discard(self)

    def _transact(self, works: Sequence[Work]) -> Sequence[Any]:
        self._still_there()
        try:
            store = self._store or self._connect()
            store.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._roll_back()
            raise self._fault(error) from error
        store.start()
        values = []
        try:
            for work in works:
                store.now_s = self.clock()
                values.append(work(store))
        except sqlite3.Error as error:
            self._roll_back()
            if len(works) > 1:
                raise  # too large, or broken, for one of them: alone it is that one's fault
            self._settle_leases(store, ended_only=True)
            raise self._fault(error) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            store.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._settle_leases(store, ended_only=True)
            raise self._fault(error) from error
        self.commits += 1
        if store.leases:
            self._settle_leases(store)
        return values

    def _still_there(self) -> None:
        """Notice a file that was deleted or replaced under us: what is written to it nobody would ever read."""
        try:
            found: int | None = os.stat(self.path).st_ino
        except OSError:
            found = None
        if self._inode is None:
            self._inode = found
        elif found != self._inode:
            self._drop_connection()
            raise StoreFault(
                f"the journal {self.path} was deleted or replaced while it was in use",
                'restore it, or run `onceward journal new --why "..."` and start this process again',
            )

    def _settle_leases(self, store: SQLiteStore, *, ended_only: bool = False) -> None:
        """Note which attempts are driven here; one that ended is not any more, whether or not that was written."""
        for intent, number, sending in store.leases:
            if not sending:
                self._live.discard((intent, number))
            elif not ended_only:
                self._live.add((intent, number))
        if self._live:
            self._commits.start_beat()

    def _beat(self) -> bool:
        self.extend_leases()
        return bool(self._live)

    def _extend(self, store: Store) -> None:
        assert isinstance(store, SQLiteStore)
        until_s = store.now_s + self.lease_s
        # A lease that has run out stays so: others may have acted on it.
        for intent, number in self._live:
            store.execute(_EXTEND, (until_s, intent, number, store.now_s))

    def _advance(self, seen_s: float) -> float:
        mono = self._monotonic()
        with self._clock_lock:
            self._offset = max(self._offset, seen_s - mono)
            return self._offset + mono

    def _find_file(self, create: bool | None) -> None:
        if self.path.exists():
            if create:
                raise JournalError(f"{self.path} exists already", remedy="move it away, or name another path")
        elif create is False:
            raise JournalError(
                f"the journal {self.path} is gone",
                remedy='restore it, or run `onceward journal new --why "..."`',
                code=Code.JOURNAL_MISSING,
            )
        else:
            now_s = self.clock()
            made = sqlite_file.create(self.path, now_s, {"new_since_s": repr(now_s)})
            if create and not made:
                raise JournalError(f"{self.path} exists already", remedy="move it away, or name another path")
        sqlite_file.verify(self.path)

    def _open_first(self, fingerprint: str | None) -> dict[str, str]:
        store = self._connect()
        assert self._connection is not None
        meta = sqlite_file.read_meta(self.path, self._connection)
        if fingerprint is not None and "secret" not in meta:
            self.run(lambda store: store.meta("secret") or store.set_meta("secret", fingerprint))
            meta = sqlite_file.read_meta(self.path, self._connection)
        if fingerprint is not None and meta["secret"] != fingerprint:
            raise JournalError(
                f"{self.path} was written with another secret ({meta['secret']}, now {fingerprint})",
                remedy="open it with the secret it was made with, or name another path",
            )
        self._advance(store.execute(_HIGHEST).fetchone()[0])
        return meta

    def _connect(self) -> SQLiteStore:
        if self._closed:
            raise sqlite3.ProgrammingError("the journal is closed")
        self._connection = sqlite_file.connect(self.path, self._synchronous, self._busy_s)
        self._store = SQLiteStore(self._connection, self.holder.name, self._advance)
        return self._store

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Read outside a transaction of our own, while no batch runs."""
        with self._commits.alone():
            try:
                if self._connection is None:
                    self._connect()
                assert self._connection is not None
                yield self._connection
            except sqlite3.Error as error:
                raise self._fault(error).error() from error

    def _pages(self, sql: str, first: int, values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        last = first
        while True:
            with self._connected() as connection:
                rows = connection.execute(sql, (last, *values)).fetchall()
            yield from rows
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def _roll_back(self) -> None:
        """Return to a state in which the next step can begin; a connection that cannot is replaced."""
        connection = self._connection
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection, self._store = self._connection, None, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _fault(self, error: sqlite3.Error) -> StoreFault:
        fault = StoreFault(f"{self.path}: {error}", sqlite_file.remedy_for(error))
        fault.__cause__ = error
        return fault

    def _before_fork(self) -> None:
        self._commits.take_lead()
        self._drop_connection()

    def _after_fork_in_child(self) -> None:
        self._commits.reset()
        self._clock_lock = Lock()
        self._live.clear()
        self.holder = Holder.current()

    def _after_fork_in_parent(self) -> None:
        self._commits.pass_on()


_open_journals: WeakSet[SQLiteJournal] = WeakSet()


def _each(act: Callable[[SQLiteJournal], None]) -> Callable[[], None]:
    def run() -> None:
        for journal in tuple(_open_journals):
            act(journal)

    return run


def _close_quietly(journal: SQLiteJournal) -> None:
    with suppress(JournalError):  # the interpreter ends: notes are lost, steps were durable before
        journal.close()


atexit.register(_each(_close_quietly))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(SQLiteJournal._before_fork),
        after_in_child=_each(SQLiteJournal._after_fork_in_child),
        after_in_parent=_each(SQLiteJournal._after_fork_in_parent),
    )
