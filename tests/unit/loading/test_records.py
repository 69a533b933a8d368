"""Records of a package through the interface of torch's reader."""

from __future__ import annotations

import io

import pytest

from modpack.archive.reader import open_archive
from modpack.errors import RecordNotFoundError
from modpack.importer import ZipReader
from modpack.writing.writer import ArchiveWriter


@pytest.fixture
def reader():
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a/b.txt", b"hello")
        writer.commit()
    buffer.seek(0)
    return ZipReader(open_archive(buffer))


def test_records_are_listed_and_read(reader):
    assert reader.has_record("a/b.txt") and not reader.has_record("a")
    assert reader.get_record("a/b.txt") == b"hello"
    assert {"a/b.txt", ".data/version"} <= set(reader.get_all_records())


def test_missing_record_and_invalid_name_raise(reader):
    with pytest.raises(RecordNotFoundError, match=r"a/c\.txt.*a/b\.txt"):
        reader.get_record("a/c.txt")
    with pytest.raises(TypeError, match="name"):
        reader.get_record(b"a/b.txt")
    with pytest.raises(TypeError, match="path"):
        reader.has_record(None)
