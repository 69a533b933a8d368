"""A signature within an archive: everything else stays, byte for byte."""

import os
import zipfile

import pytest

from modpack.archive import append as appending
from modpack.archive import layout
from modpack.archive import zip_format as zipformat
from modpack.archive.append import write_with_signature
from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.errors import ArchiveError, TargetError

RECORDS = {
    ".data/0.storage": bytes(range(256)) * 9000,
    "pkg/net.py": b"x = 1\n" * 900,
    "pkg/é.txt": b"tea",
    ".data/1.storage": b"\1" * 100,
    "empty": b"",
}


@pytest.fixture
def package(write_package):
    return write_package(RECORDS, compress=True)


def sign(path, content, target=None):
    with open_archive(path) as archive:
        write_with_signature(archive, str(path), content, path if target is None else target)


def records_of(path):
    with open_archive(path) as archive:
        return {name: archive.read(name) for name in archive.names()}


def digest_of(path):
    with open_archive(path) as archive:
        return package_digest(archive)


def test_everything_before_the_signature_is_as_it_was(package):
    before, records, digest = package.read_bytes(), records_of(package), digest_of(package)
    end = before.index(zipformat.CENTRAL_SIGNATURE)
    sign(package, b"signed")
    assert package.read_bytes()[:end] == before[:end]
    assert records_of(package) == {**records, layout.SIGNATURE: b"signed"}
    assert digest_of(package) == digest


def test_tensors_stay_aligned(package):
    sign(package, b"x" * 333)
    with open_archive(package) as archive:
        for name in (".data/0.storage", ".data/1.storage"):
            assert archive.data_range(name).offset % zipformat.ALIGNMENT == 0


def test_another_signature_takes_the_place_of_the_first(package):
    sign(package, b"one")
    once = package.read_bytes()
    sign(package, b"another one")
    sign(package, b"one")
    assert package.read_bytes() == once


def test_other_readers_of_zips_read_it(package):
    sign(package, b"signed")
    with zipfile.ZipFile(package) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == f"archive/{layout.SIGNATURE}"
        assert archive.read(f"archive/{layout.SIGNATURE}") == b"signed"


def test_it_can_be_written_elsewhere(package, tmp_path):
    before = package.read_bytes()
    sign(package, b"signed", tmp_path / "other.pt")
    assert package.read_bytes() == before
    sign(package, b"signed")
    assert (tmp_path / "other.pt").read_bytes() == package.read_bytes()


def test_the_file_keeps_its_mode_and_links_to_it(package, tmp_path):
    package.chmod(0o640)
    link = tmp_path / "link.pt"
    link.symlink_to(package)
    sign(link, b"signed")
    assert link.is_symlink()
    assert package.stat().st_mode & 0o777 == 0o640
    assert records_of(package)[layout.SIGNATURE] == b"signed"


def test_large_archives_are_written_in_zip64_form(package, monkeypatch):
    """As if four kilobytes were four gigabytes."""
    monkeypatch.setattr(zipformat, "ZIP64_FROM", 4096)
    once = records_of(package)
    sign(package, b"x" * 5000)
    sign(package, b"y" * 5000)
    assert records_of(package) == {**once, layout.SIGNATURE: b"y" * 5000}


def test_a_signature_that_is_not_the_last_record_is_not_replaced(forge, record):
    path = forge(record(b"p/.data/modpack/signature.json", b"old"), record(b"p/more.txt", b"more"))
    before = path.read_bytes()
    with pytest.raises(ArchiveError, match="is not the last record in the form"):
        sign(path, b"new")
    assert path.read_bytes() == before


def test_a_signature_that_others_wrote_is_not_replaced(forge, record):
    """Its line in the directory is longer than modpack's: something would stay of it."""
    padded = record(b"p/.data/modpack/signature.json", b"old", extra=b"FB\1\0\0")
    with pytest.raises(ArchiveError, match="is not the last record in the form"):
        sign(forge(padded), b"new")


def test_what_would_not_be_one_package_any_more_is_not_written(forge, record):
    path = forge(record(b"p/.data/modpack/SIGNATURE.JSON", b"other"))
    before = path.read_bytes()
    with pytest.raises(ArchiveError):
        sign(path, b"new")
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_archive_that_was_replaced_meanwhile_is_not_overwritten(package, write_package):
    with open_archive(package) as archive:
        os.replace(write_package({"pkg/other.py": b""}, "other.pt"), package)
        newer = package.read_bytes()
        with pytest.raises(ArchiveError, match="replaced or changed after it was opened"):
            write_with_signature(archive, str(package), b"signed", package)
    assert package.read_bytes() == newer


def test_a_failure_leaves_the_archive_as_it_was(package, monkeypatch):
    before = package.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TargetError, match="No space left"):
        sign(package, b"signed")
    assert package.read_bytes() == before
    assert [each.name for each in package.parent.iterdir()] == [package.name]


def test_large_archives_are_copied_in_pieces(package, monkeypatch):
    records, before = records_of(package), package.read_bytes()
    sign(package, b"signed")
    at_once = package.read_bytes()
    package.write_bytes(before)
    monkeypatch.setattr(appending, "_PIECE_BYTES", 1000)
    sign(package, b"signed")
    assert package.read_bytes() == at_once
    assert records_of(package) == {**records, layout.SIGNATURE: b"signed"}


@pytest.mark.parametrize("copied", [None, 0, 700])
def test_archives_are_copied_where_the_system_does_not_help(package, monkeypatch, copied):
    before = package.read_bytes()
    sign(package, b"signed")
    helped = package.read_bytes()
    package.write_bytes(before)

    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    if copied is None:
        monkeypatch.delattr(os, "copy_file_range")
    elif not copied:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    else:  # some, and then no more
        given = iter([copied])
        real = os.copy_file_range
        monkeypatch.setattr(
            os,
            "copy_file_range",
            lambda a, b, _, at: real(a, b, n, at) if (n := next(given, 0)) else 0,
        )
    sign(package, b"signed")
    assert package.read_bytes() == helped


def test_a_signed_package_agrees_with_its_manifest(package):
    from modpack.archive.manifest import find_damage

    sign(package, b"signed")
    with open_archive(package) as archive:
        manifest = read_manifest(archive)
        assert layout.SIGNATURE not in manifest.records
        assert find_damage(archive, manifest, archive.names()) == {}


def test_no_manifest_can_list_the_signature(package, write_package, monkeypatch):
    with ArchiveWriter(package) as writer:
        with pytest.raises(ArchiveError, match="the name is reserved for signatures"):
            writer.write(layout.SIGNATURE, b"forged")
        writer.write(".data/version", b"6\n")
        monkeypatch.setattr(layout, "UNLISTED", ())
        monkeypatch.setattr(layout, "SIGNATURE", "elsewhere")
        writer.write(".data/modpack/signature.json", b"forged")
        writer.commit()
    monkeypatch.undo()
    with (
        open_archive(package) as archive,
        pytest.raises(ArchiveError, match="the manifest must not list"),
    ):
        read_manifest(archive)


def test_an_archive_without_a_manifest_has_no_signature(forge, record):
    path = forge(record(b"p/.data/modpack/signature.json", b"signed"))
    with open_archive(path) as archive, pytest.raises(ArchiveError, match="but no"):
        read_manifest(archive)
