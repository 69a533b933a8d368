"""Checksums of what is too large to be read again: computed while it is written."""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from modpack.archive.digests import Digest, Threads

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["PIECE_BYTES", "FollowingDigest"]

PIECE_BYTES: Final = 2 << 20
_MOST_PIECES: Final = 3
"""One is written while the one before is hashed, and the next one copied."""

_Result = TypeVar("_Result")


class _Piece(NamedTuple):
    """Memory for a piece, and the checksums up to its end."""

    memory: memoryview
    crc: Future[int]
    sha256: Future[_Hash]


class FollowingDigest:
    """Checksums of a content that comes piece by piece.

    Each piece is copied, and both hashed and written from the copy: the checksums are of what was
    written, even of memory that another thread changes meanwhile, as it does where a model is saved
    while it is trained.

    Args:
        threads: where checksums are computed.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._crc, self._sha256 = _known(0), _known(hashlib.sha256())
        memories = [memoryview(bytearray(PIECE_BYTES)) for _ in range(_MOST_PIECES)]
        self._pieces = deque(_Piece(each, self._crc, self._sha256) for each in memories)

    def take(self, content: memoryview) -> memoryview:
        """Has a piece hashed; returns the copy to be written before another one is taken."""
        memory, crc, sha256 = self._pieces.popleft()
        crc.result(), sha256.result()  # it may be written to then
        copy = memory[: len(content)]
        copy[:] = content
        self._crc = self._threads.run(_crc_on, (self._crc, copy))
        self._sha256 = self._threads.run(_sha256_on, (self._sha256, copy))
        self._pieces.append(_Piece(memory, self._crc, self._sha256))
        return copy

    def result(self) -> Digest:
        """Waits for the checksums of all."""
        return Digest(self._crc.result(), self._sha256.result().hexdigest())


def _known(result: _Result) -> Future[_Result]:
    future: Future[_Result] = Future()
    future.set_result(result)
    return future


def _crc_on(piece: tuple[Future[int], memoryview]) -> int:
    """The crc32 of a piece and all before it, for which it waits."""
    before, content = piece
    return zlib.crc32(content, before.result())


def _sha256_on(piece: tuple[Future[_Hash], memoryview]) -> _Hash:
    before, content = piece
    digest = before.result().copy()
    digest.update(content)
    return digest
