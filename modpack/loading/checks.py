"""What is asked of a package before any of its code runs: its contents, place, and policy.

How much of it is compared with its digests, which of its saved objects it is about, whether this
is where it can be loaded, and whether it asks for more than the loader's policy allows. What a
policy is needed for is imported with one: most loads have none.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

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
from modpack.core.json_values import require_type
from modpack.core.process import usable_cores
from modpack.discovery.environment import compare
from modpack.errors import (
    ArchiveError,
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    ModpackError,
    PlatformMismatchError,
    SignatureError,
    TrustError,
)
from modpack.loading.namespace import NAMESPACES

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy

_VERIFY_LEVELS: Final = ("code", "full")
ON_MISMATCH: Final = ("warn", "error", "ignore")


def require_policy(policy: object) -> None:
    """Check a public argument that is a policy, or None.

    Raises:
        TypeError: it is something else.
    """
    if policy is not None:
        from modpack.core.policy import TrustPolicy

        expected = "a TrustPolicy or None; TrustPolicy.from_toml reads one from a file"
        require_type(policy, TrustPolicy, "policy", expected)


def require_on_mismatch(on_mismatch: object) -> None:
    """Check the public argument ``on_mismatch``.

    Raises:
        TypeError: If it is not a string.
        ValueError: If it is not one of the three choices.
    """
    require_type(on_mismatch, str, "on_mismatch", "'warn', 'error' or 'ignore'")
    if on_mismatch not in ON_MISMATCH:
        raise ValueError(f"on_mismatch must be 'warn', 'error' or 'ignore', not {on_mismatch!r}")


def level_of(verify: object, policy: TrustPolicy | None) -> str:
    """How much to compare: what an argument or what a policy says, whichever is more.

    Args:
        verify: the argument.
        policy: the policy, if there is one.

    Raises:
        TypeError, ValueError: the argument is none.
    """
    require_type(verify, str, "verify", "'code' or 'full'")
    if verify not in _VERIFY_LEVELS:
        raise ValueError(f"verify must be 'code' or 'full', not {verify!r}")
    return "full" if policy is not None and policy.verify == "full" else str(verify)


def require_contents(archive: Archive, level: str) -> None:
    """Compare a package with its manifest, and whatever is read of it afterwards.

    An archive of torch.package has no manifest: ``"full"`` checks the CRC-32 of its records.

    Args:
        archive: the package.
        level: ``"code"`` for everything but storages, ``"full"`` for the storages too.

    Raises:
        ArchiveError: something is not as it should be; all of it is told.
    """
    manifest, names = read_manifest(archive), archive.names()
    is_all = level == "full"
    if manifest is not None:
        chosen = names if is_all else [name for name in names if not layout.is_storage(name)]
        _compare(archive, chosen, is_all)
        archive.verify_with(manifest)
    elif is_all:
        problems = find_unreadable(archive, names, usable_cores())
        if problems:
            listed = "; ".join(f"{name!r}: {reason}" for name, reason in problems.items())
            raise ArchiveError(archive.path, f"records cannot be read: {listed}")


def require_storages(archive: Archive, keys: Iterable[str], level: str) -> None:
    """Compare storages of a package with its manifest, if that is asked for.

    Args:
        archive: the package.
        keys: those that will be used.
        level: ``"full"``, or nothing is compared.

    Raises:
        ArchiveError: some are not as they should be; all of them are told.
    """
    if level == "full":
        records = (layout.storage_name(key) for key in dict.fromkeys(keys))
        _compare(archive, [record for record in records if archive.has(record)], True)


def _compare(archive: Archive, names: Iterable[str], is_much: bool) -> None:
    manifest = read_manifest(archive)
    if manifest is not None:
        workers = usable_cores() if is_much else 1
        # A storage with its sha256 has its crc32, unless somebody lied about that in the zip.
        verify_records(archive, manifest, names, workers, with_crc=not is_much)


def find_entry(archive: Archive) -> tuple[str, str]:
    """The main saved object of a package, or its only one, as package and resource.

    Packages of torch.package do not list their objects: there, a single ``.pkl`` file counts.

    Raises:
        ModpackError: there is none, or there are several; they are listed.
        ArchiveError: it names one that it does not list.
    """
    objects = read_objects(archive) if archive.has(layout.ENTRY) else _guessed(archive)
    main = objects.main
    if main is not None and main not in objects.pickles:  # no look at these has seen it
        reason = f"its main object {main!r:.200} is not among its saved objects"
        raise ArchiveError(archive.path, reason, layout.ENTRY)
    if objects.entry is not None:
        return objects.entry
    if not objects.pickles:
        raise ModpackError(
            f"{archive.path}: the package contains no saved object. Open it with "
            "modpack.PackageImporter, which imports its modules and reads its resources"
        )
    listed = "".join(f"\n    package={p!r}, resource={r!r}" for p, r in objects.pickles)
    raise ModpackError(
        f"{archive.path} does not say which of its saved objects to load; name one. "
        f"It holds:{listed}"
    )


def find_namespace(archive: Archive) -> str:
    """The namespace in which a package says that it works; private if it does not say.

    Raises:
        ArchiveError: it says something else.
    """
    if not archive.has(layout.ENTRY):
        return "private"
    namespace = read_objects(archive).namespace
    if namespace not in NAMESPACES:
        raise ArchiveError(archive.path, f"names no namespace with {namespace!r}", layout.ENTRY)
    return namespace


def _guessed(archive: Archive) -> Objects:
    pickles = [n for n in archive.names() if n.endswith(".pkl") and not n.startswith(".data/")]
    split = (name.rpartition("/") for name in pickles)
    return Objects(tuple((folder.replace("/", "."), resource) for folder, _, resource in split))


_told: set[str] = set()
"""The digests of packages whose environments this process has warned of."""
_lock = threading.Lock()


def compare_environment(
    archive: Archive,
    recorded: RecordedEnvironment,
    externs: Sequence[str],
    verify: Manifest | None = None,
) -> EnvironmentComparison:
    """What a package was made with, beside what is here.

    The package's graph is read only if something is missing, to tell whether it matters.

    Args:
        archive: the package.
        recorded: where it was made.
        externs: its extern modules.
        verify: its manifest, if the records have not been checked yet.

    Raises:
        ArchiveError: its graph is damaged.
    """
    comparison = compare(recorded, externs)
    if comparison.missing and archive.has(layout.GRAPH):
        return comparison.classify_missing(read_plan(archive, verify))
    return comparison


def check_environment(
    source: str, digest: str, comparison: EnvironmentComparison, on_mismatch: str
) -> None:
    """Compare the recorded environment with this one, and warn or raise if they differ.

    Args:
        source: The package.
        digest: The package's digest. A process warns once for each.
        comparison: The recorded and the installed versions.
        on_mismatch: See :class:`modpack.PackageImporter`.

    Raises:
        EnvironmentMismatchError: If ``on_mismatch="error"`` and anything differs.
    """
    is_error = on_mismatch == "error"
    rows = comparison.deviations if is_error else comparison.differences
    if not rows or on_mismatch == "ignore":
        return
    from modpack.core.process import stacklevel_outside_package
    from modpack.core.text import printable

    told = tuple(
        (printable(row.name), printable(row.recorded or "extern"), printable(row.installed_text))
        for row in rows
    )
    about = (source, told, pip_install_command(rows))
    if is_error:
        raise EnvironmentMismatchError(*about)
    with _lock:
        is_told = digest in _told
        _told.add(digest)
    if not is_told:
        warnings.warn(EnvironmentMismatchWarning(*about), stacklevel=stacklevel_outside_package())


def refuse_other_platforms(source: str, recorded: RecordedEnvironment) -> None:
    """Refuse a package with compiled modules that were built for something else.

    Raises:
        PlatformMismatchError: they cannot run here.
    """
    built_for = recorded.native
    if built_for is not None and not built_for.runs_on(NativeTag.current()):
        raise PlatformMismatchError(source, str(built_for), str(NativeTag.current()))


def require_trust(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that asks for what a policy does not allow; nothing of it is executed.

    Args:
        archive: the package; all but its tensors is as its manifest says.
        policy: what the loader allows.
        path: its file or folder, which a signature may lie beside; anything else if it has none.

    Raises:
        TrustError: tells all that is not allowed.
        SignatureError: nothing is wrong but the signature.
        ArchiveError: a record is damaged.
    """
    # Most loads do without.
    from modpack.security.code_listing import find_package_violations, list_code

    code = None if policy.allow_code else list_code(archive, read_manifest(archive))
    problems = [str(each) for each in find_package_violations(archive, policy, code)]
    try:
        require_signature(archive, policy, path)
    except SignatureError as failure:
        if not problems:
            raise
        raise TrustError(archive.path, (failure.reason, *problems)) from failure
    if problems:
        raise TrustError(archive.path, tuple(problems))


def require_signature(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that nobody of those signed who have to, if anybody has to.

    Raises:
        SignatureError: there is no signature, or none that holds.
        ModpackError: the extra ``sign`` is not installed.
    """
    if policy.require_signature_from:
        from modpack.security.signing import check_signatures

        file = path if isinstance(path, (str, os.PathLike)) else None
        check_signatures(archive, policy.require_signature_from, file)


def require_hook_kinds(source: str, policy: TrustPolicy, hooks: Iterable[tuple[str, str]]) -> None:
    """Refuse hooks of kinds that a policy does not allow.

    Args:
        source: the package file.
        policy: what the loader allows.
        hooks: the kind and the name of each.

    Raises:
        TrustError: names them.
    """
    from modpack.core.policy import violations

    found: dict[str, list[str]] = {}
    for kind, name in hooks:
        found.setdefault(kind, []).append(name)
    problems = violations(policy, hook_kinds=found)
    if problems:
        raise TrustError(source, tuple(map(str, problems)))
