"""Strict parser for a zip's central directory and end records.

It accepts what torch and modpack write, and what Python's zipfile writes in the same form:
contiguous records from the first byte on, the directory, the end records, and no other bytes.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import ByteSource
from modpack.archive.layout import count_folders, find_name_problem, find_unsafe_name
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
    REPACKED_HINT,
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


def _find_directory(source: ByteSource) -> tuple[int, int, int, bool]:
    """Read the end record, and the zip64 end record if there is one.

    Returns:
        The number of records, the size and the offset of the directory, and whether the bytes
        after it are exactly those that modpack writes.

    Raises:
        NotAPackageError: If the file is not a zip archive.
        ArchiveError: If the end record is damaged or ambiguous, or declares a comment.
    """
    # The end record is expected at the very end and not searched for: a comment could contain
    # another end record, and readers disagree about which one counts.
    tail = source.read_at(max(0, source.size - _TAIL_BYTES), min(source.size, _TAIL_BYTES))
    start = len(tail) - END.size
    if start < 0 or tail[start : start + 4] != END_SIGNATURE:
        raise _no_end(source)
    _, disk, first_disk, on_disk, count, size, offset, comment = END.unpack_from(tail, start)
    if disk or first_disk or on_disk != count:
        raise ArchiveError(source.label, "the end record describes a multi-disk archive")
    if comment:
        reason = (
            f"the end record declares a comment of {comment} bytes, but the file ends before it"
        )
        raise ArchiveError(source.label, reason, hint="Copy or download it again.")
    end_offset = source.size - END.size
    locator_start = start - END64_LOCATOR.size
    if locator_start >= 0 and tail.startswith(END64_LOCATOR_SIGNATURE, locator_start):
        end_offset -= END64_LOCATOR.size + END64.size
        count, size, offset = _widen_end(source.label, tail, (count, size, offset), end_offset)
    # Other readers use the stated offset, or, like Python's zipfile, count back from the end.
    if offset + size != end_offset:
        reason = "the central directory is not at the offset that the end record states"
        raise ArchiveError(source.label, reason)
    # A zip64 end record without need is valid, but no signature would cover that difference.
    canonical = end_records(count, size, offset)
    is_canonical = len(canonical) == source.size - end_offset and tail.endswith(canonical)
    return count, size, offset, is_canonical


def _no_end(source: ByteSource) -> ArchiveError:
    if source.size >= 4 and source.read_at(0, 4) == LOCAL_SIGNATURE:
        # The length of a comment has 16 bits, so that an end record cannot be further away.
        last = min(source.size, _LONGEST_COMMENT)
        tail = source.read_at(source.size - last, last)
        if 0 <= tail.find(END_SIGNATURE) <= len(tail) - END.size:
            return ArchiveError(
                source.label, "there is a comment or other data after the end record"
            )
        reason = "the end of the zip archive was not found; the file is probably truncated"
        return ArchiveError(source.label, reason, hint="Copy or download it again.")
    from modpack.archive.other_files import START_BYTES, identify_file

    return identify_file(source.label, source.read_at(0, min(source.size, START_BYTES)))


def _widen_end(
    label: str, tail: bytes, end: tuple[int, int, int], end_offset: int
) -> tuple[int, int, int]:
    """Return the zip64 end record's numbers, which must not contradict ``end``."""
    if len(tail) < _TAIL_BYTES:
        raise ArchiveError(label, "the file is too short for a zip64 archive")
    locator = END64_LOCATOR.unpack_from(tail, END64.size)
    if locator[1:] != (0, end_offset, 1):
        raise ArchiveError(label, "the zip64 locator does not point to the zip64 end record")
    fields = END64.unpack_from(tail, 0)
    signature, rest, _, _, disk, first_disk, on_disk, count, size, offset = fields
    # A longer record could contain data that no digest covers.
    if signature != END64_SIGNATURE or rest != END64_REST:
        raise ArchiveError(label, "the zip64 end record is malformed")
    pairs = zip(end, (count, size, offset), (MAX16, MAX32, MAX32), strict=True)
    if disk or first_disk or on_disk != count:
        raise ArchiveError(label, "the zip64 end record describes a multi-disk archive")
    # A reader that ignores zip64 must not see other records.
    if any(n not in (w, mark) for n, w, mark in pairs):
        raise ArchiveError(label, "the two end records contradict each other")
    return count, size, offset


class CentralDirectory(NamedTuple):
    """The records of an archive.

    Attributes:
        size: Size of the directory in bytes.
        offset: Offset of its first byte.
        entries: The records by name, without the top-level folder, in file order.
        has_canonical_end: Whether the bytes after it are exactly those that modpack writes.
        is_usual: Whether the headers are known to be canonical. If not, they may be nevertheless.
    """

    size: int
    offset: int
    entries: dict[str, ZipEntry]
    has_canonical_end: bool
    is_usual: bool

    @property
    def root(self) -> bytes:
        """The top-level folder, in UTF-8."""
        return next(iter(self.entries.values())).raw_name.partition(b"/")[0]


