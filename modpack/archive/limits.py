"""How large a package may claim to be before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_LIMITS", "Limits"]

_RATIO_FREE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds that an archive's own claims are held against.

    Attributes:
        max_records: records in an archive.
        max_directory_bytes: bytes of the zip's central directory.
        max_name_bytes: bytes of one record's name in UTF-8, the top-level folder included.
        max_code_record_bytes: bytes of one compressed record once inflated. Stored records,
            which tensors always are, are bounded by the file's own size.
        max_ratio: how many times larger than its compressed form a record of more than 1 MiB
            may be. Deflate itself ends near 1032; a bomb lives off that.
    """

    max_records: int = 1_000_000
    max_directory_bytes: int = 1 << 28
    max_name_bytes: int = 4096
    max_code_record_bytes: int = 1 << 30
    max_ratio: int = 200

    def allow_inflating(self, compressed: int, size: int) -> bool:
        """Whether ``compressed`` bytes may be inflated to ``size`` bytes.

        >>> Limits().allow_inflating(100, 5_000), Limits().allow_inflating(1_000, 1 << 30)
        (True, False)
        """
        if size > self.max_code_record_bytes:
            return False
        return size <= max(_RATIO_FREE_BYTES, compressed * self.max_ratio)


DEFAULT_LIMITS: Final = Limits()
