"""A record's own headers, before and behind its data, compared with the central directory."""

from __future__ import annotations

import struct

from modpack.archive import zipformat
from modpack.archive.directory import Entry
from modpack.archive.zipformat import MAX16, MAX32

__all__ = ["why_inconsistent"]


def why_inconsistent(entry: Entry, header: bytes, descriptor: bytes) -> str | None:
    """What of a record's headers is not as the directory says; None if all is.

    Args:
        entry: what the directory says about the record.
        header: the whole local header.
        descriptor: what follows the data.
    """
    fields = zipformat.LOCAL.unpack_from(header)
    signature, _, kind, _, _, crc, compressed, size, name_length, _ = fields
    name_end = zipformat.LOCAL.size + name_length
    if signature != zipformat.LOCAL_SIGNATURE:
        return "there is no local header where one should be"
    if kind != entry.kind:
        return "the flags" if kind & MAX16 != entry.kind & MAX16 else "the method"
    if header[zipformat.LOCAL.size : name_end] != entry.raw_name:
        return "the name"
    extra = zipformat.extra_fields(header[name_end:])
    if extra is None:
        return "an extra field that is unknown or malformed"
    if not zipformat.is_padding(extra.get(zipformat.PADDING_ID, b"")):
        return "something is hidden in its padding"
    wide = extra.get(zipformat.ZIP64_ID, b"")
    if entry.has_descriptor:
        return _why_inconsistent_descriptor(entry, (crc, compressed, size), wide, descriptor)
    stated = (compressed, size, wide)
    plain = (entry.compressed, entry.size, b"")
    zip64 = (MAX32, MAX32, struct.pack("<QQ", entry.size, entry.compressed))
    if crc != entry.crc:
        return "the crc32"
    if stated not in (plain, zip64):
        return "the compressed size" if size == entry.size else "the size"
    return "something lies behind its data" if descriptor else None


def _why_inconsistent_descriptor(
    entry: Entry, stated: tuple[int, int, int], wide: bytes, descriptor: bytes
) -> str | None:
    # What torch writes: zeros in the header, and in its zip64 field what the directory's has,
    # but for the compressed size, which it does not know yet.
    large = [n for n in (entry.size, entry.compressed, entry.offset) if n >= MAX32]
    unknown = [0 if i == 1 and entry.size >= MAX32 else n for i, n in enumerate(large)]
    known_forms = [struct.pack(f"<{len(large)}Q", *numbers) for numbers in (large, unknown)]
    if any(stated) or (wide and wide not in known_forms):
        return "sizes stand before its data and behind it"
    if descriptor not in zipformat.descriptors(entry.crc, entry.compressed, entry.size):
        return "the sizes or the crc32 behind its data"
    return None
