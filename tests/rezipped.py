"""Packages with changed records and valid headers and digests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from modpack.archive import layout, zip_format
from modpack.archive.base import BufferBytes
from modpack.archive.directory import parse_directory
from modpack.archive.zip_format import ZipEntry

__all__ = ["rezipped"]


def rezipped(package: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return a package with changed records, and valid headers and manifest.

    Args:
        package: The package.
        changes: The new content by record, or None to remove it. New records come last.
    """
    entries = parse_directory(BufferBytes(package)).entries
    body, lines = bytearray(), []
    for name in dict.fromkeys([*entries, *changes]):
        entry = entries.get(name)
        content = changes.get(name)
        if name in changes and content is None:
            continue
        raw_name = layout.zip_name(name).encode()
        if content is None:
            assert entry is not None
            payload = package[entry.end - entry.compressed : entry.end]
            new = ZipEntry(raw_name, entry.kind, entry.crc, len(payload), entry.size, len(body))
        else:
            is_stored = entry is None or entry.is_stored
            payload = content if is_stored else _deflated(content)
            method = zip_format.STORED if is_stored else zip_format.DEFLATED
            kind = zip_format.canonical_kind(raw_name, method)
            sizes = len(payload), len(content)
            new = ZipEntry(raw_name, kind, zlib.crc32(content), *sizes, len(body))
        body += zip_format.local_header(new, align=layout.is_storage(name)) + payload
        lines.append(zip_format.central_header(new))
    size = sum(map(len, lines))
    return b"".join([body, *lines, zip_format.end_records(len(lines), size, len(body))])


def _deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(content) + compressor.flush()
