"""Purge and check of a SQLite journal: what is done now and then, never inside a call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

Execute = Callable[..., sqlite3.Cursor]

BATCH = 500  #: rows per transaction: a purge of a million rows never keeps a begin waiting for long

# An attempt that is being sent right now keeps its row, whatever the row says.
_DUE = (
    "FROM intents WHERE keep_until_s < ?1 AND code IS NULL AND NOT EXISTS (SELECT 1 FROM attempts"
    " WHERE intent = seq AND attempts.state = 'sending' AND lease_until_s >= ?2)"
)
_ENTOMB = (
    "UPDATE intents SET request = '', result = NULL, facts = '{\"tombstone\":true}', open = 0, keep_until_s = NULL,"
    " tombstone_s = ? WHERE seq = ?"
)
_OLD = "FROM intents WHERE tombstone_s < ?"
# The version of an identity is read and swapped inside one transaction, so a row nobody needs may begin at 0 again.
_DROP_IDENTITY = (
    "DELETE FROM identities WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM intents WHERE identity = ?1 AND open = 1)"
)

_CONTRADICTIONS = (
    (
        "SELECT count(*), min(intent) FROM attempts WHERE intent NOT IN (SELECT seq FROM intents)",
        "{0} attempts belong to no intent (first: row {1})",
    ),
    (
        "SELECT count(*), min(id) FROM intents WHERE state IN ('new', 'refused', 'absent', 'unknown') AND seq IN"
        " (SELECT intent FROM attempts WHERE state = 'happened')",
        "{0} intents have an attempt that happened, and say otherwise (first: {1})",
    ),
    (
        "SELECT count(*), min(id) FROM intents WHERE state = 'in_flight' AND seq NOT IN"
        " (SELECT intent FROM attempts WHERE state = 'sending')",
        "{0} intents are in flight without an attempt that is sending (first: {1})",
    ),
    (
        "SELECT count(*), min(id) FROM intents WHERE state IN ('in_flight', 'accepted', 'unknown') AND open = 0"
        " AND facts NOT LIKE '%\"void\":%'",
        "{0} unsettled intents are not open, so no later call would see them (first: {1})",
    ),
    (
        "SELECT count(*), min(id) FROM intents WHERE state IN ('happened', 'refused', 'absent') AND settled_s IS NULL",
        "{0} settled intents have no time of settlement (first: {1})",
    ),
)


def count_due(execute: Execute, now_s: float, margin_s: float, tombstone_s: float) -> tuple[int, int]:
    """Return how many rows a purge would turn into tombstones, and how many tombstones it would drop."""
    due = execute(f"SELECT count(*) {_DUE}", (now_s - margin_s, now_s)).fetchone()[0]
    return due, execute(f"SELECT count(*) {_OLD}", (now_s - tombstone_s,)).fetchone()[0]


def entomb(execute: Execute, now_s: float, margin_s: float) -> int:
    """Turn one batch of settled rows into tombstones; return how many."""
    sql = f"SELECT seq {_DUE} ORDER BY keep_until_s LIMIT {BATCH}"
    due = execute(sql, (now_s - margin_s, now_s)).fetchall()
    for (seq,) in due:
        execute(_ENTOMB, (now_s, seq))
        # That it happened must outlast its details: a call that is known again is answered, not sent.
        execute("DELETE FROM attempts WHERE intent = ? AND state <> 'happened'", (seq,))
        execute("UPDATE attempts SET detail = '{}' WHERE intent = ?", (seq,))
    return len(due)


def drop_tombstones(execute: Execute, now_s: float, tombstone_s: float) -> int:
    """Drop one batch of old tombstones with their history; return how many."""
    sql = f"SELECT seq, id, identity {_OLD} ORDER BY tombstone_s LIMIT {BATCH}"
    old = execute(sql, (now_s - tombstone_s,)).fetchall()
    for seq, id, identity in old:
        execute("DELETE FROM attempts WHERE intent = ?", (seq,))
        execute("DELETE FROM intents WHERE seq = ?", (seq,))
        execute("DELETE FROM events WHERE intent = ?", (id,))
        execute(_DROP_IDENTITY, (identity,))
    return len(old)


def problems(execute: Execute) -> Sequence[str]:
    """Return what is wrong with the pages, and which rows contradict each other."""
    found = [text for (text,) in execute("PRAGMA integrity_check").fetchall() if text != "ok"]
    if found:
        return [f"the file is damaged: {text}" for text in found]
    for sql, sentence in _CONTRADICTIONS:
        number, first = execute(sql).fetchone()
        if number:
            found.append(sentence.format(number, first))
    return found
