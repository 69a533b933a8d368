"""JSON documents: their keys, their text, and the reference page that lists them."""

import json
from pathlib import Path

import pytest

from modpack.report.facts import PlanFacts, plan_facts
from modpack.report.json_output import (
    ErrorDocument,
    ErrorFacts,
    dumps,
)
from modpack.report.package_info import package_facts

SCHEMAS = Path(__file__).parents[3] / "docs" / "reference" / "json"
FILES = sorted(f for f in SCHEMAS.glob("*.schema.json") if not f.name.startswith("graph."))
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def read(document):
    return json.loads(dumps(document))


def test_package_and_plan_have_the_same_keys(made):
    package = read(PlanFacts.of_package(package_facts(made.file)))
    plan = read(plan_facts(made.plan))
    assert package["schema"] == plan["schema"] == 1
    keys = ["schema", "modules", "problems", "notes", "files", "package"]
    assert list(package) == list(plan) == keys
    assert plan["package"] is None
    assert package["package"]["main_resource"] == {"package": "model", "resource": "till.pkl"}


def test_module_lists_its_importers(made):
    document = read(PlanFacts.of_package(package_facts(made.file)))
    (spy,) = (module for module in document["modules"] if module["module"] == "reportspy")
    assert spy["action"] == "mock"
    assert spy["rule"] == "mock('reportspy')"
    assert spy["importers"] == [
        {
            "importer": "reportshop.till",
            "path": "reportshop/till.py",
            "line": 5,
            "kind": "required",
        }
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_reference_lists_every_key_of_a_document(file):
    reference = REFERENCE.read_text(encoding="utf-8")
    assert f"json/{file.name}" in reference
    schema = json.loads(file.read_text(encoding="utf-8"))
    for document in schema.get("anyOf", [schema]):
        missing = [key for key in document["properties"] if f"`{key}`" not in reference]
        assert missing == []


def test_error_has_type_message_and_hint():
    error = ErrorFacts("TargetError", "no. Do.", "Do.", "...")
    assert read(ErrorDocument(error))["error"] == {
        "type": "TargetError",
        "message": "no. Do.",
        "hint": "Do.",
        "traceback": "...",
    }


def test_json_text_is_ascii():
    text = dumps(ErrorDocument(ErrorFacts("E", "größe \ud800 \x1b")))
    assert text.isascii() and "\x1b" not in text
    assert json.loads(text)["error"]["message"] == "größe \ud800 \x1b"
