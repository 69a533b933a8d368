"""The headers in a zip's central directory: split, and checked.

Checks go over whole columns, so that 20,000 records cost little more than splitting them.

Finding a zip's central directory: from its end record, which must be the file's last bytes.

Parsing a zip's central directory: one strict reading, or an error.

Accepted is what torch and modpack write, and Python's zipfile where it writes the same: records
one after another from the first byte on, then the directory, then its end, and nothing else.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from modpack.archive import layout
from modpack.archive.base import ByteSource
from modpack.archive.layout import Limits, count_folders, find_problem, find_unsafe
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
    FLAG_DESCRIPTOR,
    FLAG_UTF8,
    FOLDER_ENTRY,
    FOREIGN_EXTRAS,
    KINDS,
    LOCAL,
    LOCAL_SIGNATURE,
    MADE_ON_UNIX,
    MAX16,
    MAX32,
    NEEDED,
    NEEDED_ZIP64,
    NO_TOP_FOLDER,
    REGULAR_FILE,
    STORED,
    ZIP64_ID,
    are_of_files,
    end_records,
    extra_fields,
)
from modpack.core.process import collection_paused
from modpack.errors import ArchiveError, NotAPackageError

_DOS_FOLDER: Final = 0x10
_NO_FILE: Final = "it is no regular file"
_NAME_LENGTH: Final = 8
_EXTRA_LENGTH: Final = 9
_COMMENT_AND_DISK: Final = 10
_Row: TypeAlias = "tuple[int | bytes, ...]"
"""The fixed part of a directory header, as :data:`zipformat.CENTRAL` unpacks it."""


class Columns(NamedTuple):
    """The fixed parts of all headers, field by field."""

    signature: tuple[bytes, ...]
    made_by: tuple[int, ...]
    needed: tuple[int, ...]
    kind: tuple[int, ...]
    time: tuple[int, ...]
    crc: tuple[int, ...]
    compressed: tuple[int, ...]
    size: tuple[int, ...]
    name_length: tuple[int, ...]
    extra_length: tuple[int, ...]
    comment_and_disk: tuple[int, ...]
    internal: tuple[int, ...]
    attributes: tuple[int, ...]
    offset: tuple[int, ...]

    def fixed(self) -> tuple[tuple[bytes, ...] | tuple[int, ...], ...]:
        """The columns of :class:`_Fixed`."""
        return (
            self.signature,
            self.made_by,
            self.needed,
            self.kind,
            self.time,
            self.extra_length,
            self.comment_and_disk,
            self.internal,
            self.attributes,
        )


class _Fixed(NamedTuple):
    """What a header says besides what follows from its record: mostly the same in all of them."""

    signature: bytes
    made_by: int
    needed: int
    kind: int
    time: int
    extra_length: int
    comment_and_disk: int
    internal: int
    attributes: int


_USUAL: Final[tuple[set[bytes] | set[int], ...]] = (
    {CENTRAL_SIGNATURE},
    {MADE_ON_UNIX | NEEDED},
    {NEEDED},
    {STORED << 16, DEFLATED << 16},
    {FIRST_DATE << 16},
    {0},
    {0},
    {0},
    {REGULAR_FILE},
)
"""What modpack writes there for records with names in ASCII, below 4 GiB."""


def split_headers(label: str, directory: bytes) -> tuple[list[_Row], list[bytes], dict[int, bytes]]:
    """The headers' fixed parts, their names, and their extra areas (by index, where any).

    Raises:
        ArchiveError: the directory ends within a header.
    """
    rows: list[_Row] = []
    raw_names: list[bytes] = []
    extras: dict[int, bytes] = {}
    unpack, fixed = CENTRAL.unpack_from, CENTRAL.size
    position, last = 0, len(directory) - fixed
    while position <= last:
        row = unpack(directory, position)
        name_start = position + fixed
        name_end = name_start + row[_NAME_LENGTH]
        extra_end = name_end + row[_EXTRA_LENGTH]
        position = extra_end + (row[_COMMENT_AND_DISK] & MAX16)
        if extra_end != name_end:
            extras[len(rows)] = directory[name_end:extra_end]
        rows.append(row)
        raw_names.append(directory[name_start:name_end])
    if position != len(directory):
        raise ArchiveError(label, "its directory ends within a record")
    return rows, raw_names, extras


def check_columns(label: str, columns: Columns, raw_names: Sequence[bytes]) -> bool:
    """Whether each header is one that a package may have; names and places aside.

    Returns:
        Whether all are headers that modpack mostly writes.

    Raises:
        ArchiveError: one is none that a package may have; the reason names the first.
    """
    fixed = columns.fixed()
    is_ascii = b"".join(raw_names).isascii()
    if is_ascii and all(usual.issuperset(c) for usual, c in zip(_USUAL, fixed, strict=True)):
        return True
    if is_ascii and not any(_why_refused(_Fixed._make(f)) for f in set(zip(*fixed, strict=True))):
        return False
    for fields, raw_name in zip(zip(*fixed, strict=True), raw_names, strict=True):
        form = _Fixed._make(fields)
        reason = _why_refused(form)
        if reason is None and not raw_name.isascii() and not form.kind & FLAG_UTF8:
            reason = "its name is not marked as UTF-8"
        if reason == _NO_FILE and raw_name.endswith(b"/"):
            reason = FOLDER_ENTRY
        if reason is not None:
            raise ArchiveError(label, reason, shown(raw_name))
    return False


def _why_refused(form: _Fixed) -> str | None:
    if form.signature != CENTRAL_SIGNATURE:
        return "its directory header is malformed"
    if form.kind & 1:
        return "it is encrypted"
    if form.kind not in KINDS:
        return (
            f"its flags ({form.kind & 0xFFFF:#x}) or method ({form.kind >> 16}) are not a package's"
        )
    if form.needed > NEEDED_ZIP64:
        return f"it needs a newer zip ({form.needed / 10})"
    if form.comment_and_disk:
        return "it has a comment" if form.comment_and_disk & MAX16 else "it lies on another disk"
    file_type = stat.S_IFMT(form.attributes >> 16)
    if file_type == stat.S_IFLNK:
        return "it is a symbolic link"
    if file_type not in (0, stat.S_IFREG) or form.attributes & _DOS_FOLDER:
        return _NO_FILE
    return None


def shown(raw_name: bytes) -> str:
    """A name as it stands in the zip, for messages."""
    return raw_name.decode("utf-8", "backslashreplace")


_END_BYTES: Final = END.size
_LOCATOR_BYTES: Final = END64_LOCATOR.size
_END64_BYTES: Final = END64.size
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
    if start < 0 or tail[start : start + 4] != END_SIGNATURE:
        raise _no_end(source)
    _, disk, first_disk, here, count, size, offset, comment = END.unpack_from(tail, start)
    if disk or first_disk or here != count:
        raise ArchiveError(source.label, "its end record tells of several disks")
    if comment:
        raise ArchiveError(source.label, "its end record announces a comment")
    end, follows = End(count, size, offset), source.size - _END_BYTES
    if _has_locator(tail):
        follows -= _LOCATOR_BYTES + _END64_BYTES
        end = _widen_end(source.label, tail, end, follows)
    if end.offset + end.size != follows:
        raise ArchiveError(source.label, "its directory does not lie where its end record says")
    own = end_records(end.records, end.size, end.offset)
    return end._replace(is_own=len(own) == source.size - follows and tail.endswith(own))


def _no_end(source: ByteSource) -> ArchiveError:
    if source.size >= 4 and source.read_at(0, 4) == LOCAL_SIGNATURE:
        last = min(source.size, _LONGEST_COMMENT)
        tail = source.read_at(source.size - last, last)
        if 0 <= tail.find(END_SIGNATURE) <= len(tail) - _END_BYTES:
            return ArchiveError(source.label, "something follows its end record")
        reason = "it starts as a zip archive but does not end as one: is it truncated?"
        return ArchiveError(source.label, reason)
    from modpack.archive.other_files import START_BYTES, other_file

    start = source.read_at(0, min(source.size, START_BYTES))
    return NotAPackageError(source.label, other_file(source.label, start))


def _has_locator(tail: bytes) -> bool:
    start = len(tail) - _END_BYTES - _LOCATOR_BYTES
    return start >= 0 and tail.startswith(END64_LOCATOR_SIGNATURE, start)


def _widen_end(label: str, tail: bytes, end: End, follows: int) -> End:
    """The zip64 end record's numbers, which must not contradict ``end``."""
    if len(tail) < _TAIL_BYTES:
        raise ArchiveError(label, "it is too short for a zip64 archive")
    locator = END64_LOCATOR.unpack_from(tail, _END64_BYTES)
    if locator[1:] != (0, follows, 1):
        raise ArchiveError(label, "its zip64 locator does not lead to the zip64 end record")
    fields = END64.unpack_from(tail, 0)
    signature, rest, _, _, disk, first_disk, here, count, size, offset = fields
    if signature != END64_SIGNATURE or rest != END64_REST:
        raise ArchiveError(label, "its zip64 end record is malformed")
    wide = End(count, size, offset)
    pairs = zip(end[:3], wide[:3], (MAX16, MAX32, MAX32), strict=True)
    if disk or first_disk or here != count:
        raise ArchiveError(label, "its zip64 end record tells of several disks")
    if any(n not in (w, mark) for n, w, mark in pairs):
        raise ArchiveError(label, "its two end records contradict each other")
    return wide


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
        return self.kind >> 16 == STORED

    @property
    def has_descriptor(self) -> bool:
        """Whether sizes and crc follow the data instead of standing before it."""
        return bool(self.kind & FLAG_DESCRIPTOR)


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
        header = LOCAL.size
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
    fields = extra_fields(extra)
    if fields is None:
        return None
    wide = fields.get(ZIP64_ID, b"")
    if len(wide) != 8 * numbers.count(MAX32):
        return None
    values = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
    return [next(values) if number == MAX32 else number for number in numbers]


def _relative_names(label: str, raw_names: Sequence[bytes]) -> list[str]:
    root = raw_names[0].partition(b"/")[0] + b"/"
    strangers = [raw_name for raw_name in raw_names if not raw_name.startswith(root)]
    if strangers:
        from modpack.archive.other_files import other_zip

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
    from modpack.archive.other_files import other_zip

    known = other_zip(label, lambda mark: mark.encode() in directory)
    reason = "this is a zip archive with no version record, not a package. Check the path"
    return NotAPackageError(label, known or reason)
