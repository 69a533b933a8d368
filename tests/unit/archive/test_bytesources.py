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


def test_more_than_there_is_cannot_be_read(file):
    source = FileBytes(str(file), "digits")
    assert source.read_at(0, 10) == b"0123456789"
    with pytest.raises(ArchiveError, match="ends too early"):
        source.read_at(5, 6)
    source.close()


def test_short_reads_are_continued(file, monkeypatch):
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    source = FileBytes(str(file), "digits")
    assert source.read_at(1, 8) == b"12345678"
    source.close()


def test_nothing_is_read_of_a_closed_file(file):
    source = FileBytes(str(file), "digits")
    source.close()
    with pytest.raises(ArchiveError, match="closed"):
        source.read_at(8, 2)


def test_a_pipe_with_a_name_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAPackageError, match="not a regular file"):
        FileBytes(str(tmp_path / "pipe"), "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused_as_such(device):
    with pytest.raises(NotAPackageError, match="not a regular file"):
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
