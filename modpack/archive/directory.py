"""Parsing a zip's central directory: one strict reading, or an error.

Accepted is what torch and modpack write, and Python's zipfile where it writes the same: records
one after another from the first byte on, then the directory, then its end, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from modpack.archive import layout, zipformat
from modpack.archive.bytesources import ByteSource
from modpack.archive.directoryheaders import (
    Columns,
    check_columns,
    shown,
    split_headers,
)
from modpack.archive.endrecord import End, find_directory
from modpack.archive.limits import Limits
from modpack.archive.otherfiles import other_zip
from modpack.archive.recordnames import count_folders, find_problem, find_unsafe
from modpack.archive.repacked import FOREIGN_EXTRAS, NO_TOP_FOLDER, are_of_files
from modpack.archive.zipformat import MAX16, MAX32
from modpack.core.garbage import collection_paused
from modpack.errors import ArchiveError, NotAPackageError

__all__ = ["Directory", "Entry", "parse_directory"]

_ITS_OWN_FOLDER: Final = b".data/"


class Entry(NamedTuple):
    """A record as the central directory describes it.

    Attributes:
        raw_name: the full name as it stands in the zip.
        kind: flags and method, see :data:`zipformat.KINDS`.
        crc: crc32 of the content.
        compressed: bytes of content in the zip.
        size: bytes of content.
        offset: of the local header.
        end: where the next record, or the directory, begins.
    """

    raw_name: bytes
    kind: int
    crc: int
    compressed: int
    size: int
    offset: int
    end: int

    @property
    def is_stored(self) -> bool:
        """Whether the content lies in the zip as it is."""
        return self.kind >> 16 == zipformat.STORED

    @property
    def has_descriptor(self) -> bool:
        """Whether sizes and crc follow the data instead of standing before it."""
        return bool(self.kind & zipformat.FLAG_DESCRIPTOR)


class Directory:
    """The records of an archive, in file order.

    It is kept in columns, because making an object for each record would cost more than
    everything else.

    Attributes:
        end: where it is.
        is_usual: whether modpack writes just these headers; if not, it may do so nevertheless.
    """

    def __init__(self, label: str, directory: bytes, end: End) -> None:
        rows, raw_names, extras = split_headers(label, directory)
        if len(rows) != end.records:
            reason = f"its directory holds {len(rows)} records, its end record says {end.records}"
            raise ArchiveError(label, reason)
        columns = Columns._make(zip(*rows, strict=True))
        self.label, self.end = label, end
        self.is_usual = check_columns(label, columns, raw_names)
        self.raw_names = raw_names
        self.kinds, self.crcs = columns.kind, columns.crc
        self.compressed, self.sizes = list(columns.compressed), list(columns.size)
        self.offsets = list(columns.offset)
        self._fill_in_zip64(extras)
        self.ends = [*self.offsets[1:], end.offset]
        self._indices: dict[str, int] = {}

    def names(self) -> tuple[str, ...]:
        """All names, without the top-level folder."""
        return tuple(self._indices)

    def sizes_by_name(self) -> dict[str, int]:
        """Bytes of each record's content, by name."""
        return dict(zip(self._indices, self.sizes, strict=True))

    def has(self, name: str) -> bool:
        """Whether there is a record of this very name."""
        return name in self._indices

    def get(self, name: str) -> Entry | None:
        """What the directory says about a record; None if there is no such record."""
        i = self._indices.get(name)
        if i is None:
            return None
        sizes = (self.compressed[i], self.sizes[i])
        place = (self.offsets[i], self.ends[i])
        return Entry(self.raw_names[i], self.kinds[i], self.crcs[i], *sizes, *place)

    def entries(self) -> Iterator[Entry]:
        """What it says about all records, in their order."""
        filled = (self.raw_names, self.kinds, self.crcs, self.compressed, self.sizes)
        return map(Entry, *filled, self.offsets, self.ends)

    def start_of_last(self, most: int) -> int:
        """Where the records begin that follow the last storage, so many bytes of them at most."""
        start = end = self.ends[-1]
        for name, offset in zip(reversed(self._indices), reversed(self.offsets), strict=True):
            if layout.is_storage(name) or end - offset > most:
                break
            start = offset
        return start

    def check(self, limits: Limits, archive_bytes: int) -> None:
        """Checks places, sizes and names.

        Args:
            limits: what the archive may claim.
            archive_bytes: how large it is.

        Raises:
            ArchiveError: the directory is ambiguous, unsafe or too large.
        """
        if self.offsets[0]:
            raise ArchiveError(self.label, "something lies before its first record")
        self._check_places()
        self._check_sizes(limits, archive_bytes)
        longest = max(self.raw_names, key=len)
        if len(longest) > limits.max_name_bytes:
            raise ArchiveError(self.label, "its name is too long", shown(longest[:80]))
        names = _relative_names(self.label, self.raw_names)
        folders = count_folders(names)
        if folders > limits.most_folders(archive_bytes):
            raise ArchiveError(self.label, f"its names have {folders} folders, which is too many")
        self._indices = dict(zip(names, range(len(names)), strict=True))

    def _check_places(self) -> None:
        header = zipformat.LOCAL.size
        columns = (self.raw_names, self.offsets, self.compressed, self.ends)
        for raw_name, offset, compressed, end in zip(*columns, strict=True):
            if offset + header + len(raw_name) + compressed > end:
                raise ArchiveError(self.label, "it overlaps what follows", shown(raw_name))

    def _check_sizes(self, limits: Limits, archive_bytes: int) -> None:
        if self.compressed == self.sizes and max(self.kinds) <= MAX16:
            return  # everything is stored
        columns = (self.raw_names, self.kinds, self.compressed, self.sizes)
        for raw_name, kind, compressed, size in zip(*columns, strict=True):
            if kind <= MAX16:
                if compressed != size:
                    raise ArchiveError(self.label, "it is stored, in two sizes", shown(raw_name))
            elif not limits.allow_inflating(compressed, size):
                reason = f"it claims to inflate from {compressed} to {size} bytes"
                raise ArchiveError(self.label, reason, shown(raw_name))
        inflated = sum(s for kind, s in zip(self.kinds, self.sizes, strict=True) if kind > MAX16)
        if not limits.allow_total(archive_bytes, inflated):
            reason = f"all its records together claim to inflate to {inflated} bytes"
            raise ArchiveError(self.label, reason)

    def _fill_in_zip64(self, extras: dict[int, bytes]) -> None:
        marked = _indices_of(MAX32, self.sizes, self.compressed, self.offsets)
        for i in marked | extras.keys():
            numbers = (self.sizes[i], self.compressed[i], self.offsets[i])
            wide = _widen(numbers, extras.get(i, b""))
            if wide is None:
                is_foreign = are_of_files(extras.get(i, b""))
                reason = FOREIGN_EXTRAS if is_foreign else "its extra fields are malformed"
                raise ArchiveError(self.label, reason, shown(self.raw_names[i]))
            self.sizes[i], self.compressed[i], self.offsets[i] = wide


