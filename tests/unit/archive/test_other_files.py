"""Errors for files that are not packages: they name the kind of file and the call that opens it."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import modpack
from modpack.archive.reader import open_archive
from modpack.errors import NotAPackageError, PackageNotFoundError, TargetError


def safetensors() -> bytes:
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    return struct.pack("<Q", len(header)) + header + bytes(8)


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("net.modpack"))
    return buffer.getvalue()


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return buffer.getvalue()


def torch_saved(**options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer, **options)
    return buffer.getvalue()


CONTENTS = {
    "torch.save": (torch_saved(), "torch.load('{file}', weights_only=True)"),
    "torch.save, old": (
        torch_saved(_use_new_zipfile_serialization=False),
        "torch.load('{file}', weights_only=True)",
    ),
    "pickle": (pickle.dumps([1]), "if torch.save wrote it"),
    "pickle, protocol 0": (pickle.dumps([1], 0), "if torch.save wrote it"),
    "safetensors": (safetensors(), "safetensors.torch.load_file('{file}')"),
    "gguf": (b"GGUF" + bytes(60), "runtime"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(60), "h5py.File('{file}')"),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(60), "numpy.load('{file}')"),
    "npz": (zipped("w.npy"), "numpy.load('{file}')"),
    "onnx": (b"\x08\x08\x12\x07pytorch" + bytes(60), "onnx.load('{file}')"),
    "tar": (tar(), "Unpack it"),
    "gzip": (gzip.compress(tar()), "Unpack it"),
    "xz": (b"\xfd7zXZ\x00" + bytes(60), "Unpack it"),
    "zip around": (zipped("net.modpack"), "Unpack it"),
    "wheel": (zipped("p/version.py", "p-1.dist-info/WHEEL"), "pip install '{file}'"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid x\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html>\n<html>404</html>", "Download"),
    "text": ("größe: 3\n".encode(), "this is a text file"),
    "library": (b"\x7fELF\x02" + bytes(60), "library"),
    "empty": (b"", "this is an empty file"),
    "export": (zipped("m/archive_format", "m/.data/version"), "torch.export.load('{file}')"),
    "export, old": (zipped("serialized_exported_program.json", "version"), "torch.export.load"),
    "torchscript": (zipped("m/data.pkl", "m/constants.pkl", "m/version"), "torch.jit.load"),
    "unknown": (bytes(range(128, 256)), "it is not a zip archive. Check the path"),
    "unknown zip": (zipped("a/b.txt"), "without a version record"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_load_of_other_file_names_kind_and_fix(name, tmp_path):
    content, remedy = CONTENTS[name]
    file = tmp_path / "net.pt"
    file.write_bytes(content)
    with pytest.raises(NotAPackageError, match=r"net\.pt: this is .*package.*\. [A-Z]") as failure:
        modpack.load(file)
    assert remedy.format(file=file) in str(failure.value)
    if content:
        with pytest.raises(NotAPackageError) as failure:
            modpack.load(io.BytesIO(content))
        assert remedy.format(file=file).replace(repr(str(file)), "buffer") in str(failure.value)


@pytest.mark.parametrize("text", ["cat\ndog\npig\n", "MZ is a tag of a zoo", "(do\n", "GG"])
def test_open_text_like_other_format_reports_text(text, tmp_path):
    (tmp_path / "words").write_text(text)
    with pytest.raises(NotAPackageError, match="this is a text file"):
        open_archive(tmp_path / "words")


@pytest.mark.parametrize(
    "files, remedy",
    [
        ((), "it is empty"),
        (("readme.md",), "Pass a package file"),
        ((".metadata", "__0_0.distcp"), "torch.distributed.checkpoint.load(state_dict, "),
        (("config.json", "model.safetensors"), "modpack.save"),
        (("b.modpack", "a.modpack"), "Name one: 'a.modpack', 'b.modpack'"),
    ],
)
def test_load_of_other_folder_names_kind_and_fix(files, remedy, tmp_path: Path):
    for file in files:
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(NotAPackageError) as failure:
        modpack.load(tmp_path)
    assert remedy in str(failure.value)


@pytest.mark.parametrize("kind", [str, Path])
def test_load_opens_file_url(kind, tmp_path):
    modpack.save([1], tmp_path / "net.modpack")
    url = (tmp_path / "net.modpack").as_uri()
    assert modpack.load(kind(url)) == [1]
    with pytest.raises(PackageNotFoundError, match=f"^{url}.pt: the object was not found"):
        modpack.load(kind(f"{url}.pt"))


def test_save_to_url_names_fsspec():
    with pytest.raises(TargetError, match=r"'wb'\) as file: modpack\.save\(model, file\)"):
        modpack.save([1], "s3://bucket/net.modpack")


def test_open_folder_named_like_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    modpack.save([1], "s3:/net.modpack")
    assert modpack.load("s3://net.modpack") == [1]


def test_open_package_with_records_of_other_formats(tmp_path):
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        for name in ("data.pkl", "constants.pkl", "archive_format", "w.npy", "a.modpack"):
            exporter.save_binary("", name, b"x")
    with modpack.PackageImporter(tmp_path / "net.modpack") as importer:
        assert importer.load_binary("", "constants.pkl") == b"x"
