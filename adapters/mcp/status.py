"""The status tool: what is known of this conversation's actions, for the model that asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from onceward import receipts
from onceward.journal.base import IntentRow, Journal

_SHOWN = 50
_LOOKED_AT = 10_000  #: rows; a conversation with more is counted no further
_PREFIX = re.compile(r"[0-9a-f]{4,64}")


def status_result(journal: Journal, scope: str | None, principal: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `onceward_status`: of this scope and principal alone; nothing where there is no scope."""
    wanted = arguments.get("intent")
    found: list[IntentRow] = []
    if scope is not None:
        rows = _named(journal, str(wanted)) if wanted else journal.list(scope=scope)
        found = [row for row in islice(rows, _LOOKED_AT) if row.scope == scope and row.principal == principal]
    shown = [receipts.describe(row, journal) for row in found[:_SHOWN]]
    unsettled = sum(row.state.unsettled or row.code is not None for row in found)
    head = "No guarded action is recorded here." if not found else f"{len(found)} actions, {unsettled} not settled:"
    lines = [_line(row) for row in shown]
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} earlier ones")
    return {
        "content": [{"type": "text", "text": "\n".join([head, *lines])}],
        "structuredContent": {"intents": shown, "unsettled": unsettled},
        "isError": False,
    }


def _named(journal: Journal, prefix: str) -> Iterable[IntentRow]:
    return journal.find(prefix) if _PREFIX.fullmatch(prefix) else ()


def _line(row: Mapping[str, Any]) -> str:
    parts = [f"- {row['tool']} ({row['intent'][:12]}): {row['state']}"]
    if row["code"]:
        parts.append(f"held for {row['owner']} ({row['code']})")
    when = row["settled"] or row["created"]
    parts.append(f"{'since' if row['settled'] is None else 'at'} {when}")
    return ", ".join([*parts, *row["notes"]])
