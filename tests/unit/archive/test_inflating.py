"""Small deflated records are inflated once in a process."""

from __future__ import annotations

import zlib

import pytest

from modpack.archive import base as inflating
from modpack.archive.base import REMEMBERED, inflated
from modpack.archive.manifest import find_damage, read_manifest
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError

TEXT = b"the same text in one package after the other\n" * 9


@pytest.fixture
def inflations(monkeypatch):
    """The inflaters that are made, from an empty memory on."""
    made = []
    real = zlib.decompressobj

    def counting(*arguments):
        made.append(arguments)
        return real(*arguments)

    inflated.cache_clear()
    monkeypatch.setattr(zlib, "decompressobj", counting)
    return made


def deflated(content):
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def test_the_same_text_is_inflated_once_in_all_packages(write_package, inflations):
    for name in ("one.pt", "other.pt"):
        with open_archive(write_package({"a.txt": TEXT}, name, compress=True)) as archive:
            assert archive.whole("a.txt").content == TEXT
    assert len(inflations) == 1


def test_what_is_known_has_its_checksums(write_package):
    payload = deflated(TEXT)
    known = inflated(payload, len(TEXT))
    assert (known.content, known.crc) == (TEXT, zlib.crc32(TEXT))
    with open_archive(write_package({"a.txt": TEXT}, compress=True)) as archive:
        assert archive.whole("a.txt").sha256 == known.sha256


@pytest.mark.parametrize(
    "payload, size",
    [
        (deflated(TEXT)[:-1], len(TEXT)),
        (deflated(TEXT) + b"x", len(TEXT)),
        (deflated(TEXT), len(TEXT) - 1),
        (deflated(TEXT), len(TEXT) + 1),
        (b"\xff" * 20, 5),
    ],
)
def test_what_is_not_as_stated_is_not_known(payload, size):
    assert inflated(payload, size) is None


def test_a_bomb_is_not_inflated_beyond_what_it_states(monkeypatch):
    given = []

    class Inflater:
        eof, unused_data = False, b""

        def decompress(self, payload, most):
            given.append(most)
            return bytes(most)

    monkeypatch.setattr(inflating.zlib, "decompressobj", lambda bits: Inflater())
    assert inflated(b"a bomb that nobody has met", 10) is None
    assert given == [11]


def test_a_known_text_under_another_checksum_is_damaged(write_package):
    path = write_package({"a.txt": TEXT}, compress=True)
    with open_archive(path) as archive:
        assert archive.whole("a.txt").content == TEXT
    crc = zlib.crc32(TEXT).to_bytes(4, "little")
    assert path.read_bytes().count(crc) == 2
    path.write_bytes(path.read_bytes().replace(crc, b"abcd"))
    with open_archive(path) as archive:
        for read in (archive.whole, archive.read):
            with pytest.raises(ArchiveError, match="crc32"):
                read("a.txt")
        assert "crc32" in find_damage(archive, read_manifest(archive), ["a.txt"])["a.txt"]


def test_of_packages_with_many_records_nothing_is_remembered(write_package, inflations):
    records = {f"{number}.txt": TEXT for number in range(REMEMBERED + 1)}
    with open_archive(write_package(records, compress=True)) as archive:
        assert archive.whole("0.txt").content == archive.whole("1.txt").content == TEXT
    assert len(inflations) == 2
