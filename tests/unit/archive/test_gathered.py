"""Pieces that are written at once are all there, in their order."""

from __future__ import annotations

import os

import pytest

from modpack.archive.target import write_gathered


def pieces():
    return [bytes([number % 251]) * (number % 40) for number in range(3000)]


@pytest.fixture(params=["as it is", "without writev", "in short steps"])
def system(request, monkeypatch):
    if request.param == "without writev":
        monkeypatch.delattr(os, "writev", raising=False)
    elif request.param == "in short steps":
        monkeypatch.setattr(
            os, "writev", lambda fd, some: os.write(fd, b"".join(some)[:1000]), raising=False
        )


def test_they_follow_what_was_written_before_and_more_follows_them(tmp_path, system):
    with open(tmp_path / "file", "w+b", buffering=1 << 20) as file:
        file.write(b"before")
        write_gathered(file, pieces())
        assert file.tell() == 6 + sum(map(len, pieces()))
        file.write(b"after")
    assert (tmp_path / "file").read_bytes() == b"before" + b"".join(pieces()) + b"after"
