"""Archives that another zip program packed again: told by what no package has, and what helps."""

from __future__ import annotations

from typing import Final

from modpack.archive import zipformat

__all__ = ["FOLDER_ENTRY", "FOREIGN_EXTRAS", "NO_TOP_FOLDER", "are_of_files"]

_REPACKED: Final = (
    "another zip program packed it again. Remedy: unzip it and load the folder, or pack that "
    "with zip -0 -X -D -r"
)
FOLDER_ENTRY: Final = f"it is an entry for a folder, which no package has: {_REPACKED}"
FOREIGN_EXTRAS: Final = (
    f"its extra fields tell times or owners of files, which no package has: {_REPACKED}"
)
NO_TOP_FOLDER: Final = (
    "it was packed without the folder that all records lie in. Remedy: unzip it into a folder and "
    "load that, or pack the folder itself with zip -0 -X -D -r"
)
_OF_FILES: Final = frozenset({0x000A, 0x000D, 0x5455, 0x5855, 0x7855, 0x7875})
"""NTFS, PKWARE's Unix, and Info-ZIP's: times and owners of files, and nothing about content."""


def are_of_files(extra: bytes) -> bool:
    """Whether an extra area is whole, and what is foreign in it tells of files.

    >>> are_of_files(bytes.fromhex("5554010000")), are_of_files(bytes.fromhex("75700000"))
    (True, False)
    """
    known = _OF_FILES | {zipformat.ZIP64_ID, zipformat.PADDING_ID}
    position = 0
    identifiers = set()
    while position + zipformat.EXTRA.size <= len(extra):
        identifier, length = zipformat.EXTRA.unpack_from(extra, position)
        position += zipformat.EXTRA.size + length
        identifiers.add(identifier)
    return position == len(extra) and identifiers <= known and bool(identifiers & _OF_FILES)
