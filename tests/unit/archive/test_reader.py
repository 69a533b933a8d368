import io
import os
import tempfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from modpack.archive import layout
from modpack.archive.base import DataRange
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, NotAPackageError, RecordNotFoundError

BIG = bytes(range(256)) * (6 << 12)  # 6 MiB: read in more than one piece
RECORDS = {
    "pkg/__init__.py": b"",
    "pkg/a.py": b"x = 1\n" * 100,
    "pkg/ünï.txt": "grüß dich".encode(),
    "pkg/big.txt": b"again and again " * 70_000,
    ".data/0.storage": BIG,
    ".data/1.storage": b"",
}


@pytest.fixture(params=["plain", "compressed"])
def path(request, write_package):
    return write_package(RECORDS, compress=request.param == "compressed")


@pytest.fixture(params=["file", "buffer", "folder", "folder around"])
def archive(request, path, tmp_path):
    """The same package as each kind of archive."""
    if request.param == "file":
        source = path
    elif request.param == "buffer":
        source = io.BytesIO(path.read_bytes())
    else:
        with zipfile.ZipFile(path) as zipped:
            zipped.extractall(tmp_path / "out")
        source = tmp_path / "out" / ("archive" if request.param == "folder" else "")
    with open_archive(source) as opened:
        yield opened


def test_sizes_equal_size_of_each_record(archive):
    assert list(archive.sizes().items()) == [(n, archive.size(n)) for n in archive.names()]


def test_all_archive_kinds_have_same_contents(archive):
    own = {".data/version", ".data/modpack/manifest.json", ".data/modpack/manifest.sha256"}
    assert set(archive.names()) == RECORDS.keys() | own
    for name, content in RECORDS.items():
        assert archive.has(name)
        assert archive.size(name) == len(content)
        assert archive.read(name) == content
        assert archive.read_view(name) == archive.read_copy(name) == content
        assert b"".join(archive.chunks(name)) == content


def test_missing_record_error_suggests_similar_names(archive):
    assert not archive.has("pkg/A.py")
    for ask in (archive.read, archive.size, archive.crc32, archive.data_range, archive.chunks):
        with pytest.raises(RecordNotFoundError) as caught:
            ask("pkg/A.py")
        assert caught.value.similar[0] == "pkg/a.py"
        assert "Did you mean 'pkg/a.py'" in str(caught.value)


def test_data_range_locates_record(archive):
    place = archive.data_range(".data/0.storage")
    if archive.path == "<buffer>":
        assert place is None
        return
    assert os.path.isabs(place.path)
    with open(place.path, "rb") as file:
        file.seek(place.offset)
        assert file.read(place.length) == BIG
    archive.check_unchanged()


def test_offsets_locate_the_header_of_each_record(path):
    content = path.read_bytes()
    with open_archive(path) as archive:
        offsets = archive.offsets()
        assert list(offsets) == list(archive.names())
    for name, offset in offsets.items():
        assert content.startswith(b"PK\x03\x04", offset)
        assert f"/{name}".encode() in content[offset : offset + 100]


def test_folder_has_no_offsets(path, tmp_path):
    with zipfile.ZipFile(path) as zipped:
        zipped.extractall(tmp_path / "out")
    with open_archive(tmp_path / "out") as archive:
        assert archive.offsets() == {}


def test_closed_archive_raises(archive):
    archive.close()
    archive.close()
    with pytest.raises(ArchiveError, match="closed"):
        archive.read("pkg/a.py")


def test_zip_names_are_in_file_order(write_package):
    with open_archive(write_package({"b": b"", "a": b""})) as archive:
        assert archive.names()[:3] == (".data/version", "b", "a")


def test_data_range_of_compressed_record_is_none(write_package):
    with open_archive(write_package(RECORDS, compress=True)) as archive:
        assert archive.data_range("pkg/a.py") is None
        assert isinstance(archive.data_range(".data/0.storage"), DataRange)


def test_read_view_of_buffer_is_readonly_without_copy(write_package):
    content = write_package(RECORDS).read_bytes()
    with open_archive(io.BytesIO(content)) as archive:
        view = archive.read_view(".data/0.storage")
        assert view.readonly
        assert view.obj is archive.read_view("pkg/a.py").obj


