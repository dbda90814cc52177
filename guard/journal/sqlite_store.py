"""One SQLite transaction as a `Store`: the schema, and rows to tuples and back.

What shapes it is the cost of a page. A commit writes every page it touched, so the hot path touches few: hashes are
indexed only where a row must be found by them, everything else hangs on `seq`, which grows with time, so that a journal
of a million intents writes the same few pages as an empty one. Indexes that serve rare rows are partial. An update sets
only the columns that changed since the row was read in this transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ..evidence import AttemptState, Code, IntentState
from .base import AttemptRow, EventRow, IntentRow, Raced, Store

SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE identities (id TEXT PRIMARY KEY, version INTEGER NOT NULL, last TEXT) WITHOUT ROWID;
CREATE TABLE intents (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, base TEXT NOT NULL, epoch INTEGER NOT NULL, identity TEXT NOT NULL,
    kind TEXT NOT NULL, resource TEXT, principal TEXT NOT NULL, scope TEXT NOT NULL, server TEXT NOT NULL,
    tool TEXT NOT NULL, label TEXT, open INTEGER NOT NULL, generation INTEGER NOT NULL, key TEXT,
    key_pinned INTEGER NOT NULL, request TEXT NOT NULL, payload TEXT NOT NULL, content TEXT NOT NULL,
    acknowledged INTEGER NOT NULL, owner TEXT, created_s REAL NOT NULL, settled_s REAL, result TEXT,
    state TEXT NOT NULL, code TEXT, facts TEXT NOT NULL, keep_until_s REAL, tombstone_s REAL);
CREATE UNIQUE INDEX intents_id ON intents (id);
CREATE UNIQUE INDEX intents_base ON intents (base, epoch);
CREATE INDEX intents_open ON intents (identity, kind) WHERE open = 1;
CREATE INDEX intents_held ON intents (code) WHERE code IS NOT NULL;
CREATE INDEX intents_resource ON intents (resource, settled_s) WHERE resource IS NOT NULL;
CREATE INDEX intents_keep ON intents (keep_until_s) WHERE keep_until_s IS NOT NULL;
CREATE INDEX intents_tombstone ON intents (tombstone_s) WHERE tombstone_s IS NOT NULL;
CREATE TABLE attempts (
    intent INTEGER NOT NULL, number INTEGER NOT NULL, generation INTEGER NOT NULL, begun_s REAL NOT NULL,
    send_before_s REAL NOT NULL, lease_until_s REAL NOT NULL, holder TEXT NOT NULL, call TEXT NOT NULL, call_id TEXT,
    ended_s REAL, state TEXT NOT NULL, detail TEXT NOT NULL, PRIMARY KEY (intent, number)) WITHOUT ROWID;
CREATE INDEX attempts_call ON attempts (call_id) WHERE call_id IS NOT NULL;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, intent TEXT, who TEXT NOT NULL, what TEXT NOT NULL, why TEXT NOT NULL,
    data TEXT NOT NULL);
CREATE INDEX events_intent ON events (intent) WHERE intent IS NOT NULL;
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never rewritten'); END;
CREATE TABLE slots (
    name TEXT NOT NULL, slot TEXT NOT NULL, holder TEXT NOT NULL, state TEXT NOT NULL, scope TEXT NOT NULL,
    begun_s REAL NOT NULL, ended_s REAL, PRIMARY KEY (name, slot)) WITHOUT ROWID;
"""

SETTLED = (IntentState.HAPPENED, IntentState.REFUSED, IntentState.ABSENT)
WINDOW_S = 86_400.0  #: the contract's default, for rows that carry no window of their own

