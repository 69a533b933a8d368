"""Recorded tensors of a package."""

from __future__ import annotations

import json

import pytest

from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.records import read_tensors
from modpack.core.tensors import TensorKind
from modpack.errors import ArchiveError, UnsupportedVersionError

RECORD = ".data/modpack/tensors.json"


def read(file):
    with open_archive(file) as archive:
        return read_tensors(archive, read_manifest(archive))


def test_tensors_are_read_by_resource(made):
    (tensor,) = read(made.file)["model/till.pkl"]
    assert (tensor.name, tensor.kind, tensor.shape) == ("coins", TensorKind.VALUE, (3,))
    assert tensor.storage == "0"


def test_package_without_tensor_record_has_none(made, tmp_path):
    from modpack.writing.writer import ArchiveWriter

    older = tmp_path / "older.modpack"
    with open_archive(made.file) as archive, ArchiveWriter(older) as writer:
        for name in archive.names():
            if "manifest" not in name and name != RECORD:
                writer.write(name, archive.read(name))
        writer.commit()
    assert read(older) is None


ENTRY = {"name": "w", "kind": "value", "dtype": "float32", "shape": [3], "requires_grad": False}
STORED = {**ENTRY, "storage": "0", "offset": 0, "stride": [1]}


@pytest.mark.parametrize(
    "entry",
    [
        {**STORED, "storage": "7"},
        {**STORED, "storage": "../0"},
        {**STORED, "offset": 1},
        {**STORED, "stride": [2]},
        {**STORED, "dtype": "float64"},
        {**STORED, "dtype": "double"},
        {**STORED, "dtype": "quint8"},
        {**STORED, "dtype": "quint4x2", "shape": [25], "form": "quantized"},
        {key: value for key, value in STORED.items() if key != "stride"},
        {**STORED, "name": None},
        "w",
    ],
    ids=str,
)
def test_tensor_record_must_fit_the_package(rewritten, entry):
    document = {"version": 1, "resources": {"model/till.pkl": [entry]}}
    file = rewritten({RECORD: json.dumps(document).encode()})
    with pytest.raises(ArchiveError, match=r"tensors\.json"):
        read(file)


def test_packed_elements_share_bytes(rewritten):
    packed = {**STORED, "dtype": "quint4x2", "shape": [24], "form": "quantized"}
    document = {"version": 1, "resources": {"model/till.pkl": [packed]}}
    assert read(rewritten({RECORD: json.dumps(document).encode()}))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 100_000, b'{"version": 1}', b"\xff"])
def test_invalid_tensor_record_is_rejected(rewritten, content):
    with pytest.raises(ArchiveError, match=r"tensors\.json"):
        read(rewritten({RECORD: content}))


def test_newer_tensor_record_is_rejected(rewritten):
    with pytest.raises(UnsupportedVersionError):
        read(rewritten({RECORD: b'{"version": 2, "resources": {}}'}))
