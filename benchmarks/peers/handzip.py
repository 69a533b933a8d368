"""The zip of a package, as far as :mod:`handsaved` writes it and :mod:`handloaded` reads it.

All of a header follows from a name, a method, a checksum, two sizes and a place. So a header that
is read is made again and compared: it has one reading, and nothing can hide in it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

STORED, DEFLATED = 0, 8 << 16
"""Method and flags as one number."""
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
"""Where the directory's header of a record says it."""


class Refused(Exception):
    """Something in a package is not what it should be."""


def require(is_right: bool) -> None:
    """Refuse what is not."""
    if not is_right:
        raise Refused


class Record(NamedTuple):
    """What there is to know about a record.

    Attributes:
        name: with the top-level folder.
        kind: whether it is deflated.
        crc: of its content.
        compressed: bytes in the zip.
        size: bytes of its content.
        offset: of its header.
    """

    name: bytes
    kind: int
    crc: int
    compressed: int
    size: int
    offset: int


def local_header(record: Record) -> bytes:
    """What lies before a record's data; that of storages is aligned."""
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
    """What lies behind all records, from an offset to the end of the file."""
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


def directory_place(end: bytes) -> int:
    """Where the directory begins, as the end of the file says."""
    return _END.unpack(end)[6]


def records_in(directory: bytes, offset: int) -> list[Record]:
    """The records of a whole directory, which lies at an offset and tells of what lies before."""
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


def content_of(record: Record, whole: bytes, deflated: str = "") -> bytes:
    """What a record holds, of which all bytes are given, and perhaps what it is deflated to."""
    header = local_header(record)
    require(whole.startswith(header))
    content = whole[len(header) :]
    require((record.kind == DEFLATED) == bool(deflated))
    if deflated:
        require(hashlib.sha256(content).hexdigest() == deflated)
    if record.kind == DEFLATED:
        inflating = zlib.decompressobj(-15)
        content = inflating.decompress(content, record.size + 1)
        require(inflating.eof and not inflating.unused_data)
    require(len(content) == record.size and zlib.crc32(content) == record.crc)
    return content
