"""Packages of pure data, which nothing refers to after they are loaded."""

from __future__ import annotations

import io
import sys

import pytest
import torch

import modpack
from tests.warm_python import run_python

SCRIPT = """
import modpack

def outer():
    def late(x):
        from latehelp import FACTOR
        return x * FACTOR
    return late

modpack.save({"scale": outer()}, "late.modpack", intern="latehelp")
"""


@pytest.fixture
def package(tmp_path):
    modpack.save({"weight": torch.arange(4.0), "step": 7}, tmp_path / "data.modpack")
    return tmp_path / "data.modpack"


def test_loading_data_leaves_no_module_and_no_open_file(package, clean_python):
    clean_python(
        """
        import resource, sys
        import torch, modpack

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = [modpack.load(folder / "data.modpack")]
        before = set(sys.modules), len(sys.meta_path)
        kept += [modpack.load(folder / "data.modpack") for _ in range(600)]
        assert (set(sys.modules), len(sys.meta_path)) == before
        assert all(each["weight"].tolist() == [0, 1, 2, 3] for each in kept)
        """,
        folder=package.parent,
    )


def test_loaded_data_is_usable_and_private(package):
    loaded = modpack.load(package)
    loaded["weight"] += 1
    assert loaded["weight"].tolist() == [1, 2, 3, 4]
    assert modpack.load(package)["weight"].tolist() == [0, 1, 2, 3]
    from_buffer = modpack.load(io.BytesIO(package.read_bytes()))
    assert from_buffer["weight"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_open", [False, True])
def test_loading_data_keeps_the_namespace_of_other_importers(package, is_open):
    importer = modpack.PackageImporter(package) if is_open else None
    modpack.load(package)
    if importer is not None:
        assert importer.id() in sys.modules
        importer.close()


def test_package_of_a_function_in_data_stays_open(tmp_path):
    (tmp_path / "latehelp.py").write_text("FACTOR = 3")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_python("script.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert modpack.load(tmp_path / "late.modpack")["scale"](4) == 12


def test_package_of_a_model_stays_open(tmp_path):
    modpack.save(torch.nn.Linear(2, 2), tmp_path / "linear.modpack")
    model = modpack.load(tmp_path / "linear.modpack")
    importer = modpack.importer_of(model)
    assert importer is not None and importer.id() in sys.modules
    importer.close()


def test_package_of_an_object_with_packaged_code_stays_open(tmp_path, project):
    files = {"lazydata/__init__.py": "", "lazydata/later.py": "VALUE = 3"}
    code = "class Box:\n    def value(self):\n        from lazydata import later\n"
    project({**files, "lazydata/box.py": f"{code}        return later.VALUE\n"})
    from lazydata.box import Box

    modpack.save({"box": Box()}, tmp_path / "box.modpack", intern="lazydata.**")
    assert modpack.load(tmp_path / "box.modpack")["box"].value() == 3