_INTENT_PLAIN = (
    *("id", "base", "epoch", "identity", "kind", "resource", "principal", "scope", "server", "tool", "label", "open"),
    *("generation", "key", "key_pinned", "request", "payload", "content", "acknowledged", "owner", "created_s"),
    *("settled_s", "result"),
)
_ATTEMPT_PLAIN = (
    *("number", "generation", "begun_s", "send_before_s", "lease_until_s", "holder", "call", "call_id", "ended_s"),
)
INTENT = (*_INTENT_PLAIN, "state", "code", "facts", "keep_until_s")
ATTEMPT = (*_ATTEMPT_PLAIN, "state", "detail")
SELECT_INTENT = f"SELECT seq, {', '.join(INTENT)} FROM intents"
INSERT_INTENT = (
    f"INSERT INTO intents ({', '.join(INTENT)}) VALUES ({', '.join('?' * len(INTENT))}) ON CONFLICT DO NOTHING"
)
INSERT_ATTEMPT = (
    f"INSERT INTO attempts (intent, {', '.join(ATTEMPT)}) VALUES ({', '.join('?' * (len(ATTEMPT) + 1))})"
    " ON CONFLICT DO NOTHING"
)
# Built once: a new string of this length would be hashed on every call to find its prepared statement.
_BY_BASE = f"{SELECT_INTENT} WHERE base = ? ORDER BY epoch DESC LIMIT 1"
_BY_ID = f"{SELECT_INTENT} WHERE id = ?"
_BY_CALL = f"{SELECT_INTENT} WHERE seq = (SELECT intent FROM attempts WHERE call_id = ? ORDER BY intent DESC LIMIT 1)"
_OPEN_OF = f"{SELECT_INTENT} WHERE identity = ? AND open = 1 ORDER BY seq"
_OPEN_OF_KIND = f"{SELECT_INTENT} WHERE kind = ? AND open = 1 ORDER BY seq"
_SELECT_ATTEMPTS = f"SELECT {', '.join(ATTEMPT)} FROM attempts WHERE intent = ? ORDER BY number"
_END_ATTEMPT = "UPDATE attempts SET ended_s = ?, state = ?, detail = ? WHERE intent = ? AND number = ?"

_ACKNOWLEDGE = (
    "UPDATE intents SET acknowledged = 1, open = (facts LIKE '%\"straggles\":true%')"
    " WHERE id = ? AND acknowledged = 0 AND state = 'happened'"
)

_intent_plain = attrgetter(*_INTENT_PLAIN)
_attempt_plain = attrgetter(*_ATTEMPT_PLAIN)
_INTENT_STATES = {state.value: state for state in IntentState}
_ATTEMPT_STATES = {state.value: state for state in AttemptState}
_CODES: dict[str | None, Code | None] = {None: None, **{code.value: code for code in Code}}
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_updates: dict[tuple[str, tuple[int, ...]], str] = {}

Values = tuple[Any, ...]


def intent_values(row: IntentRow) -> Values:
    """Return a row as the columns `INTENT`."""
    facts = row.facts
    settled_s, state, code = row.settled_s, row.state, row.code
    keep_until_s = None
    settled = settled_s is not None and code is None and (state in SETTLED or facts.get("void"))
    if settled and "tombstone" not in facts:
        keep_until_s = settled_s + facts.get("window_s", WINDOW_S)
    return (
        *_intent_plain(row),
        state.value,
        None if code is None else code.value,
        _encode(facts) if facts else "{}",
        keep_until_s,
    )


def attempt_values(row: AttemptRow) -> Values:
    """Return a row as the columns `ATTEMPT`."""
    return (*_attempt_plain(row), row.state.value, _encode(row.detail) if row.detail else "{}")


def intent_row(values: Values) -> IntentRow:
    """Return the row that `SELECT_INTENT` read."""
    # fmt: off
    (_, id, base, epoch, identity, kind, resource, principal, scope, server, tool, label, open, generation, key, pinned,
     request, payload, content, acknowledged, owner, created_s, settled_s, result, state, code, facts, _) = values
    # fmt: on
    return IntentRow(
        id=id,
        base=base,
        epoch=epoch,
        identity=identity,
        kind=kind,
        resource=resource,
        principal=principal,
        scope=scope,
        server=server,
        tool=tool,
        label=label,
        state=_INTENT_STATES[state],
        open=open == 1,
        generation=generation,
        key=key,
        key_pinned=pinned == 1,
        request=request,
        payload=payload,
        content=content,
        acknowledged=acknowledged == 1,
        code=_CODES[code],
        owner=owner,
        created_s=created_s,
        settled_s=settled_s,
        result=result,
        facts={} if facts == "{}" else json.loads(facts),
    )


