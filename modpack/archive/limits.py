"""Limits on what an archive may claim about itself, most of them relative to its size."""

from __future__ import annotations

from typing import Final

MAX_RECORDS: Final = 1_000_000
MAX_DIRECTORY_BYTES: Final = 1 << 28
MAX_NAME_BYTES: Final = 4096
"""Length of a record name in UTF-8, including the top-level folder."""
MAX_CODE_RECORD_BYTES: Final = 1 << 30
"""Uncompressed size of a compressed, code, or internal record. The file size limits other stored
records, such as all tensor storages."""
MODULE_BYTES: Final = 300
"""Archive size that allows one listed module."""

_MAX_RATIO: Final = 200
"""Deflate reaches about 1032, which zip bombs exploit."""
_RATIO_FREE_BYTES: Final = 1 << 20
_MAX_TOTAL_RATIO: Final = 16
_TOTAL_FREE_BYTES: Final = 1 << 26
_MAX_JSON_RATIO: Final = 6
_JSON_FREE_BYTES: Final = 96 << 20
_FOLDER_BYTES: Final = 100
FREE_FOLDERS: Final = 50_000
_SMALL_ARCHIVE: Final = 10_000_000
"""Archives smaller than this count as that size."""


def allows_inflating(compressed: int, size: int) -> bool:
    """Return whether a record may inflate from ``compressed`` to ``size`` bytes.

    >>> allows_inflating(100, 5_000), allows_inflating(1_000, 1 << 30)
    (True, False)
    """
    if size > MAX_CODE_RECORD_BYTES:
        return False
    return size <= max(_RATIO_FREE_BYTES, compressed * _MAX_RATIO)


def allows_total(archive: int, sizes: int) -> bool:
    """Return whether an archive's compressed records may inflate to ``sizes`` bytes in total.

    >>> allows_total(1_000, 60 << 20), allows_total(1_000, 70 << 20)
    (True, False)
    """
    return sizes <= max(_TOTAL_FREE_BYTES, archive * _MAX_TOTAL_RATIO)


def max_folders(archive: int) -> int:
    """Return how many folders the names of an archive may contain.

    >>> max_folders(1_000), max_folders(1_000_000_000)
    (50000, 10000000)
    """
    return max(FREE_FOLDERS, archive // _FOLDER_BYTES)


def max_modules(archive: int) -> int:
    """Return how many modules an archive may list.

    >>> max_modules(1_000), max_modules(1_000_000_000)
    (33333, 3333333)
    """
    return max_items(archive, MODULE_BYTES)


def max_items(archive: int, item_bytes: int) -> int:
    """Return how many items an archive may list at ``item_bytes`` of its size per item."""
    return max(_SMALL_ARCHIVE, archive) // item_bytes


def max_json_bytes(archive: int) -> int:
    """Return how many bytes of memory the values of one JSON record may take.

    >>> max_json_bytes(1_000) >> 20, max_json_bytes(1 << 30) >> 30
    (96, 6)
    """
    return max(_JSON_FREE_BYTES, archive * _MAX_JSON_RATIO)
