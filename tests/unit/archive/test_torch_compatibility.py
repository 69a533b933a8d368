"""Compatibility of modpack's zip code with torch's."""

import io
import warnings

import pytest
import torch
from torch.package import PackageExporter, PackageImporter

from modpack.archive import layout, zip_format
from modpack.archive.base import FileBytes
from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import ZipArchive, open_archive
from modpack.writing.writer import ArchiveWriter


@pytest.fixture(params=["file", "buffer"])
def torch_package(request, tmp_path):
    target = tmp_path / "their model.pt" if request.param == "file" else io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with PackageExporter(target) as exporter:
            exporter.extern("torch.**")
            exporter.save_source_string("pkg.code", "def double(x):\n    return x * 2\n")
            exporter.save_text("pkg", "ünï.txt", "grüß dich")
            exporter.save_text("pkg", "empty.txt", "")
            exporter.save_pickle("pkg", "obj.pkl", {"a": torch.arange(10), "b": torch.ones(999)})
    if isinstance(target, io.BytesIO):
        target.seek(0)
    return target


def copy(archive, target):
    with ArchiveWriter(target) as writer:
        for name in archive.names():
            if layout.is_storage(name):
                writer.write_storage(name, archive.read_view(name))
            else:
                writer.write(name, archive.read(name), compress=True)
        writer.commit()


def test_torch_package_archive_is_read(torch_package):
    with open_archive(torch_package) as archive:
        assert archive.read("pkg/code.py").startswith(b"def double")
        assert archive.read("pkg/ünï.txt").decode() == "grüß dich"
        assert archive.read("pkg/empty.txt") == b""
        assert archive.read(layout.VERSION) == layout.VERSION_CONTENT
        assert archive.read(layout.BYTEORDER) == layout.LITTLE_ENDIAN
        assert archive.read_view(layout.storage_name(0)).cast("q").tolist() == list(range(10))
        assert read_manifest(archive) is None
        assert len(package_digest(archive)) == 64


def test_torch_reads_copied_torch_archive(torch_package, tmp_path):
    with open_archive(torch_package) as archive:
        copy(archive, tmp_path / "copy.pt")
    importer = PackageImporter(tmp_path / "copy.pt")
    loaded = importer.load_pickle("pkg", "obj.pkl")
    assert torch.equal(loaded["a"], torch.arange(10))
    assert torch.equal(loaded["b"], torch.ones(999))
    assert importer.import_module("pkg.code").double(4) == 8
    assert importer.load_text("pkg", "ünï.txt") == "grüß dich"


def test_torch_reader_finds_records(write_package, monkeypatch):
    monkeypatch.setattr(zip_format, "ZIP64_FROM", 3000)  # as if it were beyond 4 GiB
    storages = {f".data/{i}.storage": bytes([i]) * 1000 * i for i in range(6)}
    path = write_package({"pkg/a.py": b"x = 1\n", **storages})
    reader = torch._C.PyTorchFileReader(str(path))
    archive = open_archive(path)
    assert sorted(reader.get_all_records()) == sorted(archive.names())
    assert reader.get_record("pkg/a.py") == b"x = 1\n"
    for name, content in storages.items():
        assert reader.get_record(name) == content
        assert reader.get_record_offset(name) == archive.data_range(name).offset


def test_torch_save_checkpoint_is_readable(tmp_path):
    torch.save({"a": torch.arange(3)}, tmp_path / "checkpoint.pt")
    path = str(tmp_path / "checkpoint.pt")
    with ZipArchive(FileBytes(path, path)) as archive:
        for name in archive.names():
            archive.read(name)
            assert archive.data_range(name) is not None
        assert archive.read_view("data/0").cast("q").tolist() == [0, 1, 2]
