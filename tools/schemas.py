"""Write the JSON schemas of the commands into ``docs/reference/json``.

The annotations of the facts and documents in ``modpack/report`` give the types, and the docstrings
of their classes and properties the descriptions. With ``--check``, write nothing and report the
schemas that are not up to date.
"""

from __future__ import annotations

import argparse
import ast
import collections.abc
import importlib
import inspect
import json
import re
import sys
import textwrap
import types
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from modpack.core.codec import Line, written_keys
from modpack.integrations.oci import Pulled, Pushed
from modpack.loading.cache_maintenance import CacheContents, Cleared
from modpack.report.audit_facts import AuditFacts
from modpack.report.diff_facts import PackageDifferences
from modpack.report.facts import PlanFacts
from modpack.report.json_output import (
    SCHEMA,
    ErrorDocument,
    KeygenDocument,
    RunDocument,
)
from modpack.report.requirements import Requirements
from modpack.report.verify import VerifyFacts
from modpack.report.why import Why
from modpack.security.signing import SignedPackage
from modpack.selftest.self_test import SelfTestResult

DOCUMENTS: Final[collections.abc.Mapping[str, Any]] = {
    "audit": AuditFacts,
    "cache-clear": Cleared,
    "cache-list": CacheContents,
    "diff": PackageDifferences,
    "error": ErrorDocument,
    "export": PlanFacts,
    "inspect": PlanFacts,
    "keygen": KeygenDocument,
    "pull": Pulled,
    "push": Pushed,
    "requirements": Requirements,
    "run": RunDocument,
    "self-test": SelfTestResult,
    "sign": SignedPackage,
    "verify": VerifyFacts,
    "why": Why,
}
"""The documents of each command, by the name of its schema."""
FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference" / "json"
_UNIONS: Final = (Union, types.UnionType)
_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number", "minimum": 0},
    types.NoneType: {"type": "null"},
}


class _Schema:
    """The schema of one command.

    Args:
        command: The command.
        documents: The documents that it prints.
    """

    def __init__(self, command: str, documents: tuple[type, ...]) -> None:
        self._definitions: dict[str, Any] = {}
        found = [self._document(each) for each in documents]
        body = found[0] if len(found) == 1 else {"anyOf": found}
        self.content: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"modpack {command.replace('cache-', 'cache ')} --json",
            **body,
        }
        if self._definitions:
            self.content["$defs"] = dict(sorted(self._definitions.items()))

    def _document(self, kind: type) -> dict[str, Any]:
        rule = self._record(kind)
        number = {"const": SCHEMA, "description": "Version of the document."}
        rule["properties"] = {"schema": number, **rule["properties"]}
        rule["required"].insert(0, "schema")
        return rule

    def _record(self, kind: Any) -> dict[str, Any]:
        """Return the rule for an object with the fields of a record."""
        described, hints, keys = _attribute_docs(kind), _hints(kind), written_keys(kind)
        properties = {}
        for field, key in (keys or {}).items():
            if field not in described:
                raise LookupError(f"{kind.__name__}: the docstring does not describe {field!r}")
            properties[key] = {**self._rule(hints[field]), "description": described[field]}
        return {
            "type": "object",
            "description": _as_json_words(" ".join(kind.__doc__.partition("\n\n")[0].split())),
            "additionalProperties": False,
            "required": list(properties),
            "properties": properties,
        }

    def _rule(self, kind: Any) -> dict[str, Any]:
        """Return the rule for a type of a field."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, parts = get_origin(kind), get_args(kind)
        if kind == Line:
            return {"type": "integer", "minimum": 1}
        if origin is Annotated:
            return self._rule(parts[0])
        if origin in _UNIONS:
            return _any_of([self._rule(part) for part in parts])
        if origin is Literal:
            return {"enum": [each.value if isinstance(each, Enum) else each for each in parts]}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if origin is tuple and parts[-1] is Ellipsis:
            return {"type": "array", "items": self._rule(parts[0])}
        if origin is tuple:
            items = [self._rule(part) for part in parts]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin is collections.abc.Mapping:
            return {"type": "object", "additionalProperties": self._rule(parts[1])}
        return self._reference(kind)

    def _reference(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self._definitions:
            self._definitions[name] = {}  # a record may contain records of its own type
            self._definitions[name] = self._record(kind)
        return {"$ref": f"#/$defs/{name}"}


def _any_of(rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a rule that accepts what one of several rules accepts."""
    plain = [rule for rule in rules if set(rule) <= {"type", "minimum"}]
    if plain == rules:
        merged = {key: value for rule in rules for key, value in rule.items()}
        return {**merged, "type": [rule["type"] for rule in rules]}
    if len(rules) == 2 and rules[1] == {"type": "null"} and "enum" in rules[0]:
        return {"enum": [*rules[0]["enum"], None]}
    return {"anyOf": rules}


def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a record's fields and properties.

    Their annotations may use names that its module imports for type checking only.
    """
    names = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("modpack."):
            names.update(_typing_names(each.__module__))
    hints = get_type_hints(kind, localns=names, include_extras=True)
    for name, read in _properties(kind).items():
        hints[name] = get_type_hints(read, localns=names, include_extras=True)["return"]
    return hints


def _properties(kind: Any) -> dict[str, Any]:
    """Return the functions of a record's properties."""
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: each.fget for name, each in found.items() if isinstance(each, property)}


@cache
def _typing_names(module: str) -> dict[str, Any]:
    """Return the names of a module, including those that it imports under ``TYPE_CHECKING``."""
    loaded = importlib.import_module(module)
    names = dict(vars(loaded))
    for node in ast.parse(inspect.getsource(loaded)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module, "exec"), names)
    return names


def _attribute_docs(kind: Any) -> dict[str, str]:
    """Return the descriptions of a record's fields and properties, from their docstrings."""
    found: dict[str, str] = {}
    for name, read in _properties(kind).items():
        found[name] = " ".join(inspect.cleandoc(read.__doc__ or "").split())
    for each in reversed(kind.__mro__):
        text = inspect.cleandoc(each.__doc__ or "")
        section = re.search(r"^Attributes:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        if section is not None:
            body = textwrap.dedent(section[1])
            items = re.findall(r"^(\w+): (.*?)(?=^\w|\Z)", body, re.MULTILINE | re.DOTALL)
            found.update((name, " ".join(words.split())) for name, words in items)
    return {name: _as_json_words(words) for name, words in found.items()}


def _as_json_words(text: str) -> str:
    """Return a description without the markup of docstrings, and with null for None."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "`")
    return re.sub(r"\bNone\b", "null", re.sub(r"(?<=\. )None\b", "Null", text))


def schema_of(command: str) -> str:
    """Return the text of a command's schema."""
    documents = get_args(DOCUMENTS[command]) or (DOCUMENTS[command],)
    return json.dumps(_Schema(command, documents).content, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check all schemas, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write the JSON schemas of the commands.")
    parser.add_argument("--check", action="store_true", help="write nothing; compare only")
    is_check = parser.parse_args(arguments).check
    texts = {FOLDER / f"{command}.schema.json": schema_of(command) for command in DOCUMENTS}
    outdated = [
        file
        for file, text in texts.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in outdated:
        print(f"{file.relative_to(FOLDER.parents[2])}: {'outdated' if is_check else 'written'}")
        if not is_check:
            file.write_text(texts[file], encoding="utf-8")
    return int(is_check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
