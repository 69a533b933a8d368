"""The secret scan: which folders it searches, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from modpack.exporting import secret_guard
from modpack.exporting.secret_guard import SecretScan


def test_export_checks_each_folder_once_for_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "project" / "src" / "package"
    inner.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    asked: list[Path] = []
    is_project = secret_guard.is_project
    monkeypatch.setattr(
        secret_guard, "is_project", lambda f: asked.append(Path(f)) or is_project(f)
    )
    monkeypatch.setattr("sys.path", [str(inner), str(inner.parent), str(inner.parent.parent)])
    monkeypatch.chdir(inner)
    SecretScan(()).scan_resource("package/data.txt", b"")
    below = [folder for folder in asked if folder.is_relative_to(tmp_path)]
    assert sorted(below) == [inner.parent.parent, inner.parent, inner]
