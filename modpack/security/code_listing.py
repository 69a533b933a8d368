"""What of a package is code: records, names in its pickles; and what of it a policy does not allow.

Nothing is unpickled, imported or executed, and nothing is judged: code is called code, whatever it
does. What is left are tensors, texts and plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.archive.records import object_records, read_externs, read_objects, read_specs
from modpack.core.plan import is_machine_code
from modpack.core.policy import PolicyViolation, TrustPolicy, violations
from modpack.core.text import counted, listed
from modpack.pickling.allowlist import is_dangerous
from modpack.security.pickle_names import PickleContents, PickledName, PickleReader

PROGRAMS: Final = (layout.MODPACK_PREFIX + "torchscript/", ".data/ts_code/")
"""Where TorchScript and exported programs lie: in packages of modpack, and of torch.package."""

_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".pck", ".dill", ".joblib")
_PICKLE_STARTS: Final = (*(bytes((0x80, each)) for each in range(6)), b"(", b"]", b"}", b")", b"c")
_HOOKS: Final = layout.MODPACK_PREFIX + "hooks/"
_SPECS_START, _SPECS_END = hook_records("\0")[0].split("\0")
_NATIVE_HEAD: Final = 4096
_SHOWN: Final = 5


class CodeListing(NamedTuple):
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


def list_code(archive: Archive, manifest: Manifest | None) -> CodeListing:
    """List what of a package is code.

    Pickles beside its saved objects are found by their names, or if they can be read as such and
    name something.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package, which lists no objects.

    Raises:
        ArchiveError: a record is damaged.
    """
    if manifest is None:
        return archive.cached(_list_undeclared)
    return _list_code(archive, object_records(archive, read_objects(archive, manifest)))


def _list_undeclared(archive: Archive) -> CodeListing:
    return _list_code(archive, ())


def _list_code(archive: Archive, objects: tuple[str, ...]) -> CodeListing:
    names = [name for name in archive.names() if not layout.is_storage(name)]
    return CodeListing(
        objects,
        tuple(name for name in names if name.endswith(".py") and not name.startswith(PROGRAMS)),
        tuple(_native_records(archive)),
        tuple(name for name in names if name.startswith(PROGRAMS)),
        dict(_pickles(archive, names, objects)),
    )


def _native_records(archive: Archive) -> Iterator[str]:
    """The records that hold machine code, by their names or by how they begin."""
    for name in archive.names():
        if not layout.is_storage(name) and is_machine_code(
            name, archive.read_start(name, _NATIVE_HEAD)
        ):
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
        elif archive.read_start(record, 2).startswith(_PICKLE_STARTS):
            contents = PickleReader().read(archive.read(record))
            if contents.unreadable is None and contents.names:
                yield record, contents


def find_package_violations(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> tuple[PolicyViolation, ...]:
    """Everything that a package asks for and a policy does not allow; nothing is executed.

    Args:
        archive: the package; its records are as its manifest says.
        policy: what the loader allows.
        code: what of the package is code; None if the policy allows code.

    Raises:
        ModpackError: a record is damaged.
    """
    return violations(
        policy,
        code=() if code is None else tuple(_code_kinds(code, policy.allow_pickle_globals)),
        externs=read_externs(archive),
        hook_kinds=_hook_kinds(archive),
        native_records=() if policy.allow_native else tuple(_native_records(archive)),
    )


def _hook_kinds(archive: Archive) -> Mapping[str, list[str]]:
    """The names of all hooks, by kind."""
    found: dict[str, list[str]] = {}
    for name in archive.names():
        if name.startswith(_SPECS_START) and name.endswith(_SPECS_END):
            record = name[len(_SPECS_START) : -len(_SPECS_END)]
            for spec in read_specs(archive, record):
                found.setdefault(spec.kind, []).append(spec.name)
    return found


def _code_kinds(listing: CodeListing, added: Iterable[str]) -> Iterator[str]:
    """What of a package is code, in some words for each kind."""
    unreadable = [r for r, each in listing.pickles.items() if each.unreadable is not None]
    kinds = (
        ("Python source", listing.sources),
        ("machine code", listing.native),
        ("program for torch", listing.programs),
        ("pickle that cannot be read", unreadable),
    )
    for kind, found in kinds:
        if found:
            yield f"{counted(len(found), kind)} ({listed(found, _SHOWN)})"
    for record, names in listing.names(added).items():
        worst_first = sorted(names, key=lambda name: not is_dangerous(name.module, name.name))
        yield f"{record} names {listed(list(map(str, worst_first)), _SHOWN)}"
