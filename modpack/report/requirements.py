"""Requirements of a package in the loading environment: facts, and a requirements file."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from modpack.archive.reader import open_archive
from modpack.archive.records import load_environment, read_externs, read_plan, read_self_test
from modpack.core.environment import (
    EnvironmentComparison,
    RecordedDistribution,
    RecordedEnvironment,
    is_optional,
    needed_at_once,
)
from modpack.core.names import is_everywhere, is_within, normalized_distribution, parents
from modpack.core.observations import UndeclaredImport
from modpack.core.text import counted, printable
from modpack.environment.comparison import compare
from modpack.report.package_info import read_checked_manifest

_OPTIONAL = "Optional: imported in functions only, or where the code handles a missing module"
_ABSENT_AT_LOAD = "Imported when the package is loaded, but not installed at export"
_ABSENT = "Optional, and not installed at export"
_IMPORTED = "Recorded by the package: extern modules imported them in the self-test"
_WIDTH = 100
_HASH = re.compile(r"sha(256|384|512):[0-9a-f]+")


@dataclass(frozen=True)
class Needed:
    """One distribution that must be installed.

    Attributes:
        distribution: The distribution as recorded at export.
        modules: Extern modules that it provides. Empty if only other distributions require it.
        is_optional: Whether the package loads without it, because its modules are imported in
            functions only, or where the code handles their absence.
    """

    distribution: RecordedDistribution
    modules: tuple[str, ...] = ()
    is_optional: bool = False

    @property
    def remark(self) -> str:
        """A remark about the distribution, for people. May be empty."""
        found = self.distribution
        if found.editable:
            return f"{found.version} was an editable install. Install it from its project."
        if found.requirement is None:
            return f"{found.version} is not a name and version that pip accepts"
        if "+" in found.version:
            return f"was {found.version}. Package indexes have no local version labels."
        return ""

    @property
    def hashes(self) -> tuple[str, ...]:
        """Digests of the installed file, in the form of pip: ``sha256:...``."""
        written = (f"{name}:{digest}" for name, digest in self.distribution.hashes.items())
        return tuple(sorted(filter(_HASH.fullmatch, written)))


@dataclass(frozen=True)
class Requirements:
    """The requirements of a package in the loading environment.

    Attributes:
        path: The package.
        environment: The export environment.
        needed: The distributions, by name.
        unrecorded: Extern modules without a recorded distribution, the outermost of each.
        absent: Extern modules that were not installed at export.
        absent_at_load: Those of ``absent`` that loading imports.
        is_lock: Whether ``needed`` includes indirect requirements.
        comparison: The export environment compared with the installed distributions.
        imported: Distributions that extern modules imported in the self-test, and that nothing in
            the package names.
    """

    path: str
    environment: RecordedEnvironment
    needed: tuple[Needed, ...]
    unrecorded: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_at_load: tuple[str, ...] = ()
    is_lock: bool = False
    comparison: EnvironmentComparison = field(default_factory=EnvironmentComparison)
    imported: tuple[UndeclaredImport, ...] = ()

    @cached_property  # read for each line
    def has_all_hashes(self) -> bool:
        """Whether every requirement has a hash. pip accepts hashes for all of them, or for none."""
        wanted = [each for each in self.needed if each.distribution.requirement is not None]
        return bool(wanted) and all(each.hashes for each in wanted)


def requirements_of(source: str | os.PathLike[str], *, lock: bool = False) -> Requirements:
    """Read the requirements of a package, without running code.

    Args:
        source: Package file, or directory of an unzipped package; of modpack or torch.package.
        lock: Whether to include indirect requirements.

    Raises:
        ArchiveError: If it is not a package, or damaged.
    """
    with open_archive(source) as archive:
        manifest = read_checked_manifest(archive)
        environment = load_environment(archive, manifest)
        named = sorted(read_externs(archive, manifest))
        externs = [module for module in named if not is_everywhere(module)]
        comparison = compare(environment, externs, whole=lock)
        loose = [module for module in externs if environment.provider_of(module) is None]
        plan = read_plan(archive, manifest) if manifest is not None else None
        self_test = read_self_test(archive, manifest) if manifest is not None else None
        at_once = needed_at_once(plan.graph) if plan is not None else None
        decisions = plan.decisions if plan is not None else {}
        decided = [decisions[module] for module in loose if module in decisions]
        absent = _outermost(each.module for each in decided if each.location is None)
        unrecorded = (m for m in loose if not any(is_within(m, each) for each in absent))
        inside = {each: [m for m in loose if is_within(m, each)] for each in absent}
        return Requirements(
            archive.path,
            environment,
            tuple(_needed(environment, externs, lock, at_once)),
            _outermost(unrecorded),
            absent,
            tuple(each for each in absent if not is_optional(inside[each], at_once)),
            lock,
            comparison.classify_missing(plan) if plan is not None else comparison,
            self_test.observations.distributions if self_test is not None else (),
        )


def _needed(
    environment: RecordedEnvironment,
    externs: Iterable[str],
    lock: bool,
    at_once: frozenset[str] | None,
) -> Iterator[Needed]:
    others = environment.distributions.values() if lock else ()
    found = {normalized_distribution(each.name): Needed(each) for each in others}
    for name, (provider, modules) in environment.group_by_distribution(externs).items():
        found[name] = Needed(provider, modules, is_optional(modules, at_once))
    for each in (environment.torch_distribution, environment.modpack_distribution):
        if each is not None:
            found[each.name] = Needed(each, (each.name,))
    for name in sorted(found):
        yield found[name]


def _outermost(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that are not below another of them, sorted."""
    listed = set(modules)
    return tuple(sorted(m for m in listed if not listed.intersection(parents(m))))


