"""A file on a disk that becomes full while the file is written."""

from __future__ import annotations

import io
from typing import Any


class FullDisk(io.FileIO):
    """Writes ten bytes, then raises the error of a full disk."""

    def write(self, content: Any) -> int:
        super().write(content[:10])
        raise OSError(28, "No space left on device")
