"""Small records whose content is known to be right, kept for those who ask for it next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["KeptRecords"]

_MOST_EACH: Final = 1 << 20
_MOST: Final = 64 << 20
"""Bytes that are kept while a package is opened."""
_MOST_LATER: Final = 64 << 10
"""Bytes that are kept afterwards; if there are more, none."""


class KeptRecords:
    """The contents of records, by name; nothing outside of :meth:`collecting`."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._bytes = 0
        self._is_collecting = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take in what is added in the block; afterwards only what is little is kept."""
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False
            if self._bytes > _MOST_LATER:
                self.clear()

    def get(self, name: str) -> bytes | None:
        """The content of a record; None if it is not kept."""
        return self._contents.get(name)

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Keep a content if there is room."""
        if self._is_collecting and len(content) <= min(_MOST_EACH, _MOST - self._bytes):
            self._bytes += len(content)
            self._contents[name] = bytes(content)

    def clear(self) -> None:
        """Keep nothing any more."""
        self._contents, self._bytes = {}, 0
