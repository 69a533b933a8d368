"""The bytes of a zip archive: the part of PKWARE's APPNOTE.TXT 6.3 that a package uses.

One disk, no encryption, no comments, the methods "stored" and "deflated", names in UTF-8,
and zip64 for records and offsets from 4 GiB on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

LOCAL_SIGNATURE: Final = b"PK\x03\x04"
CENTRAL_SIGNATURE: Final = b"PK\x01\x02"
END_SIGNATURE: Final = b"PK\x05\x06"
END64_SIGNATURE: Final = b"PK\x06\x06"
END64_LOCATOR_SIGNATURE: Final = b"PK\x06\x07"
DESCRIPTOR_SIGNATURE: Final = b"PK\x07\x08"

# Flags and method are read as one number ("kind"), and so are time and date, and comment length and
# disk, because a reader compares each pair at once.
LOCAL: Final = Struct("<4sHIHHIIIHH")
"""signature, version needed, kind, time, date, crc, compressed, size, name and extra lengths."""
CENTRAL: Final = Struct("<4sHHIIIIIHHIHII")
"""signature, made by, version needed, kind, time and date, crc, compressed, size, name and extra
lengths, comment length and disk, internal and external attributes, offset."""
END: Final = Struct("<4sHHHHIIH")
"""signature, disk, directory's disk, records here, records, directory's size and offset,
comment length."""
END64: Final = Struct("<4sQHHIIQQQQ")
"""signature, size of the rest, made by, version needed, disk, directory's disk, records here,
records, directory's size and offset."""
END64_REST: Final = END64.size - 12
"""What a zip64 end record states as its size: not the signature and not this number."""
END64_LOCATOR: Final = Struct("<4sIQI")
"""signature, disk, offset of the zip64 end record, disks."""
DESCRIPTOR: Final = Struct("<4sIII")
DESCRIPTOR64: Final = Struct("<4sIQQ")
EXTRA: Final = Struct("<HH")
CRC_IN_LOCAL: Final = 14
"""Offset of the crc in a local header."""

MAX16: Final = 0xFFFF
MAX32: Final = 0xFFFFFFFF
ZIP64_FROM = MAX32
"""Sizes and offsets from here on are written in zip64 form."""

STORED: Final = 0
DEFLATED: Final = 8
RAW_DEFLATE: Final = -15
"""What zlib calls deflated bytes without a header of its own."""
FLAG_DESCRIPTOR: Final = 0x8
FLAG_UTF8: Final = 0x800
KINDS: Final = frozenset(
    flags | method << 16
    for flags in (0, FLAG_DESCRIPTOR, FLAG_UTF8, FLAG_DESCRIPTOR | FLAG_UTF8)
    for method in (STORED, DEFLATED)
)
"""Flags (low 16 bits) and method (high 16 bits) that a package may have. torch writes 0x808, and
0x800 for empty records; modpack writes 0, and 0x800 for names beyond ASCII."""

ZIP64_ID: Final = 0x0001
PADDING_ID: Final = 0x4246
"""The extra field "FB", with which torch moves data to an aligned offset."""
_OF_FILES: Final = frozenset({0x000A, 0x000D, 0x5455, 0x5855, 0x7855, 0x7875})
"""NTFS, PKWARE's Unix, and Info-ZIP's: times and owners of files, and nothing about content."""
ALIGNMENT: Final = 64
"""Tensor data starts at a multiple of so many bytes from the start of the file, as in torch."""

NEEDED: Final = 20
NEEDED_ZIP64: Final = 45
MADE_ON_UNIX: Final = 3 << 8
REGULAR_FILE: Final = 0o100644 << 16
FIRST_DATE: Final = 0x21
"""1980-01-01: archives of the same content are the same bytes."""

REPACKED: Final = "another program packed it again. Remedy: unzip it and load the folder"
"""Ends the reason of every refusal of what no package has, and other zip programs write."""


class ZipEntry(NamedTuple):
    """A record as the headers describe it.

    Attributes:
        raw_name: the full name in UTF-8, the top-level folder included.
        kind: flags and method as one number, see :data:`KINDS`.
        crc: crc32 of the content.
        compressed: bytes of content in the zip.
        size: bytes of content.
        offset: of the local header.
        end: where the next record, or the directory, begins; a writer does not need it.
    """

    raw_name: bytes
    kind: int
    crc: int
    compressed: int
    size: int
    offset: int
    end: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether the content lies in the zip as it is."""
        return self.kind >> 16 == STORED

    @property
    def has_descriptor(self) -> bool:
        """Whether sizes and crc follow the data instead of standing before it."""
        return bool(self.kind & FLAG_DESCRIPTOR)


def canonical_kind(raw_name: bytes, method: int) -> int:
    """Flags and method that modpack writes for a record.

    Args:
        raw_name: the full name.
        method: :data:`STORED` or :data:`DEFLATED`.
    """
    return (0 if raw_name.isascii() else FLAG_UTF8) | method << 16


def local_header(entry: ZipEntry, *, align: bool) -> bytes:
    """The header before a record's data; with ``align``, padded so that the data is aligned."""
    raw_name, size, compressed = entry.raw_name, entry.size, entry.compressed
    extra, needed = b"", NEEDED
    if size >= ZIP64_FROM or compressed >= ZIP64_FROM:
        extra, needed = _zip64(size, compressed), NEEDED_ZIP64
        size = compressed = MAX32
    if align:
        data_offset = entry.offset + LOCAL.size + len(raw_name) + len(extra)
        extra += _padding(-data_offset % ALIGNMENT)
    what = (LOCAL_SIGNATURE, needed, entry.kind, 0, FIRST_DATE, entry.crc, compressed, size)
    return LOCAL.pack(*what, len(raw_name), len(extra)) + raw_name + extra


