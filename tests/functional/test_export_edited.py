"""Warnings for modules whose source was edited after import."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from modpack import ModpackWarning, PackageExporter, save
from modpack.cli import cli
from modpack.diagnostics import Diagnostic, Severity

TILL = """
    import functools

    VAT = 0.19

    def price(net):
        return net * (1 + VAT)

    @functools.lru_cache
    def rounded(net):
        return round(price(net), 2)

    class Till:
        rate = 1

        def total(self, *nets):
            return sum(price(net) for net in nets)

        @property
        def name(self):
            return "till"

        class Drawer:
            def open(self):
                return "clink"
"""

Edit = Callable[[str, str], ModuleType]


@pytest.fixture
def edit(project, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Import a module of a shop, then replace a text in its file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    root = project({"edited_till.py": TILL})
    module = importlib.import_module("edited_till")

    def write(old: str, new: str) -> ModuleType:
        file: Path = root / "edited_till.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        return module

    return write


def notes(module: str = "edited_till") -> list[Diagnostic]:
    exporter = PackageExporter(None)
    exporter.intern(module)
    exporter.save_source_string("app", f"import {module}")
    plan = exporter.plan()
    assert not plan.problems, plan
    return [note for note in plan.notes if note.code == "source-modified"]


@pytest.mark.parametrize(
    ("old", "new", "name", "line"),
    [
        ("return net * (1", "return net / (1", "price", 6),
        ("round(price(net), 2)", "round(price(net), 1)", "rounded", 9),
        ("return sum(", "return -sum(", "Till.total", 16),
        ('return "till"', 'return "kasse"', "Till.name", 19),
        ('return "clink"', 'return "clonk"', "Till.Drawer.open", 24),
        ("def total(self, *nets)", "def total(self, *nets, tip=0)", "Till.total", 16),
    ],
)
def test_edited_function_is_reported_with_location(edit, old, new, name, line):
    module = edit(old, new)
    (note,) = notes()
    assert note.subject == "edited_till"
    assert f"{name} has changed" in note.message
    assert "was modified after this process imported it" in note.message
    assert note.location == f"{module.__file__}:{line}"
    assert note.severity is Severity.WARNING


def test_several_edited_functions_are_reported_together(edit):
    edit("return ", "return 0 or ")
    (note,) = notes()
    assert "price, rounded, Till.total and 2 more have changed" in note.message


def test_removed_function_is_reported(edit):
    module = edit("def open(self)", "def close(self)")
    (note,) = notes()
    assert "Till.Drawer.open has changed" in note.message
    assert note.location == f"{module.__file__}:1"


def test_self_test_reports_an_edited_constant(edit, tmp_path):
    module = edit("VAT = 0.19", "VAT = 0.077")
    assert notes() == []
    with pytest.warns(ModpackWarning, match=r"edited_till\.VAT"):
        save(module.Till(), tmp_path / "a.modpack", self_test=True)


def test_package_records_the_warning(edit, tmp_path):
    edit("return sum(", "return -sum(")
    package = tmp_path / "shop.pt"
    exporter = PackageExporter(package)
    exporter.intern("edited_till")
    exporter.save_source_string("app", "import edited_till")
    with pytest.warns(ModpackWarning, match="edited_till was modified after"):
        exporter.close()
    audited = CliRunner().invoke(cli, ["audit", "--fail-on", "source-modified", str(package)])
    assert audited.exit_code == 1
    assert "edited_till was modified after" in " ".join(audited.output.split())


def test_unchanged_file_has_no_warning(edit):
    edit("return sum(", "return sum(")
    assert notes() == []


def test_moved_lines_and_comments_have_no_warning(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    root = project({"edited_sum.py": "def add(a, b):\n    return a + b\n"})
    importlib.import_module("edited_sum")
    file = root / "edited_sum.py"
    file.write_text("# Sums.\n\n\n" + file.read_text().replace("a + b", "a + b  # of numbers"))
    assert notes("edited_sum") == []


def test_reloaded_module_has_no_warning(edit):
    module = edit("return sum(", "return -sum(")
    importlib.reload(module)
    assert notes() == []


def test_each_edit_warns_until_reload(edit):
    assert notes() == []
    for old, new in (("return sum(", "return -sum("), ("return -sum(", "return 2 * sum(")):
        module = edit(old, new)
        assert len(notes()) == 1
        importlib.reload(module)
        assert notes() == []


def test_replaced_method_is_not_an_edit(edit):
    module = edit("return sum(", "return sum(")
    module.Till.total = lambda self, *nets: 0
    assert notes() == []


def test_unparsable_file_is_reported(edit):
    edit("return sum(", "return (sum(")
    exporter = PackageExporter(None)
    exporter.intern("edited_till")
    exporter.save_source_string("app", "import edited_till")
    plan = exporter.plan()
    assert any(problem.subject == "edited_till" for problem in plan.problems)
    assert not any(note.code == "source-modified" for note in plan.notes)


def test_files_older_than_process_are_not_recompiled():
    script = "from modpack.exporting.edited_sources import _process_start; print(_process_start())"
    before = time.time()
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert before - 1 < float(run.stdout) < time.time()
