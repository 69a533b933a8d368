"""Checksums by a helper: another process, which sees the same memory and has a lock of its own.

A thread that computes checksums has to ask for Python's lock twice a record, and gets it when the
thread that writes gives it up: every 5 milliseconds, in which 200 records could be done. A
process asks nobody. It sees a piece of memory through which the records go: see
:mod:`modpack.core.process` for what else there is to it.

Records on their way into an archive: they wait until they are deflated and have checksums.

Checksums of what is too large to be read again: computed while it is written.

The body of an archive that is being written: its records, one behind the other.

Writing a package, record by record, so that a failure leaves no trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import IO, TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeVar, cast

from modpack.archive import layout
from modpack.archive.hash_helper import ANSWER, QUESTION
from modpack.archive.layout import DEFAULT_LIMITS, NameRegistry, why_unsafe
from modpack.archive.manifest import (
    BACKGROUND_FROM,
    Digest,
    RecordDigest,
    Threads,
    digest_of,
    encode_manifest,
)
from modpack.archive.target import CHUNK_BYTES, Sink, open_sink
from modpack.archive.zip_format import (
    CRC_IN_LOCAL,
    DEFLATED,
    MAX16,
    STORED,
    NewEntry,
    central_header,
    end_records,
    local_header,
    own_kind,
)
from modpack.core.process import (
    FIND_MODPACK,
    collection_paused,
    helpers_wanted,
    if_possible,
    kill_helper,
    usable_cores,
)
from modpack.core.process import start_helper as start_process
from modpack.errors import ArchiveError

if TYPE_CHECKING:
    import subprocess
    from hashlib import _Hash

_log = logging.getLogger(__name__)

_START: Final = f"{FIND_MODPACK}; from modpack.archive.hash_helper import main; main()"
_BATCH_BYTES: Final = 2 << 20
"""Bytes of the records that are handed over together."""
_BATCHES: Final = 6
_PATIENCE: Final = 5.0
"""Seconds to wait for the checksums of a batch, which take a thousandth of one."""
_DIGEST: Final = struct.Struct("<I32s")


class SharedBatch:
    """Records that lie one behind the other in a piece of the shared memory.

    Args:
        offset: where the piece begins.
        memory: the piece.

    Attributes:
        contents: those of the records.
    """

    def __init__(self, offset: int, memory: memoryview) -> None:
        self.offset = offset
        self.contents: list[memoryview] = []
        self.memory = memory
        self._filled = 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be added."""
        return self._filled + size <= len(self.memory)

    def add(self, content: bytes | memoryview) -> memoryview:
        """Copy a record's content here; returns the copy."""
        end = self._filled + len(content)
        copy = self.memory[self._filled : end]
        copy[:] = content
        self._filled = end
        self.contents.append(copy)
        return copy


class HashHelper:
    """The process, and the memory that it sees.

    Whatever becomes of it costs time only: what it does not answer is computed here.

    Raises:
        OSError: it cannot be started here.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process, memory = _started(theirs)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(_PATIENCE)
        self._is_lost = False
        starts = range(0, _BATCHES * _BATCH_BYTES, _BATCH_BYTES)
        self._free = deque((start, memory[start : start + _BATCH_BYTES]) for start in starts)

    @property
    def can_take_more(self) -> bool:
        """Whether there is room for another batch, and somebody to work on it."""
        return bool(self._free) and not self._is_lost

    def batch(self) -> SharedBatch:
        """An empty batch; only if it can take more."""
        return SharedBatch(*self._free.popleft())

    def begin(self, batch: SharedBatch) -> None:
        """Has the checksums of a batch computed."""
        sizes = [len(content) for content in batch.contents]
        message = QUESTION.pack(batch.offset, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes)
        if self._is_lost:
            return
        with self._noticing_loss():
            # A program may want to be killed by SIGPIPE, but not by this.
            if self._socket.send(message, socket.MSG_NOSIGNAL) != len(message):
                raise OSError("it does not take any more")

    def digests(self, batch: SharedBatch) -> list[Digest]:
        """The checksums of the batch that was begun first of those that still have none."""
        if not self._is_lost:
            with self._noticing_loss():
                answer = self._answer(batch)
                return [Digest(crc, sha256.hex()) for crc, sha256 in _DIGEST.iter_unpack(answer)]
        return [digest_of(content) for content in batch.contents]

    def take_back(self, batch: SharedBatch) -> None:
        """Lets the memory of a batch be used again."""
        self._free.append((batch.offset, batch.memory))

    def close(self) -> None:
        """Ends the process; harmless in a forked child, whose it is not."""
        self._is_lost = True
        self._socket.close()
        if self._owner == os.getpid():
            kill_helper(self._process)

    def _answer(self, batch: SharedBatch) -> bytes:
        about, checksum = ANSWER.unpack(self._received(ANSWER.size))
        answer = self._received(_DIGEST.size * len(batch.contents))
        if (about, checksum) != (batch.offset, zlib.crc32(answer)):
            raise OSError("what it says is no answer")
        return answer

    def _received(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise OSError("it has ended")
            rest = rest[count:]
        return bytes(data)

    @contextlib.contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Gives the process up if it does not answer in the block."""
        try:
            yield
        except OSError as failure:  # a timeout is one, too
            self._is_lost = True
            _log.info("the process that helps hashing is given up (%s)", failure)


