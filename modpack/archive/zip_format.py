"""Zip structures: the subset of PKWARE's APPNOTE.TXT 6.3 that a package uses.

One disk, no encryption, no comments, the methods "stored" and "deflated", UTF-8 names, and zip64
for sizes and offsets of 4 GiB or more.
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

# Three pairs of fields are each unpacked as one number, because the reader compares both at once:
# flags and method ("kind"), time and date, comment length and disk.
LOCAL: Final = Struct("<4sHIHHIIIHH")
"""Signature, version needed, kind, time, date, CRC, compressed, size, name and extra lengths."""
CENTRAL: Final = Struct("<4sHHIIIIIHHIHII")
"""Signature, made by, version needed, kind, time and date, CRC, compressed, size, name and extra
lengths, comment length and disk, internal and external attributes, offset."""
END: Final = Struct("<4sHHHHIIH")
"""Signature, disk, directory's disk, records on this disk, records, directory's size and offset,
comment length."""
END64: Final = Struct("<4sQHHIIQQQQ")
"""Signature, size of the rest, made by, version needed, disk, directory's disk, records on this
disk, records, directory's size and offset."""
END64_REST: Final = END64.size - 12
"""The size that a zip64 end record states. It excludes the signature and the size field."""
END64_LOCATOR: Final = Struct("<4sIQI")
"""Signature, disk, offset of the zip64 end record, number of disks."""
DESCRIPTOR: Final = Struct("<4sIII")
DESCRIPTOR64: Final = Struct("<4sIQQ")
EXTRA: Final = Struct("<HH")
CRC_IN_LOCAL: Final = 14
"""Offset of the CRC-32 in a local header."""

MAX16: Final = 0xFFFF
MAX32: Final = 0xFFFFFFFF
ZIP64_FROM = MAX32
"""Sizes and offsets from this value on are written in zip64 form."""

STORED: Final = 0
DEFLATED: Final = 8
RAW_DEFLATE: Final = -15
"""The ``wbits`` for deflated data without a zlib header."""
FLAG_DESCRIPTOR: Final = 0x8
FLAG_UTF8: Final = 0x800
KINDS: Final = frozenset(
    flags | method << 16
    for flags in (0, FLAG_DESCRIPTOR, FLAG_UTF8, FLAG_DESCRIPTOR | FLAG_UTF8)
    for method in (STORED, DEFLATED)
)
"""Allowed flags (low 16 bits) and methods (high 16 bits). torch writes 0x808, or 0x800 for empty
records; modpack writes 0, or 0x800 for non-ASCII names."""

ZIP64_ID: Final = 0x0001
PADDING_ID: Final = 0x4246
"""The extra field "FB", with which torch pads data to an aligned offset."""
_FILE_METADATA_IDS: Final = frozenset({0x000A, 0x000D, 0x5455, 0x5855, 0x7855, 0x7875})
"""File times and owners from NTFS, PKWARE (Unix), and Info-ZIP. They do not concern content."""
ALIGNMENT: Final = 64
"""Storages start at a multiple of this many bytes from the start of the file, as in torch."""

NEEDED: Final = 20
NEEDED_ZIP64: Final = 45
MADE_ON_UNIX: Final = 3 << 8
REGULAR_FILE: Final = 0o100644 << 16
FIRST_DATE: Final = 0x21
"""1980-01-01. A fixed date makes archives reproducible."""

REPACKED: Final = "another program repacked the package"
"""Ends the reason of an error about structures that modpack never writes but zip programs do."""
REPACKED_HINT: Final = "Unzip it and load the folder."


