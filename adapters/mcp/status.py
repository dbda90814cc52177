"""The status tool: what is known of this conversation's actions, for the model that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceward import receipts
from onceward.journal.base import Journal

_SHOWN = 50


def status_result(journal: Journal, scope: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `onceward_status`."""
    wanted = arguments.get("intent")
    rows = receipts.intents(journal, scope=scope, intent=str(wanted) if wanted else None)
    lines = [_line(row) for row in rows[:_SHOWN]]
    open_rows = receipts.unsettled(rows)
    head = "No guarded action is recorded here." if not rows else f"{len(rows)} actions, {len(open_rows)} not settled:"
    if len(rows) > _SHOWN:
        lines.append(f"... and {len(rows) - _SHOWN} earlier ones")
    return {
        "content": [{"type": "text", "text": "\n".join([head, *lines])}],
        "structuredContent": {"intents": rows[:_SHOWN], "unsettled": len(open_rows)},
        "isError": False,
    }


def _line(row: Mapping[str, Any]) -> str:
    parts = [f"- {row['tool']} ({row['intent'][:12]}): {row['state']}"]
    if row["code"]:
        parts.append(f"held for {row['owner']} ({row['code']})")
    when = row["settled"] or row["created"]
    parts.append(f"{'since' if row['settled'] is None else 'at'} {when}")
    return ", ".join([*parts, *row["notes"]])
