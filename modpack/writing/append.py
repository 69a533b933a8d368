"""Write a copy of an archive with a new signature record; all other bytes stay the same."""

from __future__ import annotations

import os
import zlib
from contextlib import closing
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive, FileBytes
from modpack.archive.directory import parse_directory
from modpack.archive.reader import open_archive
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
from modpack.writing.target import open_sink

_PIECE_BYTES: Final = 8 << 20


def write_with_signature(
    archive: Archive, path: str, content: bytes, target: str | os.PathLike[str]
) -> None:
    """Write a package with an embedded signature, which replaces an existing one.

    All other records keep their bytes and offsets, so tensors stay aligned. The package digest
    does not change either, because a manifest does not list signatures.

    Args:
        archive: The package, which must be a zip archive.
        path: Its file.
        content: The signature's envelope.
        target: The file to write. May be ``path``, which is then replaced atomically.

    Raises:
        ArchiveError: If the existing signature is not the last record, or if the package changed
            in the meantime.
        TargetError: If the target cannot be written.
    """
    with closing(FileBytes(path, archive.path)) as source:
        archive.check_unchanged()
        size, lines, count, root = _without_signature(source)
        name = root + b"/" + layout.SIGNATURE.encode()
        kind, crc = canonical_kind(name, STORED), zlib.crc32(content)
        entry = ZipEntry(name, kind, crc, len(content), len(content), size)
        header, lines = local_header(entry, align=False), lines + central_header(entry)
        end = end_records(count + 1, len(lines), size + len(header) + len(content))
        with open_sink(target) as sink:
            with phase("copying", ProgressUnit.BYTES, size) as copying:
                for offset in range(0, size, _PIECE_BYTES):
                    piece = source.read_at(offset, min(_PIECE_BYTES, size - offset))
                    sink.write(piece)
                    copying.advance(len(piece))
            sink.write(header, content, lines, end)
            # Make sure that the result is readable before it replaces a package.
            others = [name for name in archive.names() if name != layout.SIGNATURE]
            with open_archive(sink.path()) as written:
                if list(written.names()) != [*others, layout.SIGNATURE]:
                    reason = "the signed package cannot be read back"
                    raise ArchiveError(archive.path, reason, hint="No file was written.")
            # Again: the bytes that were copied must be those that were checked.
            archive.check_unchanged()
            sink.publish()


def _without_signature(source: FileBytes) -> tuple[int, bytes, int, bytes]:
    """Return the size, directory lines, and count of the other records, and the root folder."""
    directory = parse_directory(source)
    lines, count = source.read_at(directory.offset, directory.size), len(directory.entries)
    entry = directory.entries.get(layout.SIGNATURE)
    if entry is None:
        return directory.offset, lines, count, directory.root
    own = central_header(entry._replace(kind=canonical_kind(entry.raw_name, STORED)))
    if next(reversed(directory.entries)) != layout.SIGNATURE or not lines.endswith(own):
        reason = "the signature is not the last record in the form that modpack writes"
        hint = "Export the package again."
        raise ArchiveError(source.label, reason, layout.SIGNATURE, hint=hint)
    return entry.offset, lines.removesuffix(own), count - 1, directory.root
