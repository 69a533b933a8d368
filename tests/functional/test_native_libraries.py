"""Shared libraries next to a user's code, which code opens by path."""

from __future__ import annotations

import importlib
import shutil
import subprocess

import pytest

import modpack

NET = """
    import ctypes, os
    import torch
    HERE = os.path.dirname(__file__)
    torch.ops.load_library(os.path.join(HERE, "myop.so"))
    other = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "other.so"))
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + other.answer()
    """


@pytest.fixture
def net(project, tmp_path):
    """A model whose module opens two libraries that were built next to it."""
    compiler = shutil.which("gcc")
    assert compiler, "the test needs gcc"
    root = project({"natively/__init__.py": "", "natively/net.py": NET})
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    (root / "natively" / "lib").mkdir()
    for name in ("myop.so", "lib/other.so"):
        target = root / "natively" / name
        subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    return importlib.import_module("natively.net").Net()


def test_library_that_code_names_is_included_with_intern_native(net, clean_python, tmp_path):
    plan = modpack.save(net, tmp_path / "net.modpack", intern_native=True)
    files = {each.record: each.kind.value for each in plan.files}
    assert files == {"natively/myop.so": "native", "natively/lib/other.so": "native"}
    code = "import modpack\nprint(modpack.load(file)(1))"
    assert clean_python(code, file=tmp_path / "net.modpack").stdout == "43\n"


def test_library_that_code_names_is_reported_otherwise(net, tmp_path):
    with pytest.warns(modpack.ModpackWarning, match=r"myop\.so.*line 5.*intern_native=True"):
        plan = modpack.save(net, tmp_path / "net.modpack", self_test=False)
    notes = [each for each in plan.notes if each.code == "data-files-excluded"]
    assert ["myop.so" in notes[0].message, "other.so" in notes[1].message] == [True, True]
    assert plan.files == ()
