"""The body of an archive that is being written: its records, one behind the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, NamedTuple

from modpack.archive import layout, zipformat
from modpack.archive.digests import Digest, Threads
from modpack.archive.following import PIECE_BYTES, FollowingDigest
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.manifest import RecordDigest
from modpack.archive.preparing import Prepared, Preparing
from modpack.archive.sink import CHUNK_BYTES, Sink
from modpack.archive.zipformat import NewEntry

__all__ = ["Body", "Extent"]

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
        lines = [zipformat.central_header(laid.entry) for laid in self._laid.values()]
        size = sum(map(len, lines))
        self._sink.write_all([*lines, zipformat.end_records(len(lines), size, self._position)])

    def stored_chunks(self, name: str) -> Iterator[bytes] | None:
        """The content of a record that was stored as it is, chunk by chunk; None for any other."""
        self.settle()
        laid = self._laid.get(name)
        if laid is None or laid.entry.kind > zipformat.MAX16:
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
        payload, method, size, of_deflated = content, zipformat.STORED, len(content), ""
        if deflated is not None and self._may_inflate(size):
            payload, method = deflated, zipformat.DEFLATED
            of_deflated = hashlib.sha256(deflated).hexdigest()
            self._inflated += size
        entry = self._entry(name, size, len(payload), digest.crc, method)
        header = zipformat.local_header(entry, align=layout.is_storage(name))
        self._note(name, entry, len(header), digest.sha256, of_deflated)
        return header, payload

    def _may_inflate(self, size: int) -> bool:
        return DEFAULT_LIMITS.allow_total(self._position, self._inflated + size)

    def _lay_large(self, name: str, content: memoryview) -> None:
        """Lays a record before its crc is known, which is filled in later."""
        size = len(content)
        entry = self._entry(name, size, size)
        header = zipformat.local_header(entry, align=layout.is_storage(name))
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
        self._sink.patch(laid.entry.offset + zipformat.CRC_IN_LOCAL, crc)
        entry = laid.entry._replace(crc=digest.crc)
        self._laid[laid.name] = laid._replace(entry=entry, sha256=digest.sha256, pending=None)

    def _entry(
        self, name: str, size: int, compressed: int, crc: int = 0, method: int = zipformat.STORED
    ) -> NewEntry:
        raw_name = f"{layout.ROOT}/{name}".encode()
        kind = zipformat.own_kind(raw_name, method)
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
