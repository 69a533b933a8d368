"""Checksums of record contents, off the writing thread where that pays."""

from __future__ import annotations

import hashlib
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

__all__ = ["Digest", "Digester", "PendingDigest", "digest_of"]

BACKGROUND_FROM: Final = 1 << 20
"""Bytes from which handing the data to other threads costs less than it saves."""


@dataclass(frozen=True)
class Digest:
    """Checksums of one record's content.

    Attributes:
        crc: crc32, which zip wants.
        sha256: hex digest, which the manifest wants.
    """

    crc: int
    sha256: str


@dataclass(frozen=True)
class PendingDigest:
    """Checksums that are being computed; the data must stay as it is until :meth:`result`."""

    _crc: Future[int]
    _sha256: Future[str]

    def result(self) -> Digest:
        """Waits for the checksums."""
        return Digest(self._crc.result(), self._sha256.result())


class Digester:
    """Two threads: zlib and hashlib both release the GIL while they read."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def start(self, data: memoryview) -> PendingDigest:
        """Begins to compute the checksums of ``data`` (contiguous bytes)."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="modpack-digest")
        return PendingDigest(self._pool.submit(zlib.crc32, data), self._pool.submit(_sha256, data))

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def digest_of(data: bytes | memoryview) -> Digest:
    """The checksums of ``data``, computed here and now."""
    return Digest(zlib.crc32(data), _sha256(data))


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
