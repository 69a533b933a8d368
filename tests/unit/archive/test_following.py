"""Checksums are of the bytes that were written, even if memory changes while that is done."""

from __future__ import annotations

import hashlib
import io
import threading
import zlib

import pytest

from modpack.archive import layout
from modpack.archive import manifest as digests
from modpack.archive import writer as body
from modpack.archive import writer as following
from modpack.archive.manifest import Digest, Threads, find_damage, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter, FollowingDigest

SIZE = 9_000_001


@pytest.fixture
def changing():
    """Memory that another thread writes to all the time, as a training does."""
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
def test_memory_may_change_while_it_is_written(changing, tmp_path, buffered, monkeypatch):
    monkeypatch.setattr(body, "_HUGE", 1 << 20)
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


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12_345])
def test_the_checksums_are_those_of_the_whole(monkeypatch, size):
    monkeypatch.setattr(following, "PIECE_BYTES", 1000)
    content = memoryview(bytes(number % 251 for number in range(size)))
    threads = Threads()
    digest = FollowingDigest(threads)
    written = [bytes(digest.take(content[n : n + 1000])) for n in range(0, size, 1000)]
    assert b"".join(written) == content
    assert digest.result() == Digest(zlib.crc32(content), hashlib.sha256(content).hexdigest())
    threads.close()


def test_where_no_thread_can_be_started_all_is_done_at_once(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    threads = Threads()
    assert [threads.run(len, "abc").result() for _ in range(3)] == [3, 3, 3]
    with pytest.raises(ZeroDivisionError):
        threads.run(_divided, 0).result()
    threads.close()


def test_where_only_one_thread_can_be_started_no_piece_counts_twice(monkeypatch):
    start, started = threading.Thread.start, []

    def refused(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(following, "PIECE_BYTES", 1000)
    content = memoryview(bytes(range(250)) * 40)
    threads = Threads()
    digest = FollowingDigest(threads)
    for start_of in range(0, len(content), 1000):
        digest.take(content[start_of : start_of + 1000])
    assert digest.result() == digests.digest_of(content)
    threads.close()


def _divided(number):
    return 1 // number
