"""Small deflated records are inflated once in a process, in whatever packages they are."""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = [
    "MOST_REMEMBERED",
    "RAW_DEFLATE",
    "REMEMBERED",
    "Whole",
    "content_of",
    "inflate",
    "inflated",
]

RAW_DEFLATE: Final = -15
MOST_REMEMBERED: Final = 32 << 10
"""Bytes of a content up to which it is remembered."""
REMEMBERED: Final = 128
"""So many are remembered. In packages with more records, none would be met again in time."""


class Whole(NamedTuple):
    """All of a record.

    Attributes:
        content: its bytes.
        crc: crc32 of them.
        sha256: of them, in hex.
        deflated: what they were inflated from, if they were.
    """

    content: bytes
    crc: int
    sha256: str
    deflated: bytes | None = None


def content_of(payload: bytes, size: int) -> bytes | None:
    """The content that a small payload inflates to; None if that is not what is stated.

    Args:
        payload: all of the deflated bytes.
        size: the stated size of the content.
    """
    inflater = zlib.decompressobj(RAW_DEFLATE)
    try:
        content = inflater.decompress(payload, size + 1)
    except zlib.error:
        return None
    if len(content) != size or not inflater.eof or inflater.unused_data:
        return None
    return content


def inflate(payload: bytes, size: int) -> Whole | None:
    """The same content with its checksums."""
    content = content_of(payload, size)
    if content is None:
        return None
    return Whole(content, zlib.crc32(content), hashlib.sha256(content).hexdigest(), payload)


inflated = lru_cache(maxsize=REMEMBERED)(inflate)
"""The same, remembered. Sources and metadata are the same in one package after the other: to
inflate and digest them was a third of the time of opening a small package."""
