"""Limits on archives are checked against their size before anything is allocated."""

import struct
import zlib

import pytest

from modpack.archive import layout
from modpack.archive.layout import count_folders
from modpack.archive.reader import open_archive
from modpack.archive.records import read_externs, read_json
from modpack.errors import ArchiveError
from modpack.writing.writer import ArchiveWriter

PADDING = 0x4246


def deflated(content):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def padding(content):
    return struct.pack("<HH", PADDING, len(content)) + content


def test_open_rejects_too_large_total_inflated_size(forge, record):
    zeros = bytes(1 << 20)
    packed = deflated(zeros)
    records = [record(b"p/z%d" % n, zeros, method=8, payload=packed) for n in range(65)]
    assert open_archive(forge(*records[:64])).size("z63") == len(zeros)
    with pytest.raises(ArchiveError, match="the records together would inflate"):
        open_archive(forge(*records))


def test_writer_stores_records_over_ratio_limit(tmp_path):
    text = b"#" * ((1 << 20) - 1)
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write(".data/version", b"6\n")
        for number in range(70):
            writer.write(f"{number}.txt", text, compress=True)
        writer.commit()
    with open_archive(tmp_path / "m.pt") as archive:
        assert archive.read("69.txt") == text
        stored = [n for n in archive.names() if n.endswith(".txt") and archive.data_range(n)]
    assert len(stored) in range(1, 10)


@pytest.mark.parametrize("content", [b"", bytes(40), b"Z" * 127])
def test_is_padding_rejects_other_content(forge, record, content):
    path = forge(record(b"p/a", b"hello", local={"extra": padding(content)}))
    assert open_archive(path).read("a") == b"hello"


@pytest.mark.parametrize("content", [b"hidden", b"\0Z", b"Z\0Z", bytes(128), b"Z" * 60_000])
def test_read_rejects_data_in_padding(forge, record, content):
    path = forge(record(b"p/a", b"hello", local={"extra": padding(content)}))
    with pytest.raises(ArchiveError, match="the padding of the local header contains data"):
        open_archive(path).read("a")


def test_open_rejects_too_many_folders(forge, record):
    below = b"a/" * 60 + b"b"
    with pytest.raises(
        ArchiveError, match=r"the record names contain 61001 folders, and 50000 are allowed"
    ):
        open_archive(forge(*(record(b"p/%d/" % n + below) for n in range(1000))))
    assert len(open_archive(forge(*(record(b"p/%d/" % n + below) for n in range(800)))).names())


def test_count_folders_counts_many_folders_once():
    names = [f"top/{n % 50}/{n}/file" for n in range(30_000)]
    assert count_folders(names) == 1 + 50 + 30_000


def test_json_record_is_limited_by_archive_size(write_package):
    path = write_package({"small.json": b"[{}]", "large.json": b"[" + b"{}," * 800_000 + b"{}]"})
    with open_archive(path) as archive:
        assert read_json(archive, "small.json") == [{}]
        with pytest.raises(ValueError, match="bytes of memory"):
            read_json(archive, "large.json")


def test_read_externs_rejects_too_long_list(write_package):
    path = write_package({".data/extern_modules": b"json\nos\n"})
    assert read_externs(open_archive(path)) == ["json", "os"]
    path = write_package({".data/extern_modules": b"a\n" * 33_334})
    with pytest.raises(ArchiveError, match="33334 modules are listed, and 33333 are allowed"):
        read_externs(open_archive(path))


def test_read_externs_rejects_too_deep_path(write_package):
    deepest = "a" + ".a" * 63
    assert read_externs(open_archive(write_package({".data/extern_modules": deepest.encode()})))
    path = write_package({".data/extern_modules": f"os\n{deepest}.a\n".encode()})
    with pytest.raises(ArchiveError, match="is not a module path: it has 65 components"):
        read_externs(open_archive(path))


def test_limits_grow_with_archive_size():
    small, large = 10_000, 10**9
    for allowed in (layout.max_json_bytes, layout.max_modules, layout.max_folders):
        assert allowed(small) < allowed(large)
    assert layout.allows_total(large, 10**10)
    assert not layout.allows_total(small, 10**10)