_USUAL_STARTS: Final = tuple(
    (CENTRAL_SIGNATURE, MADE_ON_UNIX | NEEDED, NEEDED, method << 16, FIRST_DATE << 16)
    for method in (STORED, DEFLATED)
)
"""The first five fields of a header as modpack writes it."""
_USUAL_END: Final = (0, 0, 0, REGULAR_FILE)
"""The fields from the length of the extra fields to the attributes."""
_LOADER: Final = f"{layout.ROOT}/{layout.LOADER}".encode()
_LOADER_FILES: Final = f"{layout.ROOT}/{layout.LOADER_FILES}".encode()
_FOLDER_ENTRY: Final = f"the record is a folder entry, which packages do not have: {REPACKED}"

_Fields = tuple[bytes, int, int, int, int, int, bytes]
"""Name, kind, CRC-32, compressed size, size, offset, and extra fields from a header."""
_Unusual = tuple[bytes, tuple[Any, ...]]
"""Name and fixed part, as :data:`.zip_format.CENTRAL` unpacks it, of a header."""


@gc_paused()
def parse_directory(source: ByteSource) -> CentralDirectory:
    """Read and check the central directory.

    Raises:
        NotAPackageError: If the file is not a zip archive, or not a package.
        ArchiveError: If the archive is damaged, ambiguous, unsafe, or too large.
    """
    label = source.label
    count, size, offset, has_canonical_end = _find_directory(source)
    # Checked before the directory is read into memory.
    if count > layout.MAX_RECORDS or size > layout.MAX_DIRECTORY_BYTES:
        reason = f"the central directory is too large: {count} records, {size} bytes"
        raise ArchiveError(label, reason)
    content = source.read_at(offset, size)
    if b"/version" not in content:  # checked first, to not call another zip a damaged package
        raise _not_a_package(label, content)
    rows, unusual = _parse_headers(label, content)
    # Some readers count the headers, others read to the end: both must see the same records.
    if len(rows) != count:
        counts = f"{len(rows)} records, but the end record states {count}"
        reason = f"the central directory has {counts}"
        raise ArchiveError(label, reason)
    for name, fields in unusual:
        problem = _find_header_problem(name, fields)
        if problem is not None:
            hint = REPACKED_HINT if problem is _FOLDER_ENTRY else ""
            raise ArchiveError(label, problem, _decode(name), hint=hint)
    entries = _make_entries(label, rows, offset)
    # No digest would cover a prefix, and some programs run one.
    if entries[0].offset:
        raise ArchiveError(label, "there is data before the first record")
    _check_offsets_and_sizes(label, entries, source.size)
    longest = max((entry.raw_name for entry in entries), key=len)
    if len(longest) > layout.MAX_NAME_BYTES:
        raise ArchiveError(label, "the record name is too long", _decode(longest[:80]))
    names = _relative_names(label, [entry.raw_name for entry in entries])
    folders, allowed = count_folders(names), layout.max_folders(source.size)
    if folders > allowed:
        reason = f"the record names contain {folders} folders, and {allowed} are allowed"
        raise ArchiveError(label, reason)
    by_name = dict(zip(names, entries, strict=True))
    if not any(version in by_name for version in layout.VERSIONS):
        raise _not_a_package(label, content)
    return CentralDirectory(size, offset, by_name, has_canonical_end, not unusual)


def _parse_headers(label: str, content: bytes) -> tuple[list[_Fields], list[_Unusual]]:
    """Return the fields of all headers, and those headers that need closer checks."""
    rows, unusual = [], []
    position, last = 0, len(content) - CENTRAL.size
    while position <= last:
        fields = CENTRAL.unpack_from(content, position)
        name_start = position + CENTRAL.size
        name_end = name_start + fields[8]
        extra_end = name_end + fields[9]
        position = extra_end + (fields[10] & MAX16)
        name, extra = content[name_start:name_end], content[name_end:extra_end]
        # A package may have a million headers. Those that modpack writes need no more than this.
        if not (fields[:5] in _USUAL_STARTS and fields[9:13] == _USUAL_END and name.isascii()):
            unusual.append((name, fields))
        rows.append((name, fields[3], *fields[5:8], fields[13], extra))
    if position != len(content):
        raise ArchiveError(label, "the central directory ends within a header")
    return rows, unusual


def _find_header_problem(name: bytes, fields: tuple[Any, ...]) -> str | None:
    signature, _, needed, kind, *_, comment_and_disk, _, attributes, _ = fields
    if signature != CENTRAL_SIGNATURE:
        return "the header in the central directory is malformed"
    flags, method = kind & MAX16, kind >> 16
    if flags & 1:
        return "the record is encrypted"
    if kind not in KINDS:
        return f"packages do not use the record's flags ({flags:#x}) or method ({method})"
    if needed > NEEDED_ZIP64:
        return f"the record requires zip version {needed / 10}"
    if comment_and_disk:
        has_comment = comment_and_disk & MAX16
        return "the record has a comment" if has_comment else "the record is on another disk"
    file_type = stat.S_IFMT(attributes >> 16)
    if file_type == stat.S_IFLNK:
        return "the record is a symbolic link"
    # Without a type (0), the record is a file: not all programs state one.
    if file_type not in (0, stat.S_IFREG) or attributes & _DOS_FOLDER:
        is_folder = name.endswith(b"/")
        return _FOLDER_ENTRY if is_folder else "the record is not a regular file"
    if not name.isascii() and not flags & FLAG_UTF8:
        return "the record name is not marked as UTF-8"
    return None


