"""The code in a package, in records and in pickled names, and violations of a trust policy.

Nothing is unpickled, imported, or executed. The listing does not judge what code does. The rest of
a package consists of tensors, texts, and plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.archive.records import object_records, read_externs, read_objects
from modpack.core.codec import json_keys
from modpack.core.plan import is_machine_code
from modpack.core.policy import PolicyViolation, TrustPolicy, violations
from modpack.core.text import counted
from modpack.errors import listed
from modpack.trust.pickle_names import PickleContents, PickledName, PickleReader

PROGRAMS: Final = (layout.TORCHSCRIPT, layout.TORCH_PACKAGE_SCRIPTS)
"""Folders of TorchScript and exported programs in packages of modpack and torch.package."""

_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".pck", ".dill", ".joblib")
_PICKLE_STARTS: Final = (*(bytes((0x80, each)) for each in range(6)), b"(", b"]", b"}", b")", b"c")
_SPECS_START, _SPECS_END = hook_records("\0")[0].split("\0")
_NATIVE_HEAD: Final = 4096
_MAX_SHOWN: Final = 5


@json_keys(omitted=("objects",))
class CodeListing(NamedTuple):
    """The code in a package.

    Attributes:
        objects: Records of the saved objects that the package lists.
        sources: Records with Python source code.
        native: Records with native code.
        programs: Records with programs for torch: TorchScript and exported programs.
        pickles: Contents of all pickles by record, including those with data only.
    """

    objects: tuple[str, ...]
    sources: tuple[str, ...]
    native: tuple[str, ...]
    programs: tuple[str, ...]
    pickles: Mapping[str, PickleContents]

    def names(self, added: Iterable[str] = ()) -> Mapping[str, tuple[PickledName, ...]]:
        """Return the names in pickles that are not data, by record.

        Args:
            added: Full names that count as data.
        """
        known = frozenset(added)
        found = {
            record: tuple(name for name in each.code_names if str(name) not in known)
            for record, each in self.pickles.items()
        }
        return {record: names for record, names in found.items() if names}

    @property
    def is_empty(self) -> bool:
        """Whether the package contains only data, and all of it could be read."""
        unreadable = any(each.unreadable is not None for each in self.pickles.values())
        return not (self.sources or self.native or self.programs or self.names() or unreadable)


_OTHERS: Final = (*PROGRAMS, layout.LOADER_FILES)
"""Prefixes of Python sources that are listed as programs, or that no load executes."""


def list_code(archive: Archive, manifest: Manifest | None) -> CodeListing:
    """List the code in a package.

    Records other than saved objects count as pickles by their suffix, or if they parse as a
    pickle that names a global.

    Args:
        archive: An open package.
        manifest: Its manifest, or None for a package of torch.package, which lists no objects.

    Raises:
        ArchiveError: If a record is damaged.
    """
    objects: tuple[str, ...] = ()
    if manifest is not None:
        objects = object_records(archive, read_objects(archive, manifest))
    names = [name for name in archive.names() if not layout.is_storage(name)]
    return CodeListing(
        objects,
        tuple(name for name in names if name.endswith(".py") and not name.startswith(_OTHERS)),
        tuple(_find_native_records(archive)),
        tuple(name for name in names if name.startswith(PROGRAMS)),
        dict(_read_pickles(archive, names, objects)),
    )


def _find_native_records(archive: Archive) -> Iterator[str]:
    """Yield the records that their names or first bytes identify as native code."""
    for name in archive.names():
        if layout.is_storage(name):
            continue
        # By content as well, because a loader of libraries does not ask for a suffix.
        if is_machine_code(name, archive.read_start(name, _NATIVE_HEAD)):
            yield name


def _read_pickles(
    archive: Archive, names: Iterable[str], objects: tuple[str, ...]
) -> Iterator[tuple[str, PickleContents]]:
    readers = {}
    # Objects first: the pickle of their hooks continues with their memo.
    for record in filter(archive.has, objects):
        reader = readers[hook_records(record)[1]] = PickleReader()
        yield record, reader.read(archive.read(record))
    for record in names:
        if record in objects or record.endswith(".py"):
            continue
        if record in readers or (record.startswith(layout.HOOKS) and record.endswith(".pkl")):
            reader = readers.get(record, PickleReader())
            yield record, reader.read(archive.read(record), several=True)
        elif record.endswith(_PICKLE_SUFFIXES):
            yield record, PickleReader().read(archive.read(record))
        # Any record may be loaded as a pickle, whatever its name is.
        elif archive.read_start(record, 2).startswith(_PICKLE_STARTS):
            contents = PickleReader().read(archive.read(record))
            if contents.unreadable is None and contents.names:
                yield record, contents


def find_package_violations(
    archive: Archive, policy: TrustPolicy, code: CodeListing | None
) -> tuple[PolicyViolation, ...]:
    """Return everything in a package that a policy does not allow, without executing it.

    Args:
        archive: The package, with verified records.
        policy: The trust policy.
        code: The code in the package, or None if the policy allows code.

    Raises:
        ModpackError: If a record is damaged.
    """
    return violations(
        policy,
        code=() if code is None else tuple(_describe_code(code, policy.allow_pickle_globals)),
        externs=read_externs(archive),
        native_records=() if policy.allow_native else tuple(_find_native_records(archive)),
    )


def _describe_code(listing: CodeListing, added: Iterable[str]) -> Iterator[str]:
    """Yield a short description of each kind of code."""
    unreadable = [r for r, each in listing.pickles.items() if each.unreadable is not None]
    kinds = (
        ("Python source", listing.sources),
        ("native library", listing.native),
        ("program for torch", listing.programs),
        ("pickle that cannot be read", unreadable),
    )
    for kind, found in kinds:
        if found:
            yield f"{counted(len(found), kind)} ({listed(found, _MAX_SHOWN)})"
    for record, names in listing.names(added).items():
        # Only some names are shown, and these must be among them.
        worst_first = sorted(names, key=lambda name: not name.is_dangerous)
        yield f"{record} names {listed(list(map(str, worst_first)), _MAX_SHOWN)}"
