"""Writing many pieces at once, from where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Final

__all__ = ["WORTH_GATHERING", "write_gathered"]

WORTH_GATHERING: Final = 256 << 10
"""Bytes in all from which copying them together costs more than another call of the system."""
_MOST: Final = 1024
"""Pieces that every system takes at once."""


def write_gathered(file: IO[bytes], pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Appends pieces to a file, without a copy in its buffer: 20 % of the time of 50 KB.

    Args:
        file: is at its end.
        pieces: what to write.

    Raises:
        OSError: they could not be written in full.
    """
    file.flush()
    if not hasattr(os, "writev"):  # Windows
        file.writelines(pieces)
        return
    for start in range(0, len(pieces), _MOST):
        some = pieces[start : start + _MOST]
        written = os.writev(file.fileno(), some)
        file.seek(0, os.SEEK_END)
        if written < sum(map(len, some)):  # the next call tells why
            file.write(b"".join(some)[written:])
            file.flush()
