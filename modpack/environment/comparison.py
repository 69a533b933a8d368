"""Comparison of a package's export environment with this one.

The comparison runs whenever a package is opened, so it must be fast: it reads the metadata of the
recorded distributions only. Nothing is imported or executed.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence

from modpack.core.environment import (
    EnvironmentComparison,
    EnvironmentRow,
    RecordedDistribution,
    RecordedEnvironment,
    RowStatus,
    public_version,
)
from modpack.core.names import is_everywhere, normalized, parents


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
    # The distributions of externs require others, which `whole` compares, too.
    wanted = recorded.group_by_distribution(foreign)
    if whole:
        others = recorded.distributions.values()
        # Entries with extern modules replace those without.
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
    # The loaded torch counts, even if another version has been installed since.
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
    # Imported on demand: each opened package is compared, and few have such modules.
    from modpack.environment.finder import HostEnvironment

    host = HostEnvironment()
    return frozenset(m for m in modules if m not in sys.modules and host.locate(m) is None)


def _version_status(recorded: str, installed: str | None) -> str:
    if installed is None:
        return RowStatus.MISSING
    if installed == recorded:
        return RowStatus.SAME
    # Builds of one version differ in the local label, as 2.6.0+cpu does from 2.6.0.
    is_same = public_version(installed) == public_version(recorded)
    return RowStatus.SIMILAR if is_same else RowStatus.DIFFERENT


def _requirement(known: RecordedDistribution, status: str) -> str | None:
    """Return the requirement for pip, with the local version label if only that differs."""
    requirement = known.requirement
    if requirement is not None and status == RowStatus.SIMILAR and known.url is None:
        return f"{known.name}=={known.version}"
    return requirement