@collection_paused()
def parse_directory(source: ByteSource, limits: Limits) -> Directory:
    """Reads and checks the central directory.

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
    directory = Directory(label, content, end)
    directory.check(limits, source.size)
    if not any(map(directory.has, layout.VERSIONS)):
        raise _no_package(label, content)
    return directory


def _indices_of(mark: int, *columns: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for column in columns:
        if mark in column:
            found.update(i for i, number in enumerate(column) if number == mark)
    return found


def _widen(numbers: tuple[int, int, int], extra: bytes) -> list[int] | None:
    """Size, compressed size and offset with zip64's values; None if these are not as they must."""
    fields = zipformat.extra_fields(extra)
    if fields is None:
        return None
    wide = fields.get(zipformat.ZIP64_ID, b"")
    if len(wide) != 8 * numbers.count(MAX32):
        return None
    values = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
    return [next(values) if number == MAX32 else number for number in numbers]


def _relative_names(label: str, raw_names: Sequence[bytes]) -> list[str]:
    root = raw_names[0].partition(b"/")[0] + b"/"
    strangers = [raw_name for raw_name in raw_names if not raw_name.startswith(root)]
    if strangers:
        known = other_zip(label, lambda mark: any(n.endswith(mark.encode()) for n in raw_names))
        if known is not None:
            raise NotAPackageError(label, known)
        is_bare = any(raw_name.startswith(_ITS_OWN_FOLDER) for raw_name in raw_names)
        reason = NO_TOP_FOLDER if is_bare else f"it is not in the top-level folder {shown(root)!r}"
        raise ArchiveError(label, reason, shown(strangers[0]))
    try:
        folder = root.decode()
        names = [raw_name[len(root) :].decode() for raw_name in raw_names]
    except UnicodeDecodeError as error:
        raise ArchiveError(label, "a record's name is no UTF-8") from error
    problem = find_unsafe([folder[:-1]]) or find_problem(names)
    if problem is not None:
        raise ArchiveError(label, problem[1], problem[0])
    return names


def _no_package(label: str, directory: bytes) -> NotAPackageError:
    known = other_zip(label, lambda mark: mark.encode() in directory)
    reason = "this is a zip archive with no version record, not a package. Check the path"
    return NotAPackageError(label, known or reason)
