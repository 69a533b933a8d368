"""Batched hashing, deflating, and syncing, which do not change the result."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile

import pytest

from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.errors import TargetError
from modpack.writing.writer import ArchiveWriter

SIZES = [0, 1, 70_000, 3 << 20, 5, 1 << 20, (1 << 20) - 1, 64, 9 << 20, 300]


def content(number: int) -> bytearray:
    return bytearray(number.to_bytes(1, "little") * SIZES[number])


def write_all(target, after_each=lambda data: None):
    """Write small and large records alternately; some are deflated."""
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


@pytest.fixture(params=["waiting", "at once"])
def way(request, monkeypatch):
    """The ways to compute checksums."""
    if request.param == "at once":
        monkeypatch.setattr("modpack.writing.writer._MAX_PENDING_BYTES", 0)
    return request.param


def test_batched_records_keep_order_and_digests(tmp_path, way):
    write_all(tmp_path / "m.pt")
    check(tmp_path / "m.pt")


def test_buffer_and_file_have_same_bytes(tmp_path, way):
    buffer = io.BytesIO()
    write_all(buffer)
    write_all(tmp_path / "m.pt")
    assert buffer.getvalue() == (tmp_path / "m.pt").read_bytes()


def test_small_record_may_change_after_write(tmp_path, way):
    def change(data):
        data[:] = bytes(len(data))

    write_all(tmp_path / "m.pt", change)
    check(tmp_path / "m.pt")


def test_rollback_removes_pending_records(tmp_path, way):
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


def test_small_package_starts_no_threads(tmp_path, monkeypatch):
    def no_threads(*args, **kwargs):
        raise AssertionError("a thread was started")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", no_threads)
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        for number in range(20):
            writer.write(f"{number}.py", b"x = 1\n" * 999, compress=True)
        writer.commit()


def test_pending_records_are_bounded(tmp_path):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        for number in range(60):
            writer.write_storage(f".data/{number}.storage", memoryview(bytes(999_999)))
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_size > 30 << 20


def test_failing_disk_keeps_target(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    target = tmp_path / "m.pt"
    target.write_bytes(b"old")
    with pytest.raises(TargetError, match="Input/output error"):
        write_all(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