def central_header(entry: ZipEntry) -> bytes:
    """A record's line in the central directory."""
    large: list[int] = []
    compressed, size, offset = entry.compressed, entry.size, entry.offset
    if size >= ZIP64_FROM or compressed >= ZIP64_FROM:
        large += [size, compressed]
        compressed = size = MAX32
    if offset >= ZIP64_FROM:
        large.append(offset)
        offset = MAX32
    extra = _zip64(*large) if large else b""
    needed = NEEDED_ZIP64 if large else NEEDED
    return (
        CENTRAL.pack(
            CENTRAL_SIGNATURE,
            MADE_ON_UNIX | needed,
            needed,
            entry.kind,
            FIRST_DATE << 16,
            entry.crc,
            compressed,
            size,
            len(entry.raw_name),
            len(extra),
            0,
            0,
            REGULAR_FILE,
            offset,
        )
        + entry.raw_name
        + extra
    )


def end_records(count: int, size: int, offset: int) -> bytes:
    """What follows a central directory of ``count`` records, ``size`` bytes, at ``offset``."""
    short_count = min(count, MAX16)
    short_size = size if size < ZIP64_FROM else MAX32
    short_offset = offset if offset < ZIP64_FROM else MAX32
    end = END.pack(END_SIGNATURE, 0, 0, short_count, short_count, short_size, short_offset, 0)
    if count < MAX16 and MAX32 not in (short_size, short_offset):
        return end
    made_by = MADE_ON_UNIX | NEEDED_ZIP64
    end64 = END64.pack(
        END64_SIGNATURE, END64_REST, made_by, NEEDED_ZIP64, 0, 0, count, count, size, offset
    )
    return end64 + END64_LOCATOR.pack(END64_LOCATOR_SIGNATURE, 0, offset + size, 1) + end


def descriptors(crc: int, compressed: int, size: int) -> Iterator[bytes]:
    """The forms that a data descriptor, written after a record's data, may have."""
    if max(compressed, size) <= MAX32:
        yield DESCRIPTOR.pack(DESCRIPTOR_SIGNATURE, crc, compressed, size)
    yield DESCRIPTOR64.pack(DESCRIPTOR_SIGNATURE, crc, compressed, size)


def extra_fields(extra: bytes) -> dict[int, bytes] | None:
    """Splits an extra area into its fields by id.

    None if it is malformed, has a field twice, or has one that no package has: some of those
    would rename the record for other readers.
    """
    listed = _split_extra(extra)
    if listed is None:
        return None
    fields = dict(listed)
    is_known = len(fields) == len(listed) and fields.keys() <= {ZIP64_ID, PADDING_ID}
    return fields if is_known else None


def has_only_file_metadata(extra: bytes) -> bool:
    """Whether an extra area is whole, and what is foreign in it tells of files.

    >>> (
    ...     has_only_file_metadata(bytes.fromhex("5554010000")),
    ...     has_only_file_metadata(bytes.fromhex("75700000")),
    ... )
    (True, False)
    """
    foreign = {identifier for identifier, _ in _split_extra(extra) or ()} - {ZIP64_ID, PADDING_ID}
    return bool(foreign) and foreign <= _OF_FILES


def _split_extra(extra: bytes) -> list[tuple[int, bytes]] | None:
    fields = []
    position = 0
    while position + EXTRA.size <= len(extra):
        identifier, length = EXTRA.unpack_from(extra, position)
        position += EXTRA.size
        fields.append((identifier, extra[position : position + length]))
        position += length
    return fields if position == len(extra) else None


def is_padding(content: bytes) -> bool:
    """Whether the content of a padding field moves data and does nothing else.

    torch fills it with Z, modpack with zeros.
    """
    return len(content) < 2 * ALIGNMENT and content.strip(b"Z") in (b"", bytes(len(content)))


def _zip64(*numbers: int) -> bytes:
    return EXTRA.pack(ZIP64_ID, 8 * len(numbers)) + b"".join(
        number.to_bytes(8, "little") for number in numbers
    )


@cache
def _padding(missing: int) -> bytes:
    """The extra field that moves data on by some bytes, less than :data:`ALIGNMENT`."""
    if not missing:
        return b""
    if missing < EXTRA.size:
        missing += ALIGNMENT
    return EXTRA.pack(PADDING_ID, missing - EXTRA.size) + bytes(missing - EXTRA.size)
