"""The published JSON Schema is the models' own."""

import json
from importlib.resources import files

from onceward.contracts import ToolContract, json_schema
from onceward.contracts.schema import written


def test_the_committed_schema_is_what_the_models_say():
    """Run `python -m onceward.contracts.schema` after a change of the models."""
    committed = (files("onceward.contracts") / "schema.json").read_text(encoding="utf-8")
    assert written() == committed


def test_the_schema_names_every_field():
    """An editor completes from it."""
    schema = json.loads(written())
    assert set(ToolContract.model_fields) == set(schema["$defs"]["ToolContract"]["properties"])
    assert {"version", "server", "owner", "uncontracted", "source", "principal", "tools"} == set(schema["properties"])
    assert ["read", "idempotent", "write", "unsafe"] == schema["$defs"]["ToolContract"]["properties"]["effect"]["enum"]
    assert False is json_schema()["additionalProperties"]
