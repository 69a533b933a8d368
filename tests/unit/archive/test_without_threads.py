"""Writing and reading packages where no thread can be started."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from modpack.archive import layout
from modpack.archive.manifest import find_damage, read_manifest
from modpack.archive.reader import open_archive
from modpack.writing.writer import ArchiveWriter


@pytest.fixture
def no_threads(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setenv("MODPACK_WORKERS", "0")


def write(target):
    with ArchiveWriter(target) as writer:
        writer.write(layout.VERSION, layout.VERSION_CONTENT)
        for number, size in enumerate((10, 50_000, 3 << 20, 70 << 20)):
            writer.write_storage(f".data/{number}.storage", memoryview(bytes(size)))
            writer.write(f"{number}.txt", bytes(size // 9), compress=True)
        writer.commit()


def damage(target):
    with open_archive(target) as archive:
        return find_damage(archive, read_manifest(archive), archive.names(), workers=3)


def test_write_and_verify_without_threads(tmp_path, no_threads):
    write(tmp_path / "m.pt")
    assert damage(tmp_path / "m.pt") == {}


def test_bytes_without_threads_are_the_same(tmp_path, request):
    write(tmp_path / "m.pt")
    request.getfixturevalue("no_threads")
    write(tmp_path / "n.pt")
    assert (tmp_path / "n.pt").read_bytes() == (tmp_path / "m.pt").read_bytes()


def test_write_and_read_at_interpreter_exit(tmp_path):
    code = f"""
    import atexit
    from tests.unit.archive import test_without_threads as here
    def at_the_end():
        here.write({str(tmp_path / "m.pt")!r})
        print(here.damage({str(tmp_path / "m.pt")!r}))
    atexit.register(at_the_end)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "{}\n", ran.stderr
