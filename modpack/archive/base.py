"""The interface of archives: a zip file, a buffer, or an unzipped folder.

All reads name an offset. Without a shared file position, threads cannot race for it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import stat
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from modpack.archive import layout
from modpack.errors import (
    ArchiveError,
    NotAPackageError,
    PackageNotFoundError,
    RecordNotFoundError,
    listed,
)

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 20
_COMPARED_NAMES: Final = 2000
SHARDS_REMEDY: Final = "Copy the package's shards into its folder, or save the model again."


class DataRange(NamedTuple):
    """The location of a record's bytes, for memory mapping.

    Attributes:
        path: Absolute path of the file.
        offset: Offset of the first byte.
        length: Length in bytes.
    """

    path: str
    offset: int
    length: int


class RecordDigest(NamedTuple):
    """The size and digests of a record, declared or computed.

    Attributes:
        size: Uncompressed size in bytes.
        sha256: SHA-256 of the content, in hex.
        deflated: SHA-256 of the deflated content, in hex. Empty if the record is not compressed,
            or if the digest is unknown.
    """

    size: int
    sha256: str
    deflated: str = ""


class Shard(NamedTuple):
    """A safetensors file next to a package, which contains tensors of the package.

    Attributes:
        name: The file's name.
        size_bytes: Size of these tensors.
        problem: Why it cannot be used, or None.
    """

    name: str
    size_bytes: int
    problem: str | None = None


class RecordCheck(Protocol):
    """Declared sizes and digests that contents are checked against: a manifest."""

    def check(self, path: str, name: str, content: bytes | memoryview) -> None:
        """Check a record's content.

        Raises:
            ArchiveError: If the record is undeclared or differs.
        """


class Archive(ABC):
    """The records of one package. Several threads may read at the same time.

    Names are case-sensitive and relative to the archive's top-level folder.

    Attributes:
        path: The archive as the user named it; ``<buffer>`` for buffers.
    """

    _names: tuple[str, ...]

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest: RecordCheck | None = None
        self._cached: dict[Callable[[Archive], object], object] = {}

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A remote file that changes while it is read looks damaged. `finish` then names the
            # cause.
            if kind is None or issubclass(kind, ArchiveError):
                self.finish()
        finally:
            self.close()

    def finish(self) -> None:
        """Check what can only be checked after all reads."""
        return

    def names(self) -> tuple[str, ...]:
        """Return all records, in file order for a zip, sorted for a folder."""
        return self._names

    def leave_out(self, names: Collection[str]) -> None:
        """Leave records out of :meth:`names` from now on."""
        left = frozenset(names)
        self._names = tuple(name for name in self._names if name not in left)

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a record with exactly this name exists."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a record's content in bytes.

        Raises:
            RecordNotFoundError: If the record does not exist.
        """

    def sizes(self) -> dict[str, int]:
        """Return the size of each record in bytes, in the order of :meth:`names`."""
        return {name: self.size(name) for name in self.names()}

    def offsets(self) -> dict[str, int]:
        """Return where each record of a zip starts in the file, with its header; empty for others.

        The file of a package with shards does not contain the storages in them.
        """
        return {}

    def stored_bytes(self) -> int:
        """Return the size of the whole archive in bytes, as it is stored."""
        return sum(self.sizes().values())

    def crc32(self, name: str) -> int:
        """Return a record's CRC-32: the stated value in a zip, otherwise computed.

        Raises:
            RecordNotFoundError: If the record does not exist.
        """
        crc = 0
        for chunk in self.chunks(name):
            crc = zlib.crc32(chunk, crc)
        return crc

    @abstractmethod
    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        """Yield a record's content in chunks, for records that do not fit into memory.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged. The CRC-32 is checked after the last chunk.
        """

    @abstractmethod
    def data_range(self, name: str) -> DataRange | None:
        """Return where a record can be mapped, or None for buffers and compressed records.

        The content is not checked, because that would require reading it.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record's headers contradict each other.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the archive. Later reads raise ArchiveError. May be called twice."""

    def read(self, name: str, *, verify: RecordCheck | None = None) -> bytes:
        """Return a record's content, checked against the zip's CRC-32.

        Args:
            name: The record.
            verify: A manifest to check size and SHA-256 against. By default the one passed to
                :meth:`verify_with`. A folder has no other checksums.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged, exceeds its size limit, or does not match
                the manifest.
        """
        # The size of the archive does not bound a stored record: a sparse file takes no disk.
        size = self.size(name)
        if size > layout.MAX_CODE_RECORD_BYTES and layout.has_size_limit(name):
            limit = layout.MAX_CODE_RECORD_BYTES
            reason = f"the record has {size} bytes, and {limit} are allowed"
            raise ArchiveError(self.path, reason, name)
        content = b"".join(self.chunks(name))
        manifest = verify or self._manifest
        if manifest is not None:
            manifest.check(self.path, name, content)
        return content

    def require_canonical_zip(self, names: Sequence[str], deflated: Set[str]) -> None:
        """Require canonical zip structures, for all later reads as well.

        Record contents are compared with digests; all other bytes of a zip follow from the
        contents. Folders have no other bytes.

        Args:
            names: The records that the manifest lists, in its order.
            deflated: The deflated records among them.

        Raises:
            RepackedError: If another program wrote the archive.
        """
        return

    def digest(
        self, name: str, advance: Callable[[int], object], *, with_crc: bool = True
    ) -> RecordDigest:
        """Return a record's size and digests, in a zip also that of the deflated data.

        Args:
            name: The record.
            advance: Called with the size of each chunk that was read.
            with_crc: Whether to check the zip's CRC-32 as well.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged.
        """
        return compute_digest(self.chunks(name), advance)

    def verify_with(self, manifest: RecordCheck | None) -> None:
        """Check all later reads against a manifest, in case the open file is written to."""
        self._manifest = manifest

    def cached(self, make: Callable[[Archive], T]) -> T:
        """Return ``make(self)``, computed once per archive.

        All callers get the same result, even if another process writes to the open file.
        """
        if make not in self._cached:
            self._cached[make] = make(self)
        return cast(T, self._cached[make])

    def read_start(self, name: str, size: int) -> bytes:
        """Return the first bytes of a record, to detect its type. They are not checked.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged.
        """
        return bytes(next(iter(self.chunks(name)), b"")[:size])

    def read_view(self, name: str) -> memoryview:
        """Return what :meth:`read` returns, without a copy if it is stored in a buffer.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged, or does not match :meth:`verify_with`.
        """
        return memoryview(self.read(name))

    def read_copy(self, name: str) -> bytearray:
        """Return what :meth:`read` returns, as a mutable copy.

        Raises:
            RecordNotFoundError: If the record does not exist.
            ArchiveError: If the record is damaged, or does not match :meth:`verify_with`.
        """
        return bytearray(self.read_view(name))

    def has_changed(self) -> bool:
        """Return whether the file was replaced or modified after it was opened."""
        return False

    def check_unchanged(self) -> None:
        """Check that a file mapped by path is the one that was verified. Call it after mapping.

        Raises:
            ArchiveError: If the file was replaced or modified after it was opened.
        """
        if self.has_changed():
            raise ArchiveError(self.path, "the file was replaced or changed after it was opened")

    @abstractmethod
    def open_next_to(self, name: str) -> ByteSource:
        """Open a file in the folder of the package.

        Args:
            name: The file's name, without a folder.

        Raises:
            PackageNotFoundError: If the file does not exist.
            ArchiveError: If it cannot be read, or the package is a buffer.
        """

    def shards(self) -> tuple[Shard, ...]:
        """Return the files next to the package that contain its tensors; headers are checked."""
        return ()

    def shard_of(self, name: str) -> str | None:
        """Return the name of the file next to the package that contains a record, or None."""
        return None

    def require_shards(self) -> None:
        """Check the headers and sizes of the files next to the package.

        Raises:
            ArchiveError: If files are missing or damaged; the error lists all of them.
        """
        problems = [f"{each.name}: {each.problem}" for each in self.shards() if each.problem]
        if problems:
            reasons = listed(problems, between="; ")
            reason = f"weights next to the package cannot be read: {reasons}"
            raise ArchiveError(self.path, reason, hint=SHARDS_REMEDY)

    def _missing(self, name: str) -> RecordNotFoundError:
        return RecordNotFoundError(self.path, name, similar_names(name, self.names()))


