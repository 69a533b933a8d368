"""The JSON is versioned and has the documented keys."""

import ast
import json
from pathlib import Path

import modpack
from modpack.report.facts import plan_facts
from modpack.report.json_output import (
    _FORMS,
    dumps,
    error_document,
    package_document,
    plan_document,
)
from modpack.report.package_info import package_facts

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def read(document):
    return json.loads(dumps(document))


def test_package_and_plan_have_the_same_keys_and_a_schema(made):
    package = read(package_document(package_facts(made.file)))
    plan = read(plan_document(plan_facts(made.plan)))
    assert package["schema"] == plan["schema"] == 1
    keys = ["schema", "package", "modules", "problems", "notes", "files"]
    assert list(package) == list(plan) == keys
    assert plan["package"] is None
    assert package["package"]["entry"] == {"package": "model", "resource": "till.pkl"}


def test_a_module_is_told_with_its_evidence(made):
    document = read(package_document(package_facts(made.file)))
    (spy,) = (module for module in document["modules"] if module["module"] == "reportspy")
    assert spy["action"] == "mock"
    assert spy["rule"] == "mock('reportspy')"
    assert spy["importers"] == [
        {
            "importer": "reportshop.till",
            "file": "reportshop/till.py",
            "line": 5,
            "kind": "required",
        }
    ]


def test_every_key_is_documented(made):
    reference = REFERENCE.read_text(encoding="utf-8")
    document = read(package_document(package_facts(made.file)))
    plan = read(plan_document(plan_facts(made.plan)))

    def keys(value):
        if isinstance(value, dict):
            yield from value
            for each in value.values():
                yield from keys(each)
        elif isinstance(value, list):
            for each in value:
                yield from keys(each)

    undocumented = {k for k in (*keys(document), *keys(plan)) if f"`{k}`" not in reference}
    assert undocumented == set()


def test_an_error_has_its_type_and_message():
    assert read(error_document("TargetError", "no", traceback="..."))["error"] == {
        "type": "TargetError",
        "message": "no",
        "traceback": "...",
    }


def test_the_text_is_ascii_whatever_a_package_says():
    text = dumps(error_document("E", "größe \ud800 \x1b"))
    assert text.isascii() and "\x1b" not in text
    assert json.loads(text)["error"]["message"] == "größe \ud800 \x1b"


def test_each_form_is_that_of_one_class():
    (root,) = map(Path, modpack.__path__)
    files = [file for room in ("core", "report", "security") for file in (root / room).glob("*.py")]
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert {name: classes.count(name) for name in _FORMS} == dict.fromkeys(_FORMS, 1)
