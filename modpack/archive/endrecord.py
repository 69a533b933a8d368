"""Finding a zip's central directory: from its end record, which must be the file's last bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

from modpack.archive import zipformat
from modpack.archive.bytesources import ByteSource
from modpack.archive.otherfiles import START_BYTES, other_file
from modpack.archive.zipformat import MAX16, MAX32
from modpack.errors import ArchiveError, NotAPackageError

__all__ = ["End", "find_directory"]

_END_BYTES: Final = zipformat.END.size
_LOCATOR_BYTES: Final = zipformat.END64_LOCATOR.size
_END64_BYTES: Final = zipformat.END64.size
_TAIL_BYTES: Final = _END64_BYTES + _LOCATOR_BYTES + _END_BYTES
_LONGEST_COMMENT: Final = MAX16 + _END_BYTES


class End(NamedTuple):
    """Where the central directory is.

    Attributes:
        records: number of records in it.
        size: bytes of it.
        offset: of its first byte.
        is_own: whether what stands behind it is, byte by byte, what modpack writes.
    """

    records: int
    size: int
    offset: int
    is_own: bool = True


def find_directory(source: ByteSource) -> End:
    """Reads the end record, and the zip64 one where there is one.

    Raises:
        NotAPackageError: this is no zip archive.
        ArchiveError: the end is damaged or ambiguous, or a comment follows it.
    """
    tail = source.read_at(max(0, source.size - _TAIL_BYTES), min(source.size, _TAIL_BYTES))
    start = len(tail) - _END_BYTES
    if start < 0 or tail[start : start + 4] != zipformat.END_SIGNATURE:
        raise _no_end(source)
    _, disk, first_disk, here, count, size, offset, comment = zipformat.END.unpack_from(tail, start)
    if disk or first_disk or here != count:
        raise ArchiveError(source.label, "its end record tells of several disks")
    if comment:
        raise ArchiveError(source.label, "its end record announces a comment")
    end, follows = End(count, size, offset), source.size - _END_BYTES
    if _has_locator(tail):
        follows -= _LOCATOR_BYTES + _END64_BYTES
        end = _widen(source.label, tail, end, follows)
    if end.offset + end.size != follows:
        raise ArchiveError(source.label, "its directory does not lie where its end record says")
    own = zipformat.end_records(end.records, end.size, end.offset)
    return end._replace(is_own=len(own) == source.size - follows and tail.endswith(own))


def _no_end(source: ByteSource) -> ArchiveError:
    if source.size >= 4 and source.read_at(0, 4) == zipformat.LOCAL_SIGNATURE:
        last = min(source.size, _LONGEST_COMMENT)
        tail = source.read_at(source.size - last, last)
        if 0 <= tail.find(zipformat.END_SIGNATURE) <= len(tail) - _END_BYTES:
            return ArchiveError(source.label, "something follows its end record")
        reason = "it starts as a zip archive but does not end as one: is it truncated?"
        return ArchiveError(source.label, reason)
    start = source.read_at(0, min(source.size, START_BYTES))
    return NotAPackageError(source.label, other_file(source.label, start))


def _has_locator(tail: bytes) -> bool:
    start = len(tail) - _END_BYTES - _LOCATOR_BYTES
    return start >= 0 and tail.startswith(zipformat.END64_LOCATOR_SIGNATURE, start)


def _widen(label: str, tail: bytes, end: End, follows: int) -> End:
    """The zip64 end record's numbers, which must not contradict ``end``."""
    if len(tail) < _TAIL_BYTES:
        raise ArchiveError(label, "it is too short for a zip64 archive")
    locator = zipformat.END64_LOCATOR.unpack_from(tail, _END64_BYTES)
    if locator[1:] != (0, follows, 1):
        raise ArchiveError(label, "its zip64 locator does not lead to the zip64 end record")
    fields = zipformat.END64.unpack_from(tail, 0)
    signature, rest, _, _, disk, first_disk, here, count, size, offset = fields
    if signature != zipformat.END64_SIGNATURE or rest != zipformat.END64_REST:
        raise ArchiveError(label, "its zip64 end record is malformed")
    wide = End(count, size, offset)
    pairs = zip(end[:3], wide[:3], (MAX16, MAX32, MAX32), strict=True)
    if disk or first_disk or here != count:
        raise ArchiveError(label, "its zip64 end record tells of several disks")
    if any(n not in (w, mark) for n, w, mark in pairs):
        raise ArchiveError(label, "its two end records contradict each other")
    return wide
