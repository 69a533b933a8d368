"""Random access to files: what lies at the end may be read at once."""

from __future__ import annotations

import os

import pytest

from modpack.archive.base import FileBytes
from modpack.errors import ArchiveError, NotAPackageError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "digits"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def reads(monkeypatch):
    """Offset and length of each read."""
    made = []
    real = os.pread

    def noting(descriptor, length, offset):
        made.append((offset, length))
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", noting)
    return made


def test_what_lies_within_the_end_is_read_once(file, reads):
    source = FileBytes(str(file), "digits")
    with source.reading_end(4):
        assert [source.read_at(6, 2), source.read_at(8, 2), source.read_at(6, 4)] == [
            *(b"67", b"89", b"6789"),
        ]
        assert reads == [(6, 4)]
        assert source.read_at(5, 2) == b"56"
    assert source.read_at(8, 2) == b"89"
    assert reads == [(6, 4), (5, 2), (8, 2)]
    source.close()


def test_a_file_may_be_shorter_than_the_end_that_is_read(file):
    source = FileBytes(str(file), "digits")
    with source.reading_end(100):
        assert source.read_at(0, 10) == b"0123456789"
        with pytest.raises(ArchiveError, match="ends too early"):
            source.read_at(5, 6)
    source.close()


def test_nothing_is_read_of_a_closed_file(file):
    source = FileBytes(str(file), "digits")
    with source.reading_end(4):
        source.close()
        with pytest.raises(ArchiveError, match="closed"):
            source.read_at(8, 2)
    with pytest.raises(ArchiveError, match="closed"):
        source.reading_end(4).__enter__()


def test_what_is_written_later_is_seen_when_the_end_is_no_longer_held(file):
    source = FileBytes(str(file), "digits")
    with source.reading_end(4):
        pass
    with file.open("r+b") as opened:
        opened.seek(9)
        opened.write(b"!")
    assert source.read_at(8, 2) == b"8!"
    source.close()


def test_a_pipe_with_a_name_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAPackageError, match="no regular file"):
        FileBytes(str(tmp_path / "pipe"), "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused_as_such(device):
    with pytest.raises(NotAPackageError, match="no regular file"):
        FileBytes(device, device)


def test_a_write_is_noticed_although_the_time_of_the_last_one_was_put_back(file):
    source = FileBytes(str(file), "digits")
    assert not source.has_changed()
    times = os.stat(file)
    with open(file, "r+b") as opened:
        opened.write(b"9")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.has_changed()
    source.close()
