"""Recording and comparison of environments.

The comparison runs whenever a package is opened, so it must be fast: it reads the metadata of the
recorded distributions only. Nothing is imported or executed.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from modpack.core.environment import (
    EnvironmentComparison,
    EnvironmentRow,
    RecordedDistribution,
    RecordedEnvironment,
    RowStatus,
    public_version,
)
from modpack.core.names import is_everywhere, parents
from modpack.core.names import normalized_distribution as normalized

if TYPE_CHECKING:
    from modpack.discovery.distributions import (
        DistributionIndex,
        InstalledDistribution,
        LazyDistribution,
    )


def compare(
    recorded: RecordedEnvironment, externs: Sequence[str], *, whole: bool = False
) -> EnvironmentComparison:
    """Compare a package's export environment with this one.

    Args:
        recorded: Recorded export environment.
        externs: Extern modules of the package. Those of the standard library, torch, and modpack
            are not searched for.
        whole: Whether to compare all recorded distributions, including indirect requirements.
    """
    rows = [*_python_row(recorded), *_platform_row(recorded), *_torch_row(recorded)]
    foreign = [module for module in externs if not is_everywhere(module)]
    wanted = recorded.group_by_distribution(foreign)
    if whole:
        others = recorded.distributions.values()
        wanted = {**{normalized(d.name): (d, ()) for d in others}, **wanted}
    rows += [_distribution_row(*wanted[name]) for name in sorted(wanted) if name != "torch"]
    loose = [module for module in foreign if recorded.provider_of(module) is None]
    return EnvironmentComparison((*rows, *_unassigned_rows(loose)))


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution; None if there is none.

    Reads only the header of its metadata, because the description may be long.
    """
    if not name:  # an empty name would match all distributions
        return None
    for found in importlib.metadata.Distribution.discover(name=name):
        try:
            text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
        except (OSError, ValueError):  # a broken install
            continue
        for line in text.splitlines():
            field, _, value = line.partition(":")
            if field.lower() == "version" and value.strip():
                return value.strip()
            if not line.strip():
                break
    return None


