"""Embedding a signature keeps all other bytes of an archive."""

import os
import zipfile

import pytest

from modpack.archive import layout, zip_format
from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, TargetError
from modpack.writing import append
from modpack.writing.append import write_with_signature
from modpack.writing.writer import ArchiveWriter

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


def test_signing_keeps_all_bytes_before_signature(package):
    before, records, digest = package.read_bytes(), records_of(package), digest_of(package)
    end = before.index(zip_format.CENTRAL_SIGNATURE)
    sign(package, b"signed")
    assert package.read_bytes()[:end] == before[:end]
    assert records_of(package) == {**records, layout.SIGNATURE: b"signed"}
    assert digest_of(package) == digest


def test_signing_keeps_tensors_aligned(package):
    sign(package, b"x" * 333)
    with open_archive(package) as archive:
        for name in (".data/0.storage", ".data/1.storage"):
            assert archive.data_range(name).offset % zip_format.ALIGNMENT == 0


def test_signing_replaces_existing_signature(package):
    sign(package, b"one")
    once = package.read_bytes()
    sign(package, b"another one")
    sign(package, b"one")
    assert package.read_bytes() == once


def test_signed_archive_is_readable_by_zipfile(package):
    sign(package, b"signed")
    with zipfile.ZipFile(package) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == f"archive/{layout.SIGNATURE}"
        assert archive.read(f"archive/{layout.SIGNATURE}") == b"signed"


def test_signing_writes_to_other_target(package, tmp_path):
    before = package.read_bytes()
    sign(package, b"signed", tmp_path / "other.pt")
    assert package.read_bytes() == before
    sign(package, b"signed")
    assert (tmp_path / "other.pt").read_bytes() == package.read_bytes()


def test_signing_keeps_mode_and_symlink(package, tmp_path):
    package.chmod(0o640)
    link = tmp_path / "link.pt"
    link.symlink_to(package)
    sign(link, b"signed")
    assert link.is_symlink()
    assert package.stat().st_mode & 0o777 == 0o640
    assert records_of(package)[layout.SIGNATURE] == b"signed"


def test_signing_large_archive_writes_zip64(package, monkeypatch):
    """Zip64 structures, with a limit of four kilobytes instead of gigabytes."""
    monkeypatch.setattr(zip_format, "ZIP64_FROM", 4096)
    once = records_of(package)
    sign(package, b"x" * 5000)
    sign(package, b"y" * 5000)
    assert records_of(package) == {**once, layout.SIGNATURE: b"y" * 5000}


def test_signing_rejects_signature_that_is_not_last(forge, record):
    path = forge(record(b"p/.data/modpack/signature.json", b"old"), record(b"p/more.txt", b"more"))
    before = path.read_bytes()
    with pytest.raises(ArchiveError, match="is not the last record in the form"):
        sign(path, b"new")
    assert path.read_bytes() == before


def test_signing_rejects_noncanonical_signature_record(forge, record):
    """Its directory header is longer than modpack's, so a part of it would remain."""
    padded = record(b"p/.data/modpack/signature.json", b"old", extra=b"FB\1\0\0")
    with pytest.raises(ArchiveError, match="is not the last record in the form"):
        sign(forge(padded), b"new")


def test_signing_rejects_unreadable_result(forge, record):
    path = forge(record(b"p/.data/modpack/SIGNATURE.JSON", b"other"))
    before = path.read_bytes()
    with pytest.raises(ArchiveError):
        sign(path, b"new")
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_signing_rejects_archive_replaced_meanwhile(package, write_package):
    with open_archive(package) as archive:
        os.replace(write_package({"pkg/other.py": b""}, "other.pt"), package)
        newer = package.read_bytes()
        with pytest.raises(ArchiveError, match="replaced or changed after it was opened"):
            write_with_signature(archive, str(package), b"signed", package)
    assert package.read_bytes() == newer


def test_signing_failure_keeps_archive(package, monkeypatch):
    before = package.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TargetError, match="No space left"):
        sign(package, b"signed")
    assert package.read_bytes() == before
    assert [each.name for each in package.parent.iterdir()] == [package.name]


def test_signing_copies_large_archive_in_pieces(package, monkeypatch):
    records, before = records_of(package), package.read_bytes()
    sign(package, b"signed")
    at_once = package.read_bytes()
    package.write_bytes(before)
    monkeypatch.setattr(append, "_PIECE_BYTES", 1000)
    sign(package, b"signed")
    assert package.read_bytes() == at_once
    assert records_of(package) == {**records, layout.SIGNATURE: b"signed"}


@pytest.mark.parametrize("copied", [None, 0, 700])
def test_signing_copies_without_copy_file_range(package, monkeypatch, copied):
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


def test_signed_package_matches_manifest(package):
    from modpack.archive.manifest import find_damage

    sign(package, b"signed")
    with open_archive(package) as archive:
        manifest = read_manifest(archive)
        assert layout.SIGNATURE not in manifest.records
        assert find_damage(archive, manifest, archive.names()) == {}


def test_manifest_listing_signature_is_rejected(package, write_package, monkeypatch):
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


def test_archive_without_manifest_has_no_signature(forge, record):
    path = forge(record(b"p/.data/modpack/signature.json", b"signed"))
    with open_archive(path) as archive, pytest.raises(ArchiveError, match="but no"):
        read_manifest(archive)
