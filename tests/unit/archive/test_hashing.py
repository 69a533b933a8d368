"""A process helps hashing: whatever becomes of it, the archive is the same, and it ends."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib

import pytest

from modpack.archive import writer as hashing
from modpack.archive import writer as preparing
from modpack.archive.manifest import Digest
from modpack.archive.writer import ArchiveWriter, HashHelper
from modpack.errors import TargetError

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "memfd_create") and sys.platform == "linux"),
    reason="this system shares no memory by a descriptor",
)
SIZE = 50_000
MANY = 300


def content(number: int) -> bytes:
    return number.to_bytes(2, "little") * (SIZE // 2)


@pytest.fixture
def helpers(monkeypatch):
    """All helpers that are started; they are from the first record on."""
    started = []

    class Noted(HashHelper):
        def __init__(self):
            super().__init__()
            started.append(self)

    monkeypatch.setattr(hashing, "HashHelper", Noted)
    monkeypatch.setattr(hashing, "usable_cores", lambda: 2)
    monkeypatch.setattr(preparing, "_WORTH_A_HELPER", 1)
    return started


def write(target, at_half=lambda: None):
    with ArchiveWriter(target) as writer:
        for number in range(MANY):
            if number == MANY // 2:
                at_half()
            writer.write_storage(f".data/{number}.storage", memoryview(content(number)))
        writer.commit()


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """The archive as it is made without help."""
    target = tmp_path / "plain.pt"
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "start_helper", lambda: None)
        write(target)
    return target.read_bytes()


def has_ended(helper) -> bool:
    return helper._process.returncode is not None


def test_the_archive_is_the_same_and_nobody_else_computes_its_checksums(
    tmp_path, plain, helpers, monkeypatch
):
    def nobody(data):
        raise AssertionError("a storage was hashed here")

    monkeypatch.setattr(preparing, "_prepared", lambda records: [nobody(r) for r in records])
    target = tmp_path / "m.pt"
    with ArchiveWriter(target) as writer:
        for number in range(MANY):
            writer.write_storage(f".data/{number}.storage", memoryview(content(number)))
        monkeypatch.undo()  # what is no storage is
        writer.commit()
    assert target.read_bytes() == plain
    assert len(helpers) == 1 and has_ended(helpers[0])


def test_it_tells_the_checksums_of_each_record(helpers):
    helper = hashing.start_helper()
    batch = helper.batch()
    for number in range(5):
        batch.add(content(number))
    helper.begin(batch)
    found = helper.digests(batch)
    assert found == [
        Digest(zlib.crc32(content(n)), hashlib.sha256(content(n)).hexdigest()) for n in range(5)
    ]
    helper.close()
    assert has_ended(helper)


def test_large_and_tiny_and_deflated_records_between_keep_their_places(
    tmp_path, helpers, monkeypatch
):
    def write_mixed(target):
        with ArchiveWriter(target) as writer:
            for number in range(60):
                writer.write_storage(f".data/{number}.storage", memoryview(content(number)))
                if number % 7 == 0:
                    writer.write(f"{number}.py", b"x = 1\n" * 3000, compress=True)
                if number % 11 == 0:
                    writer.write_storage(f".data/9{number}.storage", memoryview(bytes(2 << 20)))
                writer.write(f"{number}.txt", b"tiny")
            writer.commit()

    write_mixed(tmp_path / "m.pt")
    monkeypatch.setattr(preparing, "start_helper", lambda: None)
    write_mixed(tmp_path / "plain.pt")
    assert len(helpers) == 1
    assert (tmp_path / "m.pt").read_bytes() == (tmp_path / "plain.pt").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_dies_or_hangs_is_given_up(tmp_path, plain, helpers, monkeypatch, number):
    monkeypatch.setattr(hashing, "_PATIENCE", 0.2)
    target = tmp_path / "m.pt"
    write(target, lambda: helpers[0]._process.send_signal(number))
    assert target.read_bytes() == plain
    assert len(helpers) == 1 and has_ended(helpers[0])


@pytest.mark.parametrize(
    "code",
    ["", "import os; os.write(1, b'too short')", "import time; time.sleep(60)", "1 +"],
)
def test_one_that_answers_nonsense_is_given_up(tmp_path, plain, helpers, monkeypatch, code):
    monkeypatch.setattr(hashing, "_START", code)
    monkeypatch.setattr(hashing, "_PATIENCE", 0.5)
    target = tmp_path / "m.pt"
    write(target)
    assert target.read_bytes() == plain
    assert helpers and all(map(has_ended, helpers))


@pytest.mark.parametrize("executable", ["", None, "/opt/program", "/nowhere/python3"])
def test_where_no_python_can_be_started_threads_do_it(
    tmp_path, plain, helpers, monkeypatch, executable
):
    monkeypatch.setattr(sys, "executable", executable)
    write(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == plain
    assert not helpers


def test_where_it_cannot_share_or_has_no_core_or_is_not_wanted_threads_do_it(
    tmp_path, plain, helpers, monkeypatch
):
    def refused(name):
        raise PermissionError(1, "not here")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refused)
        write(tmp_path / "m.pt")
    with monkeypatch.context() as patched:
        patched.setattr(hashing, "usable_cores", lambda: 1)
        write(tmp_path / "n.pt")
    monkeypatch.setenv("MODPACK_HELPERS", "0")
    write(tmp_path / "o.pt")
    assert {(tmp_path / f"{name}.pt").read_bytes() for name in "mno"} == {plain}
    assert not helpers


def test_little_data_starts_none(tmp_path, monkeypatch):
    def none():
        raise AssertionError("a process was started")

    monkeypatch.setattr(preparing, "start_helper", none)
    write(tmp_path / "m.pt")


def test_it_ends_with_a_writer_that_is_discarded_or_fails(tmp_path, helpers):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m.pt", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    writer = ArchiveWriter(tmp_path / "n.pt")
    writer.write_storage(".data/0.storage", memoryview(content(0)))
    del writer
    assert len(helpers) == 2 and all(map(has_ended, helpers))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_as_ever(tmp_path, helpers, monkeypatch):
    def full(descriptor, pieces):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(TargetError, match="No space left"):
        write(tmp_path / "m.pt")
    assert all(map(has_ended, helpers))
    assert list(tmp_path.iterdir()) == []


def test_it_ends_when_whoever_asks_is_gone():
    code = """
    import os, time
    from modpack.archive.writer import HashHelper
    helper = HashHelper()
    if os.fork() == 0:  # another child, which holds its socket open
        time.sleep(4)
        os._exit(0)
    print(helper._process.pid, flush=True)
    os._exit(0)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, check=True
    )
    helper = int(ran.stdout)
    deadline = time.monotonic() + 30
    while _is_running(helper) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(helper)


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forked_child_leaves_it_alone(helpers):
    helper = hashing.start_helper()
    child = os.fork()
    if child == 0:
        helper.close()
        os._exit(0)
    os.waitpid(child, 0)
    batch = helper.batch()
    batch.add(content(1))
    helper.begin(batch)
    assert helper.digests(batch)[0].sha256 == hashlib.sha256(content(1)).hexdigest()
    assert not helper._is_lost
    helper.close()


def test_a_program_that_dies_of_closed_pipes_does_not_die_of_it(tmp_path):
    code = f"""
    import signal
    from modpack.archive import writer as hashing
    from modpack.archive import writer as preparing
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    preparing._WORTH_A_HELPER, hashing.usable_cores = 1, lambda: 2
    from tests.unit.archive import test_hashing
    class Dead(hashing.HashHelper):
        def __init__(self):
            super().__init__()
            self._process.kill()
            self._process.wait()
    hashing.HashHelper = Dead
    test_hashing.write({str(tmp_path / "m.pt")!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    assert (tmp_path / "m.pt").exists()
