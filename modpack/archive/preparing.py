"""Records on their way into an archive: they wait until they are deflated and have checksums."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from modpack.archive.digests import BACKGROUND_FROM, Digest, Threads, digest_of
from modpack.archive.hashing import HashHelper, SharedBatch, start_helper
from modpack.archive.limits import DEFAULT_LIMITS

__all__ = ["Prepared", "Preparing", "Record"]

_MOST_WAITING: Final = 8 << 20
"""Bytes that wait before the writer does."""
_WORTH_A_HELPER: Final = 16 << 20
"""Bytes of records for a process that helps, before one is started: it takes 15 ms to start, and
10 ms for so many."""
_WORTH_HELPING: Final = 4 << 10
"""Bytes of a record from which on telling a process of it costs less than its checksums."""
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
    """

    name: str
    content: bytes | memoryview
    compress: bool


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


class _Started(NamedTuple):
    """Records that are being prepared.

    Attributes:
        size: their bytes.
        result: waits for them.
        batch: where they are, if it is the memory shared with a helper.
    """

    size: int
    result: Callable[[], list[Prepared]]
    batch: SharedBatch | None = None


class Preparing:
    """Prepares records elsewhere, many at once, and gives them back in their order.

    Only so many wait as fill some megabytes. A few small ones are prepared here: for those, threads
    are not worth being started. Others are prepared by threads; where many are to be stored as they
    are, by a process.

    Args:
        threads: where to prepare them.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._helper: HashHelper | None = None
        self._started: deque[_Started] = deque()
        self._gathered: list[Record] = []
        self._gathered_bytes = 0
        self._waiting_bytes = 0
        self._for_helper = 0
        self._batch: SharedBatch | None = None
        self._given: SharedBatch | None = None

    def add(self, name: str, content: bytes | memoryview, compress: bool) -> None:
        """Takes a record in; the bytes of its content may change as soon as the call returns."""
        size = len(content)
        self._take_back_given()
        self._make_room(size, is_for_helper=size >= _WORTH_HELPING and not compress)
        kept = bytes(content) if self._batch is None else self._batch.add(content)
        self._gathered.append(Record(name, kept, compress))
        self._gathered_bytes += size
        if self._batch is None and self._gathered_bytes >= BACKGROUND_FROM:
            self._begin()

    @property
    def is_full(self) -> bool:
        """Whether some have to leave before others come."""
        return self._waiting_bytes > _MOST_WAITING

    def first(self) -> list[Prepared]:
        """The first of those that wait; waits until they are prepared.

        Their content may be overwritten as soon as another one is asked for, or taken in.
        """
        self._take_back_given()
        size, result, self._given = self._started.popleft()
        self._waiting_bytes -= size
        return result()

    def rest(self) -> Iterator[Sequence[Prepared]]:
        """All records that wait."""
        if self._batch is not None:
            self._begin()
        while self._started:
            yield self.first()
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            yield _prepared(gathered)

    def forget(self) -> None:
        """Forgets the records that wait, and ends the process."""
        self._started.clear()
        self._gathered, self._gathered_bytes, self._waiting_bytes = [], 0, 0
        self._batch = self._given = None
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _make_room(self, size: int, *, is_for_helper: bool) -> None:
        """Begins another batch, if a record belongs into another one than those before."""
        if is_for_helper:
            self._for_helper += size
            if self._helper is None and self._for_helper >= _WORTH_A_HELPER:
                self._helper, self._for_helper = start_helper(), 0
        if self._batch is not None:
            if is_for_helper and self._batch.has_room(size):
                return
            self._begin()
        if is_for_helper and self._helper is not None and self._helper.can_take_more:
            if self._gathered:
                self._begin()
            self._batch = self._helper.batch()

    def _begin(self) -> None:
        """Has what is gathered prepared."""
        records, batch = self._gathered, self._batch
        if self._helper is None or batch is None:
            started = _Started(self._gathered_bytes, self._threads.run(_prepared, records).result)
        else:
            started = _by_helper(self._helper, batch, records, self._gathered_bytes)
        self._started.append(started)
        self._waiting_bytes += self._gathered_bytes
        self._gathered, self._gathered_bytes, self._batch = [], 0, None

    def _take_back_given(self) -> None:
        if self._given is not None and self._helper is not None:
            self._helper.take_back(self._given)
        self._given = None


def _by_helper(
    helper: HashHelper, batch: SharedBatch, records: list[Record], size: int
) -> _Started:
    def result() -> list[Prepared]:
        digests = helper.digests(batch)
        return [Prepared(*each, None) for each in zip(records, digests, strict=True)]

    helper.begin(batch)
    return _Started(size, result, batch)


def _prepared(records: Sequence[Record]) -> list[Prepared]:
    return [Prepared(each, *_worked_out(each.content, each.compress)) for each in records]


def _worked_out(content: bytes | memoryview, compress: bool) -> tuple[Digest, bytes | None]:
    is_usual = compress and len(content) <= _MOST_REMEMBERED
    return (_remembered if is_usual else _computed)(content, compress)


def _computed(content: bytes | memoryview, compress: bool) -> tuple[Digest, bytes | None]:
    return digest_of(content), _deflated(content) if compress else None


_remembered = lru_cache(maxsize=_REMEMBERED)(_computed)
"""Sources and metadata are the same in one package after the other: deflating those was a tenth of
the time of saving a small model again."""


def _deflated(content: bytes | memoryview) -> bytes | None:
    """The deflated content, or None if it had better be stored."""
    if len(content) > DEFAULT_LIMITS.max_code_record_bytes:
        return None
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    payload = compressor.compress(content) + compressor.flush()
    helps = len(payload) < len(content)
    readable = DEFAULT_LIMITS.allow_inflating(len(payload), len(content))
    return payload if helps and readable else None
