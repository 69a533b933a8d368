"""How much of a package is compared with its digests before anything of it is used."""

from __future__ import annotations

from collections.abc import Iterable

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.comparing import default_workers, find_unreadable, verify_records
from modpack.archive.manifest import read_manifest
from modpack.core.arguments import require_type
from modpack.core.trust import VERIFY_LEVELS, TrustPolicy
from modpack.errors import ArchiveError

__all__ = ["level_of", "require_contents", "require_storages"]

_EVERYTHING = VERIFY_LEVELS[-1]


def level_of(verify: object, policy: TrustPolicy | None) -> str:
    """How much to compare: what an argument or what a policy says, whichever is more.

    Args:
        verify: the argument.
        policy: the policy, if there is one.

    Raises:
        TypeError, ValueError: the argument is none.
    """
    require_type(verify, str, "verify", "'code' or 'all'")
    if verify not in VERIFY_LEVELS:
        raise ValueError(f"verify must be 'code' or 'all', not {verify!r}")
    return _EVERYTHING if policy is not None and policy.verify == _EVERYTHING else str(verify)


def require_contents(archive: Archive, level: str) -> None:
    """Compare a package with its manifest, and whatever is read of it afterwards.

    An archive of torch.package has none: with ``"all"``, its records are compared with their crc32.

    Args:
        archive: the package.
        level: ``"code"`` for everything but storages, ``"all"`` for the storages too.

    Raises:
        ArchiveError: something is not as it should be; all of it is told.
    """
    manifest, names = read_manifest(archive), archive.names()
    is_all = level == _EVERYTHING
    if manifest is not None:
        chosen = names if is_all else [name for name in names if not layout.is_storage(name)]
        _compare(archive, chosen, is_all)
        archive.verify_with(manifest)
    elif is_all:
        _require_readable(archive)


def require_storages(archive: Archive, keys: Iterable[str], level: str) -> None:
    """Compare storages of a package with its manifest, if that is asked for.

    Args:
        archive: the package.
        keys: those that will be used.
        level: ``"all"``, or nothing is compared.

    Raises:
        ArchiveError: some are not as they should be; all of them are told.
    """
    if level == _EVERYTHING:
        records = (layout.storage_name(key) for key in dict.fromkeys(keys))
        _compare(archive, [record for record in records if archive.has(record)], True)


def _compare(archive: Archive, names: Iterable[str], is_much: bool) -> None:
    manifest = read_manifest(archive)
    if manifest is not None:
        workers = default_workers() if is_much else 1
        # A storage with its sha256 has its crc32, unless somebody lied about that in the zip.
        verify_records(archive, manifest, names, workers, with_crc=not is_much)


def _require_readable(archive: Archive) -> None:
    problems = find_unreadable(archive, archive.names(), default_workers())
    if problems:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in problems.items())
        raise ArchiveError(archive.source, f"records cannot be read: {listed}")