def _make_entries(label: str, rows: Sequence[_Fields], end: int) -> list[ZipEntry]:
    entries: list[ZipEntry] = []
    next_offset = end
    # Backwards, because a record ends where the next one starts. If the headers are not in the
    # order of the offsets, records overlap by this measure and are rejected.
    for name, kind, crc, compressed, size, offset, extra in reversed(rows):
        if extra or MAX32 in (size, compressed, offset):
            wide = _widen((size, compressed, offset), extra)
            if wide is None:
                reason, hint = "the extra fields are malformed", ""
                if has_only_file_metadata(extra):
                    reason = f"the extra fields contain file times or owners: {REPACKED}"
                    hint = REPACKED_HINT
                raise ArchiveError(label, reason, _decode(name), hint=hint)
            size, compressed, offset = wide
        entries.append(ZipEntry(name, kind, crc, compressed, size, offset, next_offset))
        next_offset = offset
    return entries[::-1]


def _widen(numbers: tuple[int, int, int], extra: bytes) -> tuple[int, int, int] | None:
    """Return size, compressed size, and offset with zip64 values; None if these are invalid."""
    fields = extra_fields(extra)
    if fields is None:
        return None
    wide = fields.get(ZIP64_ID, b"")
    # The field has no names: its numbers belong to the fields that are full, in order.
    if len(wide) != 8 * numbers.count(MAX32):
        return None
    values = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
    size, compressed, offset = (next(values) if n == MAX32 else n for n in numbers)
    return size, compressed, offset


def _check_offsets_and_sizes(label: str, entries: Sequence[ZipEntry], archive_bytes: int) -> None:
    inflated = 0
    for raw_name, kind, _, compressed, size, offset, end in entries:
        # Records that share bytes could inflate to any size, and readers would see different ones.
        if offset + LOCAL.size + len(raw_name) + compressed > end:
            raise ArchiveError(label, "the record overlaps the next one", _decode(raw_name))
        if kind <= MAX16:
            if compressed != size:
                reason = "the stored record has two different sizes"
                raise ArchiveError(label, reason, _decode(raw_name))
            continue
        if not layout.allows_inflating(compressed, size):
            reason = f"the record would inflate from {compressed} to {size} bytes"
            raise ArchiveError(label, reason, _decode(raw_name))
        inflated += size
    if not layout.allows_total(archive_bytes, inflated):
        reason = f"the records together would inflate to {inflated} bytes"
        raise ArchiveError(label, reason)


def _relative_names(label: str, raw_names: Sequence[bytes]) -> list[str]:
    if _LOADER_FILES in b"\n".join(raw_names):
        hidden = next((name for name in raw_names if name.startswith(_LOADER_FILES)), None)
        if hidden is not None:
            raise ArchiveError(label, layout.HIDDEN_LOADER, _decode(hidden))
    # Without the record of a loader, nothing may be next to the top-level folder.
    if _LOADER in raw_names:
        raw_names = [
            _LOADER_FILES + name if layout.is_loader_file(_decode(name)) else name
            for name in raw_names
        ]
    root = raw_names[0].partition(b"/")[0] + b"/"
    outlier = next((name for name in raw_names if not name.startswith(root)), None)
    if outlier is not None:
        from modpack.archive.other_files import identify_zip

        other = identify_zip(label, lambda mark: any(n.endswith(mark.encode()) for n in raw_names))
        if other is not None:
            raise other
        reason, hint = f"the record is not in the top-level folder {_decode(root)!r}", ""
        if any(raw_name.startswith(b".data/") for raw_name in raw_names):
            reason = "the package was zipped without its top-level folder"
            hint = "Unzip it into a folder and load the folder."
        raise ArchiveError(label, reason, _decode(outlier), hint=hint)
    try:
        folder = root.decode()
        names = [raw_name[len(root) :].decode() for raw_name in raw_names]
    except UnicodeDecodeError as error:
        name = _decode(error.object)
        raise ArchiveError(label, "the record name is not valid UTF-8", name) from error
    problem = find_unsafe_name([folder[:-1]]) or find_name_problem(names)
    if problem is not None:
        raise ArchiveError(label, problem[1], problem[0])
    return names


def _not_a_package(label: str, directory: bytes) -> NotAPackageError:
    from modpack.archive.other_files import identify_zip

    other = identify_zip(label, lambda mark: mark.encode() in directory)
    if other is not None:
        return other
    reason = "this is a zip archive without a version record, not a package"
    return NotAPackageError(label, reason, hint="Check the path.")


def _decode(raw_name: bytes) -> str:
    return raw_name.decode("utf-8", "backslashreplace")