class ZipEntry(NamedTuple):
    """A record as the headers describe it.

    Attributes:
        raw_name: The full name in UTF-8, with the top-level folder.
        kind: Flags and method as one number; see :data:`KINDS`.
        crc: CRC-32 of the content.
        compressed: Size of the data in the archive, in bytes.
        size: Size of the content in bytes.
        offset: Offset of the local header.
        end: Offset of the next record or the directory. Unused by the writer.
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
        """Whether the content is not compressed."""
        return self.kind >> 16 == STORED

    @property
    def has_descriptor(self) -> bool:
        """Whether a data descriptor after the data contains the sizes and the CRC-32."""
        return bool(self.kind & FLAG_DESCRIPTOR)


def canonical_kind(raw_name: bytes, method: int) -> int:
    """Return the flags and method that modpack writes for a record.

    Args:
        raw_name: The full name.
        method: :data:`STORED` or :data:`DEFLATED`.
    """
    return (0 if raw_name.isascii() else FLAG_UTF8) | method << 16


def local_header(entry: ZipEntry, *, align: bool) -> bytes:
    """Return a local header, padded to align the data if ``align`` is set."""
    raw_name, size, compressed = entry.raw_name, entry.size, entry.compressed
    extra, needed = b"", NEEDED
    if size >= ZIP64_FROM or compressed >= ZIP64_FROM:
        # Both sizes, even if one fits: APPNOTE.TXT (4.5.3) requires both in a local header.
        extra, needed = _zip64(size, compressed), NEEDED_ZIP64
        size = compressed = MAX32
    if align:
        # After the zip64 field, which moves the data as well.
        data_offset = entry.offset + LOCAL.size + len(raw_name) + len(extra)
        extra += _padding(-data_offset % ALIGNMENT)
    fixed = (LOCAL_SIGNATURE, needed, entry.kind, 0, FIRST_DATE, entry.crc, compressed, size)
    return LOCAL.pack(*fixed, len(raw_name), len(extra)) + raw_name + extra


def central_header(entry: ZipEntry) -> bytes:
    """Return a record's header in the central directory."""
    # Only the numbers whose fields are full, in the order of the fields (APPNOTE.TXT 4.5.3).
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
    """Return the end records of a directory with ``count`` headers in ``size`` bytes."""
    short_count = min(count, MAX16)
    short_size = size if size < ZIP64_FROM else MAX32
    short_offset = offset if offset < ZIP64_FROM else MAX32
    end = END.pack(END_SIGNATURE, 0, 0, short_count, short_count, short_size, short_offset, 0)
    # A count of exactly MAX16 refers readers to the zip64 end record, so it needs one.
    if count < MAX16 and MAX32 not in (short_size, short_offset):
        return end
    made_by = MADE_ON_UNIX | NEEDED_ZIP64
    end64 = END64.pack(
        END64_SIGNATURE, END64_REST, made_by, NEEDED_ZIP64, 0, 0, count, count, size, offset
    )
    return end64 + END64_LOCATOR.pack(END64_LOCATOR_SIGNATURE, 0, offset + size, 1) + end


def descriptors(crc: int, compressed: int, size: int) -> Iterator[bytes]:
    """Yield the allowed data descriptors of a record: with 32-bit sizes if they fit, and 64-bit."""
    if max(compressed, size) <= MAX32:
        yield DESCRIPTOR.pack(DESCRIPTOR_SIGNATURE, crc, compressed, size)
    yield DESCRIPTOR64.pack(DESCRIPTOR_SIGNATURE, crc, compressed, size)


def extra_fields(extra: bytes) -> dict[int, bytes] | None:
    """Return an extra area's fields by ID, or None if it is invalid.

    Duplicate fields and fields that packages do not use are invalid: some of them rename the
    record for other readers.
    """
    listed = _split_extra(extra)
    if listed is None:
        return None
    fields = dict(listed)
    # A dict drops duplicates, of which readers may take the first or the last.
    is_known = len(fields) == len(listed) and fields.keys() <= {ZIP64_ID, PADDING_ID}
    return fields if is_known else None


def has_only_file_metadata(extra: bytes) -> bool:
    """Return whether an extra area is well-formed, and its foreign fields describe files only.

    >>> (
    ...     has_only_file_metadata(bytes.fromhex("5554010000")),
    ...     has_only_file_metadata(bytes.fromhex("75700000")),
    ... )
    (True, False)
    """
    foreign = {identifier for identifier, _ in _split_extra(extra) or ()} - {ZIP64_ID, PADDING_ID}
    return bool(foreign) and foreign <= _FILE_METADATA_IDS


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
    """Return whether a padding field has no other content: Z from torch, zeros from modpack."""
    return len(content) < 2 * ALIGNMENT and content.strip(b"Z") in (b"", bytes(len(content)))


def _zip64(*numbers: int) -> bytes:
    return EXTRA.pack(ZIP64_ID, 8 * len(numbers)) + b"".join(
        number.to_bytes(8, "little") for number in numbers
    )


@cache
def _padding(length: int) -> bytes:
    """Return an extra field that moves data by ``length`` bytes, modulo :data:`ALIGNMENT`."""
    if not length:
        return b""
    # A field is never shorter than its own ID and length.
    if length < EXTRA.size:
        length += ALIGNMENT
    return EXTRA.pack(PADDING_ID, length - EXTRA.size) + bytes(length - EXTRA.size)
