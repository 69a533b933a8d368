"""Which records of a package are code, and which names its pickles take from where.

Nothing is unpickled, imported or executed, and nothing is judged: code is called code, whatever it
does. What is left are tensors, texts and plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.archive.records import object_records, read_objects
from modpack.core.plan import is_machine_code
from modpack.core.text import counted, listed
from modpack.pickling.allowlist import is_dangerous
from modpack.security.pickle_names import PickleContents, PickleReader
from modpack.security.pickle_tree import PickledName

PROGRAMS: Final = (layout.MODPACK_PREFIX + "torchscript/", ".data/ts_code/")
"""Where TorchScript and exported programs lie: in packages of modpack, and of torch.package."""

_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".pck", ".dill", ".joblib")
_PICKLE_STARTS: Final = (*(bytes((0x80, each)) for each in range(6)), b"(", b"]", b"}", b")", b"c")
_HOOKS: Final = layout.MODPACK_PREFIX + "hooks/"
_NATIVE_HEAD: Final = 4096


@dataclass(frozen=True)
class CodeListing:
    """What of a package is code.

    Attributes:
        objects: the records of the saved objects that the package tells of.
        sources: the records with Python's source code.
        native: those with machine code.
        programs: those with programs that torch runs: TorchScript, exported programs.
        pickles: what the pickles refer to, by record; those that hold nothing but data, too.
    """

    objects: tuple[str, ...]
    sources: tuple[str, ...]
    native: tuple[str, ...]
    programs: tuple[str, ...]
    pickles: Mapping[str, PickleContents]

    def names(self, added: Iterable[str] = ()) -> Mapping[str, tuple[PickledName, ...]]:
        """The names that are not data, by the record of the pickle.

        Args:
            added: full names that count as data.
        """
        known = frozenset(added)
        found = {
            record: tuple(name for name in each.code_names if str(name) not in known)
            for record, each in self.pickles.items()
        }
        return {record: names for record, names in found.items() if names}

    @property
    def is_empty(self) -> bool:
        """Whether the package holds data alone, and all of it could be read."""
        unreadable = any(each.unreadable is not None for each in self.pickles.values())
        return not (self.sources or self.native or self.programs or self.names() or unreadable)


def list_undeclared(archive: Archive) -> CodeListing:
    """List what is code in a package that does not tell of its objects, as torch.package's."""
    return list_code(archive, ())


def list_code(archive: Archive, objects: Iterable[str]) -> CodeListing:
    """List what of a package is code.

    Args:
        archive: the package.
        objects: the records of its saved objects. Other pickles are found by their names, or if
            they can be read as such and name something.

    Raises:
        ArchiveError: a record is damaged.
    """
    names = [name for name in archive.names() if not layout.is_storage(name)]
    declared = tuple(objects)
    return CodeListing(
        declared,
        tuple(name for name in names if name.endswith(".py") and not name.startswith(PROGRAMS)),
        tuple(native_records(archive)),
        tuple(name for name in names if name.startswith(PROGRAMS)),
        dict(_pickles(archive, names, declared)),
    )


def native_records(archive: Archive) -> Iterator[str]:
    """The records that hold machine code, by their names or by how they begin."""
    for name in archive.names():
        if not layout.is_storage(name) and is_machine_code(name, archive.start(name, _NATIVE_HEAD)):
            yield name


def _pickles(
    archive: Archive, names: Iterable[str], objects: tuple[str, ...]
) -> Iterator[tuple[str, PickleContents]]:
    readers = {}
    for record in filter(archive.has, objects):
        reader = readers[hook_records(record)[1]] = PickleReader()
        yield record, reader.read(archive.read(record))
    for record in names:
        if record in objects or record.endswith(".py"):
            continue
        if record in readers or (record.startswith(_HOOKS) and record.endswith(".pkl")):
            reader = readers.get(record, PickleReader())
            yield record, reader.read(archive.read(record), several=True)
        elif record.endswith(_PICKLE_SUFFIXES):
            yield record, PickleReader().read(archive.read(record))
        elif archive.start(record, 2).startswith(_PICKLE_STARTS):
            contents = PickleReader().read(archive.read(record))
            if contents.unreadable is None and contents.names:
                yield record, contents


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
    return list_code(archive, object_records(archive, read_objects(archive, manifest)))


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
    told = [
        f"{counted(len(found), kind)} ({listed(found, _SHOWN)})" for kind, found in kinds if found
    ]
    for record, names in listing.names(added).items():
        worst_first = sorted(names, key=lambda name: not is_dangerous(name.module, name.name))
        told.append(f"{record} names {listed([str(name) for name in worst_first], _SHOWN)}")
    return tuple(told)
