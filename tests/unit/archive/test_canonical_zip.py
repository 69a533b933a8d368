"""Packages in format 2 have exactly the bytes that modpack writes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import pytest

from modpack.archive import layout, zip_format
from modpack.archive.base import BufferBytes
from modpack.archive.directory import parse_directory
from modpack.archive.manifest import find_damage, read_manifest
from modpack.archive.reader import find_header_problem, open_archive
from modpack.archive.zip_format import ZipEntry
from modpack.errors import ArchiveError, RepackedError
from tests.rezipped import rezipped

RECORDS = {
    ".data/0.storage": b"0" * 100,
    "pkg/a.py": b"x = 1\n" * 50,
    "pkg/é.txt": b"e" * 30,
    ".data/1.storage": b"",
}


@pytest.fixture
def content(write_package) -> bytes:
    return write_package(RECORDS, compress=True).read_bytes()


def damage(content: bytes) -> dict[str, str]:
    """Return the result of verifying all of a package.

    Raises:
        ArchiveError: it cannot be opened.
    """
    with open_archive(io.BytesIO(content)) as archive:
        manifest = read_manifest(archive)
        assert manifest is not None
        return find_damage(archive, manifest, archive.names())


def entries(content: bytes) -> Iterator[tuple[str, ZipEntry]]:
    directory = parse_directory(BufferBytes(content))
    return iter(directory.entries.items())


def inflated(payload: bytes) -> bytes | None:
    inflater = zlib.decompressobj(-15)
    try:
        content = inflater.decompress(payload)
    except zlib.error:
        return None
    return content if inflater.eof and not inflater.unused_data else None


def is_refused(content: bytes) -> bool:
    try:
        return bool(damage(content))
    except ArchiveError:
        return True


def test_written_archive_is_canonical(content):
    assert damage(content) == {}
    assert rezipped(content, {}) == content


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_rejected(content, bit):
    changed = bytearray(content)
    for place in range(len(content)):
        changed[place] ^= 1 << bit
        assert is_refused(bytes(changed)), place
        changed[place] ^= 1 << bit


def test_zip64_numbers_have_one_canonical_form(write_package, monkeypatch):
    monkeypatch.setattr(zip_format, "ZIP64_FROM", 60)
    content = write_package({"small": b"1", **RECORDS}).read_bytes()
    monkeypatch.undo()
    with pytest.raises(RepackedError, match="another program repacked the package"):
        damage(content)
    monkeypatch.setattr(zip_format, "ZIP64_FROM", 60)
    assert damage(content) == {}
    for place in range(len(content)):
        assert is_refused(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


@pytest.mark.parametrize("lines", [50, 300_000])
def test_find_damage_reports_recompressed_record(write_package, lines):
    source = b"".join(b"x = %d\n" % number for number in range(lines))
    content = write_package({"a.py": source}, compress=True).read_bytes()
    assert damage(content) == {}
    entry = dict(entries(content))["a.py"]
    payload = content[entry.end - entry.compressed : entry.end]
    for bit in range(8):  # the last ones say nothing
        other = payload[:-1] + bytes([payload[-1] ^ 1 << bit])
        changed = content[: entry.end - len(other)] + other + content[entry.end :]
        if inflated(other) == source:
            assert "the compressed data differs" in damage(changed)["a.py"]
        else:
            assert damage(changed)
    assert inflated(payload[:-1] + bytes([payload[-1] ^ 0x80])) == source


def test_read_rejects_noncanonical_header(content):
    entry = dict(entries(content))["pkg/a.py"]
    date = entry.offset + 10
    changed = content[:date] + b"\1" + content[date + 1 :]
    with open_archive(io.BytesIO(changed)) as archive:
        assert read_manifest(archive) is not None
        assert archive.read("pkg/é.txt") == RECORDS["pkg/é.txt"]
        with pytest.raises(RepackedError, match="the headers are not those that modpack writes"):
            archive.read("pkg/a.py")


def test_zipfile_headers_are_consistent_but_not_canonical(content):
    for name, entry in entries(content):
        header = zip_format.local_header(entry, align=layout.is_storage(name))
        assert content.startswith(header, entry.offset)
        assert find_header_problem(entry, header, b"") is None
        dated = header[:10] + b"\1" + header[11:]
        assert find_header_problem(entry, dated, b"") is None
        other = header[:14] + bytes([header[14] ^ 1]) + header[15:]
        assert (
            find_header_problem(entry, other, b"")
            == "the CRC-32 in the local header is not that in the directory"
        )


def test_find_damage_reports_missing_records(content):
    assert damage(rezipped(content, {"pkg/a.py": None})) == {"pkg/a.py": "the record is missing"}
    told = damage(rezipped(content, {"pkg/b.py": b""}))
    assert told == {"pkg/b.py": "the manifest does not list the record"}
    told = damage(rezipped(content, {"pkg/é.txt": b"f" * 30}))
    assert told == {"pkg/é.txt": "the SHA-256 does not match the manifest"}
