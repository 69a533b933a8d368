"""Comparison of archives with their manifests, with one or several threads."""

from __future__ import annotations

import pytest

from modpack.archive.manifest import (
    find_damage,
    find_unreadable,
    read_manifest,
    verify_records,
)
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError
from modpack.writing.writer import ArchiveWriter


@pytest.fixture
def package(tmp_path):
    """Two thousand small records and two that fill several batches."""
    with ArchiveWriter(tmp_path / "many.modpack") as writer:
        writer.write(".data/version", b"6\n")
        for number in range(2000):
            writer.write(f"pkg/{number}.txt", str(number).encode())
        for key in range(2):
            writer.write_storage(f".data/{key}.storage", memoryview(bytes((key,)) * (20 << 20)))
        writer.commit()
    return tmp_path / "many.modpack"


def damage(package, *records):
    content = bytearray(package.read_bytes())
    with open_archive(package) as archive:
        for record in records:
            content[archive.data_range(record).offset] ^= 1
    package.write_bytes(content)


@pytest.mark.parametrize("workers", [1, 3])
def test_find_damage_is_independent_of_workers(package, workers):
    records = ["pkg/1999.txt", ".data/1.storage", "pkg/0.txt"]
    damage(package, *records)
    with open_archive(package) as archive:
        found = find_damage(archive, read_manifest(archive), archive.names(), workers)
        assert set(found) == set(records)
        assert set(find_unreadable(archive, archive.names(), workers)) == set(records)


def test_find_damage_keeps_order_of_names(package):
    records = ["pkg/7.txt", ".data/1.storage", "pkg/3.txt"]
    damage(package, *records)
    with open_archive(package) as archive:
        assert list(find_damage(archive, read_manifest(archive), records, 3)) == records


def test_find_damage_reads_only_given_names(package):
    damage(package, ".data/1.storage")
    with open_archive(package) as archive:
        names = [".data/0.storage", "pkg/5.txt"]
        verify_records(archive, read_manifest(archive), names, 2)
        assert find_unreadable(archive, names, 2) == {}


def test_find_damage_without_crc_compares_digests(package):
    damage(package, ".data/1.storage")
    with open_archive(package) as archive:
        manifest, names = read_manifest(archive), [".data/1.storage"]
        with pytest.raises(ArchiveError, match="the CRC-32 does not match"):
            verify_records(archive, manifest, names)
        with pytest.raises(ArchiveError, match="the SHA-256 does not match the manifest"):
            verify_records(archive, manifest, names, with_crc=False)


def test_find_damage_checks_crc_only_if_asked(package):
    with open_archive(package) as archive:
        crc = archive.crc32(".data/1.storage").to_bytes(4, "little")
    wrong = bytes(byte ^ 1 for byte in crc)
    package.write_bytes(package.read_bytes().replace(crc, wrong))
    with open_archive(package) as archive:
        manifest, names = read_manifest(archive), archive.names()
        assert find_damage(archive, manifest, names, with_crc=False) == {}
        assert set(find_damage(archive, manifest, names)) == {".data/1.storage"}
