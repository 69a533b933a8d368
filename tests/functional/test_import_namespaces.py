"""The private and the process namespace."""

from __future__ import annotations

import gc
import importlib
import pickle
import sys
import threading
import weakref

import pytest
import torch

import modpack
from modpack.errors import ModpackError, NamespaceConflictError


def library(version):
    return {
        "twin/__init__.py": f"from .core import Core\nversion = {version!r}",
        "twin/core.py": f"""
        import twin
        class Core:
            version = {version!r}
            def versions(self):
                import twin.late
                return twin.version, twin.late.version
        """,
        "twin/late.py": f"version = {version!r}",
    }


def test_two_versions_of_library_load_in_one_process(packaged):
    one, two = packaged(library("one")), packaged(library("two"))
    cores = [importer.import_module("twin").Core for importer in (one, two)]
    assert [core().versions() for core in cores] == [("one", "one"), ("two", "two")]
    assert cores[0] is not cores[1]
    assert not isinstance(cores[0](), cores[1])
    assert "twin" not in sys.modules


def test_package_loaded_twice_has_two_sets_of_modules(packaged):
    first = packaged(library("one"))
    second = modpack.PackageImporter(first.filename)
    with second:
        assert first.id() != second.id()
        assert first.import_module("twin") is not second.import_module("twin")
        first.import_module("twin").version = "changed"
        assert second.import_module("twin.core").Core().versions() == ("one", "one")


def test_module_is_imported_once(packaged):
    importer = packaged(library("one"))
    core = importer.import_module("twin.core")
    full_name = f"{importer.id()}.twin.core"
    assert importer.import_module("twin").core is core
    assert importer.import_module(full_name) is core
    assert importer.import_module(".core", "twin") is core
    assert sys.modules[full_name] is core
    assert importlib.import_module(full_name) is core


def test_import_of_missing_module_raises(packaged):
    importer = packaged(library("one"))
    own = importer.id()
    for name in ("twin.absent", "absent", f"{own}.twin.absent", f"{own}.absent"):
        with pytest.raises(ModuleNotFoundError, match="absent"):
            importer.import_module(name)
    other = packaged(library("two"))
    other.import_module("twin")
    with pytest.raises(ModuleNotFoundError):
        importer.import_module(f"{other.id()}.twin")


ASKING = """
import torch_package_importer
import modpack

at_import = modpack.current_importer()
marks = (__torch_package__, __modpack__)

def current():
    return modpack.current_importer()

def ancestor():
    import torch_package_importer
    return torch_package_importer

def ancestor_by_function():
    import importlib
    return importlib.import_module("torch_package_importer")

class Asking:
    def method(self):
        return [modpack.current_importer() for _ in range(1)][0]
"""


def test_current_importer_returns_importer_of_caller(packaged):
    importer, other = packaged({"asking.py": ASKING}), packaged({"asking.py": ASKING + "\n"})
    for owner in (importer, other):
        asking = owner.import_module("asking")
        assert asking.torch_package_importer is asking.at_import is owner
        assert asking.marks == (True, owner)
        assert asking.current() is asking.ancestor() is asking.ancestor_by_function() is owner
        assert asking.Asking().method() is owner


def test_current_importer_works_in_another_thread(packaged):
    importer = packaged({"asking.py": ASKING})
    found = []
    current = importer.import_module("asking").current
    thread = threading.Thread(target=lambda: found.append(current()))
    thread.start()
    thread.join()
    assert found == [importer]


def test_current_importer_outside_package_raises(packaged):
    packaged({"asking.py": ASKING}).import_module("asking")
    with pytest.raises(ModpackError, match="current_importer"):
        modpack.current_importer()


def test_is_from_package_recognizes_packaged_objects(packaged):
    importer = packaged(
        {
            "things.py": """
            import enum, functools, json, sys, typing
            class Thing:
                class Inner: pass
                def method(self): pass
            class Color(enum.Enum):
                RED = 1
            class Row(typing.NamedTuple):
                x: int
            def function(): pass
            bound = Thing().method
            decorated = functools.lru_cache(function)
            generator = lambda: None
            """,
            "replaced.py": """
            import sys
            class Replaced: pass
            sys.modules[__name__] = Replaced()
            """,
        }
    )
    things = importer.import_module("things")
    packaged_things = [
        things,
        importer.import_module("replaced"),
        things.Thing,
        things.Thing(),
        things.Thing.Inner(),
        things.Thing.method,
        things.bound,
        things.Color.RED,
        things.Row(1),
        things.function,
        things.decorated,
        things.generator,
    ]
    assert [modpack.is_from_package(thing) for thing in packaged_things] == [True] * 12
    others = [1, "text", None, print, dict, sys, things.json, torch.nn.Linear(1, 1), pytest.fixture]
    others += [modpack.is_from_package, importer, object(), Exception("x"), things.enum.Enum]
    assert not any(map(modpack.is_from_package, others))


