"""Packages that another zip program repacked."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path

import pytest

import modpack
from modpack.archive.reader import open_archive
from modpack.archive.zip_format import has_only_file_metadata
from modpack.errors import ArchiveError, RepackedError
from modpack.report.verify import verify_package

TIMES = struct.pack("<HHBI", 0x5455, 5, 3, 1_700_000_000)
OWNERS = struct.pack("<HHBBIBI", 0x7875, 11, 1, 4, 0, 4, 0)
UNICODE_PATH = struct.pack("<HH5sxx", 0x7075, 7, b"other")
REMEDY = "Unzip it and load the folder."


@pytest.fixture
def unzipped(tmp_path: Path) -> Path:
    """A folder that contains only the top-level folder of a package."""
    with modpack.PackageExporter(tmp_path / "tea.modpack") as exporter:
        exporter.save_text("shop", "about.txt", "a text")
    with zipfile.ZipFile(tmp_path / "tea.modpack") as archive:
        archive.extractall(tmp_path / "unzipped")
    return tmp_path / "unzipped"


def packed(folder: Path, target: Path, extra: bytes = b"") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix())
                entry.extra = extra
                archive.writestr(entry, file.read_bytes())
    return target


def test_rezipped_folder_is_rejected_as_repacked(unzipped: Path, tmp_path: Path) -> None:
    with pytest.raises(RepackedError, match="are not those that modpack writes") as told:
        modpack.load_weights(packed(unzipped, tmp_path / "again.modpack"))
    assert REMEDY in str(told.value)
    assert modpack.PackageImporter(unzipped).load_text("shop", "about.txt") == "a text"


def test_folder_entries_error_has_hint(unzipped: Path, tmp_path: Path) -> None:
    zipped = shutil.make_archive(str(tmp_path / "again"), "zip", unzipped)
    with pytest.raises(ArchiveError, match="'archive/': the record is a folder entry") as told:
        modpack.load_weights(zipped)
    assert REMEDY in str(told.value)


@pytest.mark.parametrize("extra", [TIMES, OWNERS, TIMES + OWNERS])
def test_file_metadata_error_has_hint(unzipped: Path, tmp_path: Path, extra: bytes) -> None:
    zipped = packed(unzipped, tmp_path / "again.modpack", extra)
    with pytest.raises(ArchiveError, match="file times or owners") as told:
        open_archive(zipped)
    assert REMEDY in str(told.value)


def test_missing_top_level_folder_error_has_hint(unzipped: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="zipped without its top-level folder") as told:
        open_archive(packed(unzipped / "archive", tmp_path / "again.modpack"))
    assert "Unzip it into a folder" in str(told.value)


@pytest.mark.parametrize("extra", [UNICODE_PATH, TIMES + UNICODE_PATH, TIMES[:-1], b"\1"])
def test_other_extra_fields_are_not_file_metadata(extra: bytes) -> None:
    assert not has_only_file_metadata(extra)


@pytest.mark.parametrize("level", [1, 9])
def test_verify_reports_a_repacked_package_once(tmp_path: Path, level: int) -> None:
    original, again = tmp_path / "tea.modpack", tmp_path / "again.modpack"
    with modpack.PackageExporter(original) as exporter:
        for number in range(20):
            text = "".join(f"x{each} = {each * number}\n" for each in range(300))
            exporter.save_source_string(f"shop{number}", text)
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(again, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry), compresslevel=level)
    (finding,) = verify_package(again).findings
    assert finding.code == "archive-repacked"
    assert "another program repacked the package" in finding.message
    with pytest.raises(RepackedError) as told:
        modpack.PackageImporter(again)
    assert str(told.value).count("another program") == 1
