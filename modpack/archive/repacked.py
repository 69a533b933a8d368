"""Archives that another zip program packed again: told by what no package has, and what helps."""

from __future__ import annotations

from typing import Final

from modpack.archive import layout, zipformat

__all__ = [
    "FOLDER_ENTRY",
    "FOREIGN_EXTRAS",
    "NO_TOP_FOLDER",
    "OTHER_DEFLATED",
    "OTHER_END",
    "OTHER_FOLDER",
    "OTHER_HEADER",
    "OTHER_METHOD",
    "OTHER_ORDER",
    "are_of_files",
]

_REPACKED: Final = "another program packed it again. Remedy: unzip it and load the folder"
FOLDER_ENTRY: Final = f"it is an entry for a folder, which no package has: {_REPACKED}"
FOREIGN_EXTRAS: Final = (
    f"its extra fields tell times or owners of files, which no package has: {_REPACKED}"
)
NO_TOP_FOLDER: Final = (
    "it was packed without the folder that all records lie in. Remedy: unzip it into a folder and "
    "load that"
)
OTHER_DEFLATED: Final = f"its content is deflated otherwise than it was: {_REPACKED}"
OTHER_HEADER: Final = f"its headers are not those that modpack writes: {_REPACKED}"
OTHER_END: Final = f"its end record is not the one that modpack writes: {_REPACKED}"
OTHER_FOLDER: Final = f"its top-level folder is not {layout.ROOT!r}: {_REPACKED}"
OTHER_METHOD: Final = f"it is stored and should be deflated, or the other way round: {_REPACKED}"
OTHER_ORDER: Final = f"its records are not in the order of the manifest: {_REPACKED}"
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
