from __future__ import annotations

import importlib
import importlib.machinery
import py_compile
import sys
import types
import zipfile
from pathlib import Path

import pytest

from modpack.core.graph import CodeKind
from modpack.environment.finder import HostEnvironment


def kind_of(module: str) -> CodeKind | None:
    location = HostEnvironment().locate(module)
    return location.kind if location is not None else None


def test_locate_finds_source_file(project):
    root = project({"hosted/__init__.py": "", "hosted/part.py": "x = 1\r\n"})
    environment = HostEnvironment()
    package, part = environment.locate("hosted"), environment.locate("hosted.part")
    assert package is not None and part is not None
    assert (package.kind, package.is_package) == (CodeKind.SOURCE, True)
    assert package.search == (str(root / "hosted"),)
    assert (part.kind, part.is_package) == (CodeKind.SOURCE, False)
    assert part.file == str(root / "hosted" / "part.py")
    assert "hosted" not in sys.modules


def test_locate_searches_folder_created_later(tmp_path, monkeypatch):
    late = tmp_path / "late"
    monkeypatch.syspath_prepend(late)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hosted_late")
    assert sys.path_importer_cache[str(late)] is None
    assert HostEnvironment().locate("hosted_late") is None
    late.mkdir()
    (late / "hosted_late.py").touch()
    assert kind_of("hosted_late") is CodeKind.SOURCE


def test_read_source_returns_exact_bytes(tmp_path, monkeypatch):
    (tmp_path / "bytewise.py").write_bytes(b"# coding: latin-1\r\nx = '\xe9'\r\n")
    monkeypatch.syspath_prepend(tmp_path)
    environment = HostEnvironment()
    location = environment.locate("bytewise")
    assert location is not None
    assert environment.read_source(location) == b"# coding: latin-1\r\nx = '\xe9'\r\n"


def test_locate_distinguishes_kinds_of_code(tmp_path, monkeypatch):
    (tmp_path / "plain_folder" / "deeper").mkdir(parents=True)
    (tmp_path / "was_source.py").write_text("x = 1")
    py_compile.compile(str(tmp_path / "was_source.py"), str(tmp_path / "only_bytes.pyc"))
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (tmp_path / f"compiled_one{suffix}").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    assert kind_of("was_source") is CodeKind.SOURCE
    assert kind_of("only_bytes") is CodeKind.BYTECODE
    assert kind_of("compiled_one") is CodeKind.EXTENSION
    assert kind_of("plain_folder") is CodeKind.NAMESPACE
    assert kind_of("plain_folder.deeper") is CodeKind.NAMESPACE
    assert kind_of("sys") is CodeKind.BUILTIN
    assert kind_of("not_there_at_all") is None
    assert kind_of("was_source.below") is None


def test_locate_finds_namespace_in_unloaded_package(project):
    root = project({"unloaded/__init__.py": "", "unloaded/folder/leaf.py": ""})
    environment = HostEnvironment()
    folder, leaf = environment.locate("unloaded.folder"), environment.locate("unloaded.folder.leaf")
    assert folder is not None and folder.kind is CodeKind.NAMESPACE and folder.is_package
    assert leaf is not None and leaf.file == str(root / "unloaded" / "folder" / "leaf.py")


def test_locate_prefers_package_over_namespace_folder(project):
    project({"same_name/__init__.py": "", "same_name/in_package.py": ""})
    project({"same_name/in_folder.py": ""})
    assert kind_of("same_name") is CodeKind.SOURCE
    assert kind_of("same_name.in_folder") is None


def test_locate_reads_empty_path_entry_as_current_folder(tmp_path, monkeypatch):
    (tmp_path / "lies_here.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    location = HostEnvironment().locate("lies_here")
    assert location is not None and location.file == str(tmp_path / "lies_here.py")


def test_read_source_reads_zip_archive(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("zipped_pkg/__init__.py", "")
        archive.writestr("zipped_pkg/leaf.py", "x = 'é'")
    monkeypatch.syspath_prepend(str(tmp_path / "z.zip"))
    environment = HostEnvironment()
    leaf = environment.locate("zipped_pkg.leaf")
    assert leaf is not None and leaf.kind is CodeKind.SOURCE
    assert environment.read_source(leaf).decode() == "x = 'é'"


def test_locate_caches_results(project):
    root = project({"short_lived.py": ""})
    environment = HostEnvironment()
    before = environment.locate("short_lived")
    (root / "short_lived.py").unlink()
    assert environment.locate("short_lived") is before is not None


def test_locate_uses_file_of_loaded_module(project):
    root = project({"moved_on.py": ""})
    importlib.import_module("moved_on")
    sys.path.remove(str(root))
    location = HostEnvironment().locate("moved_on")
    assert location is not None and location.file == str(root / "moved_on.py")


def test_locate_searches_loaded_module_without_spec(project, monkeypatch):
    project({"hand_made.py": ""})
    monkeypatch.setitem(sys.modules, "hand_made", types.ModuleType("hand_made"))
    assert kind_of("hand_made") is CodeKind.SOURCE
    monkeypatch.setitem(sys.modules, "hand_made_only", types.ModuleType("hand_made_only"))
    assert kind_of("hand_made_only") is None


def test_live_attribute_distinguishes_submodules(project):
    project(
        {
            "living/__init__.py": "import json as alias, living.part\nx = None",
            "living/part.py": "",
            "living/other.py": "",
        }
    )
    environment = HostEnvironment()
    assert environment.live_attribute("living", "x") is None, "it is not loaded yet"
    importlib.import_module("living")
    found = [environment.live_attribute("living", n) for n in ("x", "part", "alias", "other")]
    assert found == ["attribute", "submodule", "attribute", None]


@pytest.mark.parametrize("entry", [3, None, b"bytes", Path("/a/path")])
def test_locate_skips_invalid_path_entries(monkeypatch, entry):
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    assert kind_of("certainly_not_there") is None


def test_locate_uses_path_hooks(monkeypatch):
    class Finder:
        def __init__(self, entry: str) -> None:
            if entry != "virtual://":
                raise ImportError(entry)

        def find_spec(self, name: str, target: object = None) -> object:
            return importlib.machinery.ModuleSpec(name, Loader()) if name == "virtual" else None

    class Loader:
        def get_source(self, name: str) -> str:
            return f"name = {name!r}"

    monkeypatch.setattr(sys, "path_hooks", [Finder, *sys.path_hooks])
    monkeypatch.setattr(sys, "path", [*sys.path, "virtual://"])
    environment = HostEnvironment()
    location = environment.locate("virtual")
    assert location is not None and environment.read_source(location) == b"name = 'virtual'"
    sys.path_importer_cache.pop("virtual://", None)
