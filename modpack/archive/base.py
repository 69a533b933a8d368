"""What every archive can be asked, whether it is a file, a buffer or an unzipped folder."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from modpack.archive import layout
from modpack.archive.inflating import Whole
from modpack.archive.keptrecords import KeptRecords
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.errors import ArchiveError, RecordNotFoundError

__all__ = ["CHUNK_BYTES", "Archive", "DataRange", "RecordVerifier", "similar_names"]

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


class RecordVerifier(Protocol):
    """Something that knows what a record's content should be, such as a manifest."""

    def check(self, source: str, name: str, content: bytes | memoryview) -> None:
        """Raises ArchiveError if the record ``name`` should have another content."""


class Archive(ABC):
    """The records of one package. Reading is safe from several threads at once.

    Names are exact, case included, and relative to the archive's top-level folder.

    Attributes:
        source: the archive as the user named it; "<buffer>" for buffers.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._verifier: RecordVerifier | None = None
        self._remembered: dict[Callable[[Archive], object], object] = {}
        self._kept = KeptRecords()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All records: in file order for a zip, sorted for a folder."""

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

    @abstractmethod
    def stored_bytes(self) -> int:
        """Bytes that the whole archive takes where it is."""

    @abstractmethod
    def crc32(self, name: str) -> int:
        """The crc32 of a record's content: the stated one for a zip, computed for a folder.

        Raises:
            RecordNotFoundError: there is no such record.
        """

    @abstractmethod
    def chunks(self, name: str, *, with_crc: bool = True) -> Iterator[bytes | memoryview]:
        """A record's content piece by piece, so that gigabytes need not be held at once.

        Args:
            name: the record.
            with_crc: whether to check the zip's crc32; a caller who compares a better digest can
                do without, and is faster by a quarter.

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

    def read(self, name: str, *, verify: RecordVerifier | None = None) -> bytes:
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
        kept = self._kept.get(name)
        if kept is not None and verify is None:
            return kept
        self._refuse_too_large(name)
        content = b"".join(self.chunks(name))
        verifier = verify or self._verifier
        if verifier is not None:
            verifier.check(self.source, name, content)
        return content

    def _refuse_too_large(self, name: str) -> None:
        """Refuse code, and what the format adds, that claims more than anybody has.

        A file with holes takes no disk, and a record that is stored is held against nothing else.
        """
        size = self.size(name)
        if size > DEFAULT_LIMITS.max_code_record_bytes and layout.is_bounded(name):
            raise ArchiveError(
                self.source, f"it claims to have {size} bytes, which is too much", name
            )

    def require_own_form(self, names: Sequence[str], deflated: Set[str]) -> None:
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

    def deflated_sha256(self, name: str) -> str | None:
        """The sha256 of what a record's content is inflated from; None if it is not deflated.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record's headers contradict each other.
        """
        return None

    def verify_with(self, verifier: RecordVerifier | None) -> None:
        """Check whatever is read from now on: the file may be written to while it is open."""
        self._verifier = verifier

    def whole(self, name: str, *, with_crc: bool = True) -> Whole | None:
        """A small record's content with its sha256; None for those that are read in pieces.

        Args:
            name: the record.
            with_crc: whether to check the zip's crc32.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged.
        """
        return None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While a package is opened: what was compared with its digest is not read again.

        What it needs besides its code is often a few small records; they stay as long as it.
        """
        with self._kept.collecting():
            yield

    def keep(self, name: str, content: bytes | memoryview, deflated: bytes | None = None) -> None:
        """Tell of a record's content, the whole of it, that it is as the manifest says.

        Args:
            name: the record.
            content: its bytes.
            deflated: what they were inflated from, if they were.
        """
        self._kept.add(name, content, deflated)

    def remembered(self, make: Callable[[Archive], T]) -> T:
        """What a function made of this archive when it was first asked to.

        So that all who ask go by the same content, even if the file is written to meanwhile.
        """
        if make not in self._remembered:
            self._remembered[make] = make(self)
        return cast(T, self._remembered[make])

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a record's content, to tell what it is; they are not checked.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged.
        """
        return bytes(next(iter(self.chunks(name, with_crc=False)), b"")[:size])

    def read_view(self, name: str) -> memoryview:
        """A record's content as :meth:`read` tells it; without a copy if it is stored in a buffer.

        Raises:
            RecordNotFoundError: there is no such record.
            ArchiveError: the record is damaged, or not what :meth:`verify_with` was given.
        """
        return memoryview(self.read(name))

    def copied(self, name: str) -> bytearray:
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
            raise ArchiveError(self.source, "it was replaced or changed after it was opened")

    def _missing(self, name: str) -> RecordNotFoundError:
        return RecordNotFoundError(self.source, name, similar_names(name, self.names()))


def similar_names(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three of ``names`` that look like ``name``, the closest first.

    >>> similar_names("pkg/wieghts.pkl", ("pkg/weights.pkl", "pkg/other.py"))
    ('pkg/weights.pkl',)
    """
    if len(names) > _COMPARED_NAMES:  # comparing is slow; the last component is mostly right
        last = name.rpartition("/")[2].lower()
        names = tuple(known for known in names if known.lower().endswith(last))[:_COMPARED_NAMES]
    return tuple(difflib.get_close_matches(name, names, n=3))