def start_helper() -> HashHelper | None:
    """A helper, where one can be started and has a core to run on."""
    if not (_CAN_SHARE and helpers_wanted() and usable_cores() > 1):
        return None
    return if_possible(HashHelper, "hashing")


_CAN_SHARE: Final = hasattr(os, "memfd_create") and hasattr(socket, "MSG_NOSIGNAL")


def _started(answers: socket.socket) -> tuple[subprocess.Popen[bytes], memoryview]:
    """Start the process; returns it and the memory that it sees."""
    with open(os.memfd_create("modpack-records"), "r+b", buffering=0) as file:
        file.truncate(_BATCHES * _BATCH_BYTES)
        memory = memoryview(mmap.mmap(file.fileno(), _BATCHES * _BATCH_BYTES))
        with answers.makefile("wb", buffering=0) as stream:
            process = start_process(_START, [str(os.getpid())], file, cast(IO[bytes], stream))
    return process, memory


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


_LARGE: Final = 1 << 20
"""Bytes from which a record is written from where it is. Its checksums are computed of what was
written, while others are written: they agree with the file, whatever becomes of the memory."""
_HUGE: Final = 64 << 20
"""Bytes from which a record is too much to be read again: it is hashed while it is written."""


@dataclass(frozen=True)
class Extent:
    """How far a body reaches.

    Attributes:
        records: how many they are.
        position: bytes that they take.
        inflated: bytes of the deflated ones among them once inflated.
    """

    records: int
    position: int
    inflated: int


class _Laid(NamedTuple):
    """A record that is in the sink.

    Attributes:
        name: relative to the top-level folder.
        entry: what the zip's directory says of it; its crc only if nothing is pending.
        content_at: where its content begins.
        sha256: of the content; empty if it is pending.
        deflated: sha256 of the deflated content; empty if it is stored as it is.
        pending: the checksums, if they are still being computed.
    """

    name: str
    entry: NewEntry
    content_at: int
    sha256: str
    deflated: str = ""
    pending: Future[Digest] | None = None

    @property
    def digest(self) -> RecordDigest:
        """What the manifest says of it."""
        return RecordDigest(self.entry.size, self.sha256, self.deflated)


