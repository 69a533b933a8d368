"""Packages and forged zips for the archive tests, built in code."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from modpack.writing.writer import ArchiveWriter

WritePackage = Callable[..., Path]


@pytest.fixture
def write_package(tmp_path: Path) -> WritePackage:
    """Write ``records`` and a version to ``name`` in the test's folder."""

    def write(records: Mapping[str, bytes], name: str = "model.pt", compress: bool = False) -> Path:
        path = tmp_path / name
        with ArchiveWriter(path) as writer:
            writer.write(".data/version", b"6\n")
            for record, content in records.items():
                if record.endswith(".storage"):
                    writer.write_storage(record, memoryview(content))
                else:
                    writer.write(record, content, compress=compress)
            writer.commit()
        return path

    return write


@dataclass
class Forged:
    """One record of a forged zip. Unset fields have their correct values."""

    name: bytes
    content: bytes = b""
    flags: int = 0
    method: int = 0
    payload: bytes | None = None
    size: int | None = None
    crc: int | None = None
    attributes: int = 0
    needed: int = 20
    extra: bytes = b""
    comment: bytes = b""
    offset: int | None = None
    local: dict[str, object] = field(default_factory=dict)
    descriptor: bytes = b""

    def fields(self) -> dict[str, object]:
        payload = self.content if self.payload is None else self.payload
        return {
            "name": self.name,
            "flags": self.flags,
            "method": self.method,
            "crc": zlib.crc32(self.content) if self.crc is None else self.crc,
            "compressed": len(payload),
            "size": len(self.content) if self.size is None else self.size,
            "extra": b"",
        }

    def local_bytes(self) -> bytes:
        f = self.fields() | self.local
        header = struct.pack(
            "<4sHHHHHIIIHH", b"PK\3\4", self.needed, f["flags"], f["method"], 0, 0x21,
            f["crc"], f["compressed"], f["size"], len(f["name"]), len(f["extra"]),
        )  # fmt: skip
        payload = self.content if self.payload is None else self.payload
        return header + f["name"] + f["extra"] + payload + self.descriptor

    def central_bytes(self, offset: int) -> bytes:
        f = self.fields()
        header = struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, self.needed, f["flags"], f["method"], 0, 0x21,
            f["crc"], f["compressed"], f["size"], len(self.name), len(self.extra),
            len(self.comment), 0, 0, self.attributes,
            offset if self.offset is None else self.offset,
        )  # fmt: skip
        return header + self.name + self.extra + self.comment


def forge_zip(*records: Forged, before: bytes = b"", between: bytes = b"", comment: bytes = b""):
    body, directory = before, b""
    for record in records:
        directory += record.central_bytes(len(body))
        body += record.local_bytes() + between
    count = len(records)
    end = struct.pack(
        "<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), len(comment)
    )
    return body + directory + end + comment


@pytest.fixture
def record() -> type[Forged]:
    """The class of one forged record."""
    return Forged


@pytest.fixture
def forge(tmp_path: Path) -> Callable[..., Path]:
    """Write a zip of a version record and the given ``records``."""

    def write(*records: Forged, **options: bytes) -> Path:
        path = tmp_path / "forged.pt"
        version = Forged(b"p/.data/version", b"6\n")
        path.write_bytes(forge_zip(version, *records, **options))
        return path

    return write
