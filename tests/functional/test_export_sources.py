"""Saving sources by name, from files, and as text."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

import modpack
from modpack import Action, PackageExporter, PackageImporter, PackagingError


def written(fill) -> tuple[set[str], zipfile.ZipFile]:
    """Return the records without internal ones, and the archive."""
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        fill(exporter)
    archive = zipfile.ZipFile(buffer)
    names = {name.partition("/")[2] for name in archive.namelist()}
    return {n for n in names if not n.startswith(".data/") and n != "byteorder"}, archive


def test_file_is_saved_byte_for_byte_under_the_given_name(tmp_path: Path):
    source = b"# -*- coding: latin-1 -*-\r\nx = '\xe9'\r\n\tpass if 0 else None\n"[:-22]
    (tmp_path / "some file.py").write_bytes(source)
    names, archive = written(lambda e: e.save_source_file("a.b", tmp_path / "some file.py"))
    assert names == {"a/b.py"}
    assert archive.read("archive/a/b.py") == source


def test_init_file_is_saved_as_a_package(tmp_path: Path):
    (tmp_path / "__init__.py").write_text("")
    names, _ = written(lambda e: e.save_source_file("a.b", str(tmp_path / "__init__.py")))
    assert names == {"a/b/__init__.py"}


def test_folder_is_saved_with_everything_importable_in_it(tmp_path: Path):
    for name in (
        "__init__.py",
        "one.py",
        "deep/er/two.py",
        "deep/er/__init__.py",
        "data.yaml",
        ".ipynb_checkpoints/one-checkpoint.py",
        "backup.old.py",
        "__pycache__/one.cpython-311.pyc",
    ):
        file = tmp_path / "lib" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    names, _ = written(lambda e: e.save_source_file("renamed.lib", tmp_path / "lib"))
    assert names == {
        "renamed/lib/__init__.py",
        "renamed/lib/one.py",
        "renamed/lib/deep/er/__init__.py",
        "renamed/lib/deep/er/two.py",
    }


def test_modules_of_a_saved_folder_find_each_other(tmp_path: Path):
    (tmp_path / "__init__.py").write_text("from . import b, sub\nfrom .c import VALUE")
    (tmp_path / "b.py").write_text("import given_lib.c")
    (tmp_path / "c.py").write_text("VALUE = 3")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.py").write_text("from ..c import VALUE\nfrom . import e")
    (tmp_path / "sub" / "e.py").write_text("")
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_source_file("given_lib", tmp_path)
    assert not exporter.plan().notes
    buffer.seek(0)
    importer = PackageImporter(buffer)
    assert importer.import_module("given_lib").VALUE == 3
    assert importer.import_module("given_lib.sub.d").VALUE == 3


@pytest.mark.parametrize("rule", [None, "extern", "intern", "mock", "deny"])
def test_module_that_is_given_needs_no_parents(rule):
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        if rule is not None:
            getattr(exporter, rule)("**")
        exporter.save_source_string("made.up.place", "x = 3")
    buffer.seek(0)
    assert PackageImporter(buffer).import_module("made.up.place").x == 3
    assert exporter.plan().decisions["made.up"].why == "parent of interned 'made.up.place'"


def test_given_modules_and_implied_parents_import_each_other():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_source_string("made.tools", "x = 3")
        exporter.save_source_string("app", "import made, made.tools\nfrom made import tools as t")
    buffer.seek(0)
    app = PackageImporter(buffer).import_module("app")
    assert app.t.x == 3 and app.made.tools is app.t


def test_given_source_goes_before_the_one_on_disk(project):
    project({"twice_there.py": "import not_installed_here\nx = 'disk'"})
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.intern("**")
        exporter.save_source_string("user", "import twice_there")
        exporter.save_source_string("twice_there", "x = 'given'")
    buffer.seek(0)
    assert PackageImporter(buffer).import_module("twice_there").x == "given"


def test_later_given_source_replaces_earlier_imports():
    with PackageExporter(None) as exporter:
        exporter.save_source_string("twice_given", "import not_installed_here, json")
        exporter.save_source_string("twice_given", "import wave")
    assert exporter.plan().modules(Action.EXTERN) == ["wave"]


def test_compiled_module_can_be_replaced_by_a_given_source():
    with PackageExporter(None) as exporter:
        exporter.save_source_string("math", "pi = 3")
    assert exporter.interned_modules() == ["math"]


def test_coding_cookie_in_given_text_is_respected():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_source_string("latin", "# -*- coding: latin-1 -*-\nx = 'é'\n")
        exporter.save_source_string("plain", "x = 'é 你'\n")
        exporter.save_source_string("marked", "\ufeffx = 'é'\n")
    buffer.seek(0)
    importer = PackageImporter(buffer)
    assert importer.import_module("latin").x == "é"
    assert importer.import_module("plain").x == "é 你"
    assert importer.import_module("marked").x == "é"


def test_text_unencodable_by_its_cookie_raises_value_error():
    with pytest.raises(UnicodeEncodeError):
        PackageExporter(None).save_source_string("latin", "# coding: latin-1\nx = '你'\n")


def test_unknown_coding_is_that_modules_problem():
    with pytest.raises(PackagingError, match="unknown encoding"), PackageExporter(None) as exporter:
        exporter.save_source_string("strange", "# coding: no-such-thing\n")


@pytest.mark.parametrize("dependencies", [True, False])
def test_dependencies_are_followed_or_not(project, tmp_path: Path, dependencies):
    project(
        {"asks/__init__.py": "", "asks/more.py": "import answered", "answered.py": "import json"}
    )
    file = tmp_path / "loose.py"
    file.write_text("import answered")
    saves = {
        "module": lambda e: e.save_module("asks.more", dependencies),
        "file": lambda e: e.save_source_file("loose", file, dependencies=dependencies),
        "folder": lambda e: e.save_source_file("asks", tmp_path, dependencies),
        "text": lambda e: e.save_source_string("t", "import answered", dependencies=dependencies),
    }
    for save in saves.values():
        exporter = PackageExporter(None)
        exporter.intern("**")
        save(exporter)
        assert ("answered" in exporter.interned_modules()) == dependencies
        assert ("json" in exporter.externed_modules()) == dependencies


def test_saving_again_with_dependencies_follows_them(project):
    project({"asks_later.py": "import json"})
    exporter = PackageExporter(None)
    exporter.save_module("asks_later", dependencies=False)
    assert exporter.externed_modules() == []
    exporter.save_module("asks_later")
    assert exporter.externed_modules() == ["json"]


def test_saved_module_is_interned_despite_rules(project):
    project({"stubborn/__init__.py": "", "stubborn/part.py": ""})
    for rule in ("extern", "mock", "deny"):
        exporter = PackageExporter(None)
        getattr(exporter, rule)("stubborn.*")
        exporter.save_module("stubborn.part")
        plan = exporter.plan()
        assert plan.modules(Action.INTERN) == ["stubborn", "stubborn.part"]
        assert plan.decisions["stubborn.part"].why == "saved explicitly by name"
        assert not plan.problems


def test_parents_are_interned(project):
    project({"grand/__init__.py": "import json", "grand/mid/__init__.py": "", "grand/mid/c.py": ""})
    names, _ = written(lambda e: e.save_module("grand.mid.c"))
    assert names == {"grand/__init__.py", "grand/mid/__init__.py", "grand/mid/c.py"}


def test_folders_without_init_are_interned_as_folders(project):
    project({"openspace/__init__.py": "", "openspace/desk/lamp.py": "", "field/tree.py": ""})

    def fill(exporter: PackageExporter) -> None:
        exporter.intern(["openspace.**", "field.**"])
        exporter.save_source_string("seen", "import openspace.desk.lamp\nfrom field import tree")

    names, _ = written(fill)
    assert names == {"openspace/__init__.py", "openspace/desk/lamp.py", "field/tree.py", "seen.py"}


def test_namespace_package_may_span_folders(project):
    project({"spread/east.py": ""})
    project({"spread/west.py": ""})
    with PackageExporter(None) as exporter:
        exporter.intern("spread.*")
        exporter.save_source_string("seen", "from spread import east, west")
    assert exporter.interned_modules() == ["seen", "spread", "spread.east", "spread.west"]


def test_modules_in_a_zip_on_the_path_are_interned(tmp_path: Path, monkeypatch, clean_python):
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_lib/__init__.py", "from zipped_lib.part import x")
        file.writestr("zipped_lib/part.py", "x = 'from a zip: é'")
    monkeypatch.syspath_prepend(str(archive))
    target = tmp_path / "out.pt"
    with PackageExporter(target) as exporter:
        exporter.intern("zipped_lib.**")
        exporter.save_module("zipped_lib")
    assert exporter.interned_modules() == ["zipped_lib", "zipped_lib.part"]
    with PackageImporter(target) as importer:
        assert importer.import_module("zipped_lib").x == "from a zip: é"


def test_extended_package_path_is_followed_once_loaded(project):
    root = project(
        {
            "wide/__init__.py": """
                from pathlib import Path
                __path__.append(str(Path(__file__).parent.parent / "annex"))
            """,
            "annex/extra_room.py": "",
        }
    )
    import wide  # noqa: F401

    with PackageExporter(None) as exporter:
        exporter.intern("wide.**")
        exporter.save_source_string("seen", "import wide.extra_room")
    location = exporter.plan().decisions["wide.extra_room"].location
    assert location is not None and location.file == str(root / "annex" / "extra_room.py")


def test_attributes_precede_submodules(project):
    project(
        {
            "ambiguous/__init__.py": "from ambiguous.impl import thing\nother = 1",
            "ambiguous/impl.py": "thing = 3",
            "ambiguous/thing.py": "import not_installed_here",
            "ambiguous/real.py": "",
        }
    )
    with PackageExporter(None) as exporter:
        exporter.intern("ambiguous.**")
        exporter.save_source_string("seen", "from ambiguous import thing, other, real")
    assert exporter.interned_modules() == [
        "ambiguous",
        "ambiguous.impl",
        "ambiguous.real",
        "seen",
    ]


def test_star_import_includes_submodules_in_all(project):
    project(
        {
            "starry/__init__.py": "__all__ = ['sun', 'shine']\nshine = 1",
            "starry/sun.py": "",
            "starry/moon.py": "",
        }
    )
    with PackageExporter(None) as exporter:
        exporter.intern("starry.**")
        exporter.save_source_string("seen", "from starry import *")
    assert exporter.interned_modules() == ["seen", "starry", "starry.sun"]


def test_constant_dynamic_imports_are_dependencies(project):
    project({"dyn/__init__.py": "", "dyn/a.py": "", "dyn/b.py": "", "dyn/c.py": "", "typed.py": ""})
    code = """