def attempt_row(intent: str, values: Values) -> AttemptRow:
    """Return the attempt of `intent` that was read as the columns `ATTEMPT`."""
    number, generation, begun_s, send_before_s, lease_until_s, holder, call, call_id, ended_s, state, detail = values
    return AttemptRow(
        intent=intent,
        number=number,
        generation=generation,
        state=_ATTEMPT_STATES[state],
        begun_s=begun_s,
        send_before_s=send_before_s,
        lease_until_s=lease_until_s,
        holder=holder,
        call=call,
        call_id=call_id,
        ended_s=ended_s,
        detail={} if detail == "{}" else json.loads(detail),
    )


def event_row(values: Values) -> EventRow:
    """Return the event that was read as at, intent, who, what, why, data."""
    at_s, intent, who, what, why, data = values
    return EventRow(at_s=at_s, intent=intent, who=who, what=what, why=why, data=json.loads(data))


class SQLiteStore(Store):
    """The rows of one transaction. `start` begins anew, `leases` tells which attempts of `holder` began or ended."""

    def __init__(self, connection: sqlite3.Connection, holder: str, observe: Callable[[float], object]) -> None:
        self.execute = connection.cursor().execute
        self._holder, self._observe = holder, observe
        self._intents: dict[str, Values] = {}
        self._seqs: dict[str, int] = {}
        self._attempts: dict[tuple[str, int], Values] = {}
        self.leases: list[tuple[str, int, bool]] = []
        self.now_s = 0.0

    def start(self) -> None:
        """Forget what an earlier transaction read."""
        self._intents.clear()
        self._seqs.clear()
        self._attempts.clear()
        self.leases = []

    def version(self, identity: str) -> int:
        """Read the version by primary key."""
        found = self.execute("SELECT version FROM identities WHERE id = ?", (identity,)).fetchone()
        return found[0] if found else 0

    def swap(self, identity: str, version: int, intent: str | None = None) -> None:
        """Move the version in one statement, whose row count tells a race."""
        values: Values = (intent, identity)
        if version == 0:
            sql = "INSERT INTO identities (version, last, id) VALUES (1, ?, ?) ON CONFLICT DO NOTHING"
        else:
            sql = "UPDATE identities SET version = version + 1, last = coalesce(?, last) WHERE id = ? AND version = ?"
            values = (intent, identity, version)
        if self.execute(sql, values).rowcount != 1:
            raise Raced(f"identity {identity} is no longer at version {version}")

    def last(self, identity: str) -> str | None:
        """Read it by primary key."""
        found = self.execute("SELECT last FROM identities WHERE id = ?", (identity,)).fetchone()
        return found[0] if found else None

    def latest(self, base: str) -> IntentRow | None:
        """Read the last entry of the index over base and epoch."""
        return self._intent(_BY_BASE, (base,))

    def intent(self, id: str) -> IntentRow | None:
        """Read one row by its id."""
        return self._intent(_BY_ID, (id,))

    def open_of(self, identity: str) -> Sequence[IntentRow]:
        """Read through the index of the open rows."""
        found = self.execute(_OPEN_OF, (identity,)).fetchall()
        return [self._seen(values) for values in found]

    def open_of_kind(self, kind: str) -> Sequence[IntentRow]:
        """Read by walking the index of the open rows."""
        # Only tools without a declared identity ask. They walk the index of the open ones, which are few, so that no
        # other call pays for one more page.
        found = self.execute(_OPEN_OF_KIND, (kind,)).fetchall()
        return [self._seen(values) for values in found]

    def later_on(self, resource: str, after_s: float, identity: str) -> bool:
        """Look through the index over resource and time of settlement."""
        sql = "SELECT 1 FROM intents WHERE resource = ? AND settled_s > ? AND identity <> ? AND state = 'happened'"
        return self.execute(sql, (resource, after_s, identity)).fetchone() is not None

    def attempts(self, intent: str) -> Sequence[AttemptRow]:
        """Read a range of the primary key."""
        seq = self._seq(intent)
        if seq is None:
            return []
        rows = []
        for values in self.execute(_SELECT_ATTEMPTS, (seq,)).fetchall():
            self._attempts[intent, values[0]] = values
            rows.append(attempt_row(intent, values))
            latest_s = values[2] if values[8] is None else max(values[2], values[8])
            if latest_s > self.now_s:
                self._lift(latest_s)
        return rows

    def by_call(self, call_id: str) -> IntentRow | None:
        """Read the last entry of the index over the harness calls."""
        return self._intent(_BY_CALL, (call_id,))

    def put_intent(self, row: IntentRow, *, new: bool = False) -> None:
        """Insert, or set the columns that differ from what this transaction read."""
        values = intent_values(row)
        if new:
            cursor = self.execute(INSERT_INTENT, values)
            if cursor.rowcount != 1:
                raise Raced(f"intent {row.id} exists, or another has its base and epoch")
            assert cursor.lastrowid is not None
            self._seqs[row.id] = cursor.lastrowid
            self._intents[row.id] = (cursor.lastrowid, *values)
            return
        old = self._intents.get(row.id)
        if old is None:
            if self.intent(row.id) is None:
                raise Raced(f"intent {row.id} is gone")
            old = self._intents[row.id]
        if self._update("intents", INTENT, old[1:], values, (old[0],)):
            self._intents[row.id] = (old[0], *values)

    def put_attempt(self, row: AttemptRow, *, new: bool = False) -> None:
        """Insert, or set the columns that differ from what this transaction read."""
        values, seq = attempt_values(row), self._seq(row.intent)
        if seq is None:
            raise Raced(f"intent {row.intent} is gone")
        if new:
            if self.execute(INSERT_ATTEMPT, (seq, *values)).rowcount != 1:
                raise Raced(f"attempt {row.number} of intent {row.intent} exists")
        else:
            old = self._attempts.get((row.intent, row.number))
            if old is None:
                # How it ended is all that ever changes, except the lease, which the heartbeat alone extends.
                if self.execute(_END_ATTEMPT, (row.ended_s, *values[-2:], seq, row.number)).rowcount != 1:
                    raise Raced(f"attempt {row.number} of intent {row.intent} is gone")
            else:
                self._update("attempts", ATTEMPT, old, values, (seq, row.number))
        self._attempts[row.intent, row.number] = values
        if row.holder == self._holder:
            self.leases.append((row.intent, row.number, row.state is AttemptState.SENDING))

    def acknowledge(self, intent: str) -> None:
        """Set two columns in one statement."""
        self.execute(_ACKNOWLEDGE, (intent,))

    def event(self, intent: str | None, who: str, what: str, why: str, **data: Any) -> None:
        """Append a row; a trigger keeps it from being rewritten."""
        self.execute(
            "INSERT INTO events (at_s, intent, who, what, why, data) VALUES (?, ?, ?, ?, ?, ?)",
            (self.now_s, intent, who, what, why, _encode(data)),
        )

    def meta(self, name: str) -> str | None:
        """Read one value."""
        found = self.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def set_meta(self, name: str, value: str) -> None:
        """Write one value."""
        self.execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def _intent(self, sql: str, parameters: Values) -> IntentRow | None:
        values = self.execute(sql, parameters).fetchone()
        return None if values is None else self._seen(values)

    def _seen(self, values: Values) -> IntentRow:
        self._intents[values[1]] = values
        self._seqs[values[1]] = values[0]
        latest_s = values[21] if values[22] is None else max(values[21], values[22])
        if latest_s > self.now_s:
            self._lift(latest_s)
        return intent_row(values)

    def _lift(self, stored_s: float) -> None:
        """Let now be no earlier than what another process has written: its clock is ahead of ours."""
        self._observe(stored_s)
        self.now_s = stored_s

    def _seq(self, intent: str) -> int | None:
        seq = self._seqs.get(intent)
        if seq is None:
            found = self.execute("SELECT seq FROM intents WHERE id = ?", (intent,)).fetchone()
            if found is not None:
                seq = self._seqs[intent] = found[0]
        return seq

    def _update(self, table: str, columns: Sequence[str], old: Values, new: Values, where: Values) -> bool:
        changed = tuple([i for i, value in enumerate(new) if value != old[i]])
        if not changed:
            return False
        sql = _updates.get((table, changed))
        if sql is None:
            key = "seq = ?" if table == "intents" else "intent = ? AND number = ?"
            sql = f"UPDATE {table} SET {', '.join(f'{columns[i]} = ?' for i in changed)} WHERE {key}"
            _updates[table, changed] = sql
        self.execute(sql, (*[new[i] for i in changed], *where))
        return True
