"""The vocabulary of packages: one module with each name once."""

from __future__ import annotations

import ast
import pickle
import pickletools
import zipfile
from pathlib import Path

import pytest

import modpack
from modpack.pickling import rebuild

ROOT = Path(modpack.__file__).parent
GOLDEN = Path(__file__).parents[3] / "fixtures" / "archives" / "modpack" / "v2"
SELDOM = {"KeptHandle", "OnGraph", "referent_of"}
"""Names that only former versions or a loaded comm hook use."""


def test_vocabulary_names_exist_and_pickle_by_name():
    for name in rebuild.DEFINED_IN:
        found = getattr(rebuild, name)
        assert (found.__module__, found.__qualname__) == (rebuild.MODULE, name)
        assert pickle.loads(pickle.dumps(found)) is found


def test_marked_names_match_vocabulary():
    marked = {
        node.name
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and any(
            isinstance(d, ast.Name) and d.id == "named_in_packages" for d in node.decorator_list
        )
    }
    assert marked == set(rebuild.DEFINED_IN)


def named_by(data):
    """Return modpack's names in consecutive pickles."""
    texts, memo = [], {}
    while data:
        operations = list(pickletools.genops(data))
        for opcode, argument, _ in operations:
            if opcode.name == "GLOBAL":
                yield tuple(argument.split(" "))
            elif opcode.name.endswith("BINUNICODE"):
                texts.append(argument)
            elif opcode.name == "STACK_GLOBAL":
                yield tuple(texts[-2:])
            elif opcode.name == "MEMOIZE":
                memo[len(memo)] = texts[-1] if texts else ""
            elif opcode.name.endswith("BINPUT"):
                memo[argument] = texts[-1] if texts else ""
            elif opcode.name.endswith("BINGET"):
                texts.append(memo.get(argument, ""))  # of the pickle that goes before
        data = data[operations[-1][2] + 1 :]


@pytest.fixture(scope="module")
def golden():
    """Return modpack's names in all golden archives of the current format."""
    names = set[tuple[str, str]]()
    for file in sorted(GOLDEN.glob("*.*")):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                for record in archive.namelist():
                    if record.endswith(".pkl"):
                        names.update(named_by(archive.read(record)))
    return {(module, name) for module, name in names if module.partition(".")[0] == "modpack"}


def test_golden_archives_use_vocabulary_only(golden):
    assert {module for module, _ in golden} == {rebuild.MODULE}


def test_golden_archives_cover_vocabulary(golden):
    assert set(rebuild.DEFINED_IN) - {name for _, name in golden} == SELDOM


def test_named_in_packages_rejects_other_names():
    with pytest.raises(LookupError, match="is not in the vocabulary"):
        rebuild.named_in_packages(test_vocabulary_names_exist_and_pickle_by_name)


def test_rebuild_module_has_no_other_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'os'"):
        rebuild.os  # noqa: B018
