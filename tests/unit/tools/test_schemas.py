"""The JSON schemas in the reference are those that ``tools/schemas.py`` writes."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tools" / "schemas.py"
WRITTEN = ("graph",)
"""Schemas in the reference that are written by hand."""
COMMANDS = sorted(
    name
    for file in (ROOT / "docs" / "reference" / "json").glob("*.schema.json")
    if (name := file.name.removesuffix(".schema.json")) not in WRITTEN
)


@pytest.fixture(scope="module")
def schemas() -> ModuleType:
    spec = importlib.util.spec_from_file_location("schemas_tool", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schemas_in_the_reference_are_up_to_date(schemas, capsys):
    assert schemas.main(["--check"]) == 0, f"run make schemas: {capsys.readouterr().out}"


@pytest.mark.parametrize("command", COMMANDS)
def test_schema_is_valid_and_describes_every_key(schemas, command):
    schema = json.loads(schemas.schema_of(command))
    Draft202012Validator.check_schema(schema)
    objects = [schema, *schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    for each in objects:
        for key, rule in each.get("properties", {}).items():
            assert rule["description"], key


def test_generator_refuses_fields_without_description(schemas):
    class Undescribed(NamedTuple):
        """A record without a description of its field."""

        size: int

    with pytest.raises(LookupError, match="does not describe 'size'"):
        schemas._Schema("x", (Undescribed,))
