"""A zip's central directory: found by its end record, and parsed in one strict reading.

Accepted is what torch and modpack write, and Python's zipfile where it writes the same: records
one after another from the first byte on, then the directory, then its end, and nothing else.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import ByteSource
from modpack.archive.layout import Limits, count_folders, find_name_problem, find_unsafe_name
from modpack.archive.zip_format import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFLATED,
    END,
    END64,
    END64_LOCATOR,
    END64_LOCATOR_SIGNATURE,
    END64_REST,
    END64_SIGNATURE,
    END_SIGNATURE,
    FIRST_DATE,
    FLAG_UTF8,
    KINDS,
    LOCAL,
    LOCAL_SIGNATURE,
    MADE_ON_UNIX,
    MAX16,
    MAX32,
    NEEDED,
    NEEDED_ZIP64,
    REGULAR_FILE,
    REPACKED,
    STORED,
    ZIP64_ID,
    ZipEntry,
    end_records,
    extra_fields,
    has_only_file_metadata,
)
from modpack.core.process import gc_paused
from modpack.errors import ArchiveError, NotAPackageError

_DOS_FOLDER: Final = 0x10
_TAIL_BYTES: Final = END64.size + END64_LOCATOR.size + END.size
_LONGEST_COMMENT: Final = MAX16 + END.size


class EndRecord(NamedTuple):
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


def find_directory(source: ByteSource) -> EndRecord:
    """Read the end record, and the zip64 one where there is one.

    Raises:
        NotAPackageError: this is no zip archive.
        ArchiveError: the end is damaged or ambiguous, or a comment follows it.
    """
    tail = source.read_at(max(0, source.size - _TAIL_BYTES), min(source.size, _TAIL_BYTES))
    start = len(tail) - END.size
    if start < 0 or tail[start : start + 4] != END_SIGNATURE:
        raise _no_end(source)
    _, disk, first_disk, here, count, size, offset, comment = END.unpack_from(tail, start)
    if disk or first_disk or here != count:
        raise ArchiveError(source.label, "its end record tells of several disks")
    if comment:
        raise ArchiveError(source.label, "its end record announces a comment")
    end, follows = EndRecord(count, size, offset), source.size - END.size
    locator_at = start - END64_LOCATOR.size
    if locator_at >= 0 and tail.startswith(END64_LOCATOR_SIGNATURE, locator_at):
        follows -= END64_LOCATOR.size + END64.size
        end = _widen_end(source.label, tail, end, follows)
    if end.offset + end.size != follows:
        raise ArchiveError(source.label, "its directory does not lie where its end record says")
    own = end_records(end.records, end.size, end.offset)
    return end._replace(is_own=len(own) == source.size - follows and tail.endswith(own))


def _no_end(source: ByteSource) -> ArchiveError:
    if source.size >= 4 and source.read_at(0, 4) == LOCAL_SIGNATURE:
        last = min(source.size, _LONGEST_COMMENT)
        tail = source.read_at(source.size - last, last)
        if 0 <= tail.find(END_SIGNATURE) <= len(tail) - END.size:
            return ArchiveError(source.label, "something follows its end record")
        reason = "it starts as a zip archive but does not end as one: is it truncated?"
        return ArchiveError(source.label, reason)
    from modpack.archive.other_files import START_BYTES, other_file

    start = source.read_at(0, min(source.size, START_BYTES))
    return NotAPackageError(source.label, other_file(source.label, start))


def _widen_end(label: str, tail: bytes, end: EndRecord, follows: int) -> EndRecord:
    """Return the zip64 end record's numbers, which must not contradict ``end``."""
    if len(tail) < _TAIL_BYTES:
        raise ArchiveError(label, "it is too short for a zip64 archive")
    locator = END64_LOCATOR.unpack_from(tail, END64.size)
    if locator[1:] != (0, follows, 1):
        raise ArchiveError(label, "its zip64 locator does not lead to the zip64 end record")
    fields = END64.unpack_from(tail, 0)
    signature, rest, _, _, disk, first_disk, here, count, size, offset = fields
    if signature != END64_SIGNATURE or rest != END64_REST:
        raise ArchiveError(label, "its zip64 end record is malformed")
    wide = EndRecord(count, size, offset)
    pairs = zip(end[:3], wide[:3], (MAX16, MAX32, MAX32), strict=True)
    if disk or first_disk or here != count:
        raise ArchiveError(label, "its zip64 end record tells of several disks")
    if any(n not in (w, mark) for n, w, mark in pairs):
        raise ArchiveError(label, "its two end records contradict each other")
    return wide


