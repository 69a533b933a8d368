"""Random access to files and buffers."""

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


def test_read_at_beyond_end_raises(file):
    source = FileBytes(str(file), "digits")
    assert source.read_at(0, 10) == b"0123456789"
    with pytest.raises(ArchiveError, match="ends too early"):
        source.read_at(5, 6)
    source.close()


def test_read_at_continues_short_reads(file, monkeypatch):
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    source = FileBytes(str(file), "digits")
    assert source.read_at(1, 8) == b"12345678"
    source.close()


def test_read_at_closed_file_raises(file):
    source = FileBytes(str(file), "digits")
    source.close()
    with pytest.raises(ArchiveError, match="closed"):
        source.read_at(8, 2)


def test_named_pipe_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAPackageError, match="not a regular file"):
        FileBytes(str(tmp_path / "pipe"), "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_device_file_is_rejected(device):
    with pytest.raises(NotAPackageError, match="not a regular file"):
        FileBytes(device, device)


def test_has_changed_detects_write_with_restored_mtime(file):
    source = FileBytes(str(file), "digits")
    assert not source.has_changed()
    times = os.stat(file)
    with open(file, "r+b") as opened:
        opened.write(b"9")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.has_changed()
    source.close()
