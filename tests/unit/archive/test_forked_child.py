"""Forked children that inherit a writer do not change its output."""

from __future__ import annotations

import os

import pytest

from modpack.archive import layout
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError
from modpack.writing.writer import ArchiveWriter

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
COUNT = 40


def child_ends_by_itself(writer):
    raise SystemExit(0)


def child_lets_go(writer):
    del writer


def child_goes_on(writer):
    with pytest.raises(ArchiveError, match="a forked child cannot continue"):
        writer.write("pkg/child.txt", b"child")
    with pytest.raises(ArchiveError, match="a forked child cannot continue"):
        writer.digest_of("pkg/0.txt")
    with pytest.raises(ArchiveError, match="a forked child cannot continue"):
        writer.commit()


def fork(act, writer):
    """Run ``act`` in a forked child, which flushes its buffers at exit; return the exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        act(writer)
        code = 0
    except SystemExit:
        code = 0
    finally:
        writer.discard()
        inherited = writer._sink._file
        if inherited is not None:
            inherited.close()
        os._exit(code)


@pytest.fixture(params=["file", "spooled in memory", "spooled on disk", "named"])
def target(request, tmp_path, monkeypatch):
    """A target, and a file with its content."""
    file = tmp_path / "m.pt"
    if request.param == "file":
        yield file, request.param
        return
    if request.param == "spooled on disk":
        monkeypatch.setattr("modpack.writing.target._SPOOL_IN_MEMORY_BYTES", 100)
    with file.open("wb") as opened:
        yield opened, request.param


@pytest.mark.parametrize("act", [child_ends_by_itself, child_lets_go, child_goes_on])
def test_forked_child_does_not_flush_parent_buffer(tmp_path, target, act):
    where, way = target
    with ArchiveWriter(where) as writer:
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        for number in range(COUNT):
            writer.write(f"pkg/{number}.txt", f"{number}\n".encode() * 300)
            if number == COUNT // 2:
                if way == "named":
                    list(writer.stored_chunks("pkg/0.txt"))
                writer.digest_of("pkg/0.txt")  # all that waits is in the buffer
                assert fork(act, writer) == 0
        writer.commit()
    if way != "file":
        where.flush()
    with open_archive(tmp_path / "m.pt") as archive:
        verify_records(archive, read_manifest(archive), archive.names())
        assert f"pkg/{COUNT - 1}.txt" in archive.names()
        assert "pkg/child.txt" not in archive.names()


def test_unused_writer_works_in_forked_child(tmp_path):
    writer = ArchiveWriter(tmp_path / "m.pt")

    def write(writer):
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        writer.commit()

    child = os.fork()
    if not child:
        try:
            write(writer)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with open_archive(tmp_path / "m.pt") as archive:
        assert layout.VERSION in archive.names()


def test_planning_writer_works_in_forked_child():
    writer = ArchiveWriter(None)
    writer.write("a.txt", b"1")
    child = os.fork()
    if not child:
        code = 1
        try:
            writer.write("b.txt", b"2")
            code = len(writer.names()) - 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
