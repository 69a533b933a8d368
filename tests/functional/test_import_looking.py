"""Inspection of packages with an importer."""

from __future__ import annotations

import platform

import modpack

TREE = {
    "shop/__init__.py": "raise RuntimeError('imported')",
    "shop/till.py": "",
    "shop/data/words.txt": "alpha",
    "other.py": "",
}


def test_file_structure_prints_as_tree(packaged):
    files = packaged(TREE).file_structure()
    assert files.has_file("shop/till.py")
    assert files.has_file("shop/data")
    assert not files.has_file("shop/absent.py")
    assert not files.has_file("till.py")
    assert set(files.children) >= {"shop", "other.py"}
    assert files.children["shop"].is_dir
    assert not files.children["other.py"].is_dir
    assert list(files.children["shop"].children) == ["__init__.py", "data", "till.py"]
    shown = str(files)
    assert "└── words.txt" in shown
    assert shown.splitlines()[0] == packaged(TREE).filename.replace("package1", "package0")


def test_file_structure_filters_by_patterns(packaged):
    importer = packaged(TREE)
    chosen = importer.file_structure(include="shop/**", exclude="**/*.txt")
    assert str(chosen).count("\n") == 3
    assert chosen.has_file("shop/till.py")
    assert not chosen.has_file("other.py") and not chosen.has_file("shop/data/words.txt")
    several = importer.file_structure(include=["other.py", "shop/data/*"])
    assert several.has_file("other.py") and several.has_file("shop/data/words.txt")
    assert not several.has_file("shop/till.py")
    assert not importer.file_structure(include="nothing").children


def test_importer_returns_python_version_id_and_records(packaged):
    importer = packaged(TREE)
    assert importer.python_version() == platform.python_version()
    assert importer.id().startswith("modpack.packages.p")
    assert importer.zip_reader.has_record("shop/till.py")
    assert importer.zip_reader.has_record(".data/version")
    assert not importer.zip_reader.has_record("shop")
    assert importer.zip_reader.get_record("shop/data/words.txt") == b"alpha"
    assert "other.py" in importer.zip_reader.get_all_records()
    assert repr(importer) == f"PackageImporter({importer.filename!r})"


def test_modules_lists_loaded_modules(packaged):
    importer = packaged({"a/__init__.py": "", "a/b.py": "", "c.py": "import json"})
    assert importer.modules == {}
    module = importer.import_module("a.b")
    assert importer.modules == {"a": importer.import_module("a"), "a.b": module}


def test_opening_a_package_does_not_import_torch_or_run_code(packaged, clean_python):
    path = packaged(TREE).filename
    clean_python(
        """
        import sys, modpack
        with modpack.PackageImporter(path) as importer:
            importer.load_text("shop.data", "words.txt")
            importer.get_source("shop")
            print(importer.file_structure())
        assert "torch" not in sys.modules
        """,
        path=path,
    )


def test_package_without_tensors_runs_without_torch(packaged, clean_python):
    light = "def f():\n    import lamp\n    return lamp.on"
    path = packaged({"light.py": light, "lamp.py": "on = 1"}).filename
    clean_python(
        """
        import sys, modpack
        assert modpack.PackageImporter(path).import_module("light").f() == 1
        assert "torch" not in sys.modules
        """,
        path=path,
    )


def test_package_importer_is_an_importer(packaged):
    importer = packaged(TREE)
    assert isinstance(importer, modpack.Importer)
    ordered = modpack.OrderedImporter(importer, modpack.sys_importer)
    assert ordered.import_module("other") is importer.import_module("other")
    assert ordered.import_module("pytest").__name__ == "pytest"
