"""The headers in a zip's central directory: split, and checked.

Checks go over whole columns, so that 20,000 records cost little more than splitting them.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from modpack.archive import zipformat
from modpack.archive.repacked import FOLDER_ENTRY
from modpack.archive.zipformat import MAX16
from modpack.errors import ArchiveError

__all__ = ["Columns", "check_columns", "shown", "split_headers"]

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
    {zipformat.CENTRAL_SIGNATURE},
    {zipformat.MADE_ON_UNIX | zipformat.NEEDED},
    {zipformat.NEEDED},
    {zipformat.STORED << 16, zipformat.DEFLATED << 16},
    {zipformat.FIRST_DATE << 16},
    {0},
    {0},
    {0},
    {zipformat.REGULAR_FILE},
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
    unpack, fixed = zipformat.CENTRAL.unpack_from, zipformat.CENTRAL.size
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
        if reason is None and not raw_name.isascii() and not form.kind & zipformat.FLAG_UTF8:
            reason = "its name is not marked as UTF-8"
        if reason == _NO_FILE and raw_name.endswith(b"/"):
            reason = FOLDER_ENTRY
        if reason is not None:
            raise ArchiveError(label, reason, shown(raw_name))
    return False


def _why_refused(form: _Fixed) -> str | None:
    if form.signature != zipformat.CENTRAL_SIGNATURE:
        return "its directory header is malformed"
    if form.kind & 1:
        return "it is encrypted"
    if form.kind not in zipformat.KINDS:
        return (
            f"its flags ({form.kind & 0xFFFF:#x}) or method ({form.kind >> 16}) are not a package's"
        )
    if form.needed > zipformat.NEEDED_ZIP64:
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
