"""How large a package may claim to be before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from modpack.core.names import MOST_COMPONENTS

__all__ = ["DEFAULT_LIMITS", "Limits"]

_RATIO_FREE_BYTES: Final = 1 << 20
_TOTAL_FREE_BYTES: Final = 1 << 26
_SMALL_ARCHIVE: Final = 10_000_000
_FREE_FOLDERS: Final = 50_000
_JSON_FREE_BYTES: Final = 96 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds that an archive's own claims are held against.

    Attributes:
        max_records: records in an archive.
        max_directory_bytes: bytes of the zip's central directory.
        max_name_bytes: bytes of one record's name in UTF-8, the top-level folder included.
        max_code_record_bytes: bytes of one compressed record once inflated, and of one that holds
            code or belongs to the format. Other stored records, which tensors always are, are
            bounded by the file's own size.
        max_ratio: how many times larger than its compressed form a record of more than 1 MiB
            may be. Deflate itself ends near 1032; a bomb lives off that.
        max_total_ratio: how many times larger than the archive all its compressed records
            together may be, beyond 64 MiB.
        max_json_ratio: how many times larger than the archive the values of one JSON record may
            be in memory, beyond 96 MiB.
        max_components: components of one record's name.
        min_folder_bytes: bytes of an archive for each folder that its names have, beyond 50,000.
        min_module_bytes: bytes of an archive for each module that it tells of; it is taken to have
            10,000,000 bytes if it has fewer.
    """

    max_records: int = 1_000_000
    max_directory_bytes: int = 1 << 28
    max_name_bytes: int = 4096
    max_code_record_bytes: int = 1 << 30
    max_ratio: int = 200
    max_total_ratio: int = 16
    max_json_ratio: int = 6
    max_components: int = MOST_COMPONENTS
    min_folder_bytes: int = 100
    min_module_bytes: int = 300

    def allow_inflating(self, compressed: int, size: int) -> bool:
        """Whether ``compressed`` bytes may be inflated to ``size`` bytes.

        >>> Limits().allow_inflating(100, 5_000), Limits().allow_inflating(1_000, 1 << 30)
        (True, False)
        """
        if size > self.max_code_record_bytes:
            return False
        return size <= max(_RATIO_FREE_BYTES, compressed * self.max_ratio)

    def allow_total(self, archive: int, sizes: int) -> bool:
        """Whether compressed records of ``archive`` bytes may be ``sizes`` bytes in all.

        >>> Limits().allow_total(1_000, 60 << 20), Limits().allow_total(1_000, 70 << 20)
        (True, False)
        """
        return sizes <= max(_TOTAL_FREE_BYTES, archive * self.max_total_ratio)

    def most_folders(self, archive: int) -> int:
        """How many folders the names of an archive may have.

        >>> Limits().most_folders(1_000), Limits().most_folders(1_000_000_000)
        (50000, 10000000)
        """
        return max(_FREE_FOLDERS, archive // self.min_folder_bytes)

    def most_modules(self, archive: int) -> int:
        """How many modules an archive may tell of.

        >>> Limits().most_modules(1_000), Limits().most_modules(1_000_000_000)
        (33333, 3333333)
        """
        return self.most_items(archive, self.min_module_bytes)

    def most_items(self, archive: int, item_bytes: int) -> int:
        """How many items of a kind an archive may list, if each is worth so many bytes of it."""
        return max(_SMALL_ARCHIVE, archive) // item_bytes

    def json_bytes(self, archive: int) -> int:
        """How many bytes of memory one JSON record of an archive may take.

        >>> Limits().json_bytes(1_000) >> 20, Limits().json_bytes(1 << 30) >> 30
        (96, 6)
        """
        return max(_JSON_FREE_BYTES, archive * self.max_json_ratio)


DEFAULT_LIMITS: Final = Limits()
