"""Checksums, deflating and syncing happen beside the writing: the result does not tell."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile

import pytest

from modpack.archive import manifest as digests
from modpack.archive import target as syncing
from modpack.archive import writer as body
from modpack.archive import writer as preparing
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.errors import TargetError

SIZES = [0, 1, 70_000, 3 << 20, 5, 1 << 20, (1 << 20) - 1, 64, 9 << 20, 300]


def content(number: int) -> bytearray:
    return bytearray(number.to_bytes(1, "little") * SIZES[number])


def write_all(target, after_each=lambda data: None):
    """Write small and large records by turns; some are deflated."""
    with ArchiveWriter(target) as writer:
        writer.write(".data/version", b"6\n")
        for number in range(len(SIZES)):
            data = content(number)
            writer.write_storage(f".data/{number}.storage", memoryview(data))
            writer.write(f"pkg/{number}.py", bytes(data[:99_999]), compress=True)
            after_each(data)
        assert writer.digest_of(".data/3.storage") == hashlib.sha256(content(3)).hexdigest()
        writer.commit()


def check(target):
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    with open_archive(target) as archive:
        verify_records(archive, read_manifest(archive), archive.names())
        for number in range(len(SIZES)):
            assert archive.read(f".data/{number}.storage") == content(number)
    assert [name for name in names if "storage" in name or ".py" in name] == [
        f"archive/{name}"
        for n in range(len(SIZES))
        for name in (f".data/{n}.storage", f"pkg/{n}.py")
    ]


@pytest.fixture(params=["read back", "from memory", "unreadable", "at once", "by a process"])
def way(request, monkeypatch):
    """The ways in which checksums of records come about."""
    if request.param == "from memory":
        monkeypatch.setattr(body, "_HUGE", 1 << 20)
    elif request.param == "unreadable":
        monkeypatch.delattr(os, "preadv")
    elif request.param == "at once":
        monkeypatch.setattr(preparing, "_MOST_WAITING", 0)
    elif request.param == "by a process":
        monkeypatch.setattr(preparing, "_WORTH_A_HELPER", 1)
    return request.param


def test_all_records_are_there_in_order_with_their_digests(tmp_path, way):
    write_all(tmp_path / "m.pt")
    check(tmp_path / "m.pt")


def test_a_buffer_gets_the_very_bytes_of_a_file(tmp_path, way):
    buffer = io.BytesIO()
    write_all(buffer)
    write_all(tmp_path / "m.pt")
    assert buffer.getvalue() == (tmp_path / "m.pt").read_bytes()


def test_memory_may_change_as_soon_as_it_is_written(tmp_path, way):
    def change(data):
        data[:] = bytes(len(data))

    write_all(tmp_path / "m.pt", change)
    check(tmp_path / "m.pt")


def test_what_is_rolled_back_while_its_checksums_are_pending_is_forgotten(tmp_path, way):
    plain = tmp_path / "plain.pt"
    with ArchiveWriter(plain) as writer:
        writer.write_storage(".data/0.storage", memoryview(content(3)))
        writer.write("b.txt", b"two")
        writer.commit()
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write_storage(".data/0.storage", memoryview(content(3)))
        before = writer.checkpoint()
        for number in range(len(SIZES)):
            writer.write_storage(f".data/9{number}.storage", memoryview(content(number)))
        writer.rollback(before)
        writer.write("b.txt", b"two")
        writer.commit()
    assert (tmp_path / "m.pt").read_bytes() == plain.read_bytes()


def test_a_small_package_starts_no_threads(tmp_path, monkeypatch):
    def no_threads(*args, **kwargs):
        raise AssertionError("a thread was started")

    monkeypatch.setattr(digests, "ThreadPoolExecutor", no_threads)
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        for number in range(20):
            writer.write(f"{number}.py", b"x = 1\n" * 999, compress=True)
        writer.commit()


def test_not_more_than_some_megabytes_wait(tmp_path):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        for number in range(60):
            writer.write_storage(f".data/{number}.storage", memoryview(bytes(999_999)))
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_size > 30 << 20


@pytest.fixture
def begun(monkeypatch):
    """The parts of a file with which the disk was asked to begin: where, and how many bytes."""
    parts = []
    monkeypatch.setattr(syncing, "_begin_writing", lambda: lambda *part: parts.append(part[1:]))
    return parts


def test_the_disk_begins_with_a_large_file_while_it_is_written(tmp_path, begun):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        for _ in range(3):
            writer.write_storage(f".data/{len(begun)}.storage", memoryview(bytes(20 << 20)))
        writer.commit()
    ends = [0, *(start + size for start, size in begun)]
    assert ends[:-1] == [start for start, _ in begun]
    assert len(begun) == 3


def test_the_disk_begins_with_a_huge_tensor_while_it_is_written(tmp_path, begun, monkeypatch):
    monkeypatch.setattr(body, "_HUGE", 1 << 20)
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write_storage(".data/0.storage", memoryview(bytes(50 << 20)))
        writer.commit()
    assert [size >> 20 for _, size in begun] == [16, 16, 16, 2]


def test_the_disk_begins_with_a_megabyte_before_other_work_is_done(tmp_path, begun):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write_storage(".data/0.storage", memoryview(bytes(300 << 10)))
        for _ in range(2):
            writer.checkpoint()
        first = os.stat(next(tmp_path.iterdir())).st_size
        writer.write("small", b"1")
        writer.checkpoint()
        writer.write_storage(".data/1.storage", memoryview(bytes(300 << 10)))
        writer.checkpoint()
        writer.commit()
    (start, size), (then, more) = begun
    assert (start, size, then) == (0, first, first)
    assert more > 300 << 10


def test_the_disk_begins_again_with_what_was_cut_off(tmp_path, begun):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        before = writer.checkpoint()
        for _ in range(2):
            writer.write_storage(".data/0.storage", memoryview(bytes(300 << 10)))
            after = writer.checkpoint()
            writer.rollback(before)
            writer.checkpoint()
    assert after.extent is not None
    assert begun == [(0, after.extent.position)] * 2


def test_a_small_package_is_written_at_once(tmp_path, begun):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write_storage(".data/0.storage", memoryview(bytes(200 << 10)))
        writer.checkpoint()
        writer.commit()
    assert begun == []


@pytest.mark.skipif(sys.platform != "linux", reason="there is no sync_file_range")
def test_the_system_begins_to_write_what_it_is_asked_to(tmp_path):
    with open(tmp_path / "f", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        assert syncing._begin_writing()(file.fileno(), 0, 1 << 20) == 0


@pytest.mark.parametrize("failure", [AttributeError, OSError, TypeError])
def test_a_system_that_cannot_be_asked_writes_at_the_end(tmp_path, monkeypatch, failure):
    def refuse(name):
        raise failure

    monkeypatch.setattr("ctypes.CDLL", refuse)
    syncing._begin_writing.cache_clear()
    try:
        write_all(tmp_path / "m.pt")
    finally:
        syncing._begin_writing.cache_clear()
    check(tmp_path / "m.pt")


def test_a_disk_that_fails_leaves_the_target_as_it_was(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    target = tmp_path / "m.pt"
    target.write_bytes(b"old")
    with pytest.raises(TargetError, match="Input/output error"):
        write_all(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_somebody_cuts_meanwhile_is_never_published(tmp_path, monkeypatch):
    target = tmp_path / "m.pt"
    digest = digests._digest_of_written

    def cut_first(place):
        os.truncate(next(each for each in tmp_path.iterdir() if each != target), 0)
        return digest(place)

    monkeypatch.setattr(digests, "_digest_of_written", cut_first)
    target.write_bytes(b"old")
    with pytest.raises(TargetError, match="not there any more"):
        write_all(target)
    assert target.read_bytes() == b"old"


def test_the_same_source_is_deflated_once_for_many_archives(monkeypatch):
    source = b"def greet():\n    return 'hello'\n" * 40
    deflated: list[bytes] = []
    original = preparing._deflated
    monkeypatch.setattr(
        preparing, "_deflated", lambda content: deflated.append(content) or original(content)
    )
    preparing._remembered.cache_clear()
    written = []
    for _ in range(3):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer) as writer:
            writer.write("pkg/greeting.py", source, compress=True)
            writer.write("pkg/greeting.txt", source)
            writer.commit()
        written.append(buffer.getvalue())
    assert deflated.count(source) == 1
    assert written[0] == written[1] == written[2]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        methods = [each.compress_type for each in archive.infolist()[:2]]
        assert methods == [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]


def test_large_sources_are_not_remembered():
    preparing._remembered.cache_clear()
    with ArchiveWriter(io.BytesIO()) as writer:
        writer.write("pkg/large.py", b"x = 1\n" * 10_000, compress=True)
        writer.checkpoint()
    assert preparing._remembered.cache_info().currsize == 0
