"""Small deflated records are inflated once in a process, in whatever packages they are."""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["MOST_REMEMBERED", "RAW_DEFLATE", "REMEMBERED", "Inflated", "inflated"]

RAW_DEFLATE: Final = -15
MOST_REMEMBERED: Final = 32 << 10
"""Bytes of a content up to which it is remembered."""
REMEMBERED: Final = 128
"""So many are remembered. In packages with more records, none would be met again in time."""


class Inflated(NamedTuple):
    """What a payload inflates to.

    Attributes:
        content: the bytes.
        crc: crc32 of them.
        sha256: of them, in hex.
    """

    content: bytes
    crc: int
    sha256: str


@lru_cache(maxsize=REMEMBERED)
def inflated(payload: bytes, size: int) -> Inflated | None:
    """What a small payload inflates to; None if that is not what is stated.

    Sources and metadata are the same in one package after the other: to inflate and digest them
    was a third of the time of opening a small package.

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
    return Inflated(content, zlib.crc32(content), hashlib.sha256(content).hexdigest())
