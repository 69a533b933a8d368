"""What pickles name that are stored as bytes in a pickle, as a ``__getstate__`` makes them.

``pickle.dumps`` and ``torch.save`` in a ``__getstate__`` write names that modpack does not see
being pickled, and that :func:`pickle.loads` will look up among the process's own modules.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Final

from modpack.pickling.machine import MalformedError
from modpack.security.pickle_tree import PickledName, PickleTree

__all__ = ["nested_names"]

_STARTS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_SIZES: Final = {b"C": 1, b"B": 4, b"\x8e": 8, b"\x96": 8}
"""For each opcode of bytes, how many bytes tell their size (:mod:`pickletools`)."""
_MOST_LEVELS: Final = 5


def nested_names(data: bytes, level: int = 0) -> dict[PickledName, None]:
    """Return what the pickles among the bytes of a pickle name, in order.

    Args:
        data: The pickle.
        level: How many pickles are around it.

    >>> import fractions, pickle
    >>> inner = pickle.dumps(fractions.Fraction(1, 3))
    >>> [str(name) for name in nested_names(pickle.dumps({"state": inner}))]
    ['fractions.Fraction']
    """
    found: dict[PickledName, None] = {}
    if level < _MOST_LEVELS:
        for content in _byte_texts(data):
            for inner in _pickles_in(content):
                found.update(_names(inner))
                found.update(nested_names(inner, level + 1))
    return found


def _byte_texts(data: bytes) -> Iterator[bytes]:
    """The bytes that begin as a pickle or a zip archive does, with an opcode and a size before."""
    for begin in _STARTS:
        at = data.find(begin)
        while at >= 0:
            for opcode, width in _SIZES.items():
                end = at + int.from_bytes(data[max(0, at - width) : at], "little")
                if data.startswith(opcode, max(0, at - width - 1)) and at < end <= len(data):
                    yield data[at:end]
            at = data.find(begin, at + 1)


def _pickles_in(content: bytes) -> Iterator[bytes]:
    if not content.startswith(b"PK"):
        yield content
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    yield archive.read(name)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError):
        return  # no archive that torch reads either


def _names(data: bytes) -> dict[PickledName, None]:
    """The names of a pickle and of those that follow it, as in the old files of torch.save."""
    tree, end = PickleTree(), 0
    try:
        while end < len(data):
            _, end = tree.read_one(data, end)
    except MalformedError:
        pass  # not a pickle at all, or tensors follow it
    return tree.named if end else {}
