"""Zips that are ambiguous, make false claims, or would be written outside their folder."""

import stat
import struct
import zlib

import pytest

from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, ModpackError, NotAPackageError


def deflated(content):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()


def test_forge_without_changes_opens(forge, record):
    text = b"hello " * 100
    path = forge(record(b"p/a", b"hello"), record(b"p/b", text, method=8, payload=deflated(text)))
    with open_archive(path) as archive:
        assert archive.read("a") == b"hello"
        assert archive.read("b") == text


@pytest.mark.parametrize("payload", [deflated(b"x" * 39), deflated(b"x" * 40) + b"hidden"])
def test_read_start_rejects_wrong_inflated_size(forge, record, payload):
    path = forge(record(b"p/a", b"x" * 40, method=8, payload=payload))
    with (
        open_archive(path) as archive,
        pytest.raises(ArchiveError, match="does not inflate to its stated size"),
    ):
        archive.read_start("a", 2)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"name": b"p/../../etc/passwd"}, "'..'"),
        ({"name": b"/p/a"}, "top-level folder"),
        ({"name": b"p//a"}, "absolute"),
        ({"name": b"p/a//b"}, "''"),
        ({"name": b"p/folder/"}, "''"),
        ({"name": b"p/a\\b"}, "backslash"),
        ({"name": b"p/C:/a"}, "drive"),
        ({"name": b"p/a\0.py"}, "control character"),
        ({"name": b"q/a"}, "top-level folder"),
        ({"name": b"loose"}, "top-level folder"),
        ({"name": b"p/.data/version"}, "another record has the same name"),
        ({"name": b"p/.DATA/Version"}, "the name collides"),
        ({"name": b"p/.data/version/a"}, "a folder of the name is also"),
        ({"name": b"p/\xc3\xa9"}, "not marked as UTF-8"),
        ({"name": b"p/\xff", "flags": 0x800}, "not valid UTF-8"),
        ({"name": b"p/a" + b"b" * 5000}, "too long"),
        ({"name": b"p/a", "flags": 1}, "encrypted"),
        ({"name": b"p/a", "flags": 0x40}, "flags"),
        ({"name": b"p/a", "method": 12}, "method"),
        ({"name": b"p/a", "needed": 63}, "requires zip version"),
        ({"name": b"p/a", "attributes": (stat.S_IFLNK | 0o777) << 16}, "symbolic link"),
        ({"name": b"p/a", "attributes": stat.S_IFIFO << 16}, "not a regular file"),
        ({"name": b"p/a", "attributes": 0x10}, "not a regular file"),
        ({"name": b"p/a", "comment": b"hi"}, "comment"),
        ({"name": b"p/a", "offset": 1}, "overlaps"),
        ({"name": b"p/a", "offset": 1 << 30}, "overlaps"),
        ({"name": b"p/a", "content": b"12345", "size": 4}, "two different sizes"),
        ({"name": b"p/a", "extra": b"\x01"}, "extra fields"),
        ({"name": b"p/a", "extra": struct.pack("<HH5sxx", 0x7075, 7, b"other")}, "extra fields"),
        ({"name": b"p/a", "size": 0xFFFFFFFF}, "extra fields"),
        ({"name": b"p/a", "method": 8, "payload": b"\3\0", "size": 1 << 29}, "would inflate"),
    ],
)
def test_open_rejects_invalid_directory(forge, record, forged, reason):
    path = forge(record(**forged))
    with pytest.raises(ArchiveError) as caught:
        open_archive(path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "local",
    [
        {"name": b"p/b"},
        {"crc": 7},
        {"method": 8},
        {"flags": 0x800},
        {"size": 4},
        {"compressed": 6},
        {"extra": b"\0\0\0\0"},
        {"extra": b"FB\x05\0Z"},
        {"size": 0xFFFFFFFF, "compressed": 0xFFFFFFFF},
    ],
)
def test_read_rejects_contradicting_headers(forge, record, local):
    with open_archive(forge(record(b"p/a", b"hello", local=local))) as archive:
        assert archive.read(".data/version") == b"6\n"
        with pytest.raises(ArchiveError, match="'a'"):
            archive.read("a")
        with pytest.raises(ArchiveError, match="'a'"):
            archive.data_range("a")


@pytest.mark.parametrize("extra", ["none", "wrong crc", "none behind flag"])
def test_read_rejects_contradicting_descriptor(forge, record, extra):
    right = struct.pack("<4sIII", b"PK\7\x08", zlib.crc32(b"hello"), 5, 5)
    zeros = {"crc": 0, "size": 0, "compressed": 0}
    good = record(b"p/a", b"hello", flags=8, local=zeros, descriptor=right)
    assert open_archive(forge(good)).read("a") == b"hello"
    bad = {
        "none": record(b"p/a", b"hello", flags=8, local=zeros),
        "wrong crc": record(b"p/a", b"hello", flags=8, local=zeros, descriptor=right[::-1]),
        "none behind flag": record(b"p/a", b"hello", descriptor=right),
    }[extra]
    with pytest.raises(ArchiveError, match=r"descriptor|extra bytes|next record"):
        open_archive(forge(bad)).read("a")


