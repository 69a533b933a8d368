"""Whether all of a zip but its contents is, byte for byte, what modpack writes around those."""

from __future__ import annotations

from collections.abc import Mapping

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


def check_own_form(source: ByteSource, directory: Directory, deflated: Mapping[str, bool]) -> None:
    """Check a zip's directory, and the order and methods of its records.

    What stands before a record's content is checked where that is read.

    Args:
        source: the zip.
        directory: its directory.
        deflated: for each record that the manifest lists, in its order, whether it is deflated.

    Raises:
        RepackedError: another program packed it.
    """
    label, names = source.label, directory.names()
    if not directory.raw_names[0].startswith(f"{layout.ROOT}/".encode()):
        raise RepackedError(label, OTHER_FOLDER)
    if not directory.end.is_own:
        raise RepackedError(label, OTHER_END)
    if not directory.is_usual:
        _check_lines(source, directory)
    expected = [*deflated, *filter(directory.has, layout.OUTSIDE)]
    if names != tuple(expected) and set(names) == set(expected):  # else some are missing
        found = next(n for n, other in zip(names, expected, strict=True) if n != other)
        raise RepackedError(label, OTHER_ORDER, found)
    for name, kind in zip(names, directory.kinds, strict=True):
        is_declared = name in deflated or name in layout.OUTSIDE
        if is_declared and deflated.get(name, False) != (kind > zipformat.MAX16):
            raise RepackedError(label, OTHER_METHOD, name)


def _check_lines(source: ByteSource, directory: Directory) -> None:
    content = source.read_at(directory.end.offset, directory.end.size)
    position = 0
    for name, entry in zip(directory.names(), directory.entries(), strict=True):
        line = zipformat.central_header(entry.as_new)
        if not content.startswith(line, position):
            raise RepackedError(source.label, OTHER_HEADER, name)
        position += len(line)