def test_close_removes_modules_from_sys_modules(packaged):
    importer = packaged(library("one"))
    core = importer.import_module("twin").Core()
    name = importer.id()
    assert any(module.startswith(name) for module in sys.modules)
    finders = len(sys.meta_path)
    importer.close()
    assert not any(module.startswith(name) for module in sys.modules)
    assert len(sys.meta_path) == finders - 1
    assert core.version == "one"
    importer.close()
    with pytest.raises(ImportError):
        importer.import_module("twin")
    with pytest.raises(ModpackError, match="closed"):
        importer.load_text("twin", "late.py")


def test_importer_is_a_context_manager(packaged):
    path = packaged(library("one")).filename
    with modpack.PackageImporter(path) as importer:
        importer.import_module("twin")
        name = importer.id()
    assert f"{name}.twin" not in sys.modules


def test_closed_packages_leave_no_modules_alive(packaged):
    path = packaged(library("one")).filename
    left = []
    for _ in range(3):
        with modpack.PackageImporter(path) as importer:
            left += [weakref.ref(importer), weakref.ref(importer.import_module("twin"))]
    del importer
    gc.collect()
    assert [reference() for reference in left] == [None] * 6


def test_failed_load_leaves_no_modules(packaged):
    path = packaged({"user.py": ""}).filename
    before = (set(sys.modules), list(sys.meta_path))
    with pytest.raises(ModpackError):
        modpack.load(path)
    assert (set(sys.modules), list(sys.meta_path)) == before


def test_process_namespace_uses_real_names(packaged):
    importer = packaged(library("one"), namespace="process")
    twin = importer.import_module("twin")
    assert sys.modules["twin"] is twin
    assert twin.Core.__module__ == "twin.core"
    assert twin.Core().versions() == ("one", "one")
    assert importlib.import_module("twin.late").version == "one"
    assert modpack.is_from_package(twin.Core)
    assert pickle.loads(pickle.dumps(twin.Core())).version == "one"
    importer.close()
    assert "twin" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("twin")


def test_pickle_from_process_namespace_loads_in_host(project, tmp_path, clean_python):
    folder = project({"fitting.py": "class Thing:\n    def __init__(self, n): self.n = n"})
    import fitting

    with modpack.PackageExporter(tmp_path / "f.pt") as exporter:
        exporter.intern("fitting")
        exporter.save_pickle("m", "thing.pkl", fitting.Thing(5))
    clean_python(
        """
        import modpack, pickle, torch
        importer = modpack.PackageImporter(folder / "f.pt", namespace="process")
        thing = importer.load_pickle("m", "thing.pkl")
        (folder / "thing.pkl").write_bytes(pickle.dumps(thing))
        torch.save(thing, folder / "thing.torch")
        assert pickle.loads(host_made).n == 7
        """,
        folder=tmp_path,
        host_made=pickle.dumps(fitting.Thing(7)),
    )
    assert pickle.loads((tmp_path / "thing.pkl").read_bytes()).n == 5
    assert type(torch.load(tmp_path / "thing.torch", weights_only=False)) is fitting.Thing
    assert folder


def test_lookup_by_literal_name_works_in_process_namespace(packaged):
    importer = packaged(
        {
            "literal/__init__.py": """
            import sys
            sys.modules["literal.alias"] = sys.modules["literal"]
            import literal.alias
            me = sys.modules["literal"]
            """
        },
        namespace="process",
        dependencies=False,
    )
    module = importer.import_module("literal")
    assert module.me is module
    importer.close()
    assert "literal.alias" not in sys.modules


def test_taken_module_names_raise_conflict(packaged, project):
    project(library("host"))
    import twin.core  # noqa: F401

    with pytest.raises(NamespaceConflictError, match=r"'twin', 'twin\.core'") as caught:
        packaged(library("one"), namespace="process")
    assert caught.value.modules == ("twin", "twin.core", "twin.late")[: len(caught.value.modules)]
    assert isinstance(caught.value, ImportError)


def test_loaded_parent_module_raises_conflict(packaged, project):
    project({"orphan/__init__.py": "", "orphan/other.py": ""})
    import orphan  # noqa: F401

    with pytest.raises(NamespaceConflictError, match="orphan"):
        packaged({"orphan/part.py": "value = 1"}, namespace="process", dependencies=False)


def test_second_package_with_same_names_raises_conflict(packaged):
    first = packaged(library("one"), namespace="process")
    with pytest.raises(NamespaceConflictError, match="twin"):
        modpack.PackageImporter(first.filename, namespace="process")
    private = packaged(library("two"))
    assert private.import_module("twin").version == "two"
    first.close()
    with modpack.PackageImporter(first.filename, namespace="process") as again:
        assert again.import_module("twin").version == "one"


def test_two_packages_with_different_names_share_a_process(packaged):
    first = packaged({"left/__init__.py": "value = 1"}, namespace="process")
    second = packaged({"right/__init__.py": "value = 2"}, namespace="process")
    assert first.import_module("left").value + second.import_module("right").value == 3
    with pytest.raises(ModuleNotFoundError):
        first.import_module("right")


def test_missing_submodule_in_process_namespace_raises(packaged):
    importer = packaged(library("one"), namespace="process")
    with pytest.raises(ModuleNotFoundError, match=r"twin\.absent.*Intern or extern") as caught:
        importer.import_module("twin.absent")
    assert caught.value.name == "twin.absent"
