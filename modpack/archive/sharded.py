"""Packages whose tensor storages are in safetensors files next to them, their shards.

The name of a shard is the SHA-256 of its header, and the header lists the SHA-256 of each tensor: a
name pins all bytes. Packages with equal tensors refer to the same shard, which is stored, mapped,
and cached by the system once. The package's manifest lists the storages in shards like all others,
so digests and signatures cover them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import (
    CHUNK_BYTES,
    SHARDS_REMEDY,
    Archive,
    ByteSource,
    DataRange,
    FileBytes,
    RecordCheck,
    RecordDigest,
    Shard,
    compute_digest,
)
from modpack.archive.records import decoding, read_shards
from modpack.core.codec import from_json
from modpack.core.json_values import as_mapping, parse_json
from modpack.errors import ArchiveError, PackageNotFoundError

SHARD_NAME: Final = re.compile(r"[0-9a-f]{64}\.safetensors")
"""Names of shards. No other file is opened: not one in another folder, nor the user's own."""
DIGEST_KEY: Final = "sha256:"
"""Prefix of the keys in a shard's metadata that state the SHA-256 of a tensor."""
MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_MAX_HEADER_MEMORY: Final = 10 * MAX_HEADER_BYTES


class ShardTensor(NamedTuple):
    """The bytes of a tensor in a shard.

    Attributes:
        offset: Offset of the first byte in the file.
        size: Size in bytes.
        sha256: SHA-256 of the bytes, in hex.
    """

    offset: int
    size: int
    sha256: str


def read_shard_header(name: str, content: ByteSource) -> dict[str, ShardTensor]:
    """Return the tensors of a shard, after checking its header and size.

    Args:
        name: The name of the shard, which its header must match.
        content: The shard.

    Raises:
        ArchiveError: If the header is not the one that the name states, or the file is truncated.
    """
    label = content.label
    length = int.from_bytes(content.read_at(0, 8), "little") if content.size >= 8 else content.size
    if not 0 < length <= min(content.size - 8, MAX_HEADER_BYTES):
        raise ArchiveError(label, "the shard's header is damaged", hint=SHARDS_REMEDY)
    header = content.read_at(0, 8 + length)
    # Before the header is parsed: the name pins it, and the package states the name.
    if hashlib.sha256(header).hexdigest() != name.partition(".")[0]:
        reason = "the file is another shard, or damaged: its header does not match its name"
        raise ArchiveError(label, reason, hint=SHARDS_REMEDY)
    tensors = {}
    try:
        document = as_mapping(parse_json(header[8:], _MAX_HEADER_MEMORY), "the header")
        digests = from_json(dict[str, str], document.pop("__metadata__"), "the metadata")
        for tensor, facts in document.items():
            entry = as_mapping(facts, "a tensor")
            start, end = from_json(tuple[int, int], entry["data_offsets"], "the offsets")
            digest = digests[DIGEST_KEY + tensor]
            if not 0 <= start <= end:
                raise ValueError(f"the offsets of {tensor!r:.100} are not valid")
            tensors[tensor] = ShardTensor(8 + length + start, end - start, digest)
    except (KeyError, TypeError, ValueError) as failure:
        reason = f"the shard's header is not in the form that modpack writes: {failure}"
        raise ArchiveError(label, reason) from failure
    end = 8 + length
    for each in sorted(tensors.values()):
        if each.offset != end:  # no digest covers what is between tensors
            raise ArchiveError(label, "the shard has bytes that belong to no tensor, or to two")
        end += each.size
    if end != content.size:
        reason = f"the shard has {content.size} bytes instead of {end}; it is probably truncated"
        raise ArchiveError(label, reason, hint=SHARDS_REMEDY)
    return tensors


def require_intact_shard(name: str, content: ByteSource) -> None:
    """Check all bytes of a shard.

    Raises:
        ArchiveError: If it is truncated, damaged, or another file.
    """
    for tensor, facts in read_shard_header(name, content).items():
        if not is_intact(content, facts):
            raise ArchiveError(content.label, f"the bytes of {tensor!r:.100} are damaged")


def is_intact(content: ByteSource, tensor: ShardTensor) -> bool:
    """Return whether the bytes of a tensor match the digest in the header of its shard."""
    chunks = _read_range(content, tensor.offset, tensor.size)
    return compute_digest(chunks, lambda size: None).sha256 == tensor.sha256


def _read_range(content: ByteSource, offset: int, size: int) -> Iterator[bytes]:
    for start in range(offset, offset + size, CHUNK_BYTES):
        yield content.read_at(start, min(CHUNK_BYTES, offset + size - start))


