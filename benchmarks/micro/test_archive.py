"""Micro benchmarks of archives with many records."""

import io

import pytest

from modpack.archive import layout
from modpack.archive.base import RecordDigest
from modpack.archive.layout import find_collision, find_unsafe_name
from modpack.archive.manifest import encode_manifest, read_manifest
from modpack.archive.reader import open_archive
from modpack.writing.writer import ArchiveWriter

COUNT = 1000


@pytest.fixture(scope="module")
def archive(package):
    with open_archive(package) as opened:
        yield opened


@pytest.fixture(scope="module")
def names():
    return [f".data/{number}.storage" for number in range(COUNT)]


def test_open(benchmark, package):
    """Parse and check the central directory."""
    benchmark(lambda: open_archive(package).close())


def test_open_and_read_manifest(benchmark, package):
    def read():
        with open_archive(package) as opened:
            return read_manifest(opened)

    assert len(benchmark(read).records) > COUNT


def test_read_local_headers(benchmark, archive):
    storages = [name for name in archive.names() if name.endswith(".storage")]
    ranges = benchmark(lambda: [archive.data_range(name) for name in storages])
    assert len(ranges) == COUNT


def test_read_small_records(benchmark, archive):
    storages = [name for name in archive.names() if name.endswith(".storage")]
    assert len(benchmark(lambda: [archive.read(name) for name in storages])) == COUNT


@pytest.mark.parametrize("size", [64, 50_000])
def test_write_storages(benchmark, names, size):
    """Write headers, checksums, manifest, and directory to memory, without a disk."""
    content = memoryview(bytes(size))

    def write():
        with ArchiveWriter(io.BytesIO()) as writer:
            writer.write(layout.VERSIONS[0], b"6")
            for name in names:
                writer.write_storage(name, content)
            return writer.commit()

    assert benchmark(write)


def test_check_names(benchmark, names):
    assert benchmark(lambda: find_unsafe_name(names) or find_collision(names)) is None


def test_encode_manifest(benchmark, names):
    records = dict.fromkeys(names, RecordDigest(64, "0" * 64))
    assert benchmark(encode_manifest, records)
