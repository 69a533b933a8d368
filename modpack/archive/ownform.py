"""Whether all of a zip but its contents is, byte for byte, what modpack writes around those."""

from __future__ import annotations

from collections.abc import Sequence, Set

from modpack.archive import layout, zipformat
from modpack.archive.bytesources import ByteSource
from modpack.archive.directory import Directory
from modpack.archive.repacked import (
    OTHER_END,
    OTHER_FOLDER,
    OTHER_HEADER,
    OTHER_METHOD,
    OTHER_ORDER,
)
from modpack.errors import RepackedError

__all__ = ["check_own_form"]


def check_own_form(
    source: ByteSource, directory: Directory, names: Sequence[str], deflated: Set[str]
) -> None:
    """Check a zip's directory, and the order and methods of its records.

    What stands before a record's content is checked where that is read.

    Args:
        source: the zip.
        directory: its directory.
        names: the records that the manifest lists, in its order.
        deflated: which of them are deflated.

    Raises:
        RepackedError: another program packed it.
    """
    label, present = source.label, directory.names()
    if not directory.raw_names[0].startswith(f"{layout.ROOT}/".encode()):
        raise RepackedError(label, OTHER_FOLDER)
    if not directory.end.is_own:
        raise RepackedError(label, OTHER_END)
    if not directory.is_usual:
        _check_lines(source, directory)
    expected = (*names, *filter(directory.has, layout.OUTSIDE))
    if present != expected:
        if set(present) != set(expected):
            return  # which are missing, and which are too many, is told for all packages alike
        first = next(name for name, other in zip(present, expected, strict=True) if name != other)
        raise RepackedError(label, OTHER_ORDER, first)
    kinds = zip(present, directory.kinds, strict=True)
    otherwise = deflated ^ {name for name, kind in kinds if kind > zipformat.MAX16}
    if otherwise:
        raise RepackedError(label, OTHER_METHOD, min(otherwise))


def _check_lines(source: ByteSource, directory: Directory) -> None:
    content = source.read_at(directory.end.offset, directory.end.size)
    position = 0
    for name, entry in zip(directory.names(), directory.entries(), strict=True):
        line = zipformat.central_header(entry)
        own_kind = zipformat.own_kind(entry.raw_name, entry.kind >> 16)
        if entry.kind != own_kind or not content.startswith(line, position):
            raise RepackedError(source.label, OTHER_HEADER, name)
        position += len(line)