class ShardedArchive(Archive):
    """A package with its shards. The storages in shards are records like those in the file.

    A shard is opened when it is needed: a package without its shards can be inspected.

    Args:
        inner: The package's file, which is closed with this archive.

    Raises:
        ArchiveError: If the record of the shards is damaged.
    """

    def __init__(self, inner: Archive) -> None:
        super().__init__(inner.path)
        self.inner = inner
        self._opened: dict[str, ByteSource] = {}
        self._record = inner.read(layout.SHARDS)
        self._extents = read_shards(inner)
        with decoding(inner, layout.SHARDS):
            self._check_extents()
        # The first ones, because a signature must be the last record.
        self._names = (*self._extents, *inner.names())

    def _check_extents(self) -> None:
        for record, (shard, offset, size) in self._extents.items():
            if not SHARD_NAME.fullmatch(shard):
                raise ValueError(f"{shard!r:.100} is not the name of a shard")
            # A record must have one content, and code never comes from another file.
            if not layout.is_storage(record) or self.inner.has(record):
                raise ValueError(f"{record!r:.100} cannot be in a shard")
            if min(offset, size) < 0:
                raise ValueError(f"the place of {record!r:.100} is not valid")
        # Storages that overlap in a mapped file would share memory when one is written to.
        for (shard, start, size), (other, offset, _) in pairwise(sorted(self._extents.values())):
            if shard == other and start + size > offset:
                raise ValueError("storages overlap in a shard")

    def open_shard(self, name: str) -> ByteSource:
        """Return an open shard, whose header and size were checked.

        Raises:
            ArchiveError: If it is missing, truncated, or another file.
        """
        if name not in self._opened:
            try:
                content = self.inner.open_next_to(name)
            except PackageNotFoundError as failure:
                reason = "the file is missing"
                raise ArchiveError(self.path, reason, name, hint=SHARDS_REMEDY) from failure
            try:
                tensors = {t[:2] for t in read_shard_header(name, content).values()}
                # Whole tensors only: the header has no digest for other ranges.
                if not tensors.issuperset(e[1:] for e in self._extents.values() if e[0] == name):
                    reason = f"the package refers to tensors that are not in {name}"
                    raise ArchiveError(self.path, reason, layout.SHARDS)
            except BaseException:
                content.close()
                raise
            self._opened[name] = content
        return self._opened[name]

    def shards(self) -> tuple[Shard, ...]:
        sizes = Counter[str]()
        for name, _, size in self._extents.values():
            sizes[name] += size
        found = []
        for name, size in sizes.items():
            problem = None
            try:
                self.open_shard(name)
            except ArchiveError as failure:
                # Collected, so that one error can name all missing files.
                problem = failure.reason
            found.append(Shard(name, size, problem))
        return tuple(found)

    def shard_of(self, name: str) -> str | None:
        return self._extents[name][0] if name in self._extents else None

    def has(self, name: str) -> bool:
        return name in self._extents or self.inner.has(name)

    def size(self, name: str) -> int:
        extent = self._extents.get(name)
        return self.inner.size(name) if extent is None else extent[2]

    def open_next_to(self, name: str) -> ByteSource:
        return self.inner.open_next_to(name)

    def offsets(self) -> dict[str, int]:
        return self.inner.offsets()

    def stored_bytes(self) -> int:
        return self.inner.stored_bytes()

    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        if name not in self._extents:
            return self.inner.chunks(name)
        shard, offset, size = self._extents[name]
        return _read_range(self.open_shard(shard), offset, size)

    def data_range(self, name: str) -> DataRange | None:
        if name not in self._extents:
            return self.inner.data_range(name)
        shard, offset, size = self._extents[name]
        content = self.open_shard(shard)
        return DataRange(content.path, offset, size) if isinstance(content, FileBytes) else None

    def require_canonical_zip(self, names: Sequence[str], deflated: Set[str]) -> None:
        # The zip does not contain the storages in shards, but the manifest lists them.
        own = [name for name in names if name not in self._extents]
        self.inner.require_canonical_zip(own, deflated)

    def digest(
        self, name: str, advance: Callable[[int], object], *, with_crc: bool = True
    ) -> RecordDigest:
        if name in self._extents:
            return compute_digest(self.chunks(name), advance)
        return self.inner.digest(name, advance, with_crc=with_crc)

    def verify_with(self, manifest: RecordCheck | None) -> None:
        # The record of the shards was read before there was a manifest to check it against.
        if manifest is not None:
            manifest.check(self.path, layout.SHARDS, self._record)
        super().verify_with(manifest)

    def has_changed(self) -> bool:
        return self.inner.has_changed() or any(c.has_changed() for c in self._opened.values())

    def finish(self) -> None:
        self.inner.finish()

    def close(self) -> None:
        for content in self._opened.values():
            content.close()
        self.inner.close()
