import io
import os
import zipfile

import pytest

from modpack.archive import layout, zip_format
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError
from modpack.writing.writer import ArchiveWriter

BIG = bytes(range(256)) * (3 << 12)  # 3 MiB: over the threshold for digests on other threads


def test_zipfile_reads_written_records(write_package):
    records = {
        "pkg/a.py": b"x = 1\n",
        "pkg/ünï.txt": b"",
        "pkg/big.bin": BIG,
        ".data/0.storage": BIG,
    }
    with zipfile.ZipFile(write_package(records)) as archive:
        assert archive.testzip() is None
        for name, content in records.items():
            assert archive.read(f"archive/{name}") == content


def test_writer_output_is_reproducible(write_package):
    records = {"a.py": b"1", ".data/0.storage": BIG, "b.txt": b"x" * 5000}
    first = write_package(records, compress=True).read_bytes()
    assert write_package(records, compress=True).read_bytes() == first


def test_storages_are_aligned(write_package):
    records = {}
    for i in range(130):
        records[f"pkg/{'n' * i}.txt"] = b"?"
        records[f".data/{i}.storage"] = bytes([i]) * i
    path = write_package(records)
    content = path.read_bytes()
    with open_archive(path) as archive:
        for name in filter(layout.is_storage, archive.names()):
            place = archive.data_range(name)
            assert place.offset % 64 == 0
            assert content[place.offset : place.offset + place.length] == records[name]


def test_writer_compresses_only_if_smaller(write_package):
    incompressible = bytes(i * i * 7 % 251 for i in range(40))
    path = write_package({"text.txt": b"again " * 500, "noise": incompressible}, compress=True)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("archive/text.txt").compress_type == zipfile.ZIP_DEFLATED
        assert archive.getinfo("archive/text.txt").compress_size < 100
        assert archive.getinfo("archive/noise").compress_type == zipfile.ZIP_STORED


def test_writer_stores_record_with_bomb_ratio(write_package):
    zeros = bytes(5 << 20)
    with open_archive(write_package({"zeros": zeros}, compress=True)) as archive:
        assert archive.read("zeros") == zeros


def test_write_storage_accepts_any_shape(tmp_path):
    numbers = memoryview(bytearray(range(48))).cast("d", (2, 3))
    empty = memoryview(b"").cast("d")
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write(".data/version", b"6\n")
        writer.write_storage(".data/0.storage", numbers)
        writer.write_storage(".data/1.storage", empty)
        writer.commit()
    with open_archive(tmp_path / "m.pt") as archive:
        assert archive.read(".data/0.storage") == bytes(range(48))
        assert archive.read(".data/1.storage") == b""


@pytest.mark.parametrize("bad", ["text", 7, None, [1, 2], memoryview(bytes(10))[::2]])
def test_write_noncontiguous_data_raises_type_error(bad):
    writer = ArchiveWriter(io.BytesIO())
    with pytest.raises(TypeError, match="data must be"):
        writer.write("a", bad)
    with pytest.raises(TypeError, match="data must be"):
        writer.write_storage(".data/0.storage", bad)


def test_write_name_of_wrong_type_raises_type_error():
    with pytest.raises(TypeError, match="name must be a str, not bytes"):
        ArchiveWriter(io.BytesIO()).write(b"a", b"")


@pytest.mark.parametrize(
    "name", ["a.py", "A.py", "a.py/b", "../x", "", "x" * 5000, layout.MANIFEST]
)
def test_write_rejects_name_and_stays_open(tmp_path, name):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a.py", b"1")
        with pytest.raises(ArchiveError) as caught:
            writer.write(name, b"2")
        assert caught.value.record == name
        writer.write("b.py", b"3")
        writer.commit()
    with open_archive(tmp_path / "m.pt") as archive:
        assert archive.read("a.py") == b"1"
        assert archive.read("b.py") == b"3"


def test_bytes_do_not_depend_on_file_name(tmp_path):
    for name in ("one.pt", "two words.modpack"):
        with ArchiveWriter(tmp_path / name) as writer:
            writer.write(".data/version", b"6\n")
            writer.commit()
    first, second = (file.read_bytes() for file in sorted(tmp_path.iterdir()))
    assert first == second


def test_writer_lists_written_records(tmp_path):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write("b", b"hello")
        writer.write_storage(".data/0.storage", memoryview(BIG))
        assert writer.names() == ("b", ".data/0.storage")
        assert writer.has("b")
        assert not writer.has("B")
        assert writer.digest_of("b").startswith("2cf24dba5fb0a30e")
        with pytest.raises(ArchiveError, match="no such record was written"):
            writer.digest_of("c")


