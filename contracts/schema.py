"""The JSON Schema of contract files, for editors and for other languages.

`schema.json` lies beside this module and is shipped with it. `python -m onceward.contracts.schema` writes it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("schema.json")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a contract file, derived from the models."""
    from .model import ServerContracts

    schema = ServerContracts.model_json_schema(by_alias=True)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Onceward contracts",
        "description": "What an operator declares about the tools of one server.",
    }
    return head | {name: part for name, part in schema.items() if name not in head}


def written() -> str:
    """Return the text of `schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