class Body:
    """Lays records one behind the other, and remembers what the zip's directory says of them.

    A record is in the sink at the latest when all are (:meth:`settle`). What is then written is its
    content as it was when it was added.

    Args:
        sink: where they go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._threads = Threads()
        self._preparing = Preparing(self._threads)
        self._laid: dict[str, _Laid] = {}
        self._pending: list[str] = []
        self._position = 0
        self._inflated = 0

    def add(self, name: str, content: bytes | memoryview, *, compress: bool) -> None:
        """Adds a record; bytes in a view may change as soon as the call returns."""
        self._sink.begin()
        if compress or len(content) < _LARGE:
            self._preparing.add(name, content, compress)
            while self._preparing.is_full:
                self._lay_all(self._preparing.first())
        else:
            self._lay_waiting()
            self._lay_large(name, memoryview(content))

    def settle(self) -> None:
        """Lays what still waits, and waits for all checksums; the disk need not wait any longer."""
        self._lay_waiting()
        pending, self._pending = self._pending, []
        for name in pending:
            laid = self._laid[name]
            if laid.pending is not None:
                with self._sink.reporting():
                    digest = laid.pending.result()
                self._complete(laid, digest)
        self._sink.rest()

    def digest(self, name: str) -> RecordDigest:
        """Size and checksum of a record."""
        if name not in self._laid or self._laid[name].pending is not None:
            self.settle()
        return self._laid[name].digest

    def digests(self) -> dict[str, RecordDigest]:
        """Those of all records, in their order."""
        self.settle()
        return {name: laid.digest for name, laid in self._laid.items()}

    def extent(self) -> Extent:
        """How far it reaches by now."""
        self.settle()
        return Extent(len(self._laid), self._position, self._inflated)

    def cut(self, to: Extent) -> None:
        """Forgets what reaches farther."""
        self.settle()
        for name in list(self._laid)[to.records :]:
            del self._laid[name]
        if self._position > to.position:
            self._sink.truncate(to.position)
        self._position, self._inflated = to.position, to.inflated

    def end(self) -> None:
        """Writes the zip's directory."""
        self.settle()
        lines = [central_header(laid.entry) for laid in self._laid.values()]
        size = sum(map(len, lines))
        self._sink.write_all([*lines, end_records(len(lines), size, self._position)])

    def stored_chunks(self, name: str) -> Iterator[bytes] | None:
        """The content of a record that was stored as it is, chunk by chunk; None for any other."""
        self.settle()
        laid = self._laid.get(name)
        if laid is None or laid.entry.kind > MAX16:
            return None
        return self._chunks(laid.content_at, laid.entry.size)

    def close(self) -> None:
        """Ends its threads."""
        self._preparing.forget()
        self._threads.close()

    def _chunks(self, offset: int, remaining: int) -> Iterator[bytes]:
        with open(self._sink.path(), "rb") as file:
            file.seek(offset)
            while remaining and (chunk := file.read(min(remaining, CHUNK_BYTES))):
                remaining -= len(chunk)
                yield chunk

    def _lay_waiting(self) -> None:
        for prepared in self._preparing.rest():
            self._lay_all(prepared)

    def _lay_all(self, records: Sequence[Prepared]) -> None:
        pieces: list[bytes | memoryview] = []
        for prepared in records:
            pieces += self._pieces(prepared)
        self._sink.write_all(pieces)

    def _pieces(self, prepared: Prepared) -> tuple[bytes, bytes | memoryview]:
        """A record's header and what follows it."""
        (name, content, _), digest, deflated = prepared
        payload, method, size, of_deflated = content, STORED, len(content), ""
        if deflated is not None and self._may_inflate(size):
            payload, method = deflated, DEFLATED
            of_deflated = hashlib.sha256(deflated).hexdigest()
            self._inflated += size
        entry = self._entry(name, size, len(payload), digest.crc, method)
        header = local_header(entry, align=layout.is_storage(name))
        self._note(name, entry, len(header), digest.sha256, of_deflated)
        return header, payload

    def _may_inflate(self, size: int) -> bool:
        return DEFAULT_LIMITS.allow_total(self._position, self._inflated + size)

    def _lay_large(self, name: str, content: memoryview) -> None:
        """Lays a record before its crc is known, which is filled in later."""
        size = len(content)
        entry = self._entry(name, size, size)
        header = local_header(entry, align=layout.is_storage(name))
        if size >= _HUGE or not self._sink.is_readable:
            digest = self._write_while_digesting(header, content)
            self._complete(self._note(name, entry, len(header)), digest)
            return
        self._sink.write_all([header, content])
        place = self._sink.descriptor(), self._position + len(header), size
        self._note(name, entry, len(header), pending=self._threads.digest_of_written(*place))
        self._pending.append(name)

    def _write_while_digesting(self, header: bytes, content: memoryview) -> Digest:
        self._sink.write(header)
        following = FollowingDigest(self._threads)
        for start in range(0, len(content), PIECE_BYTES):
            self._sink.write(following.take(content[start : start + PIECE_BYTES]))
        return following.result()

    def _complete(self, laid: _Laid, digest: Digest) -> None:
        """Fills in the checksums of a record."""
        crc = digest.crc.to_bytes(4, "little")
        self._sink.patch(laid.entry.offset + CRC_IN_LOCAL, crc)
        entry = laid.entry._replace(crc=digest.crc)
        self._laid[laid.name] = laid._replace(entry=entry, sha256=digest.sha256, pending=None)

    def _entry(
        self, name: str, size: int, compressed: int, crc: int = 0, method: int = STORED
    ) -> NewEntry:
        raw_name = f"{layout.ROOT}/{name}".encode()
        kind = own_kind(raw_name, method)
        return NewEntry(raw_name, kind, crc, compressed, size, self._position)

    def _note(
        self,
        name: str,
        entry: NewEntry,
        header_bytes: int,
        sha256: str = "",
        deflated: str = "",
        pending: Future[Digest] | None = None,
    ) -> _Laid:
        laid = _Laid(name, entry, self._position + header_bytes, sha256, deflated, pending)
        self._laid[name] = laid
        self._position += header_bytes + entry.compressed
        return laid