def test_read_view_of_buffer_is_verified(write_package):
    class Refusing:
        def check(self, source, name, content):
            raise ArchiveError(source, "it should be something else", name)

    content = write_package(RECORDS).read_bytes()
    with open_archive(io.BytesIO(content)) as archive:
        archive.verify_with(Refusing())
        for read in (archive.read, archive.read_view, archive.read_copy):
            with pytest.raises(ArchiveError, match=r"0\.storage.*something else"):
                read(".data/0.storage")


def test_buffer_is_read_from_current_position(write_package):
    content = write_package(RECORDS).read_bytes()
    buffer = io.BytesIO(b"something else" + content)
    buffer.seek(14)
    with open_archive(buffer) as archive:
        buffer.close()
        assert archive.read("pkg/a.py") == RECORDS["pkg/a.py"]


def test_buffer_at_end_error_suggests_seek(write_package):
    buffer = io.BytesIO(write_package(RECORDS).read_bytes())
    buffer.seek(0, io.SEEK_END)
    with pytest.raises(NotAPackageError, match=r"seek\(0\)"):
        open_archive(buffer)


def test_archive_is_read_by_many_threads(archive):
    barrier = threading.Barrier(8)

    def read_everything(turn):
        barrier.wait()
        names = [*RECORDS][turn % 3 :] + [*RECORDS][: turn % 3]
        return all(archive.read(name) == RECORDS[name] for name in names * 3)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read_everything, range(8)))


def test_file_replaced_while_open_is_detected(write_package, tmp_path):
    path = write_package({"a": b"old"})
    with open_archive(path) as archive:
        write_package({"a": b"new"})
        assert archive.read("a") == b"old"
        with pytest.raises(ArchiveError, match="replaced"):
            archive.check_unchanged()


def test_file_truncated_while_open_raises_archive_error(write_package):
    path = write_package({"a": b"x" * 100})
    with open_archive(path) as archive:
        os.truncate(path, 40)
        with pytest.raises(ArchiveError, match="truncated"):
            archive.read("a")


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all" * 100, b"\x80\x02}q\x00."])
def test_open_rejects_file_that_is_not_a_zip(tmp_path, content):
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    with pytest.raises(NotAPackageError, match=r"m\.pt: this is .* not a package\. [A-Z]"):
        open_archive(path)


def test_open_rejects_zip_without_version(tmp_path):
    for name in ("empty.zip", "other.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            if name == "other.zip":
                archive.writestr("docs/", b"")
                archive.writestr("docs/version.txt", b"1")
                archive.writestr("loose.txt", b"1")
        with pytest.raises(ArchiveError):
            open_archive(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "third.zip", "w") as archive:
        archive.writestr("a/b.txt", b"")
    with pytest.raises(NotAPackageError, match="not a package"):
        open_archive(tmp_path / "third.zip")


def test_missing_file_error_keeps_given_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("missing.pt", "missing/m.pt", "a\0b"):
        with pytest.raises(NotAPackageError) as caught:
            open_archive(name)
        assert caught.value.path == name


@pytest.mark.parametrize("bad", [7, None, b"m.pt", io.StringIO("text"), object()])
def test_wrong_type_raises_type_error(bad):
    with pytest.raises(TypeError, match="source must be"):
        open_archive(bad)


def test_zipfile_output_is_read(tmp_path):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.content = b""

        def writable(self):
            return True

        def write(self, data):
            self.content += bytes(data)
            return len(data)

    for sink in (io.BytesIO(), Pipe()):
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("p/.data/version", b"6\n")
            archive.writestr("p/a.txt", b"hello" * 100)
        content = sink.content if isinstance(sink, Pipe) else sink.getvalue()
        assert open_archive(io.BytesIO(content)).read("a.txt") == b"hello" * 100


def test_temporary_file_is_read_as_buffer(write_package):
    with tempfile.NamedTemporaryFile() as file:
        file.write(write_package(RECORDS).read_bytes())
        file.seek(0)
        assert open_archive(file).read("pkg/a.py") == RECORDS["pkg/a.py"]


def test_open_applies_limits(write_package, monkeypatch):
    path = write_package({"a": b"again " * 1000, "b": b""}, compress=True)
    for name, fitting, exceeded in (
        ("MAX_RECORDS", 5, 3),
        ("MAX_DIRECTORY_BYTES", 1000, 100),
        ("MAX_NAME_BYTES", 50, 5),
        ("MAX_CODE_RECORD_BYTES", 6000, 5999),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(layout, name, fitting)
            assert open_archive(path).has("a")
            patched.setattr(layout, name, exceeded)
            with pytest.raises(ArchiveError):
                open_archive(path)
