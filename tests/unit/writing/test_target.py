"""A target is either unchanged or a complete package."""

import gc
import io
import os
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from modpack.archive.reader import open_archive
from modpack.errors import ModpackError, TargetError
from modpack.writing.writer import ArchiveWriter

OLD = b"what was here before"


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(OLD)
    return path


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def write_something(writer):
    writer.write(".data/version", b"6\n")
    writer.write_storage(".data/0.storage", memoryview(bytes(3 << 20)))


def assert_untouched(target):
    assert target.read_bytes() == OLD
    assert os.listdir(target.parent) == [target.name]


def test_writer_creates_no_file_before_first_record(target):
    writer = ArchiveWriter(target)
    assert_untouched(target)
    writer.write("a", b"")
    assert len(os.listdir(target.parent)) == 2
    writer.discard()


def test_failed_export_keeps_old_package(target):
    with pytest.raises(ZeroDivisionError), ArchiveWriter(target) as writer:
        write_something(writer)
        assert target.read_bytes() == OLD
        raise ZeroDivisionError
    assert_untouched(target)


def test_exit_without_commit_discards(target):
    with ArchiveWriter(target) as writer:
        write_something(writer)
    assert_untouched(target)


def test_deleted_writer_leaves_no_file(target):
    writer = ArchiveWriter(target)
    write_something(writer)
    del writer
    gc.collect()
    assert_untouched(target)


def test_commit_replaces_target_without_leftovers(target):
    with ArchiveWriter(target) as writer:
        write_something(writer)
        writer.commit()
    assert os.listdir(target.parent) == [target.name]
    with open_archive(target) as archive:
        assert archive.size(".data/0.storage") == 3 << 20


def test_commit_keeps_mode_of_old_target(target):
    target.chmod(0o640)
    with ArchiveWriter(target) as writer:
        write_something(writer)
        (temporary,) = set(target.parent.iterdir()) - {target}
        assert temporary.stat().st_mode & 0o007 == 0
        writer.commit()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_new_target_mode_follows_umask(tmp_path):
    code = (
        "import os, sys; os.umask(0o027)\n"
        "from modpack.writing.writer import ArchiveWriter\n"
        "with ArchiveWriter(sys.argv[1]) as w: w.write('a', b''); w.commit()"
    )
    run(code, tmp_path / "m.pt")
    assert stat.S_IMODE((tmp_path / "m.pt").stat().st_mode) == 0o640