def _python_row(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    if recorded.python is None:
        return
    installed, expected = platform.python_version(), recorded.python
    implementation = platform.python_implementation()
    if recorded.implementation not in (None, implementation):
        installed = f"{implementation} {installed}"
        expected = f"{recorded.implementation} {expected}"
        status = RowStatus.DIFFERENT
    elif installed == expected:
        status = RowStatus.SAME
    else:
        is_close = installed.split(".")[:2] == expected.split(".")[:2]
        status = RowStatus.SIMILAR if is_close else RowStatus.DIFFERENT
    yield EnvironmentRow("Python", expected, installed, status)


def _platform_row(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    if recorded.platform_label is not None:
        installed = RecordedEnvironment(
            platform=sys.platform if recorded.platform else None,
            machine=platform.machine() if recorded.machine else None,
        ).platform_label
        status = RowStatus.SAME if installed == recorded.platform_label else RowStatus.DIFFERENT
        yield EnvironmentRow("platform", recorded.platform_label, installed, status)


def _torch_row(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    known = recorded.torch_distribution
    if known is None:
        return
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    installed = str(loaded) if loaded is not None else installed_version("torch")
    if installed is None and not _missing_modules(["torch"]):
        yield EnvironmentRow("torch", known.version, None, RowStatus.UNKNOWN, ("torch",))
        return
    status = _version_status(known.version, installed)
    requirement = _requirement(known, status)
    yield EnvironmentRow("torch", known.version, installed, status, ("torch",), requirement)


def _distribution_row(known: RecordedDistribution, modules: tuple[str, ...]) -> EnvironmentRow:
    installed = installed_version(known.name)
    status = _version_status(known.version, installed)
    if status == RowStatus.MISSING and modules and not _missing_modules(modules):
        status = RowStatus.UNKNOWN  # installed without metadata
    requirement = _requirement(known, status)
    return EnvironmentRow(known.name, known.version, installed, status, modules, requirement)


def _unassigned_rows(modules: Iterable[str]) -> Iterator[EnvironmentRow]:
    """Yield rows for modules without a recorded distribution, without submodules of each other."""
    listed = sorted(modules)
    missing = _missing_modules(listed)
    for group in (RowStatus.MISSING, RowStatus.SAME):
        mine = {m for m in listed if (m in missing) == (group == RowStatus.MISSING)}
        for module in sorted(mine):
            if not mine.intersection(parents(module)):
                yield EnvironmentRow(module, None, None, group, (module,))


def _missing_modules(modules: Sequence[str]) -> frozenset[str]:
    """Return those modules that this environment lacks."""
    if not modules:
        return frozenset()
    from modpack.discovery.finder import HostEnvironment

    host = HostEnvironment()
    return frozenset(m for m in modules if m not in sys.modules and host.locate(m) is None)


def _version_status(recorded: str, installed: str | None) -> str:
    if installed is None:
        return RowStatus.MISSING
    if installed == recorded:
        return RowStatus.SAME
    if _is_same_version(public_version(installed), public_version(recorded)):
        return RowStatus.SIMILAR if "+" in installed + recorded else RowStatus.SAME
    return RowStatus.DIFFERENT


def _is_same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal (PEP 440): ``1.0`` and ``1.0.0``."""
    if one == other:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _requirement(known: RecordedDistribution, status: str) -> str | None:
    """Return the requirement for pip, with the local version label if only that differs."""
    requirement = known.requirement
    if requirement is not None and status == RowStatus.SIMILAR and known.url is None:
        return f"{known.name}=={known.version}"
    return requirement


def recorded_closure(
    index: DistributionIndex, needed: Iterable[InstalledDistribution]
) -> Mapping[str, RecordedDistribution]:
    """Record installed distributions and their installed requirements.

    Args:
        index: Index of the installed distributions.
        needed: Distributions to start from.

    Returns:
        The recorded distributions by normalized name.
    """
    found = {normalized(each.name): each for each in needed}
    for each in list(found.values()):
        for name in index.required_closure(each):
            required = index.named(name)
            if required is not None:
                found.setdefault(name, required)
    entries = {name: index.installation_of(found[name]) for name in sorted(found)}
    return {name: _record_of(entry, found[name]) for name, entry in entries.items()}


@lru_cache(maxsize=2048)
def _record_of(
    entry: LazyDistribution | None, found: InstalledDistribution
) -> RecordedDistribution:
    """Record a distribution. Cached: a changed installation is a different object."""
    origin = entry.origin if entry is not None else {}
    return RecordedDistribution(
        found.name,
        found.version,
        found.editable,
        entry.license if entry is not None else None,
        tuple(sorted(found.requires)),
        _hashes(origin),
        _address(origin),
    )


def _hashes(origin: Mapping[str, object]) -> Mapping[str, str]:
    """Return the digests of the installed wheel or source distribution."""
    archive = _part(origin, "archive_info")
    hashes = {f"{name}={digest}" for name, digest in _part(archive, "hashes").items()}
    stated = sorted(hashes | {str(archive.get("hash"))})
    known = r"(sha256|sha384|sha512)=([0-9a-f]+)"
    matches = filter(None, (re.fullmatch(known, each) for each in stated))
    return {match[1]: match[2] for match in matches}


def _address(origin: Mapping[str, object]) -> str | None:
    """Return the URL to install the same distribution from a network, without credentials."""
    try:
        parts = urlsplit(str(origin.get("url", "")))
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh"):
        return None
    folder = origin.get("subdirectory")
    fragment = f"subdirectory={folder}" if folder else ""
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme == "ssh" and user:
        host = f"{user.partition(':')[0]}@{host}"  # the user name of SSH is not a secret
    plain = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    vcs = _part(origin, "vcs_info")
    if vcs:
        plain = f"{vcs.get('vcs')}+{plain}@{vcs.get('commit_id')}"
    elif not _part(origin, "archive_info"):
        return None
    return f"{plain}#{fragment}" if fragment else plain


def _part(whole: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = whole.get(key)
    return part if isinstance(part, dict) else {}
