"""Records on their way into an archive: they wait until they are deflated and have checksums."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Final, NamedTuple

from modpack.archive.digests import BACKGROUND_FROM, Digest, Threads, digest_of
from modpack.archive.limits import DEFAULT_LIMITS

__all__ = ["Prepared", "Preparing", "Record"]

_MOST_WAITING: Final = 8 << 20
"""Bytes that wait before the writer does."""
_DEFLATE_LEVEL: Final = 6
_RAW_DEFLATE: Final = -15
_MOST_REMEMBERED: Final = 32 << 10
"""Bytes of a record up to which it is remembered what it is deflated."""
_REMEMBERED: Final = 128


class Record(NamedTuple):
    """What is to be written.

    Attributes:
        name: relative to the top-level folder.
        content: bytes that nobody changes.
        compress: whether to deflate the content if that makes it smaller.
        align: whether the content must be aligned within the file.
    """

    name: str
    content: bytes
    compress: bool
    align: bool


class Prepared(NamedTuple):
    """A record that can be written.

    Attributes:
        record: what it is.
        digest: of its content.
        deflated: its content deflated; None if it had better be stored.
    """

    record: Record
    digest: Digest
    deflated: bytes | None


class Preparing:
    """Prepares records on other threads, many at once, and gives them back in their order.

    Only so many wait as fill some megabytes. A few small ones are prepared here: for those, threads
    are not worth being started.

    Args:
        threads: where to prepare them.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._started: deque[tuple[int, Future[list[Prepared]]]] = deque()
        self._gathered: list[Record] = []
        self._gathered_bytes = 0
        self._waiting_bytes = 0

    def add(self, record: Record) -> None:
        """Takes a record in."""
        self._gathered.append(record)
        self._gathered_bytes += len(record.content)
        if self._gathered_bytes >= BACKGROUND_FROM:
            future = self._threads.run(_prepared, self._gathered)
            self._started.append((self._gathered_bytes, future))
            self._waiting_bytes += self._gathered_bytes
            self._gathered, self._gathered_bytes = [], 0

    @property
    def is_full(self) -> bool:
        """Whether some have to leave before others come."""
        return self._waiting_bytes > _MOST_WAITING

    def first(self) -> list[Prepared]:
        """The first of those that wait; waits until they are prepared."""
        size, future = self._started.popleft()
        self._waiting_bytes -= size
        return future.result()

    def rest(self) -> Iterator[Sequence[Prepared]]:
        """All records that wait."""
        while self._started:
            yield self.first()
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            yield _prepared(gathered)

    def forget(self) -> None:
        """Forgets the records that wait."""
        self._started.clear()
        self._gathered, self._gathered_bytes, self._waiting_bytes = [], 0, 0


def _prepared(records: Sequence[Record]) -> list[Prepared]:
    return [Prepared(each, *_worked_out(each.content, each.compress)) for each in records]


def _worked_out(content: bytes, compress: bool) -> tuple[Digest, bytes | None]:
    is_usual = compress and len(content) <= _MOST_REMEMBERED
    return (_remembered if is_usual else _computed)(content, compress)


def _computed(content: bytes, compress: bool) -> tuple[Digest, bytes | None]:
    return digest_of(content), _deflated(content) if compress else None


_remembered = lru_cache(maxsize=_REMEMBERED)(_computed)
"""Sources and metadata are the same in one package after the other: deflating those was a tenth of
the time of saving a small model again."""


def _deflated(content: bytes) -> bytes | None:
    """The deflated content, or None if it had better be stored."""
    if len(content) > DEFAULT_LIMITS.max_code_record_bytes:
        return None
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    payload = compressor.compress(content) + compressor.flush()
    helps = len(payload) < len(content)
    readable = DEFAULT_LIMITS.allow_inflating(len(payload), len(content))
    return payload if helps and readable else None