def test_planning_writer_only_checks_names():
    with ArchiveWriter(None) as writer:
        writer.write("a.py", b"1")
        writer.write_storage(".data/0.storage", memoryview(BIG))
        with pytest.raises(ArchiveError, match="the name collides"):
            writer.write("A.py", b"1")
        assert writer.names() == ("a.py", ".data/0.storage")
        assert writer.digest_of("a.py") == ""
        assert writer.commit() == ""


def test_write_after_commit_raises(tmp_path):
    writer = ArchiveWriter(tmp_path / "m.pt")
    writer.write("a", b"")
    writer.commit()
    with pytest.raises(ArchiveError, match="the archive was committed"):
        writer.write("b", b"")
    with pytest.raises(ArchiveError, match="the archive was committed"):
        writer.commit()


def test_zip64_archive_is_readable_by_zipfile(write_package, monkeypatch):
    monkeypatch.setattr(zip_format, "ZIP64_FROM", 1000)
    records = {"small": b"s", "large": BIG[:5000], ".data/0.storage": BIG, "late": b"l" * 999}
    path = write_package(records)
    assert zip_format.END64_SIGNATURE in path.read_bytes()
    with zipfile.ZipFile(path) as other, open_archive(path) as ours:
        for name, content in records.items():
            assert other.read(f"archive/{name}") == content
            assert ours.read(name) == content
        assert ours.data_range(".data/0.storage").offset % 64 == 0


def test_more_than_65535_records_round_trip(tmp_path):
    count = 66_000
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write(".data/version", b"6\n")
        for i in range(count):
            writer.write(f"r/{i}", b"")
        writer.commit()
    with open_archive(tmp_path / "m.pt") as archive:
        assert len(archive.names()) == count + 3
        assert archive.has(f"r/{count - 1}")


def test_rollback_removes_records_after_checkpoint(tmp_path):
    path, plain = tmp_path / "m.pt", tmp_path / "plain" / "m.pt"
    plain.parent.mkdir()
    big = memoryview(bytes(3 << 20))
    with ArchiveWriter(path) as writer:
        writer.write(".data/version", b"6\n")
        writer.write_storage(".data/0.storage", big)
        before = writer.checkpoint()
        writer.write("pkg/a.py", b"x = 1\n" * 999, compress=True)
        writer.write_storage(".data/1.storage", big)
        writer.rollback(before)
        assert writer.names() == (".data/version", ".data/0.storage")
        writer.write("PKG/A.py", b"x = 2\n")
        writer.commit()
    with ArchiveWriter(plain) as writer:
        writer.write(".data/version", b"6\n")
        writer.write_storage(".data/0.storage", big)
        writer.write("PKG/A.py", b"x = 2\n")
        writer.commit()
    assert path.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("to_buffer", [False, True])
def test_open_preview_is_complete_and_undone(tmp_path, to_buffer):
    target = io.BytesIO() if to_buffer else tmp_path / "m.pt"
    with ArchiveWriter(target) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("a.txt", b"one")
        for _ in range(2):
            with writer.open_preview() as preview, open_archive(preview) as archive:
                manifest = read_manifest(archive)
                verify_records(archive, manifest, archive.names())
                assert archive.read("a.txt") == b"one"
            assert layout.MANIFEST not in writer.names()
        writer.write("b.txt", b"two")
        writer.commit()
    content = target.getvalue() if to_buffer else target.read_bytes()
    with open_archive(io.BytesIO(content)) as archive:
        verify_records(archive, read_manifest(archive), archive.names())
        assert archive.read("b.txt") == b"two"
    assert not os.path.exists(preview)


def test_stored_chunks_reads_back_before_commit(tmp_path):
    content = bytes(range(256)) * 40000
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write_storage(".data/0.storage", memoryview(content))
        writer.write("after.txt", b"more", compress=True)
        assert b"".join(writer.stored_chunks(".data/0.storage")) == content
        with pytest.raises(ArchiveError, match="no uncompressed record"):
            list(writer.stored_chunks("nothing"))


def test_open_preview_of_planning_writer_raises():
    with (
        ArchiveWriter(None) as writer,
        pytest.raises(ArchiveError, match="no preview"),
        writer.open_preview(),
    ):
        pass
