"""A complete archive with another last record: its signature, every other byte as it was."""

from __future__ import annotations

import os
import zlib
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive, FileBytes
from modpack.archive.directory import find_directory, parse_directory
from modpack.archive.layout import DEFAULT_LIMITS
from modpack.archive.reader import open_archive
from modpack.archive.target import open_sink
from modpack.archive.zip_format import (
    STORED,
    ZipEntry,
    canonical_kind,
    central_header,
    end_records,
    local_header,
)
from modpack.core.process import ProgressUnit, phase
from modpack.errors import ArchiveError

_PIECE_BYTES: Final = 8 << 20


def write_with_signature(
    archive: Archive, path: str, content: bytes, target: str | os.PathLike[str]
) -> None:
    """Write a package with a signature inside, in place of the one that it had.

    All other records stay where they are, byte for byte, so that tensors stay aligned; the
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
    source = FileBytes(path, archive.path)
    try:
        archive.check_unchanged()
        size, lines, count, root = _without_signature(source)
        name = root + b"/" + layout.SIGNATURE.encode()
        kind, crc = canonical_kind(name, STORED), zlib.crc32(content)
        entry = ZipEntry(name, kind, crc, len(content), len(content), size)
        header, lines = local_header(entry, align=False), lines + central_header(entry)
        end = end_records(count + 1, len(lines), size + len(header) + len(content))
        sink = open_sink(target)
        try:
            with phase("copying", ProgressUnit.BYTES, size) as copying:
                for offset in range(0, size, _PIECE_BYTES):
                    piece = source.read_at(offset, min(_PIECE_BYTES, size - offset))
                    sink.write(piece)
                    copying.advance(len(piece))
            sink.write(header, content, lines, end)
            # What is about to replace a package must be one that can be read.
            others = [name for name in archive.names() if name != layout.SIGNATURE]
            with open_archive(sink.path()) as written:
                if list(written.names()) != [*others, layout.SIGNATURE]:
                    reason = "it cannot be written again with a signature"
                    raise ArchiveError(archive.path, reason)
            archive.check_unchanged()
            sink.publish()
        finally:
            sink.discard()
    finally:
        source.close()


def _without_signature(source: FileBytes) -> tuple[int, bytes, int, bytes]:
    """Return the bytes, the directory and the number of the other records, and their root."""
    end, directory = find_directory(source), parse_directory(source, DEFAULT_LIMITS)
    lines = source.read_at(end.offset, end.size)
    entry = directory.entries.get(layout.SIGNATURE)
    if entry is None:
        return end.offset, lines, end.records, directory.root
    own = central_header(entry._replace(kind=canonical_kind(entry.raw_name, STORED)))
    if next(reversed(directory.entries)) != layout.SIGNATURE or not lines.endswith(own):
        reason = "it is not the last record, as modpack writes it. Remedy: export the package again"
        raise ArchiveError(source.label, reason, layout.SIGNATURE)
    return entry.offset, lines.removesuffix(own), end.records - 1, directory.root