def compute_digest(
    chunks: Iterator[bytes | memoryview], advance: Callable[[int], object]
) -> RecordDigest:
    """Return the size and SHA-256 of chunked content."""
    size, sha256 = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        sha256.update(chunk)
        advance(len(chunk))
    return RecordDigest(size, sha256.hexdigest())


def similar_names(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return up to three of ``names`` that are similar to ``name``, the closest first.

    >>> similar_names("pkg/wieghts.pkl", ("pkg/weights.pkl", "pkg/other.py"))
    ('pkg/weights.pkl',)
    """
    if len(names) > _COMPARED_NAMES:  # comparing is slow; usually the last component is right
        last = name.rpartition("/")[2].lower()
        names = tuple(known for known in names if known.lower().endswith(last))[:_COMPARED_NAMES]
    return tuple(difflib.get_close_matches(name, names, n=3))


# Opening a named pipe would otherwise wait for a writer.
_READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class ByteSource(ABC):
    """Bytes that can be read at any offset.

    Attributes:
        label: The source as the user named it, for messages.
        size: Size in bytes when the source was opened.
    """

    label: str
    size: int

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``offset`` on.

        Raises:
            ArchiveError: If the source is shorter, or was closed.
        """

    def has_changed(self) -> bool:
        """Return whether the source was replaced or modified after it was opened."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the source. May be called twice."""

    def open_next_to(self, name: str) -> ByteSource:
        """Open a file in the same folder; see :meth:`Archive.open_next_to`."""
        reason = f"{name} is a file next to the package, and the package is in memory"
        raise ArchiveError(self.label, reason, hint="Pass the path of the package.")


class FileBytes(ByteSource):
    """A file on disk.

    Args:
        path: The file.
        label: The file as the user named it.

    Raises:
        NotAPackageError: If the file cannot be opened.
    """

    def __init__(self, path: str, label: str) -> None:
        self.label = label
        self.path = os.path.abspath(path)
        try:
            self._descriptor = os.open(path, _READING)
        except FileNotFoundError as error:
            hint = suggest_file(path)
            raise PackageNotFoundError(label, "the file does not exist", hint=hint) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise NotAPackageError(label, f"the file cannot be opened: {_text(error)}") from error
        self._seeking = threading.Lock()
        # Of the open file, because the path may lead to another one by now.
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise NotAPackageError(label, "the path is not a regular file")
        self._identity = _identity(status)
        self.size = status.st_size
        self._closed = False

    def read_at(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise ArchiveError(self.label, "the archive is closed", hint="Open the package again.")
        # One call reads at most 2 GiB on Linux, and may be interrupted.
        parts: list[bytes] = []
        try:
            while length > 0:
                parts.append(self._read_some(offset, length))
                if not parts[-1]:
                    reason = "the file ends too early; it was probably truncated while open"
                    raise ArchiveError(self.label, reason)
                offset, length = offset + len(parts[-1]), length - len(parts[-1])
        except OSError as error:
            raise ArchiveError(self.label, f"the file cannot be read: {_text(error)}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def has_changed(self) -> bool:
        """Return whether the path leads to another file now, or the file was modified."""
        try:
            return _identity(os.stat(self.path)) != self._identity
        except OSError:
            return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def open_next_to(self, name: str) -> ByteSource:
        return open_file_next_to(self.path, self.label, name)

    def __del__(self) -> None:
        # The constructor may have raised before it set the attribute.
        if hasattr(self, "_closed"):
            with contextlib.suppress(OSError):
                self.close()

    if hasattr(os, "pread"):

        def _read_some(self, offset: int, length: int) -> bytes:
            return os.pread(self._descriptor, length, offset)

    else:  # Windows

        def _read_some(self, offset: int, length: int) -> bytes:
            with self._seeking:
                os.lseek(self._descriptor, offset, os.SEEK_SET)
                return os.read(self._descriptor, length)


def open_file_next_to(path: str, label: str, name: str) -> FileBytes:
    """Open a file in the folder of another file or folder.

    Args:
        path: Absolute path of that file or folder. If it is a symlink, the folder of its target
            comes second.
        label: Its path as the user named it.
        name: The name of the file to open.

    Raises:
        PackageNotFoundError: If the file does not exist.
        NotAPackageError: If it cannot be opened.
    """
    folder = os.path.dirname(path)
    if not os.path.lexists(os.path.join(folder, name)) and os.path.islink(path):
        folder = os.path.dirname(os.path.realpath(path))
    return FileBytes(os.path.join(folder, name), os.path.join(os.path.dirname(label), name))


class BufferBytes(ByteSource):
    """Bytes in memory.

    Args:
        content: The whole archive.
    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.label = "<buffer>"
        self._view: memoryview | None = memoryview(content).toreadonly()
        self.size = len(content)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.view_at(offset, length))

    def view_at(self, offset: int, length: int) -> memoryview:
        """Return what :meth:`read_at` returns, without a copy."""
        if self._view is None:
            raise ArchiveError(self.label, "the archive is closed", hint="Open the package again.")
        if offset + length > self.size:
            raise ArchiveError(self.label, "the buffer ends too early")
        return self._view[offset : offset + length]

    def close(self) -> None:
        self._view = None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return values that differ between files, and change when a file is modified.

    Programs can set the mtime, but not the ctime: a write that restores the mtime still changes
    the ctime.
    """
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def suggest_file(path: str) -> str:
    """Return a hint with a similar name in the same folder, or an empty string."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or os.curdir)[:_COMPARED_NAMES]
    except (OSError, ValueError):
        return ""
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return f"Did you mean {os.path.join(folder, similar[0])!r}?" if similar else ""


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