def test_commit_keeps_symlink_and_replaces_its_target(target, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link.pt"
    link.symlink_to(target)
    with ArchiveWriter(link) as writer:
        write_something(writer)
        writer.commit()
    assert link.is_symlink()
    with open_archive(target) as archive:
        assert archive.has(".data/version")


def test_full_disk_keeps_old_package(target):
    code = (
        "import resource, sys\n"
        "from modpack.writing.writer import ArchiveWriter\n"
        "from modpack.errors import TargetError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "try: writer.write_storage('.data/0.storage', memoryview(bytes(3 << 20)))\n"
        "except TargetError as error: print(error, '|', type(error.__cause__).__name__)"
    )
    output = run(code, target).stdout
    assert f"cannot write {target}: File too large | OSError" in output
    assert_untouched(target)


def test_disk_full_at_end_keeps_old_package(target):
    code = (
        "import resource, sys\n"
        "from modpack.writing.writer import ArchiveWriter\n"
        "from modpack.errors import TargetError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "writer.write('a', bytes(2000))\n"
        "try: writer.commit()\n"
        "except TargetError as error: print(error)"
    )
    assert "File too large" in run(code, target).stdout
    assert_untouched(target)


def test_writer_is_closed_after_failure():
    with open("/dev/full", "wb") as full:
        writer = ArchiveWriter(full)
        writer.write("a", bytes(20 << 20))
        with pytest.raises(TargetError, match="No space left"):
            writer.commit()
        with pytest.raises(ModpackError, match="a write failed"):
            writer.write("b", b"")


def test_next_export_removes_files_of_killed_export(target):
    code = (
        "import os, signal, sys\n"
        "from modpack.writing.writer import ArchiveWriter\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "writer.write('a', bytes(2 << 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert run(code, target).returncode == -signal.SIGKILL
    assert target.read_bytes() == OLD
    assert len(os.listdir(target.parent)) == 2
    with ArchiveWriter(target) as writer:
        write_something(writer)
    assert_untouched(target)


def test_cleanup_keeps_files_of_live_and_foreign_processes(target):
    first = ArchiveWriter(target)
    first.write("a", b"1")
    (mine,) = set(os.listdir(target.parent)) - {target.name}
    elsewhere = mine.replace(mine.split("-")[1], "00000000").replace(
        f".{os.getpid()}-", ".999999999-"
    )
    (target.parent / elsewhere).write_bytes(b"")
    with ArchiveWriter(target) as second:
        second.write("a", b"2")
    assert set(os.listdir(target.parent)) == {target.name, mine, elsewhere}
    first.discard()


def test_forked_child_keeps_parent_temporary_file(target):
    code = (
        "import os, sys\n"
        "from modpack.writing.writer import ArchiveWriter\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "writer.write('.data/version', b'6')\n"
        "if os.fork() == 0: writer.discard(); os._exit(0)\n"
        "os.wait(); print(len(writer.commit()))"
    )
    assert run(code, target).stdout == "64\n"
    with open_archive(target) as archive:
        assert archive.read(".data/version") == b"6"


def test_long_file_name_has_valid_temporary_name(tmp_path):
    path = tmp_path / ("ü" * 125 + ".pt")
    with ArchiveWriter(path) as writer:
        write_something(writer)
        writer.commit()
    assert path.exists()


def test_unwritable_target_is_rejected_immediately(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for bad, reason in {
        tmp_path: "this is a folder",
        tmp_path / "missing" / "m.pt": "does not exist",
        tmp_path / "fifo": "not a regular file",
        "": "the path is empty",
        f"{tmp_path}/": "ends with a separator",
        "a\0b": "contains a NUL character",
    }.items():
        with pytest.raises(TargetError, match=reason):
            ArchiveWriter(bad)


@pytest.mark.parametrize("bad", [7, b"m.pt", io.StringIO(), object()])
def test_wrong_type_raises_type_error(bad):
    with pytest.raises(TypeError, match="target must be"):
        ArchiveWriter(bad)


def test_text_and_readonly_buffers_are_rejected(target):
    with tempfile.NamedTemporaryFile("w") as text, pytest.raises(TypeError, match="text"):
        ArchiveWriter(text)
    with target.open("rb") as reading, pytest.raises(TargetError, match="not opened for writing"):
        ArchiveWriter(reading)
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(TargetError, match="closed"):
        ArchiveWriter(closed)


def test_buffer_is_written_only_at_commit():
    buffer = io.BytesIO(b"head")
    buffer.seek(0, io.SEEK_END)
    with ArchiveWriter(buffer) as writer:
        write_something(writer)
        assert buffer.getvalue() == b"head"
        writer.commit()
    buffer.seek(4)
    with open_archive(buffer) as archive:
        assert archive.size(".data/0.storage") == 3 << 20


def test_failed_export_keeps_buffer_untouched():
    buffer = io.BytesIO()
    with pytest.raises(ZeroDivisionError), ArchiveWriter(buffer) as writer:
        write_something(writer)
        raise ZeroDivisionError
    assert buffer.getvalue() == b""


class OnlyWrites:
    """Accepts at most 1000 bytes per call."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data[:1000])
        return min(len(data), 1000)


def test_unseekable_buffer_with_short_writes_is_supported():
    pipe = OnlyWrites()
    with ArchiveWriter(pipe) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a", b"x" * 5000)
        writer.commit()
    with open_archive(io.BytesIO(pipe.taken)) as archive:
        assert archive.read("a") == b"x" * 5000


class NotReady(io.RawIOBase):
    """A non-blocking file that accepts some bytes, and none afterwards."""

    def __init__(self, room):
        super().__init__()
        self.room, self.taken = room, b""

    def writable(self):
        return True

    def write(self, data):
        count = min(len(data), self.room, 100)
        self.room, self.taken = self.room - count, self.taken + bytes(data[:count])
        return count or None


def write_to(target):
    with ArchiveWriter(target) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a", b"x" * 5000)
        writer.commit()


@pytest.mark.parametrize("room", [0, 1000])
def test_raw_file_that_is_not_ready_raises(room):
    with pytest.raises(TargetError, match="accepts no more bytes"):
        write_to(NotReady(room))


def test_raw_file_with_short_writes_gets_all_bytes():
    file = NotReady(100_000)
    write_to(file)
    with open_archive(io.BytesIO(file.taken)) as archive:
        assert archive.read("a") == b"x" * 5000


def test_full_pipe_raises():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb"), open(writing, "wb", buffering=0) as pipe:
        while pipe.write(b"x" * 4096):
            pass
        with pytest.raises(TargetError, match="accepts no more bytes"):
            write_to(pipe)


def test_buffer_whose_write_returns_nothing_is_supported():
    taken = []

    class Duck:
        def write(self, data):
            taken.append(bytes(data))

    write_to(Duck())
    with open_archive(io.BytesIO(b"".join(taken))) as archive:
        assert archive.read("a") == b"x" * 5000