class CentralDirectory(NamedTuple):
    """The records of an archive.

    Attributes:
        end: where the directory is.
        entries: the records by name, without the top-level folder, in file order.
        is_usual: whether modpack writes just these headers; if not, it may do so nevertheless.
    """

    end: EndRecord
    entries: dict[str, ZipEntry]
    is_usual: bool

    @property
    def root(self) -> bytes:
        """The top-level folder, in UTF-8."""
        return next(iter(self.entries.values())).raw_name.partition(b"/")[0]


class _Header(NamedTuple):
    """A directory header; its fixed part is what :data:`.zip_format.CENTRAL` unpacks."""

    signature: bytes
    made_by: int
    needed: int
    kind: int
    time: int
    crc: int
    compressed: int
    size: int
    name_length: int
    extra_length: int
    comment_and_disk: int
    internal: int
    attributes: int
    offset: int
    raw_name: bytes
    extra: bytes


_USUAL_STARTS: Final = tuple(
    (CENTRAL_SIGNATURE, MADE_ON_UNIX | NEEDED, NEEDED, method << 16, FIRST_DATE << 16)
    for method in (STORED, DEFLATED)
)
"""The first five fields of a header as modpack writes it."""
_USUAL_END: Final = (0, 0, 0, REGULAR_FILE)
"""Its fields from the length of extra fields to the attributes."""

_Place = tuple[bytes, int, int, int, int, int, bytes]
"""What a header says: name, kind, crc32, compressed size, size, offset, extra fields."""


@gc_paused()
def parse_directory(source: ByteSource, limits: Limits) -> CentralDirectory:
    """Read and check the central directory.

    Raises:
        NotAPackageError: this is no zip archive, or holds no package.
        ArchiveError: the archive is damaged, ambiguous, unsafe or too large.
    """
    label, end = source.label, find_directory(source)
    if end.records > limits.max_records or end.size > limits.max_directory_bytes:
        reason = f"its directory is too large: {end.records} records in {end.size} bytes"
        raise ArchiveError(label, reason)
    content = source.read_at(end.offset, end.size)
    if b"/version" not in content:  # first of all, lest another zip be called a broken package
        raise _no_package(label, content)
    places, unusual = _split(label, content)
    if len(places) != end.records:
        reason = f"its directory holds {len(places)} records, its end record says {end.records}"
        raise ArchiveError(label, reason)
    for header in unusual:
        refused = _why_refused(header)
        if refused is not None:
            raise ArchiveError(label, refused, _shown(header.raw_name))
    entries = _entries(label, places, end)
    if entries[0].offset:
        raise ArchiveError(label, "something lies before its first record")
    _check_places_and_sizes(label, entries, limits, source.size)
    longest = max((entry.raw_name for entry in entries), key=len)
    if len(longest) > limits.max_name_bytes:
        raise ArchiveError(label, "its name is too long", _shown(longest[:80]))
    names = _relative_names(label, [entry.raw_name for entry in entries])
    folders = count_folders(names)
    if folders > limits.max_folders(source.size):
        raise ArchiveError(label, f"its names have {folders} folders, which is too many")
    directory = CentralDirectory(end, dict(zip(names, entries, strict=True)), not unusual)
    if not any(version in directory.entries for version in layout.VERSIONS):
        raise _no_package(label, content)
    return directory


def _split(label: str, content: bytes) -> tuple[list[_Place], list[_Header]]:
    """Return what each header says of a record, and those that modpack mostly does not write."""
    places, unusual = [], []
    position, last = 0, len(content) - CENTRAL.size
    while position <= last:
        fields = CENTRAL.unpack_from(content, position)
        name_start = position + CENTRAL.size
        name_end = name_start + fields[8]
        extra_end = name_end + fields[9]
        position = extra_end + (fields[10] & MAX16)
        name, extra = content[name_start:name_end], content[name_end:extra_end]
        if not (fields[:5] in _USUAL_STARTS and fields[9:13] == _USUAL_END and name.isascii()):
            unusual.append(_Header._make((*fields, name, extra)))
        places.append((name, fields[3], *fields[5:8], fields[13], extra))
    if position != len(content):
        raise ArchiveError(label, "its directory ends within a record")
    return places, unusual


