"""Opening a package, wherever it is."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol, runtime_checkable

from modpack.archive import layout
from modpack.archive.base import Archive, BufferBytes, FileBytes
from modpack.archive.layout import DEFAULT_LIMITS, Limits
from modpack.archive.zip_reader import ZipArchive
from modpack.errors import ArchiveError, NotAPackageError


@runtime_checkable
class RecordReader(Protocol):
    """The methods of ``torch._C.PyTorchFileReader`` that reading a package takes."""

    def get_all_records(self) -> list[str]:
        """Return the names of all records."""

    def get_record(self, name: str, /) -> bytes:
        """Return a record's content."""


def open_archive(
    source: str | os.PathLike[str] | BinaryIO | RecordReader, limits: Limits = DEFAULT_LIMITS
) -> Archive:
    """Opens a package for reading; nothing in it is executed or unpickled.

    Args:
        source: the path of a zip archive; or of an unzipped package (the folder that holds
            ``.data``, or one that holds just that folder); or a binary buffer, which is read
            at once from its current position to its end, and may be closed afterwards; or a
            reader of torch's, which stays open (:class:`.RecordReader`).
        limits: what the archive may claim.

    Raises:
        TypeError: ``source`` is none of these.
        NotAPackageError: there is no such file, or it is no package.
        ArchiveError: the archive is damaged, ambiguous, unsafe or too large.

    >>> import io
    >>> from modpack.archive.writer import ArchiveWriter
    >>> buffer = io.BytesIO()
    >>> with ArchiveWriter(buffer) as writer:
    ...     writer.write(".data/version", b"6")
    ...     writer.write("pkg/greeting.txt", b"hello")
    ...     _ = writer.commit()
    >>> _ = buffer.seek(0)
    >>> with open_archive(buffer) as archive:
    ...     archive.read("pkg/greeting.txt")
    b'hello'
    """
    if isinstance(source, RecordReader):
        from modpack.archive.folder_reader import ReaderArchive  # as for folders: seldom needed

        return _refuse_others(ReaderArchive(source, limits))
    if not isinstance(source, (str, os.PathLike)):
        return _open_content(BufferBytes(_read_buffer(source)), limits)
    path = os.fspath(source)
    if not isinstance(path, str):
        raise TypeError("source must be a str path, not a bytes path")
    if os.path.isdir(path):
        from modpack.archive.folder_reader import FolderArchive

        return _refuse_others(FolderArchive(path, limits))
    return _open_content(FileBytes(path, path), limits)


def _refuse_others(archive: Archive) -> Archive:
    """Tell zip archives of torch's other formats, which have a version too, from packages."""
    if not (archive.has(layout.EXTERN_MODULES) or archive.has(layout.MANIFEST)):
        from modpack.archive.other_files import other_zip

        reason = other_zip(archive.source, archive.has)
        if reason is not None:
            archive.close()
            raise NotAPackageError(archive.source, reason)
    return archive


def _open_content(content: FileBytes | BufferBytes, limits: Limits) -> Archive:
    try:
        return _refuse_others(ZipArchive(content, limits))
    except BaseException:
        content.close()
        raise


def _read_buffer(source: BinaryIO) -> bytes | bytearray | memoryview:
    read = getattr(source, "read", None)
    if not callable(read):
        raise TypeError(
            f"source must be a path or a binary buffer with read(), not {type(source).__name__}"
        )
    try:
        content = read()
    except (OSError, ValueError) as error:  # ValueError: the buffer is closed
        raise ArchiveError("<buffer>", f"it cannot be read: {error}") from error
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError("source must be a binary buffer, not one for text; open it with mode 'rb'")
    if not content:
        reason = "there is nothing to read at its position. Remedy: buffer.seek(0)"
        raise NotAPackageError("<buffer>", reason)
    return content
