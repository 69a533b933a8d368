"""What every archive can be asked: a zip file, a buffer, or an unzipped folder.

Bytes are read at an offset, without a shared position that threads could race for.
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
from collections.abc import Callable, Iterator, Sequence, Set
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from modpack.archive import layout
from modpack.archive.layout import DEFAULT_LIMITS
from modpack.errors import ArchiveError, NotAPackageError, PackageNotFoundError, RecordNotFoundError

if TYPE_CHECKING:
    from modpack.archive.manifest import Manifest

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 20
_COMPARED_NAMES: Final = 2000


class DataRange(NamedTuple):
    """Where a record's bytes lie, for mapping them.

    Attributes:
        path: absolute path of the file.
        offset: of the first byte, in bytes.
        length: in bytes.
    """

    path: str
    offset: int
    length: int


class RecordDigest(NamedTuple):
    """What a record should contain, or does.

    Attributes:
        size: in bytes, uncompressed.
        sha256: of the content, in hex.
        deflated: the sha256 of the deflated content; empty if it is stored as it is, or if that
            is not known.
    """

    size: int
    sha256: str
    deflated: str = ""


class Archive(ABC):
    """The records of one package. Reading is safe from several threads at once.

    Names are exact, case included, and relative to the archive's top-level folder.

    Attributes:
        source: the archive as the user named it; "<buffer>" for buffers.
    """

    _names: tuple[str, ...]

    def __init__(self, source: str) -> None:
        self.path = source
        self._manifest: Manifest | None = None
        self._cached: dict[Callable[[Archive], object], object] = {}

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def names(self) -> tuple[str, ...]:
        """All records: in file order for a zip, sorted for a folder."""
        return self._names

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a record of this very name."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of a record's content.

        Raises:
            RecordNotFoundError: there is no such record.
        """

    def sizes(self) -> dict[str, int]:
        """Bytes of each record's content, by name, in the order of :meth:`names`."""
        return {name: self.size(name) for name in self.names()}

    def stored_bytes(self) -> int:
        """Bytes that the whole archive takes where it is."""
        return sum(self.sizes().values())

    def crc32(self, name: str) -> int:
        """The crc32 of a record's content: the stated one for a zip, else computed.

        Raises:
            RecordNotFoundError: there is no such record.
        """
        crc = 0
        for chunk in self.chunks(name):
            crc = zlib.crc32(chunk, crc)
        return crc

    @abstractmethod
    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        """A record's content piece by piece, so that gigabytes need not be held at once.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged; a wrong crc32 shows after the last piece.
        """

    @abstractmethod
    def data_range(self, name: str) -> DataRange | None:
        """Where a record can be mapped; None for buffers and for compressed records.

        The content is not checked: it would have to be read.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record's headers contradict each other.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of the file. Every later read raises ArchiveError. May be called twice."""

    def read(self, name: str, *, verify: Manifest | None = None) -> bytes:
        """A record's content, checked against the zip's crc32.

        Args:
            name: the record.
            verify: a manifest, to check size and sha256 as well; by default that of
                :meth:`verify_with`. A folder has nothing else to be checked against.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged, too large for what it is, or not what ``verify``
                says.
        """
        # A file with holes takes no disk, and a stored record is held against nothing else.
        size = self.size(name)
        if size > DEFAULT_LIMITS.max_code_record_bytes and layout.has_size_limit(name):
            reason = f"it claims to have {size} bytes, which is too much"
            raise ArchiveError(self.path, reason, name)
        content = b"".join(self.chunks(name))
        manifest = verify or self._manifest
        if manifest is not None:
            manifest.check(self.path, name, content)
        return content

    def require_canonical_zip(self, names: Sequence[str], deflated: Set[str]) -> None:
        """Demand, from now on too, that all of a zip but contents is as modpack writes it.

        Contents are compared with digests; what lies around them follows from them. A folder has
        nothing around them, and a reader of torch's does not show it.

        Args:
            names: the records that the manifest lists, in its order.
            deflated: which of them are deflated.

        Raises:
            RepackedError: another program packed it.
        """
        return

    def digest(
        self, name: str, advance: Callable[[int], object], *, with_crc: bool = True
    ) -> RecordDigest:
        """What a record contains; in a zip, what it is inflated from, too.

        Args:
            name: the record.
            advance: is called with the size of each piece that was read.
            with_crc: whether to check the zip's crc32 as well.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged.
        """
        return digest_of(self.chunks(name), advance)

    def verify_with(self, manifest: Manifest | None) -> None:
        """Check whatever is read from now on: the file may be written to while it is open."""
        self._manifest = manifest

    def cached(self, make: Callable[[Archive], T]) -> T:
        """What a function made of this archive when it was first asked to.

        So that all who ask go by the same content, even if the file is written to meanwhile.
        """
        if make not in self._cached:
            self._cached[make] = make(self)
        return cast(T, self._cached[make])

    def read_start(self, name: str, size: int) -> bytes:
        """The first bytes of a record's content, to tell what it is; they are not checked.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged.
        """
        return bytes(next(iter(self.chunks(name)), b"")[:size])

    def read_view(self, name: str) -> memoryview:
        """A record's content as :meth:`read` tells it; without a copy if it is stored in a buffer.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged, or not what :meth:`verify_with` was given.
        """
        return memoryview(self.read(name))

    def read_copy(self, name: str) -> bytearray:
        """A record's content as :meth:`read` tells it, in memory that is the caller's own.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged, or not what :meth:`verify_with` was given.
        """
        return bytearray(self.read_view(name))

    def has_changed(self) -> bool:
        """Whether the path no longer leads to the file that was opened, as it was then."""
        return False

    def check_unchanged(self) -> None:
        """Makes sure that what was mapped by path is what was checked; call it after mapping.

        Raises:
            ArchiveError: the file was replaced or written to meanwhile.
        """
        if self.has_changed():
            raise ArchiveError(self.path, "it was replaced or changed after it was opened")

    def _missing(self, name: str) -> RecordNotFoundError:
        return RecordNotFoundError(self.path, name, similar_names(name, self.names()))


