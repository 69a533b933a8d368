"""The hash helper process never changes the archive and always ends."""

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

from modpack.errors import TargetError
from modpack.writing import hash_helper
from modpack.writing.hash_helper import HashHelper
from modpack.writing.target import PathSink
from modpack.writing.writer import ArchiveWriter

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
    """All started helpers. They start at the first record."""
    started = []

    class Noted(HashHelper):
        def __init__(self):
            super().__init__()
            started.append(self)

    monkeypatch.setattr(hash_helper, "HashHelper", Noted)
    monkeypatch.setattr(hash_helper, "usable_cores", lambda: 2)
    monkeypatch.setattr("modpack.writing.writer._MIN_HELPER_BYTES", 1)
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
    """The archive as written without a helper."""
    target = tmp_path / "plain.pt"
    with monkeypatch.context() as patched:
        patched.setattr(hash_helper, "start_hash_helper", lambda: None)
        write(target)
    return target.read_bytes()


def has_ended(helper) -> bool:
    return helper._process.returncode is not None


def test_archive_is_identical_and_only_the_helper_hashes_storages(
    tmp_path, plain, helpers, monkeypatch
):
    def nobody(data):
        raise AssertionError("a storage was hashed here")

    monkeypatch.setattr(
        "modpack.writing.writer._compress", lambda records: [nobody(r) for r in records]
    )
    target = tmp_path / "m.pt"
    with ArchiveWriter(target) as writer:
        for number in range(MANY):
            writer.write_storage(f".data/{number}.storage", memoryview(content(number)))
        monkeypatch.undo()  # other records are
        writer.commit()
    assert target.read_bytes() == plain
    assert len(helpers) == 1 and has_ended(helpers[0])


def test_helper_returns_checksums_of_each_record(helpers):
    helper = hash_helper.start_hash_helper()
    slot = helper.slot()
    for number in range(5):
        slot.add(content(number))
    helper.submit(slot)
    found = helper.digests(slot)
    assert found == [
        (zlib.crc32(content(n)), hashlib.sha256(content(n)).digest()) for n in range(5)
    ]
    helper.close()
    assert has_ended(helper)


def test_mixed_records_keep_their_order(tmp_path, helpers, monkeypatch):
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
    monkeypatch.setattr(hash_helper, "start_hash_helper", lambda: None)
    write_mixed(tmp_path / "plain.pt")
    assert len(helpers) == 1
    assert (tmp_path / "m.pt").read_bytes() == (tmp_path / "plain.pt").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_helper_that_dies_or_hangs_is_given_up(tmp_path, plain, helpers, monkeypatch, number):
    monkeypatch.setattr(hash_helper, "_TIMEOUT_SECONDS", 0.2)
    target = tmp_path / "m.pt"
    write(target, lambda: helpers[0]._process.send_signal(number))
    assert target.read_bytes() == plain
    assert len(helpers) == 1 and has_ended(helpers[0])


@pytest.mark.parametrize(
    "code",
    ["", "import os; os.write(1, b'too short')", "import time; time.sleep(60)", "1 +"],
)
def test_helper_that_answers_nonsense_is_given_up(tmp_path, plain, helpers, monkeypatch, code):
    monkeypatch.setattr(hash_helper, "_START", code)
    monkeypatch.setattr(hash_helper, "_TIMEOUT_SECONDS", 0.5)
    target = tmp_path / "m.pt"
    write(target)
    assert target.read_bytes() == plain
    assert helpers and all(map(has_ended, helpers))


@pytest.mark.parametrize("executable", ["", None, "/opt/program", "/nowhere/python3"])
def test_without_a_startable_python_threads_hash(tmp_path, plain, helpers, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    write(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == plain
    assert not helpers


def test_without_shared_memory_core_or_consent_threads_hash(tmp_path, plain, helpers, monkeypatch):
    def refused(name):
        raise PermissionError(1, "not here")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refused)
        write(tmp_path / "m.pt")
    with monkeypatch.context() as patched:
        patched.setattr(hash_helper, "usable_cores", lambda: 1)
        write(tmp_path / "n.pt")
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    write(tmp_path / "o.pt")
    assert {(tmp_path / f"{name}.pt").read_bytes() for name in "mno"} == {plain}
    assert not helpers


def test_little_data_starts_no_helper(tmp_path, monkeypatch):
    def none():
        raise AssertionError("a process was started")

    monkeypatch.setattr(hash_helper, "start_hash_helper", none)
    write(tmp_path / "m.pt")


def test_helper_ends_with_a_discarded_or_failed_writer(tmp_path, helpers):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "m.pt", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    writer = ArchiveWriter(tmp_path / "n.pt")
    writer.write_storage(".data/0.storage", memoryview(content(0)))
    del writer
    assert len(helpers) == 2 and all(map(has_ended, helpers))
    assert list(tmp_path.iterdir()) == []


def test_full_disk_raises_target_error(tmp_path, helpers, monkeypatch):
    def fail(sink, *pieces):
        with sink.reporting():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(PathSink, "write", fail)
    with pytest.raises(TargetError, match="No space left"):
        write(tmp_path / "m.pt")
    assert all(map(has_ended, helpers))
    assert list(tmp_path.iterdir()) == []


def test_helper_ends_when_its_parent_is_gone():
    code = """
    import os, time
    from modpack.writing.hash_helper import HashHelper
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


def test_forked_child_leaves_the_helper_alone(helpers):
    helper = hash_helper.start_hash_helper()
    child = os.fork()
    if child == 0:
        helper.close()
        os._exit(0)
    os.waitpid(child, 0)
    slot = helper.slot()
    slot.add(content(1))
    helper.submit(slot)
    assert helper.digests(slot)[0][1] == hashlib.sha256(content(1)).digest()
    assert not helper._is_lost
    helper.close()


def test_dead_helper_raises_no_sigpipe(tmp_path):
    code = f"""
    import signal
    from modpack.writing import hash_helper
    from modpack.writing import writer
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    writer._MIN_HELPER_BYTES, hash_helper.usable_cores = 1, lambda: 2
    from tests.unit.writing import test_hash_helper
    class Dead(hash_helper.HashHelper):
        def __init__(self):
            super().__init__()
            self._process.kill()
            self._process.wait()
    hash_helper.HashHelper = Dead
    test_hash_helper.write({str(tmp_path / "m.pt")!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    assert (tmp_path / "m.pt").exists()
