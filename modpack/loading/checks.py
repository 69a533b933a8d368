"""Checks of a package before any of its code runs: digests, environment, platform, trust policy.

Also finds a package's main resource and namespace. The modules of trust policies are imported only
if there is a policy, because most loads have none.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest, find_unreadable, read_manifest, verify_records
from modpack.archive.records import Objects, read_objects, read_plan
from modpack.core.environment import (
    EnvironmentComparison,
    NativeTag,
    RecordedEnvironment,
    pip_install_command,
)
from modpack.core.process import stacklevel_outside_package, usable_cores
from modpack.environment.comparison import compare
from modpack.errors import (
    INSTALL_RECORDED,
    MAX_LISTED_VERSIONS,
    ArchiveError,
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    ModpackError,
    PlatformMismatchError,
    SignatureError,
    TrustError,
    listed,
    with_hint,
)

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy
    from modpack.options import VerifyLevel


def stricter_level(verify: VerifyLevel, policy: TrustPolicy | None) -> VerifyLevel:
    """Return the stricter verification level of an option and a policy."""
    return "full" if policy is not None and policy.verify == "full" else verify


def require_contents(archive: Archive, level: str) -> None:
    """Compare a package's records with its manifest, now and when they are read later.

    An archive of torch.package has no manifest: ``"full"`` checks the CRC-32 of its records.

    Args:
        archive: The package.
        level: ``"code"`` for all records except storages, ``"full"`` for all records.

    Raises:
        ArchiveError: If records are damaged or missing; the error lists all of them.
    """
    manifest, names = read_manifest(archive), archive.names()
    is_all = level == "full"
    archive.require_shards()
    if manifest is not None:
        chosen = names if is_all else [name for name in names if not layout.is_storage(name)]
        _compare(archive, chosen, is_all)
        # The open file may be written to before a record is read again.
        archive.verify_with(manifest)
    elif is_all:
        problems = find_unreadable(archive, names, usable_cores())
        if problems:
            damage = listed((f"{name!r}: {why}" for name, why in problems.items()), between="; ")
            raise ArchiveError(archive.path, f"these records cannot be read: {damage}")


def require_storages(archive: Archive, keys: Iterable[str], level: str) -> None:
    """Compare storages of a package with its manifest if the level is ``"full"``.

    Args:
        archive: The package.
        keys: Keys of the storages.
        level: ``"code"`` or ``"full"``.

    Raises:
        ArchiveError: If storages are damaged; the error lists all of them.
    """
    archive.require_shards()
    if level == "full":
        # Tensors may share a storage. A missing one is an error of the tensor that needs it.
        records = (layout.storage_name(key) for key in dict.fromkeys(keys))
        _compare(archive, [record for record in records if archive.has(record)], True)


def _compare(archive: Archive, names: Iterable[str], is_large: bool) -> None:
    manifest = read_manifest(archive)
    if manifest is not None:
        workers = usable_cores() if is_large else 1
        # A valid SHA-256 implies a valid CRC-32 unless the zip header is forged.
        verify_records(archive, manifest, names, workers, with_crc=not is_large)


def find_entry(archive: Archive) -> tuple[str, str]:
    """Return package and resource of a package's main resource, or of its only saved object.

    Packages of torch.package do not list their objects; there, a single ``.pkl`` file counts.

    Raises:
        ModpackError: If there is no saved object, or several without a main one.
        ArchiveError: If the main resource is not among the saved objects.
    """
    objects = read_objects(archive) if archive.has(layout.ENTRY) else _list_pickles(archive)
    main = objects.main
    if main is not None and main not in objects.pickles:
        reason = f"the main resource {main!r:.200} is not among the saved objects"
        raise ArchiveError(archive.path, reason, layout.ENTRY)
    if objects.entry is not None:
        return objects.entry
    if not objects.pickles:
        raise ModpackError(
            f"{archive.path}: the package contains no saved object",
            hint="Open it with modpack.PackageImporter to import modules or read resources.",
        )
    saved = (f"package={package!r}, resource={name!r}" for package, name in objects.pickles)
    raise ModpackError(
        f"{archive.path}: the package has several saved objects and no main resource:\n    "
        + listed(saved, between="\n    "),
        hint="Pass package and resource of one of them; modpack run has options for them.",
    )


def find_namespace(archive: Archive) -> str:
    """Return the namespace that a package records; private if it records none.

    Raises:
        ArchiveError: If the record is damaged.
    """
    if not archive.has(layout.ENTRY):
        return "private"
    return read_objects(archive).namespace


def _list_pickles(archive: Archive) -> Objects:
    pickles = [n for n in archive.names() if n.endswith(".pkl") and not n.startswith(".data/")]
    split = (name.rpartition("/") for name in pickles)
    return Objects(tuple((folder.replace("/", "."), resource) for folder, _, resource in split))


_warned: set[str] = set()
"""Digests of the packages whose environments this process has already warned about."""
_lock = threading.Lock()


def compare_environment(
    archive: Archive,
    recorded: RecordedEnvironment,
    externs: Sequence[str],
    verify: Manifest | None = None,
) -> EnvironmentComparison:
    """Compare a package's export environment with this one.

    The package's graph is read only if a module is missing, to decide whether that matters.

    Args:
        archive: The package.
        recorded: The export environment.
        externs: The package's extern modules.
        verify: The manifest, if the records have not been checked yet.

    Raises:
        ArchiveError: If the graph is damaged.
    """
    comparison = compare(recorded, externs)
    if comparison.missing and archive.has(layout.GRAPH):
        return comparison.classify_missing(read_plan(archive, verify))
    return comparison


def check_environment(
    source: str,
    digest: str,
    comparison: EnvironmentComparison,
    on_mismatch: str,
    torch_settings: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Compare the recorded environment with this one, and warn or raise if they differ.

    Args:
        source: The package.
        digest: The package's digest. A process warns once for each.
        comparison: The recorded and the installed versions.
        on_mismatch: See :class:`modpack.PackageImporter`.
        torch_settings: The recorded settings of torch.

    Raises:
        EnvironmentMismatchError: If ``on_mismatch="error"`` and anything differs.
    """
    is_error = on_mismatch == "error"
    # Warnings are only for differences that may matter, of which a patch release is none.
    rows = comparison.deviations if is_error else comparison.differences
    if on_mismatch == "ignore" or not (rows or torch_settings):
        return
    settings: tuple[tuple[str, str, str], ...] = ()
    if torch_settings:  # rarely recorded
        from modpack.loading.torch_settings import differing_settings, statements_for

        settings = differing_settings(torch_settings)
        if not (rows or settings):
            return
    from modpack.core.text import printable

    # Text of the package, in which escape sequences could control the terminal.
    differences = tuple(
        (printable(row.name), printable(row.recorded or "extern"), printable(row.installed_text))
        for row in rows
    )
    command = pip_install_command(rows)
    hint = f"Run: {command}" if command else None
    if len(rows) > MAX_LISTED_VERSIONS:
        hint = INSTALL_RECORDED
    if settings:
        needed = statements_for({name: torch_settings[name] for name, _, _ in settings})
        hint = "\n".join(filter(None, (hint, f"Set torch as at export: {needed}")))
    arguments = (source, (*differences, *settings), hint)
    if is_error:
        raise EnvironmentMismatchError(*arguments)
    with _lock:
        is_first = digest not in _warned
        _warned.add(digest)
    if is_first:
        warning = EnvironmentMismatchWarning(*arguments)
        warnings.warn(warning, stacklevel=stacklevel_outside_package())