def digest_of(
    chunks: Iterator[bytes | memoryview], advance: Callable[[int], object]
) -> RecordDigest:
    """Size and sha256 of a content that comes in pieces."""
    size, sha256 = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        sha256.update(chunk)
        advance(len(chunk))
    return RecordDigest(size, sha256.hexdigest())


def similar_names(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three of ``names`` that look like ``name``, the closest first.

    >>> similar_names("pkg/wieghts.pkl", ("pkg/weights.pkl", "pkg/other.py"))
    ('pkg/weights.pkl',)
    """
    if len(names) > _COMPARED_NAMES:  # comparing is slow; the last component is mostly right
        last = name.rpartition("/")[2].lower()
        names = tuple(known for known in names if known.lower().endswith(last))[:_COMPARED_NAMES]
    return tuple(difflib.get_close_matches(name, names, n=3))


# Nobody may ever write to a pipe that has a name: opening one would wait for that.
_READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class ByteSource(ABC):
    """Bytes that can be read at any offset.

    Attributes:
        label: what the user called it, for messages.
        size: in bytes, as it was when it was opened.
    """

    label: str
    size: int

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset`` on.

        Raises:
            ArchiveError: they are not there, or the source was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of the source. May be called twice."""


class FileBytes(ByteSource):
    """A file on disk.

    Args:
        path: the file.
        label: what the user called it.

    Raises:
        NotAPackageError: it cannot be opened.
    """

    def __init__(self, path: str, label: str) -> None:
        self.label = label
        self.path = os.path.abspath(path)
        try:
            self._descriptor = os.open(path, _READING)
        except FileNotFoundError as error:
            from modpack.archive.other_files import other_url

            raise PackageNotFoundError(
                label, other_url(label) or "there is no such file"
            ) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise NotAPackageError(label, f"it cannot be opened: {_why(error)}") from error
        self._seeking = threading.Lock()
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise NotAPackageError(label, "it is no regular file")
        self._identity = _identity(status)
        self.size = status.st_size
        self._closed = False

    def read_at(self, offset: int, length: int) -> bytes:
        if self._closed:
            raise ArchiveError(self.label, "it was closed")
        # One call reads at most 2 GiB on Linux, and may be interrupted.
        parts: list[bytes] = []
        try:
            while length > 0:
                parts.append(self._read_some(offset, length))
                if not parts[-1]:
                    reason = "it ends too early: was it truncated while open?"
                    raise ArchiveError(self.label, reason)
                offset, length = offset + len(parts[-1]), length - len(parts[-1])
        except OSError as error:
            raise ArchiveError(self.label, f"it cannot be read: {_why(error)}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def has_changed(self) -> bool:
        """Whether the path now leads to another file, or the file was written to."""
        try:
            return _identity(os.stat(self.path)) != self._identity
        except OSError:
            return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def __del__(self) -> None:
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


class BufferBytes(ByteSource):
    """Bytes in memory.

    Args:
        content: the whole archive.
    """

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.label = "<buffer>"
        self._view: memoryview | None = memoryview(content).toreadonly()
        self.size = len(content)

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.view_at(offset, length))

    def view_at(self, offset: int, length: int) -> memoryview:
        """Like :meth:`read_at`, without a copy."""
        if self._view is None:
            raise ArchiveError(self.label, "it was closed")
        if offset + length > self.size:
            raise ArchiveError(self.label, "it ends too early")
        return self._view[offset : offset + length]

    def close(self) -> None:
        self._view = None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file, as it is now, from others and from itself after a change.

    The time of the last change of its facts can be set by nobody: a write that puts the time of
    the last write back shows in it.
    """
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
