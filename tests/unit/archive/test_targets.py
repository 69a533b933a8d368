"""A target is as it was, or holds a complete package: nothing in between, whatever happens."""

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
from modpack.archive.writer import ArchiveWriter
from modpack.errors import ModpackError, TargetError

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


def test_nothing_is_made_before_the_first_record(target):
    writer = ArchiveWriter(target)
    assert_untouched(target)
    writer.write("a", b"")
    assert len(os.listdir(target.parent)) == 2
    writer.discard()


def test_a_failed_export_leaves_the_old_package(target):
    with pytest.raises(ZeroDivisionError), ArchiveWriter(target) as writer:
        write_something(writer)
        assert target.read_bytes() == OLD
        raise ZeroDivisionError
    assert_untouched(target)


def test_leaving_without_commit_discards(target):
    with ArchiveWriter(target) as writer:
        write_something(writer)
    assert_untouched(target)


def test_a_forgotten_writer_leaves_nothing(target):
    writer = ArchiveWriter(target)
    write_something(writer)
    del writer
    gc.collect()
    assert_untouched(target)


def test_commit_replaces_the_target_and_leaves_nothing_else(target):
    with ArchiveWriter(target) as writer:
        write_something(writer)
        writer.commit()
    assert os.listdir(target.parent) == [target.name]
    with open_archive(target) as archive:
        assert archive.size(".data/0.storage") == 3 << 20


def test_the_mode_of_an_old_target_is_kept(target):
    target.chmod(0o640)
    with ArchiveWriter(target) as writer:
        write_something(writer)
        (temporary,) = set(target.parent.iterdir()) - {target}
        assert temporary.stat().st_mode & 0o007 == 0
        writer.commit()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_target_gets_the_mode_that_the_umask_gives(tmp_path):
    code = (
        "import os, sys; os.umask(0o027)\n"
        "from modpack.archive.writer import ArchiveWriter\n"
        "with ArchiveWriter(sys.argv[1]) as w: w.write('a', b''); w.commit()"
    )
    run(code, tmp_path / "m.pt")
    assert stat.S_IMODE((tmp_path / "m.pt").stat().st_mode) == 0o640


def test_a_link_is_kept_and_what_it_points_to_is_replaced(target, tmp_path):
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


def test_a_full_disk_is_reported_and_leaves_the_old_package(target):
    code = (
        "import resource, sys\n"
        "from modpack.archive.writer import ArchiveWriter\n"
        "from modpack.errors import TargetError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "try: writer.write_storage('.data/0.storage', memoryview(bytes(3 << 20)))\n"
        "except TargetError as error: print(error, '|', type(error.__cause__).__name__)"
    )
    output = run(code, target).stdout
    assert f"cannot write {target}: File too large | OSError" in output
    assert_untouched(target)


def test_a_disk_that_fills_up_at_the_very_end_leaves_the_old_package(target):
    code = (
        "import resource, sys\n"
        "from modpack.archive.writer import ArchiveWriter\n"
        "from modpack.errors import TargetError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "writer.write('a', bytes(2000))\n"
        "try: writer.commit()\n"
        "except TargetError as error: print(error)"
    )
    assert "File too large" in run(code, target).stdout
    assert_untouched(target)


def test_after_a_failure_the_writer_says_that_it_is_closed():
    with open("/dev/full", "wb") as full:
        writer = ArchiveWriter(full)
        writer.write("a", bytes(20 << 20))
        with pytest.raises(TargetError, match="No space left"):
            writer.commit()
        with pytest.raises(ModpackError, match="a write failed"):
            writer.write("b", b"")


def test_a_killed_export_leaves_the_old_package_and_the_next_one_tidies_up(target):
    code = (
        "import os, signal, sys\n"
        "from modpack.archive.writer import ArchiveWriter\n"
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


def test_temporaries_of_the_living_and_of_other_places_are_left_alone(target):
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


def test_a_forked_child_does_not_remove_its_parents_work(target):
    code = (
        "import os, sys\n"
        "from modpack.archive.writer import ArchiveWriter\n"
        "writer = ArchiveWriter(sys.argv[1])\n"
        "writer.write('.data/version', b'6')\n"
        "if os.fork() == 0: writer.discard(); os._exit(0)\n"
        "os.wait(); print(len(writer.commit()))"
    )
    assert run(code, target).stdout == "64\n"
    with open_archive(target) as archive:
        assert archive.read(".data/version") == b"6"


def test_a_very_long_file_name_still_has_room_for_its_temporary(tmp_path):
    path = tmp_path / ("ü" * 125 + ".pt")
    with ArchiveWriter(path) as writer:
        write_something(writer)
        writer.commit()
    assert path.exists()


def test_an_impossible_target_is_refused_before_any_work(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for bad, reason in {
        tmp_path: "this is a folder",
        tmp_path / "missing" / "m.pt": "does not exist",
        tmp_path / "fifo": "not a regular file",
        "": "not a file name",
        f"{tmp_path}/": "not a file name",
        "a\0b": "not a file name",
    }.items():
        with pytest.raises(TargetError, match=reason):
            ArchiveWriter(bad)


@pytest.mark.parametrize("bad", [7, b"m.pt", io.StringIO(), object()])
def test_a_wrong_type_is_a_type_error_naming_the_argument(bad):
    with pytest.raises(TypeError, match="target must be"):
        ArchiveWriter(bad)


def test_files_opened_for_text_or_for_reading_are_refused(target):
    with tempfile.NamedTemporaryFile("w") as text, pytest.raises(TypeError, match="text"):
        ArchiveWriter(text)
    with target.open("rb") as reading, pytest.raises(TargetError, match="not opened for writing"):
        ArchiveWriter(reading)
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(TargetError, match="closed"):
        ArchiveWriter(closed)


def test_a_buffer_gets_everything_at_commit_and_nothing_before():
    buffer = io.BytesIO(b"head")
    buffer.seek(0, io.SEEK_END)
    with ArchiveWriter(buffer) as writer:
        write_something(writer)
        assert buffer.getvalue() == b"head"
        writer.commit()
    buffer.seek(4)
    with open_archive(buffer) as archive:
        assert archive.size(".data/0.storage") == 3 << 20


def test_a_failed_export_leaves_a_buffer_untouched():
    buffer = io.BytesIO()
    with pytest.raises(ZeroDivisionError), ArchiveWriter(buffer) as writer:
        write_something(writer)
        raise ZeroDivisionError
    assert buffer.getvalue() == b""


class OnlyWrites:
    """Takes at most 1000 bytes a call, and can do nothing else."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data[:1000])
        return min(len(data), 1000)


def test_a_buffer_that_cannot_seek_and_takes_little_at_a_time_will_do():
    pipe = OnlyWrites()
    with ArchiveWriter(pipe) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a", b"x" * 5000)
        writer.commit()
    with open_archive(io.BytesIO(pipe.taken)) as archive:
        assert archive.read("a") == b"x" * 5000