def test_hidden_bytes_are_rejected(forge, record):
    with pytest.raises(ArchiveError, match="before the first record"):
        open_archive(forge(record(b"p/a", b"hello"), before=b"#!/bin/sh\n"))
    with pytest.raises(ArchiveError, match="not end where the next record starts"):
        open_archive(forge(record(b"p/a", b"hello"), between=b"x" * 40)).read("a")
    with pytest.raises(ArchiveError, match="a comment or other data after the end record"):
        open_archive(forge(record(b"p/a", b"hello"), comment=b"hi"))


def test_open_reports_truncated_comment(forge, record):
    path = forge(record(b"p/a", b"hello"), comment=b"hello")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ArchiveError, match=r"a comment of 5 bytes, but .*\. Copy or download"):
        open_archive(path)


def test_open_reports_truncated_file(write_package):
    path = write_package({"a": b"hello"})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArchiveError, match="truncated"):
        open_archive(path)


def test_every_truncation_raises_modpack_error(write_package):
    path = write_package({"a": b"hello"})
    content = path.read_bytes()
    end = len(content)
    for length in (*range(0, end, 11), *range(end - 130, end)):
        path.write_bytes(content[:length])
        with pytest.raises(ModpackError):
            open_archive(path)


@pytest.mark.parametrize("position", [0, 4, 6, 8, 12, 16])
def test_open_rejects_forged_end_record(forge, record, position):
    path = forge(record(b"p/a", b"hello"))
    content = bytearray(path.read_bytes())
    content[len(content) - 22 + position] ^= 5
    path.write_bytes(content)
    with pytest.raises(ArchiveError):
        open_archive(path)


@pytest.mark.parametrize(
    "payload",
    [deflated(b"x" * 4001), deflated(b"x" * 3999), deflated(b"x" * 4000)[:-2], b"\xff" * 9],
)
def test_read_rejects_record_of_other_inflated_size(forge, record, payload):
    forged = record(b"p/a", b"x" * 4000, method=8, payload=payload)
    with pytest.raises(ArchiveError, match="inflate"):
        open_archive(forge(forged)).read("a")


def test_read_rejects_bytes_after_deflate_stream(forge, record):
    payload = deflated(b"x" * 4000) + b"hidden"
    with pytest.raises(ArchiveError, match="inflate"):
        open_archive(forge(record(b"p/a", b"x" * 4000, method=8, payload=payload))).read("a")


def test_read_stops_inflating_at_declared_size(forge, record):
    bomb = record(b"p/a", method=8, payload=deflated(bytes(50 << 20)), size=1000)
    sizes = []
    with pytest.raises(ArchiveError, match="inflate"):
        sizes.extend(map(len, open_archive(forge(bomb)).chunks("a")))
    assert sum(sizes) <= 1001


def test_read_detects_flipped_byte_by_crc(forge, record):
    archive = open_archive(forge(record(b"p/a", b"hello", crc=zlib.crc32(b"hellp"))))
    with pytest.raises(ArchiveError, match="CRC-32"):
        archive.read("a")


def test_version_in_subfolder_is_not_a_package(tmp_path, record):
    path = tmp_path / "m.pt"
    body, directory = record(b"p/x/version", b"1").local_bytes(), record(b"p/x/version", b"1")
    directory = directory.central_bytes(0)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)
    with pytest.raises(NotAPackageError, match="without a version record"):
        open_archive(path)


def sparse_torch_archive(path):
    """A torch archive with a sparse storage of over 4 GiB."""
    size = (1 << 32) + 8
    crc, zero = 0xE60914AE, struct.pack("<IIIHH", 0, 0, 0, 0, 0)[:12]

    def local(name, extra):
        start = b"PK\3\4\0\0\x08\x08" + bytes(6) + zero
        return start + struct.pack("<HH", len(name), len(extra)) + name + extra

    def central(name, crc, sizes, offset, wide):
        extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide)
        lengths = struct.pack("<IIIHH", crc, *sizes, len(name), len(extra))
        head = b"PK\1\2\0\0\0\0\x08\x08" + bytes(6)
        return head + lengths + bytes(10) + struct.pack("<I", offset) + name + extra

    first, second = b"big/.data/0.storage", b"big/.data/version"
    with path.open("wb") as file:
        file.write(local(first, struct.pack("<HHQQ", 1, 16, size, 0)))
        file.seek(size, 1)
        file.write(struct.pack("<4sIQQ", b"PK\7\x08", crc, size, size))
        late = file.tell()
        file.write(local(second, struct.pack("<HHQ", 1, 8, late)) + b"6\n")
        file.write(struct.pack("<4sIQQ", b"PK\7\x08", zlib.crc32(b"6\n"), 2, 2))
        start, full = file.tell(), 0xFFFFFFFF
        directory = central(first, crc, (full, full), 0, (size, size))
        directory += central(second, zlib.crc32(b"6\n"), (2, 2), full, (late,))
        wide_end = struct.pack(
            "<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, 0, 0, 2, 2, len(directory), start
        )
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1)
        end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 2, 2, len(directory), full, 0)
        file.write(directory + wide_end + locator + end)
    return size


def test_torch_archive_over_4_gib_is_read(tmp_path):
    size = sparse_torch_archive(tmp_path / "big.pt")
    with open_archive(tmp_path / "big.pt") as archive:
        assert archive.size(".data/0.storage") == size
        assert archive.data_range(".data/0.storage").length == size
        assert archive.data_range(".data/0.storage").offset == 30 + 19 + 20
        assert archive.read(".data/version") == b"6\n"
        assert archive.data_range(".data/version").offset > 1 << 32
