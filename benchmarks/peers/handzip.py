"""The zip format of packages, for :mod:`handsaved` and :mod:`handloaded`.

Name, method, checksum, sizes, and offset determine all bytes of a header. Reading regenerates each
header and compares it, which makes it unambiguous and leaves no room for hidden data.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

STORED, DEFLATED = 0, 8 << 16
"""Compression method and flags as one number."""
ROOT = "archive"
STORAGE = ".storage"
MANIFEST, DIGEST = ".data/modpack/manifest.json", ".data/modpack/manifest.sha256"
_LOCAL = Struct("<4sHIHHIIIHH")
_CENTRAL = Struct("<4sHHIHHIIIHHIHII")
_END = Struct("<4sHHHHIIH")
END_BYTES = _END.size
_NEEDED, _MADE_BY, _FIRST_DATE, _REGULAR_FILE = 20, 3 << 8 | 20, 0x21, 0o100644 << 16
_ALIGNMENT = 64
_NAME_LENGTH = 9
"""Index of the name's length in a header of the central directory."""


class Rejected(Exception):
    """A package is invalid."""


def require(is_valid: bool) -> None:
    """Reject the package if a check fails."""
    if not is_valid:
        raise Rejected


class Record(NamedTuple):
    """The metadata of a record.

    Attributes:
        name: Name with the top-level folder.
        kind: ``STORED`` or ``DEFLATED``.
        crc: CRC-32 of the content.
        compressed: Compressed size in bytes.
        size: Size of the content in bytes.
        offset: Offset of the header.
    """

    name: bytes
    kind: int
    crc: int
    compressed: int
    size: int
    offset: int


def local_header(record: Record) -> bytes:
    """Return a record's local header. Data of storages is aligned."""
    name, kind, crc, compressed, size, offset = record
    padding = b""
    if name.endswith(b".storage"):
        missing = -(offset + _LOCAL.size + len(name)) % _ALIGNMENT
        padding = _PADDINGS[missing]
    lengths = len(name), len(padding)
    header = _LOCAL.pack(b"PK\3\4", _NEEDED, kind, 0, _FIRST_DATE, crc, compressed, size, *lengths)
    return header + name + padding


def _padding(missing: int) -> bytes:
    if not missing:
        return b""
    missing += _ALIGNMENT if missing < 4 else 0
    return b"FB" + (missing - 4).to_bytes(2, "little") + bytes(missing - 4)


_PADDINGS = [_padding(missing) for missing in range(_ALIGNMENT)]


def central_directory(records: Iterable[Record], offset: int) -> bytes:
    """Return the central directory at an offset, up to the end of the file."""
    lines = [
        _CENTRAL.pack(
            b"PK\1\2",
            _MADE_BY,
            _NEEDED,
            kind,
            0,
            _FIRST_DATE,
            crc,
            compressed,
            size,
            len(name),
            0,
            0,
            0,
            _REGULAR_FILE,
            at,
        )
        + name
        for name, kind, crc, compressed, size, at in records
    ]
    length = sum(map(len, lines))
    return b"".join([*lines, _END.pack(b"PK\5\6", 0, 0, len(lines), len(lines), length, offset, 0)])


def directory_offset(end: bytes) -> int:
    """Return the offset of the central directory from the end of the file."""
    return _END.unpack(end)[6]


def records_in(directory: bytes, offset: int) -> list[Record]:
    """Return the records of the central directory at an offset."""
    records, position, last = [], 0, len(directory) - _END.size
    while position < last:
        row = _CENTRAL.unpack_from(directory, position)
        name_at = position + _CENTRAL.size
        position = name_at + row[_NAME_LENGTH]
        _, _, _, kind, _, _, crc, compressed, size, *_, at = row
        records.append(Record(directory[name_at:position], kind, crc, compressed, size, at))
    require(directory == central_directory(records, offset))
    expected = 0
    for record in records:
        require(record.offset == expected and record.kind in (STORED, DEFLATED))
        expected += len(local_header(record)) + record.compressed
    require(expected == offset)
    return records


def content_of(record: Record, data: bytes, deflated: str = "") -> bytes:
    """Return a record's content.

    Args:
        record: The record.
        data: The record's header and data.
        deflated: SHA-256 of the compressed data. Empty if the record is stored.
    """
    header = local_header(record)
    require(data.startswith(header))
    content = data[len(header) :]
    require((record.kind == DEFLATED) == bool(deflated))
    if deflated:
        require(hashlib.sha256(content).hexdigest() == deflated)
    if record.kind == DEFLATED:
        inflating = zlib.decompressobj(-15)
        content = inflating.decompress(content, record.size + 1)
        require(inflating.eof and not inflating.unused_data)
    require(len(content) == record.size and zlib.crc32(content) == record.crc)
    return content
