"""Receipts: what a scope did, and what of it is not known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from .evidence import Code, IntentState
from .journal.base import IntentRow, Journal


def intents(journal: Journal, *, scope: str | None = None, intent: str | None = None) -> list[dict[str, Any]]:
    """Return one plain mapping for each intent of a scope (or of all), newest first."""
    rows: Iterable[IntentRow] = journal.find(intent) if intent else journal.list(scope=scope)
    return [describe(row, journal) for row in rows if intent is None or scope is None or row.scope == scope]


def describe(row: IntentRow, journal: Journal | None = None) -> dict[str, Any]:
    """Return an intent as plain values: what a receipt, a status and `--json` show."""
    facts = row.facts
    shown: dict[str, Any] = {
        "intent": row.id,
        "scope": row.scope,
        "server": row.server,
        "tool": row.tool,
        "label": row.label,
        "state": shown_state(row),
        "code": row.code.value if row.code else None,
        "owner": row.owner,
        "arguments": _loaded(row.request),
        "created": utc(row.created_s),
        "settled": utc(row.settled_s),
        "acknowledged": row.acknowledged,
        "key": row.key is not None,
        "notes": _notes(row),
    }
    if facts.get("tombstone"):
        shown["arguments"] = None
    if journal is not None:
        attempts = journal.run(lambda store: store.attempts(row.id))
        shown["attempts"] = [
            {
                "number": a.number,
                "generation": a.generation,
                "state": a.state.value,
                "begun": utc(a.begun_s),
                "ended": utc(a.ended_s),
                "why": a.detail.get("why", ""),
            }
            for a in attempts
        ]
    return shown


def shown_state(row: IntentRow) -> str:
    """Return the state as people read it: a held intent is `held`, whatever is known of its attempts."""
    if row.code is not None:
        return "held"
    if row.facts.get("void"):
        return "void"
    return row.state.value


def unsettled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of which something is not known."""
    open_states = {s.value for s in IntentState if s.unsettled} | {"held"}
    return [row for row in rows if row["state"] in open_states]


def utc(seconds: float | None) -> str | None:
    """Write a time for people."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _notes(row: IntentRow) -> list[str]:
    facts, notes = row.facts, []
    if facts.get("duplicated"):
        notes.append("duplicated")
    if facts.get("repeat_of"):
        notes.append(f"repeat_of {facts['repeat_of'][:12]}")
    if facts.get("straggler"):
        notes.append("straggler_possible")
    if facts.get("undeclared"):
        notes.append("not covered by a contract")
    if row.code is Code.NEEDS_APPROVAL:
        notes.append("nothing was sent")
    return notes


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
