"""Checksums match the written bytes, even if the memory changes meanwhile."""

from __future__ import annotations

import hashlib
import io
import threading

import pytest

from modpack.archive import layout
from modpack.archive.manifest import find_damage, read_manifest
from modpack.archive.reader import open_archive
from modpack.core.process import ThreadPool
from modpack.writing.writer import ArchiveWriter

SIZE = 9_000_001


@pytest.fixture
def changing():
    """Memory that another thread keeps changing, like training does."""
    memory, is_over = bytearray(SIZE), threading.Event()

    def change():
        number = 0
        while not is_over.is_set():
            number = (number + 1) % 251
            memory[:] = bytes([number]) * SIZE

    thread = threading.Thread(target=change)
    thread.start()
    yield memory
    is_over.set()
    thread.join()


@pytest.mark.parametrize("buffered", [True, False])
def test_large_record_may_change_while_written(changing, tmp_path, buffered):
    target = io.BytesIO() if buffered else tmp_path / "m.pt"
    with ArchiveWriter(target) as writer:
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        for number in range(6):
            writer.write_storage(f".data/{number}.storage", memoryview(changing))
        writer.commit()
    if isinstance(target, io.BytesIO):
        target.seek(0)
    with open_archive(target) as archive:
        assert find_damage(archive, read_manifest(archive), archive.names()) == {}


def written(target, content):
    with ArchiveWriter(target) as writer:
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        writer.write_storage(".data/0.storage", content)
        digest = writer.digest_of(".data/0.storage")
        writer.commit()
    with open_archive(target) as archive:
        assert find_damage(archive, read_manifest(archive), archive.names()) == {}
        assert archive.read(".data/0.storage") == content
    return digest


@pytest.mark.parametrize("size", [999, 1000, 1001, 12_345])
def test_large_record_has_checksums_of_all_pieces(monkeypatch, tmp_path, size):
    monkeypatch.setattr("modpack.writing.writer._LARGE_BYTES", 1)
    monkeypatch.setattr("modpack.writing.writer._PIECE_BYTES", 1000)
    content = memoryview(bytes(number % 251 for number in range(size)))
    assert written(tmp_path / "m.pt", content) == hashlib.sha256(content).hexdigest()


def test_writer_without_threads_hashes_inline(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    threads = ThreadPool(2)
    assert [threads.run(len, "abc").result() for _ in range(3)] == [3, 3, 3]
    with pytest.raises(ZeroDivisionError):
        threads.run(_divided, 0).result()
    threads.close()


def test_writer_with_one_thread_hashes_each_piece_once(monkeypatch, tmp_path):
    start, started = threading.Thread.start, []

    def refused(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr("modpack.writing.writer._LARGE_BYTES", 1)
    monkeypatch.setattr("modpack.writing.writer._PIECE_BYTES", 1000)
    content = memoryview(bytes(range(250)) * 40)
    assert written(tmp_path / "m.pt", content) == hashlib.sha256(content).hexdigest()
    assert started


def _divided(number):
    return 1 // number
