"""Records that were compared with their digests are kept while a package is opened."""

from __future__ import annotations

import collections
import os
import zlib

import pytest

import modpack
from modpack.archive.base import FileBytes, KeptRecords
from modpack.archive.manifest import find_damage, read_manifest
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError


@pytest.fixture
def read_at(monkeypatch):
    """How often each place of files is read."""
    places = collections.Counter()
    real = FileBytes.read_at

    def counting(self, offset, length):
        places[offset] += 1
        return real(self, offset, length)

    monkeypatch.setattr(FileBytes, "read_at", counting)
    return places


def test_contents_are_kept_in_the_block_and_afterwards_if_they_are_few():
    kept = KeptRecords()
    kept.add("before", b"x")
    with kept.collecting():
        kept.add("a", b"in")
    assert (kept.get("a"), kept.get("before")) == (b"in", None)
    with kept.collecting():
        kept.add("b", bytes(100_000))
        assert kept.get("b") == bytes(100_000)
    assert kept.get("a") is None and kept.get("b") is None


def test_what_is_large_is_not_kept():
    kept = KeptRecords()
    with kept.collecting():
        kept.add("large", bytes((1 << 20) + 1))
        for number in range(100):
            kept.add(str(number), bytes(1 << 20))
        assert kept.get("large") is None
        assert (kept.get("63") is None, kept.get("64") is None) == (False, True)


def test_opening_and_loading_reads_no_small_record_twice(tmp_path, read_at):
    file = tmp_path / "m.modpack"
    modpack.save({"numbers": [1, 2]}, file)
    read_at.clear()
    assert modpack.load(file) == {"numbers": [1, 2]}
    assert read_at and max(read_at.values()) == 1


def test_a_closed_archive_gives_nothing_that_it_kept(write_package):
    with open_archive(write_package({"a.txt": b"a"})) as archive:
        with archive.keeping():
            archive.keep("a.txt", b"a")
        assert archive.read("a.txt") == b"a"
    with pytest.raises(ArchiveError, match="closed"):
        archive.read("a.txt")


def test_of_many_what_they_were_inflated_from_is_kept():
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = bytes(range(200)) * 500
    deflated = compressor.compress(content) + compressor.flush()
    kept = KeptRecords()
    with kept.collecting():
        kept.add("few", b"content", b"never looked at")
        kept.add("many", content, deflated)
        kept.add("stored", content)
        kept.add("other", content, b"no deflated bytes")
        assert kept.get("few") == b"content"
        assert kept.get("many") == content == kept.get("stored")
        assert kept.get("many") is not kept.get("many")
        assert kept.get("other") is None  # whoever asks reads it anew
    assert [kept.get(name) for name in ("few", "many", "stored")] == [None] * 3


def test_all_that_follows_the_last_tensor_is_read_in_one_go(write_package, monkeypatch):
    texts = {f"pkg/{number}.txt": os.urandom(1000) for number in range(300)}
    file = write_package({"early.txt": b"early", ".data/0.storage": bytes(1 << 17), **texts})
    lengths = []
    real = FileBytes._read
    monkeypatch.setattr(
        FileBytes,
        "_read",
        lambda self, offset, length: lengths.append(length) or real(self, offset, length),
    )
    with open_archive(file) as archive:
        lengths.clear()
        with archive.keeping():
            assert find_damage(archive, read_manifest(archive), texts) == {}
        assert len(lengths) == 1 and 300_000 < lengths[0] < 400_000
        assert archive.read("pkg/7.txt") == texts["pkg/7.txt"] and len(lengths) == 2