def refuse_other_platforms(source: str, recorded: RecordedEnvironment) -> None:
    """Refuse a package with native extensions for another platform.

    Raises:
        PlatformMismatchError: If they cannot run on this platform.
    """
    built_for = recorded.native
    if built_for is not None and not built_for.runs_on(NativeTag.current()):
        raise PlatformMismatchError(source, str(built_for), str(NativeTag.current()))


def require_trust(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that requires something a policy does not allow. Executes no code.

    Args:
        archive: The package, whose records except storages are verified.
        policy: The loader's policy.
        path: The package's file or folder, which can have a detached signature next to it. Any
            other object has none.

    Raises:
        TrustError: If the policy does not allow something; the error lists all of it.
        SignatureError: If only the signature is missing or invalid.
        ArchiveError: If a record is damaged.
    """
    from modpack.trust.code_listing import find_package_violations, list_code

    # The signature comes last, so that one error lists everything.
    code = None if policy.allow_code else list_code(archive, read_manifest(archive))
    problems = [str(each) for each in find_package_violations(archive, policy, code)]
    try:
        require_signature(archive, policy, path)
    except SignatureError as failure:
        if not problems:
            raise
        first = with_hint(failure.reason, failure.hint)
        raise TrustError(archive.path, (first, *problems)) from failure
    if problems:
        raise TrustError(archive.path, tuple(problems))


def require_signature(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package without a valid signature of a signer that the policy requires.

    Raises:
        SignatureError: If the signature is missing or invalid.
        ModpackError: If the extra ``sign`` is not installed.
    """
    if policy.require_signature_from:
        from modpack import services  # few policies require a signature

        file = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        services.installed.check_signatures(archive, policy.require_signature_from, file)