def requirements_text(requirements: Requirements) -> str:
    """Return a requirements file, with comments about requirements that pip cannot install."""
    return "\n".join(_lines(requirements)) + "\n"


def _lines(given: Requirements) -> Iterator[str]:
    yield from _head(given)
    for each in given.needed:
        if not each.is_optional:
            yield from _requirement_lines(each, given)
    for module in given.unrecorded:
        yield f"# {printable(module)}: its distribution is not recorded"
    yield from _named(_ABSENT_AT_LOAD, given.absent_at_load)
    yield from _imported_lines(given)
    optional = [each for each in given.needed if each.is_optional]
    if optional:
        yield f"# {_OPTIONAL}:"
        for each in optional:
            yield from _requirement_lines(each, given)
    yield from _named(_ABSENT, [m for m in given.absent if m not in given.absent_at_load])


def _imported_lines(given: Requirements) -> Iterator[str]:
    if given.imported:
        yield f"# {_IMPORTED}:"
    for each in given.imported:
        if each.by:
            yield f"# {printable(each.distribution)}, by {printable(each.by)}"
        pin = RecordedDistribution(each.distribution, each.version).requirement
        yield pin or f"# {printable(each.distribution)} {printable(each.version)}"


def _named(title: str, modules: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a comment that names modules."""
    if modules:
        text = f"{title}: {', '.join(map(printable, modules))}"
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _head(given: Requirements) -> Iterator[str]:
    exported = given.environment
    extent = "All requirements" if given.is_lock else "Requirements"
    yield f"# {extent} of {printable(given.path)}."
    versions = [
        f"Python {exported.python}" if exported.python else "",
        exported.platform_label or "",
    ]
    if environment := ", ".join(filter(None, versions)):
        yield f"# Exported with {printable(environment)}."
    if exported.platform_label is None:
        yield "# The version of torch at export is not recorded."
    if given.is_lock and not exported.has_requirements:
        yield "# Indirect requirements are not recorded."
    if given.is_lock and not given.has_all_hashes:
        known = sum(1 for each in given.needed if each.hashes)
        yield (
            f"# Hashes are recorded for {known} of {counted(len(given.needed), 'distribution')}: "
            "pip records them only"
        )
        yield "# for installs from a file or URL, and accepts hashes for all requirements or none."


def _requirement_lines(needed: Needed, given: Requirements) -> Iterator[str]:
    found = needed.distribution
    if needed.remark:
        yield f"# {printable(found.name)} {printable(needed.remark)}"
    if given.is_lock and not given.has_all_hashes:
        yield from (f"# {each}" for each in needed.hashes)
    if found.requirement is not None:
        hashes = needed.hashes if given.is_lock and given.has_all_hashes else ()
        options = "".join(f" \\\n    --hash={each}" for each in hashes)
        yield found.requirement + options
