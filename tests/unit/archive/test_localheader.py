"""The quick look at local headers accepts nothing that the thorough one refuses."""

from __future__ import annotations

import io
import zipfile

import pytest

from modpack.archive.bytesources import BufferBytes
from modpack.archive.directory import parse_directory
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.localheader import usual_length, why_inconsistent

RECORDS = {".data/0.storage": b"0" * 100, "pkg/a.py": b"x = 1\n" * 50, ".data/1.storage": b""}


@pytest.fixture
def content(write_package):
    return write_package(RECORDS, compress=False).read_bytes()


def entries(content):
    directory = parse_directory(BufferBytes(content), DEFAULT_LIMITS)
    found = [directory.get(name) for name in directory.names()]
    return [entry for entry in found if entry is not None]


def test_what_modpack_writes_is_usual(content):
    for entry in entries(content):
        header = content[entry.offset : entry.end]
        length = usual_length(entry, header)
        assert length == entry.end - entry.offset - entry.compressed
        assert why_inconsistent(entry, header[:length], b"") is None


def test_a_header_with_any_other_byte_is_left_to_the_thorough_look(content):
    for entry in entries(content):
        header = content[entry.offset : entry.end - entry.compressed]
        for place in range(len(header)):
            changed = bytearray(header)
            changed[place] ^= 1
            assert usual_length(entry, bytes(changed)) is None
        for end in range(len(header)):
            assert usual_length(entry, header[:end]) is None


def test_headers_of_others_are_left_to_the_thorough_look():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("p/.data/version", (2020, 1, 1, 0, 0, 0)), b"6\n")
    (entry,) = entries(buffer.getvalue())
    header = buffer.getvalue()[entry.offset : entry.end - entry.compressed]
    assert usual_length(entry, header) is None
    assert why_inconsistent(entry, header, b"") is None


def test_sizes_beyond_32_bits_are_left_to_the_thorough_look(content):
    entry = entries(content)[0]._replace(size=1 << 33, compressed=1 << 33)
    assert usual_length(entry, content[:200]) is None
