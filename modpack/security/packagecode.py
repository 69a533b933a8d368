"""The code of a package: which records, which names of its pickles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.core.names import resource_record
from modpack.errors import ArchiveError
from modpack.pickling.allowlist import is_dangerous
from modpack.report.recorded import read_objects
from modpack.report.wording import counted
from modpack.security.code_listing import CodeListing, list_code, list_undeclared
from modpack.security.pickle_names import PickledName

_SHOWN: Final = 5


def list_package(archive: Archive, manifest: Manifest | None) -> CodeListing:
    """List what of a package is code.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package.

    Raises:
        ArchiveError: a record is damaged.
    """
    if manifest is None:
        return archive.remembered(list_undeclared)
    return list_code(archive, _declared(archive, manifest))


def code_kinds(listing: CodeListing, added: Iterable[str] = ()) -> tuple[str, ...]:
    """What of a package is code, in some words for each kind; nothing if all of it is data.

    Args:
        listing: what of the package is code.
        added: names of pickles that count as data.
    """
    unreadable = [r for r, each in listing.pickles.items() if each.unreadable is not None]
    kinds = (
        ("Python source", listing.sources),
        ("machine code", listing.native),
        ("program for torch", listing.programs),
        ("pickle that cannot be read", unreadable),
    )
    told = [f"{counted(len(found), kind)} ({some(found)})" for kind, found in kinds if found]
    for record, names in listing.names(added).items():
        told.append(f"{record} names {some([str(name) for name in _worst_first(names)])}")
    return tuple(told)


def _worst_first(names: Sequence[PickledName]) -> list[PickledName]:
    return sorted(names, key=lambda name: not is_dangerous(name.module, name.name))


def some(names: Sequence[str], most: int = _SHOWN) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _declared(archive: Archive, manifest: Manifest) -> tuple[str, ...]:
    try:
        pickles = read_objects(archive, manifest).pickles
        return tuple(resource_record(package, name) for package, name in pickles)
    except ValueError as failure:
        raise ArchiveError(archive.source, str(failure), layout.ENTRY) from failure


