"""Repeated exports in one process after distributions or sources have changed."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from modpack import PackageExporter, PackagingError
from modpack.archive.reader import open_archive

USER = "import againtea\nimport againcake\n"


def settle(site: Path) -> None:
    """Set old modification times, as after an installation long ago."""
    past = time.time() - 3600
    for place in (*site.glob("*.dist-info"), site):
        os.utime(place, (past, past))


@pytest.fixture
def export(tmp_path):
    """Export code that needs two distributions, and return the recorded versions."""

    def write(policy: str = "pinned") -> Mapping[str, str]:
        path = tmp_path / "again.pt"
        with PackageExporter(path) as exporter:
            exporter.use_preset(policy)
            exporter.extern(["againtea", "againcake"])
            exporter.save_source_string("againuser", USER)
        with open_archive(path) as archive:
            record = json.loads(archive.read(".data/modpack/environment.json"))
        return {name: found["version"] for name, found in record["installed"].items()}

    return write


def test_export_notices_changed_distributions(installed, export):
    site = installed("again-tea", {"againtea.py": ""}, version="1.0")
    settle(site)
    before = export()
    assert before["again-tea"] == "1.0" and "again-cake" not in before
    installed("again-cake", {"againcake.py": ""}, version="3.0")
    assert export()["again-cake"] == "3.0"

    settle(site)
    assert export()["again-tea"] == "1.0"
    shutil.rmtree(site / "again_tea-1.0.dist-info")
    installed("again-tea", {"againtea.py": ""}, version="1.1")
    assert export()["again-tea"] == "1.1"

    settle(site)
    assert export().keys() >= {"again-tea", "again-cake"}
    shutil.rmtree(site / "again_cake-3.0.dist-info")
    (site / "againcake.py").unlink()
    importlib.invalidate_caches()
    assert "again-cake" not in export()


def test_export_records_new_requirements(installed, export):
    site = installed("again-tea", {"againtea.py": ""}, version="1.0")
    installed("again-water", {"againwater.py": ""}, version="7.0")
    settle(site)
    assert "again-water" not in export()
    metadata = site / "again_tea-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: again-water>=5\n")
    assert export()["again-water"] == "7.0"


def test_export_contains_current_source(project, tmp_path):
    folder = project({"againmine.py": "VALUE = 1\n"})
    found = []
    for text in ("VALUE = 1\n", "VALUE = 2\n", "VALUE = 3\n"):
        (folder / "againmine.py").write_text(text)
        with PackageExporter(tmp_path / "mine.pt") as exporter:
            exporter.intern("againmine")
            exporter.save_module("againmine")
        with open_archive(tmp_path / "mine.pt") as archive:
            found.append(archive.read("againmine.py").decode())
    assert found == ["VALUE = 1\n", "VALUE = 2\n", "VALUE = 3\n"]


def test_export_finds_new_secret(project, tmp_path, monkeypatch):
    folder = project({"againmine.py": "KEY = 'Tr0ub4dor&3xyz'\n"})
    monkeypatch.chdir(folder)

    def export_it() -> None:
        with PackageExporter(tmp_path / "mine.pt") as exporter:
            exporter.save_module("againmine")

    export_it()
    (folder / ".env").write_text("DB_PASSWORD='Tr0ub4dor&3xyz'\n")
    with pytest.raises(PackagingError, match="DB_PASSWORD"):
        export_it()
    (folder / ".env").unlink()
    export_it()
