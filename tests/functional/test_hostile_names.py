"""Pickles that would run code, as reported by the reader and handled by a strict policy."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import modpack
from modpack import PackageExporter, PackageImporter, TrustPolicy
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, ModpackError, TrustError
from modpack.hooks.restoring import register_payload
from modpack.report.verify import verify_package
from modpack.writing.writer import ArchiveWriter

STRICT = TrustPolicy()
"""A policy that allows only data."""


PICKLE, ENTRY = "model/model.pkl", ".data/modpack/entry.json"


@pytest.fixture
def plain() -> dict[str, bytes]:
    """The records of a valid package, without the manifest."""
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_pickle("model", "model.pkl", {"a": 1})
    with open_archive(io.BytesIO(buffer.getvalue())) as archive:
        names = (n for n in archive.names() if not n.startswith(".data/modpack/manifest."))
        return {name: archive.read(name) for name in names}


def zipped(records: dict[str, bytes]) -> bytes:
    """A package of these records, with a manifest that lists them."""
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        for name, content in records.items():
            writer.write(name, content)
        writer.commit()
    return buffer.getvalue()


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """A file that exists if the pickle of :func:`system` was executed."""
    return tmp_path / "touched"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def system(touched: Path) -> bytes:
    return b"cos\nsystem\n(" + text(f"touch {touched}") + b"tR"


def errors(records: dict[str, bytes]) -> set[str]:
    found = verify_package(io.BytesIO(zipped(records))).findings
    return {each.code for each in found if each.severity.value == "error"}


def framed(opcodes: bytes) -> bytes:
    """A scanner that ignores frames sees a number and a string where the unpickler sees opcodes."""
    frame = b"\x95" + struct.pack("<Q", 3) + b"Gaa"
    return b"\x80\x04" + frame + b"bbbbbb\x8c" + bytes([len(opcodes)]) + opcodes + b"."


@pytest.mark.parametrize("folder", ["os", "os/deep", "posix"])
def test_data_folder_does_not_shadow_module(plain, touched, folder):
    records = {**plain, PICKLE: b"\x80\x03" + system(touched) + b".", f"{folder}/a.txt": b"hi"}
    with pytest.raises(TrustError, match=r"os\.system"):
        modpack.load(io.BytesIO(zipped(records)), policy=STRICT)
    assert not touched.exists()


def test_opcode_crossing_frame_is_rejected(plain, touched):
    records = {**plain, PICKLE: framed(b"0" + system(touched))}
    assert "pickle-malformed" in errors(records)
    with pytest.raises(TrustError, match="1 pickle that cannot be read"):
        modpack.load(io.BytesIO(zipped(records)), policy=STRICT)
    assert not touched.exists()


def test_main_object_must_be_listed(plain, touched):
    entry = json.loads(plain[ENTRY])
    entry["main"] = ["model", "evil.py"]
    evil = b"\x80\x03" + system(touched) + b"."
    records = {**plain, ENTRY: json.dumps(entry).encode(), "model/evil.py": evil}
    with pytest.raises(ArchiveError, match="is not among the saved objects"):
        modpack.load(io.BytesIO(zipped(records)))
    with pytest.raises(TrustError, match=r"1 Python source \(model/evil\.py\)"):
        modpack.load(io.BytesIO(zipped(records)), policy=STRICT)
    assert not touched.exists()


def test_unlisted_pickle_is_loaded_as_data(plain, touched):
    evil = b"\x80\x03N0" + system(touched) + b"."
    records = {**plain, "model/evil.txt": b"N0" + evil}
    importer = PackageImporter(io.BytesIO(zipped(records)), policy=STRICT)
    with pytest.raises(ModpackError, match="the protocol changes within the pickle"):
        importer.load_pickle("model", "evil.txt")
    assert not touched.exists()


def test_python_2_names_match_listing(plain, touched):
    called = b"cUserDict\nUserDict\n(" + text(f"touch {touched}") + b"tR."
    hidden = {"UserDict.py": b"from os import system as UserDict\n"}
    records = {**plain, **hidden, PICKLE: called}
    with pytest.raises(ValueError, match="unpack"):  # collections.UserDict, of a text
        modpack.load(io.BytesIO(zipped(records)))
    assert not touched.exists()


@pytest.mark.parametrize(
    ("content", "flaw"),
    [
        (
            b"\x80\x04\x95" + struct.pack("<Q", 11) + b"\x95" + struct.pack("<Q", 2) + b"N.",
            "inside",
        ),
        (b"\x80\x04\x95" + struct.pack("<Q", 99) + b"N.", "extends past the end"),
        (b"\x80\x04\x95" + struct.pack("<Q", 3) + b"N.N", "ends inside a frame"),
    ],
)
def test_invalid_frames_are_rejected(plain, content, flaw):
    records = {**plain, PICKLE: content}
    assert "pickle-malformed" in errors(records)
    found = verify_package(io.BytesIO(zipped(records))).findings
    assert any(flaw in each.message for each in found)
    with pytest.raises(TrustError, match="1 pickle that cannot be read"):
        modpack.load(io.BytesIO(zipped(records)), policy=STRICT)


def test_hooks_are_registered_by_class_method(capsys):
    model = torch.nn.Linear(2, 2)
    model.__dict__["register_forward_hook"] = print
    payload = {"hooks": [("h", "forward", model, {}, (0,), torch.relu)], "next_id": 0}
    nothing = {"dropped": [], "orders": [], "handles": []}
    register_payload({**payload, **nothing}, lambda name: True, False, {})
    assert torch.relu in model._forward_hooks.values()
    assert capsys.readouterr().out == ""


def test_hooks_of_other_objects_are_rejected():
    target = SimpleNamespace(register_forward_hook=print)
    payload = {"hooks": [("h", "forward", target, {}, (0,), torch.relu)], "next_id": 0}
    nothing = {"dropped": [], "orders": [], "handles": []}
    with pytest.raises(
        ModpackError, match="'h' of kind 'forward' is registered on a SimpleNamespace"
    ):
        register_payload({**payload, **nothing}, lambda name: True, False, {})
