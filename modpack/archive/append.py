"""A record more at the end of an archive that is complete, every other byte as it was."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive, FileBytes
from modpack.archive.directory import Directory, End, find_directory, parse_directory
from modpack.archive.layout import DEFAULT_LIMITS
from modpack.archive.reader import open_archive
from modpack.archive.target import Sink, open_sink
from modpack.archive.zip_format import (
    STORED,
    NewEntry,
    central_header,
    end_records,
    local_header,
    own_kind,
)
from modpack.core.progress import Unit, phase
from modpack.errors import ArchiveError

_PIECE_BYTES: Final = 64 << 20
"""Copied at once: an interrupt need not wait for gigabytes."""


@dataclass(frozen=True)
class _Kept:
    """What stays of an archive.

    Attributes:
        root: its top-level folder, in UTF-8.
        size: bytes of the records that stay, from the first byte of the file on.
        directory: their part of the zip's directory.
        count: how many they are.
    """

    root: bytes
    size: int
    directory: bytes
    count: int


def write_with_signature(
    archive: Archive, path: str, content: bytes, target: str | os.PathLike[str]
) -> None:
    """Writes a package with a signature inside, in place of the one that it had.

    All other records stay at their places, byte for byte, so that tensors stay aligned; the
    package's digest stays too, since no manifest lists signatures.

    Args:
        archive: the package, which must be a zip archive.
        path: its file.
        content: the signature's envelope.
        target: where to write; may be ``path``, which is then replaced at once or not at all.

    Raises:
        ArchiveError: the package has a signature that is not its last record, or it was changed
            meanwhile.
        TargetError: the target cannot be written.
    """
    source = FileBytes(path, archive.source)
    try:
        archive.check_unchanged()
        kept = _kept(source, find_directory(source), parse_directory(source, DEFAULT_LIMITS))
        sink = open_sink(target)
        try:
            _copy(source, kept.size, sink)
            _complete(sink, kept, content)
            _check(sink, archive.source, [*_others(archive.names()), layout.SIGNATURE])
            archive.check_unchanged()
            sink.publish()
        finally:
            sink.discard()
    finally:
        source.close()


def _kept(source: FileBytes, end: End, directory: Directory) -> _Kept:
    root = directory.raw_names[0].partition(b"/")[0]
    content = source.read_at(end.offset, end.size)
    entry = directory.get(layout.SIGNATURE)
    if entry is None:
        return _Kept(root, end.offset, content, end.records)
    stored = entry._replace(kind=own_kind(entry.raw_name, STORED))
    own = central_header(stored)
    if directory.names()[-1] != layout.SIGNATURE or not content.endswith(own):
        reason = "it is not the last record, as modpack writes it. Remedy: export the package again"
        raise ArchiveError(source.label, reason, layout.SIGNATURE)
    return _Kept(root, entry.offset, content[: -len(own)], end.records - 1)


def _copy(source: FileBytes, size: int, sink: Sink) -> None:
    with phase("copying", Unit.BYTES, size) as copying:
        for offset in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - offset)
            sink.write_from(source, offset, length)
            copying.advance(length)


def _complete(sink: Sink, kept: _Kept, content: bytes) -> None:
    name = kept.root + b"/" + layout.SIGNATURE.encode()
    kind, crc = own_kind(name, STORED), zlib.crc32(content)
    entry = NewEntry(name, kind, crc, len(content), len(content), kept.size)
    header = local_header(entry, align=False)
    directory = kept.directory + central_header(entry)
    offset = kept.size + len(header) + len(content)
    for part in (header, content, directory):
        sink.write(part)
    sink.write(end_records(kept.count + 1, len(directory), offset))


def _check(sink: Sink, source: str, names: Sequence[str]) -> None:
    """Makes sure that what is about to replace a package is one that can be read."""
    with open_archive(sink.path()) as written:
        if list(written.names()) != list(names):
            raise ArchiveError(source, "it cannot be written again with a signature")


def _others(names: Sequence[str]) -> list[str]:
    return [name for name in names if name != layout.SIGNATURE]