_PLANNED: Final = ""
"""The digest of what is not written."""
_FAILED: Final = "writing to it failed"


@dataclass(frozen=True)
class Checkpoint:
    """How far a writer had come: what :meth:`ArchiveWriter.rollback` goes back to.

    Attributes:
        records: how many records there were.
        extent: how far they reach; None when only planning.
    """

    records: int
    extent: Extent | None


class ArchiveWriter:
    """Writes the records of one package, in the order of the calls.

    The same calls give the same bytes. Nothing is to be seen at the target before
    :meth:`commit`; leaving the ``with`` block without it, or by an exception, discards.

    Args:
        target: a path, or a binary buffer with ``write`` (it need not be seekable). None plans
            only: names are checked, nothing is written, and all digests are empty.

    Raises:
        TypeError: ``target`` is none of these.
        TargetError: the target cannot be written (a missing folder, a directory, ...).

    >>> import io
    >>> from modpack.archive import layout
    >>> with ArchiveWriter(io.BytesIO()) as writer:
    ...     writer.write(layout.VERSION, layout.VERSION_CONTENT)
    ...     writer.write("pkg/greeting.txt", b"hello")
    ...     digest = writer.commit()
    >>> len(digest)
    64
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO | None) -> None:
        self._sink: Sink | None = None if target is None else open_sink(target)
        self.source: str = "<plan>" if self._sink is None else self._sink.label
        self._registry = NameRegistry()
        self._names: dict[str, None] = {}
        self._body = None if self._sink is None else Body(self._sink)
        self._closed_because: str | None = None

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_closed_because"):
            self.discard()

    def write(
        self, name: str, data: bytes | bytearray | memoryview, *, compress: bool = False
    ) -> None:
        """Adds a record.

        Args:
            name: relative to the top-level folder, components separated by "/".
            data: the content; contiguous, and not changed before the call returns.
            compress: deflate the content if that makes it smaller.

        Raises:
            TypeError: ``name`` is no str, or ``data`` no contiguous bytes.
            ArchiveError: the name is unsafe or taken, or the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._refuse_reserved(name)
        self._add(name, data, compress=compress and not layout.is_storage(name))

    def write_storage(self, name: str, data: memoryview) -> None:
        """Adds a record that can be mapped: as it is, 64-byte aligned within the file.

        Args:
            name: relative to the top-level folder, from ``layout.storage_name``.
            data: the bytes of a tensor storage, contiguous, in any format or shape.

        Raises:
            TypeError: ``name`` is no str, or ``data`` no contiguous bytes.
            ArchiveError: the name is unsafe, taken, or no storage's, or the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._refuse_reserved(name)
        if not layout.is_storage(name):
            raise ArchiveError(self.source, "it is not called as a storage must be", name)
        self._add(name, data, compress=False)

    @collection_paused()
    def commit(self) -> str:
        """Completes the archive and puts it in the target's place.

        Returns:
            The package digest: the sha256 of the manifest, in hex. Empty when only planning.

        Raises:
            ArchiveError: the writer was closed.
            TargetError: the target cannot be written. A file is then as it was; a buffer may
                have taken some bytes if it was the buffer that failed.
        """
        self._require_open()
        if self._sink is None or self._body is None:
            self._close("it was committed")
            return _PLANNED
        digest = self._complete(self._body)
        with self._closing_on_failure():
            self._sink.publish()
        self._close("it was committed")
        return digest

    def checkpoint(self) -> Checkpoint:
        """How far the archive has come by now."""
        self._require_open()
        with self._closing_on_failure():
            extent = None if self._body is None else self._body.extent()
        return Checkpoint(len(self._names), extent)

    def rollback(self, to: Checkpoint) -> None:
        """Forgets the records that were written since a checkpoint; those before it stay.

        Raises:
            ArchiveError: the writer was closed.
            TargetError: the target cannot be written; the writer is then closed.
        """
        self._require_open()
        for name in list(self._names)[to.records :]:
            del self._names[name]
        self._registry.forget_after(to.records)
        if self._body is not None and to.extent is not None:
            with self._closing_on_failure():
                self._body.cut(to.extent)

    @contextlib.contextmanager
    def previewed(self) -> Iterator[str]:
        """The complete archive in a temporary file, as it would be if it ended here.

        Within the block nothing can be written; after it, writing goes on.

        Returns:
            A context manager for the file's path.

        Raises:
            ArchiveError: the writer was closed, or only plans.
            TargetError: the target cannot be written; the writer is then closed.
        """
        if self._sink is None or self._body is None:
            raise ArchiveError(self.source, "nothing is written: there is nothing to preview")
        before = self.checkpoint()
        self._complete(self._body)
        try:
            yield self._sink.path()
        finally:
            self.rollback(before)

    def stored_chunks(self, name: str) -> Iterator[bytes]:
        """Reads back the content of a record that was stored as it is, chunk by chunk.

        Raises:
            ArchiveError: there is no such record, or it was compressed.
            OSError: what was written cannot be read.
        """
        chunks = None
        if self._body is not None:
            with self._closing_on_failure():
                chunks = self._body.stored_chunks(name)
        if chunks is None:
            raise ArchiveError(self.source, "it was not stored as it is", name)
        return chunks

    def discard(self) -> None:
        """Forgets everything written; the target stays as it was. Harmless after a commit."""
        self._close("it was discarded")

    def has(self, name: str) -> bool:
        """Whether a record of this very name was written."""
        return name in self._names

    def names(self) -> tuple[str, ...]:
        """The records' names, in the order they were written."""
        return tuple(self._names)

    def digest_of(self, name: str) -> str:
        """The sha256 of a written record's content, in hex; empty when only planning.

        Raises:
            ArchiveError: there is no such record.
        """
        if name not in self._names:
            raise ArchiveError(self.source, "it was not written", name)
        if self._body is None:
            return _PLANNED
        with self._closing_on_failure():
            return self._body.digest(name).sha256

    def _add(self, name: str, data: bytes | bytearray | memoryview, *, compress: bool) -> None:
        content = data if type(data) is bytes else _as_bytes(data)
        self._admit(name)
        self._names[name] = None
        if self._body is not None:
            try:
                self._body.add(name, content, compress=compress)
            except BaseException:
                self._close(_FAILED)
                raise

    def _complete(self, body: Body) -> str:
        """Writes what makes an archive of the records, and returns the package digest."""
        self._require_open()
        with self._closing_on_failure():
            manifest = encode_manifest(body.digests())
        digest = digest_of(manifest).sha256
        self._add(layout.MANIFEST, manifest, compress=False)
        self._add(layout.MANIFEST_DIGEST, digest.encode("ascii"), compress=False)
        with self._closing_on_failure():
            body.end()
        return digest

    def _refuse_reserved(self, name: str) -> None:
        if name in (layout.MANIFEST, layout.MANIFEST_DIGEST):
            raise ArchiveError(self.source, "commit() writes it, and nobody else", name)
        if name == layout.SIGNATURE:
            raise ArchiveError(self.source, "only what signs complete archives writes it", name)

    def _admit(self, name: str) -> None:
        self._require_open()
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        reason = why_unsafe(name) or self._why_too_long(name) or self._registry.add(name)
        if reason is not None:
            raise ArchiveError(self.source, reason, name)

    def _why_too_long(self, name: str) -> str | None:
        full, most = f"{layout.ROOT}/{name}", DEFAULT_LIMITS.max_name_bytes
        if len(full) * 4 > most < len(full.encode()):
            return f"the name is longer than {most} bytes"
        return None

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise ArchiveError(self.source, f"nothing can be written: {self._closed_because}")
        self._require_own()

    def _require_own(self) -> None:
        # They would share the position in the file, and the process that hashes.
        if self._sink is not None and self._sink.is_inherited:
            reason = "only the process that began to write it can go on, and no forked child"
            raise ArchiveError(self.source, reason)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # A record that was written in part cannot be taken back.
        self._require_own()
        try:
            yield
        except BaseException:
            self._close(_FAILED)
            raise

    def _close(self, reason: str) -> None:
        if self._closed_because is not None:
            return
        self._closed_because = reason
        if self._body is not None:
            self._body.close()
        if self._sink is not None:
            self._sink.discard()


def _as_bytes(data: bytes | bytearray | memoryview) -> memoryview:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"data must be bytes, a bytearray or a memoryview, not {type(data).__name__}"
        )
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("data must be contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")
