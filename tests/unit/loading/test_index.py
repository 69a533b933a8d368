"""The index of a package's modules."""

from __future__ import annotations

import pytest

from modpack.archive.module_index import IndexEntryKind, ModuleIndex


def index(*records, **externs):
    pins = {name.replace("__", "."): pin for name, pin in externs.items()}
    return ModuleIndex.build(records, pins)


def kind(found):
    return found.kind if found is not None else None


def test_sources_are_modules_and_their_folders_packages():
    built = index("a/__init__.py", "a/b/c.py", "solo.py")
    assert kind(built.find("a")) is kind(built.find("a.b.c")) is IndexEntryKind.SOURCE
    assert kind(built.find("a.b")) is IndexEntryKind.FOLDER
    assert built.find("a").is_package and not built.find("a.b.c").is_package
    assert built.find("solo").record == "solo.py"
    assert built.find("a.absent") is None and built.find("absent") is None


def test_package_precedes_module_of_same_name():
    assert index("a.py", "a/__init__.py").find("a").record == "a/__init__.py"
    assert index("a/__init__.py", "a.py").find("a").record == "a/__init__.py"


def test_module_precedes_folder_of_same_name():
    assert index("a.py", "a/words.txt").find("a").record == "a.py"


def test_extern_module_covers_its_submodules():
    built = index("a/__init__.py", a__native="a-native==1")
    assert kind(built.find("a.native.deep")) is IndexEntryKind.EXTERN
    assert built.find("a.other") is None
    assert built.requirement("a.native") == "a-native==1"


def test_extern_package_can_contain_packaged_modules():
    built = index("a/mine/mod.py", a=None)
    assert kind(built.find("a")) is kind(built.find("a.other")) is IndexEntryKind.EXTERN
    assert kind(built.find("a.mine.mod")) is IndexEntryKind.SOURCE
    assert built.find("a.mine.absent") is None
    assert built.has_code_below("a") and not built.has_code_below("a.mine.mod")


@pytest.mark.parametrize(
    ("module", "allowed"),
    [("json", True), ("torch.nn", True), ("numpy.linalg", True), ("pandas", False), ("a.b", False)],
)
def test_host_imports_are_stdlib_torch_and_extern_modules(module, allowed):
    built = index("a/b.py", numpy=None)
    assert built.allows_host_import(module) is allowed
    assert built.is_package_import(module) is not allowed


def test_resource_folder_hides_neither_stdlib_nor_extern_module():
    built = index("json/x.txt", "numpy/x.txt", "data/x.txt", numpy=None)
    assert built.roots == {"data"}
