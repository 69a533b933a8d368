"""Work without a current folder, after it was deleted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from modpack import PackageExporter, PackageImporter
from modpack.core.process import current_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it keeps the current folder")


@pytest.fixture
def removed(tmp_path, monkeypatch):
    """A deleted current folder that is on the import path."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    folder.rmdir()


def test_current_folder_is_cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert current_folder() == Path.cwd()


def test_current_folder_of_deleted_folder_is_none(removed):
    assert current_folder() is None


def test_packages_work_without_current_folder(tmp_path, project, removed):
    root = project({"shop.py": "class Till:\n    rate = 3\n"})
    sys.path[:] = ["", str(root), *[each for each in sys.path if each not in ("", str(root))]]
    import shop  # type: ignore[import-not-found]

    target = tmp_path / "shop.modpack"
    with PackageExporter(target) as exporter:
        exporter.intern("shop")
        exporter.save_pickle("m", "m.pkl", {"till": shop.Till(), "weights": torch.ones(3)})
    loaded = PackageImporter(target).load_pickle("m", "m.pkl")
    assert loaded["till"].rate == 3
