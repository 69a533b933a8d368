"""The environment: what a package records of installed distributions, and how that compares here.

Comparing runs whenever a package is opened, so it must cost little: a look at the folder of each
recorded distribution's metadata, none at all others. Nothing is imported or executed.
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
    from modpack.discovery.distributions import Distribution, DistributionIndex, LazyDistribution


def compare(
    recorded: RecordedEnvironment, externs: Sequence[str], *, whole: bool = False
) -> EnvironmentComparison:
    """Compare what a package was made with, with what is here.

    Args:
        recorded: where the package was made.
        externs: its extern modules. Those of the standard library, torch and modpack itself are
            not looked for.
        whole: whether to compare all that the recorded distributions require as well.
    """
    rows = [*_python(recorded), *_platform(recorded), *_torch(recorded)]
    foreign = [module for module in externs if not is_everywhere(module)]
    wanted = recorded.group_by_distribution(foreign)
    if whole:
        others = recorded.distributions.values()
        wanted = {**{normalized(d.name): (d, ()) for d in others}, **wanted}
    rows += [_distribution(*wanted[name]) for name in sorted(wanted) if name != "torch"]
    loose = [module for module in foreign if recorded.provider_of(module) is None]
    return EnvironmentComparison((*rows, *_loose(loose)))


def installed_version(name: str) -> str | None:
    """The version of the installed distribution of that name; None if there is none.

    Reads the header of its metadata only: the rest may be a book.
    """
    if not name:  # would find all of them
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


def _python(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    if recorded.python is None:
        return
    here, there = platform.python_version(), recorded.python
    implementation = platform.python_implementation()
    is_same_kind = recorded.implementation in (None, implementation)
    if not is_same_kind:
        here, there = f"{implementation} {here}", f"{recorded.implementation} {there}"
        status = RowStatus.DIFFERENT
    elif here == there:
        status = RowStatus.SAME
    else:
        is_close = here.split(".")[:2] == there.split(".")[:2]
        status = RowStatus.SIMILAR if is_close else RowStatus.DIFFERENT
    yield EnvironmentRow("Python", there, here, status)


def _platform(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    if recorded.platform_label is not None:
        here = RecordedEnvironment(
            platform=sys.platform if recorded.platform else None,
            machine=platform.machine() if recorded.machine else None,
        ).platform_label
        status = RowStatus.SAME if here == recorded.platform_label else RowStatus.DIFFERENT
        yield EnvironmentRow("platform", recorded.platform_label, here, status)


def _torch(recorded: RecordedEnvironment) -> Iterator[EnvironmentRow]:
    known = recorded.torch_distribution
    if known is None:
        return
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    here = str(loaded) if loaded is not None else installed_version("torch")
    if here is None and not _missing(["torch"]):
        yield EnvironmentRow("torch", known.version, None, RowStatus.UNKNOWN, ("torch",))
        return
    status = _status(known.version, here)
    requirement = _requirement(known, status)
    yield EnvironmentRow("torch", known.version, here, status, ("torch",), requirement)


def _distribution(known: RecordedDistribution, modules: tuple[str, ...]) -> EnvironmentRow:
    here = installed_version(known.name)
    status = _status(known.version, here)
    if status == RowStatus.MISSING and modules and not _missing(modules):
        status = RowStatus.UNKNOWN  # it is here without metadata
    requirement = _requirement(known, status)
    return EnvironmentRow(known.name, known.version, here, status, modules, requirement)


def _loose(modules: Iterable[str]) -> Iterator[EnvironmentRow]:
    """Rows of modules of which no distribution is recorded; the outermost speak for the rest."""
    listed = sorted(modules)
    missing = _missing(listed)
    for group in (RowStatus.MISSING, RowStatus.SAME):
        mine = {m for m in listed if (m in missing) == (group == RowStatus.MISSING)}
        for module in sorted(mine):
            if not mine.intersection(parents(module)):
                yield EnvironmentRow(module, None, None, group, (module,))


def _missing(modules: Sequence[str]) -> frozenset[str]:
    """Those of some modules that cannot be found here."""
    if not modules:
        return frozenset()
    from modpack.discovery.finder import HostEnvironment

    host = HostEnvironment()
    return frozenset(m for m in modules if m not in sys.modules and host.locate(m) is None)


def _status(recorded: str, here: str | None) -> str:
    if here is None:
        return RowStatus.MISSING
    if here == recorded:
        return RowStatus.SAME
    if _is_same_version(public_version(here), public_version(recorded)):
        return RowStatus.SIMILAR if "+" in here + recorded else RowStatus.SAME
    return RowStatus.DIFFERENT


def _is_same_version(one: str, other: str) -> bool:
    """Whether two spellings mean one version (PEP 440): ``1.0`` and ``1.0.0``."""
    if one == other:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _requirement(known: RecordedDistribution, status: str) -> str | None:
    """What to give to pip; the label of a local build where that alone differs."""
    requirement = known.requirement
    if requirement is not None and status == RowStatus.SIMILAR and known.url is None:
        return f"{known.name}=={known.version}"
    return requirement


def recorded_closure(
    index: DistributionIndex, needed: Iterable[Distribution]
) -> Mapping[str, RecordedDistribution]:
    """Some installed distributions and all that they require, as far as installed.

    Args:
        index: the installed distributions.
        needed: those to begin with.

    Returns:
        What there is to know of each, by its normalized name.
    """
    found = {normalized(each.name): each for each in needed}
    for each in list(found.values()):
        for name in index.required_closure(each):
            required = index.named(name)
            if required is not None:
                found.setdefault(name, required)
    entries = {name: index.installation_of(found[name]) for name in sorted(found)}
    return {name: _recorded(entry, found[name]) for name, entry in entries.items()}


@lru_cache(maxsize=2048)
def _recorded(entry: LazyDistribution | None, found: Distribution) -> RecordedDistribution:
    """Kept for the next export: an installation that changes is another object."""
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
    """The digests of the archive that was installed: a wheel, or a source distribution."""
    archive = _part(origin, "archive_info")
    hashes = {f"{name}={digest}" for name, digest in _part(archive, "hashes").items()}
    stated = sorted(hashes | {str(archive.get("hash"))})
    known = r"(sha256|sha384|sha512)=([0-9a-f]+)"
    matches = filter(None, (re.fullmatch(known, each) for each in stated))
    return {match[1]: match[2] for match in matches}


def _address(origin: Mapping[str, object]) -> str | None:
    """What to give to pip to install the same again from a network; without any credentials."""
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
        host = f"{user.partition(':')[0]}@{host}"  # whom to log in as is no secret there
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
