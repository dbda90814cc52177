"""The durable memory of intents: rows, one transaction at a time, on SQLite."""

from .base import AttemptRow, EventRow, Holder, IntentRow, Journal, Raced, Store
from .opening import default_path, new_journal, open_journal
from .sqlite import SQLiteJournal

__all__ = [
    "AttemptRow",
    "EventRow",
    "Holder",
    "IntentRow",
    "Journal",
    "Raced",
    "SQLiteJournal",
    "Store",
    "default_path",
    "new_journal",
    "open_journal",
]
