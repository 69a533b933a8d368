"""Unchanged folders of the import path are listed once."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from modpack.discovery import import_path
from modpack.discovery.distributions import DistributionIndex

Settle = Callable[[], None]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the listed folders."""
    folders: list[str] = []
    original = os.listdir

    def listing(folder: str) -> list[str]:
        folders.append(folder)
        return original(folder)

    monkeypatch.setattr(import_path.os, "listdir", listing)
    return folders


def install(site: Path, name: str, version: str = "1.0") -> Path:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def long_ago(folder: Path) -> None:
    """Give a folder an old mtime."""
    past = time.time() - 3600
    os.utime(folder, (past, past))


def names(index: DistributionIndex) -> set[str]:
    return {Path(found.path).name for found in index.installations()}


def test_unchanged_folder_is_listed_once(site: Path, listed: list[str]) -> None:
    install(site, "one")
    long_ago(site)
    for _ in range(3):
        assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info"}
    assert listed == [str(site)]


def test_installation_and_removal_are_detected(site: Path) -> None:
    install(site, "one")
    long_ago(site)
    assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info"}
    two = install(site, "two")
    assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info", "two-1.0.dist-info"}
    found = DistributionIndex([str(site)]).named("two")
    assert found is not None and found.pin == "two==1.0"
    long_ago(site)
    assert DistributionIndex([str(site)]).named("two") is not None
    shutil.rmtree(two)
    assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info"}
    assert DistributionIndex([str(site)]).named("two") is None


def test_change_within_timestamp_resolution_is_detected(site: Path) -> None:
    now = time.time_ns()
    install(site, "one")
    os.utime(site, ns=(now, now))
    assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info"}
    install(site, "two")
    os.utime(site, ns=(now, now))  # like a coarse clock
    assert names(DistributionIndex([str(site)])) == {"one-1.0.dist-info", "two-1.0.dist-info"}


def test_renamed_folder_is_listed_again(site: Path, tmp_path: Path) -> None:
    install(site, "one")
    other = tmp_path / "other"
    other.mkdir()
    install(other, "two")
    assert names(DistributionIndex([str(site), str(other)])) == {
        "one-1.0.dist-info",
        "two-1.0.dist-info",
    }
    assert names(DistributionIndex([str(other)])) == {"two-1.0.dist-info"}
    assert names(DistributionIndex([str(tmp_path / "missing")])) == set()


def test_empty_path_entry_is_current_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "one")
    monkeypatch.chdir(site)
    assert names(DistributionIndex([""])) == {"one-1.0.dist-info"}
    monkeypatch.chdir(tmp_path)
    assert names(DistributionIndex([""])) == set()
    assert names(DistributionIndex([site.name])) == {"one-1.0.dist-info"}


def test_folder_added_to_path_is_searched(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "one")
    assert "one-1.0.dist-info" not in names(DistributionIndex())
    monkeypatch.syspath_prepend(site)
    assert "one-1.0.dist-info" in names(DistributionIndex())


def test_archive_has_no_distributions(tmp_path: Path) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("one-1.0.dist-info/METADATA", "Name: one\nVersion: 1.0\n")
    assert names(DistributionIndex([str(archive)])) == set()


def test_metadata_matches_importlib_metadata(site: Path) -> None:
    import importlib.metadata

    places = [install(site, "one"), site / "single-2.0.egg-info", site / "old-3.0.egg-info"]
    places[1].write_text("Metadata-Version: 1.0\nName: single\nVersion: 2.0\n")
    places[2].mkdir()
    (places[2] / "PKG-INFO").write_text("Name: old\nVersion: 3.0\n")
    (places[2] / "requires.txt").write_text("numpy\n[all]\ntorch\n")
    (places[0] / "RECORD").write_bytes("é,sha256=x,1\r\n".encode())
    expected = {
        str(each._path): each for each in importlib.metadata.distributions(path=[str(site)])
    }
    found = {each.path: each for each in DistributionIndex([str(site)]).installations()}
    assert found.keys() == expected.keys() == set(map(str, places))
    for place, installation in found.items():
        for name in ("METADATA", "RECORD", "requires.txt", "missing", ""):
            assert installation.text(name) == (expected[place].read_text(name) or "")
        assert installation.folder == Path(str(expected[place].locate_file("")))
    described = found[str(places[2])].distribution
    assert described is not None and described.requires == {"numpy"}
