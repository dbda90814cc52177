"""Opening what a guard needs: contracts, journal and secret, with the usual places filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .journal import default_path, open_journal
from .journal.base import Journal
from .keys import Secret, load_secret
from .toolbox import Toolbox


def secret_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the deployment secret is: ONCEWARD_SECRET_FILE, else the user's configuration folder."""
    given = environ.get("ONCEWARD_SECRET_FILE")
    if given:
        return Path(given)
    config = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "onceward" / "secret"


def open_all(contracts: Any, journal: Any, secret: bytes | None = None) -> tuple[Toolbox, Journal, bytes]:
    """Return the toolbox, the journal and the secret. Raises ContractError or JournalError."""
    toolbox = contracts if isinstance(contracts, Toolbox) else _toolbox(contracts)
    if isinstance(journal, Journal):
        return toolbox, journal, secret if secret is not None else load_secret(secret_path()).bytes
    path = Path(journal) if journal is not None else default_path()
    kept = Secret(secret) if secret is not None else load_secret(secret_path())
    beside = None if secret is not None else secret_path()
    return toolbox, open_journal(path, secret=kept, secret_path=beside), kept.bytes


def _toolbox(contracts: Any) -> Toolbox:
    # The only place where the guard reaches for contract files: `Guard("payments.yaml")` is what people write.
    from onceward.contracts.compiling import toolbox_of

    return toolbox_of(contracts)