def _why_refused(header: _Header) -> str | None:
    if header.signature != CENTRAL_SIGNATURE:
        return "its directory header is malformed"
    flags, method = header.kind & MAX16, header.kind >> 16
    if flags & 1:
        return "it is encrypted"
    if header.kind not in KINDS:
        return f"its flags ({flags:#x}) or method ({method}) are not a package's"
    if header.needed > NEEDED_ZIP64:
        return f"it needs a newer zip ({header.needed / 10})"
    if header.comment_and_disk:
        return "it has a comment" if header.comment_and_disk & MAX16 else "it lies on another disk"
    file_type = stat.S_IFMT(header.attributes >> 16)
    if file_type == stat.S_IFLNK:
        return "it is a symbolic link"
    if file_type not in (0, stat.S_IFREG) or header.attributes & _DOS_FOLDER:
        if header.raw_name.endswith(b"/"):
            return f"it is an entry for a folder, which no package has: {REPACKED}"
        return "it is no regular file"
    if not header.raw_name.isascii() and not flags & FLAG_UTF8:
        return "its name is not marked as UTF-8"
    return None


def _entries(label: str, places: Sequence[_Place], end: EndRecord) -> list[ZipEntry]:
    found: list[ZipEntry] = []
    next_offset = end.offset
    for name, kind, crc, compressed, size, offset, extra in reversed(places):
        if extra or MAX32 in (size, compressed, offset):
            wide = _widen((size, compressed, offset), extra)
            if wide is None:
                reason = "its extra fields are malformed"
                if has_only_file_metadata(extra):
                    reason = (
                        "its extra fields tell times or owners of files, which no package has: "
                        + REPACKED
                    )
                raise ArchiveError(label, reason, _shown(name))
            size, compressed, offset = wide
        found.append(ZipEntry(name, kind, crc, compressed, size, offset, next_offset))
        next_offset = offset
    return found[::-1]


def _widen(numbers: tuple[int, int, int], extra: bytes) -> tuple[int, int, int] | None:
    """Return size, compressed size and offset with zip64's values; None if these are wrong."""
    fields = extra_fields(extra)
    if fields is None:
        return None
    wide = fields.get(ZIP64_ID, b"")
    if len(wide) != 8 * numbers.count(MAX32):
        return None
    values = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
    size, compressed, offset = (next(values) if n == MAX32 else n for n in numbers)
    return size, compressed, offset


def _check_places_and_sizes(
    label: str, entries: Sequence[ZipEntry], limits: Limits, archive_bytes: int
) -> None:
    inflated = 0
    for raw_name, kind, _, compressed, size, offset, end in entries:
        if offset + LOCAL.size + len(raw_name) + compressed > end:
            raise ArchiveError(label, "it overlaps what follows", _shown(raw_name))
        if kind <= MAX16:
            if compressed != size:
                raise ArchiveError(label, "it is stored, in two sizes", _shown(raw_name))
            continue
        if not limits.allows_inflating(compressed, size):
            reason = f"it claims to inflate from {compressed} to {size} bytes"
            raise ArchiveError(label, reason, _shown(raw_name))
        inflated += size
    if not limits.allows_total(archive_bytes, inflated):
        reason = f"all its records together claim to inflate to {inflated} bytes"
        raise ArchiveError(label, reason)


def _relative_names(label: str, raw_names: Sequence[bytes]) -> list[str]:
    root = raw_names[0].partition(b"/")[0] + b"/"
    stranger = next((name for name in raw_names if not name.startswith(root)), None)
    if stranger is not None:
        from modpack.archive.other_files import other_zip

        known = other_zip(label, lambda mark: any(n.endswith(mark.encode()) for n in raw_names))
        if known is not None:
            raise NotAPackageError(label, known)
        reason = f"it is not in the top-level folder {_shown(root)!r}"
        if any(raw_name.startswith(b".data/") for raw_name in raw_names):
            reason = (
                "it was packed without the folder that all records lie in. Remedy: unzip it into "
                "a folder and load that"
            )
        raise ArchiveError(label, reason, _shown(stranger))
    try:
        folder = root.decode()
        names = [raw_name[len(root) :].decode() for raw_name in raw_names]
    except UnicodeDecodeError as error:
        raise ArchiveError(label, "a record's name is no UTF-8") from error
    problem = find_unsafe_name([folder[:-1]]) or find_name_problem(names)
    if problem is not None:
        raise ArchiveError(label, problem[1], problem[0])
    return names


def _no_package(label: str, directory: bytes) -> NotAPackageError:
    from modpack.archive.other_files import other_zip

    known = other_zip(label, lambda mark: mark.encode() in directory)
    reason = "this is a zip archive with no version record, not a package. Check the path"
    return NotAPackageError(label, known or reason)


def _shown(raw_name: bytes) -> str:
    return raw_name.decode("utf-8", "backslashreplace")