from typing import TYPE_CHECKING
import importlib
if TYPE_CHECKING:
    import typed
importlib.import_module("dyn.a")
__import__("dyn.b")
importlib.import_module(".c", "dyn")
"""
    with PackageExporter(None) as exporter:
        exporter.intern("**")
        exporter.save_source_string("seen", code)
    assert exporter.interned_modules() == ["dyn", "dyn.a", "dyn.b", "dyn.c", "seen"]


def test_dynamic_import_is_reported_with_location(project):
    root = project({"unknowable.py": "import importlib\n\nm = importlib.import_module(input())\n"})
    exporter = PackageExporter(None)
    exporter.save_module("unknowable")
    (note,) = exporter.plan().notes
    assert note.location == f"{root}/unknowable.py:3"
    assert "importlib.import_module(input())" in note.message


@pytest.mark.parametrize("parts", ["moves", "moves.urllib"])
def test_modules_created_at_import_are_recreated(installed, project, tmp_path, clean_python, parts):
    """Create a module with an empty ``__path__`` and no file, as six creates ``six.moves``."""
    making = """\
        import sys, types
        for name in ("moves", "moves.urllib"):
            made = types.ModuleType(f"{__name__}.{name}")
            made.__path__, made.twice = [], lambda x: 2 * x
            sys.modules[made.__name__] = made
    """
    installed("five", {"five.py": making})
    text = f"""\
        import torch
        import five
        from five.{parts} import twice
        class Net(torch.nn.Module):
            def forward(self, x): return twice(x)
    """
    project({"net.py": text})
    import net

    modpack.save(net.Net(), tmp_path / "net.modpack", preset="hermetic")
    told = clean_python(
        "import modpack, torch; print(modpack.load(path)(torch.ones(1)).tolist())",
        path=tmp_path / "net.modpack",
    ).stdout
    assert told == "[2.0]\n"
