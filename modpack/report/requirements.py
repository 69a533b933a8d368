"""Requirements of a package in the loading environment: facts, and a requirements file."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from modpack.archive.base import Archive
from modpack.archive.reader import opened
from modpack.archive.records import load_environment, read_externs, read_plan, read_self_test
from modpack.core.codec import json_keys
from modpack.core.environment import (
    EnvironmentComparison,
    RecordedDistribution,
    RecordedEnvironment,
    is_optional,
    needed_at_once,
)
from modpack.core.names import is_everywhere, is_within, normalized, parents
from modpack.core.observations import UndeclaredImport
from modpack.core.text import printable
from modpack.environment.comparison import compare
from modpack.report.package_info import read_checked_manifest

_OPTIONAL = "Optional: imported in functions only, or where the code handles a missing module"
_ABSENT_AT_LOAD = "Imported when the package is loaded, but not installed at export"
_ABSENT = "Optional, and not installed at export"
_IMPORTED = "Recorded by the package: extern modules imported them in the self-test"
_WIDTH = 100


@json_keys({"is_optional": "optional"})
@dataclass(frozen=True)
class RequirementFacts:
    """A distribution that must be installed.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        requirement: Requirement for pip (PEP 508), or None if pip cannot install it.
        editable: Whether it was an editable install.
        license: Its license, as its metadata states, or None.
        modules: Extern modules that it provides. Empty if only other distributions require it.
        requires: Normalized names of the distributions that it requires.
        is_optional: Whether the package loads without it, because its modules are imported in
            functions only, or where the code handles their absence.
    """

    distribution: str
    version: str
    requirement: str | None
    editable: bool
    license: str | None
    modules: tuple[str, ...]
    requires: tuple[str, ...]
    is_optional: bool = False

    @classmethod
    def of(
        cls,
        recorded: RecordedDistribution,
        modules: tuple[str, ...] = (),
        is_optional: bool = False,
    ) -> RequirementFacts:
        """Return the requirement of a distribution as recorded at export."""
        return cls(
            recorded.name,
            recorded.version,
            requirement=recorded.requirement,
            editable=recorded.editable,
            license=recorded.license,
            modules=modules,
            requires=recorded.requires,
            is_optional=is_optional,
        )

    @property
    def remark(self) -> str:
        """A remark about the distribution, for people. May be empty."""
        if self.editable:
            return f"{self.version} was an editable install. Install it from its project."
        if self.requirement is None:
            return f"{self.version} is not a name and version that pip accepts"
        if self.distribution == "modpack":
            return "is not on a package index yet. Install it from a clone first."
        if "+" in self.version:
            return f"was {self.version}. Package indexes have no local version labels."
        return ""


@json_keys(derived=("requirement",))
class ImportedDistribution(UndeclaredImport):
    """A distribution that extern modules imported in the self-test.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        module: First of its modules that was imported.
        by: Module that imported it, or None if unknown.
    """

    @property
    def requirement(self) -> str | None:
        """Requirement for pip (PEP 508), or None if pip cannot install it."""
        return RecordedDistribution(self.distribution, self.version).requirement


@json_keys(
    {"is_lock": "lock", "absent": "absent_at_export"},
    omitted=("absent_at_load", "has_indirect"),
)
@dataclass(frozen=True)
class Requirements:
    """The distributions that a package needs.

    Attributes:
        path: The package, as the user named it.
        passed: Result of ``--check``. None without it.
        python: Version of Python at export, or None.
        platform: Operating system and machine at export, or None.
        torch: Version of torch at export, or None.
        requirements: The distributions, by name.
        unrecorded: Extern modules without a recorded distribution, the outermost of each.
        absent: Extern modules that were not installed at export.
        absent_at_load: Those of ``absent`` that loading imports.
        is_lock: Whether indirect requirements are listed (``--lock``).
        has_indirect: Whether the package records indirect requirements.
        comparison: The comparison of ``--check``. None without it.
        imported: Distributions that extern modules imported in the self-test, and that nothing in
            the package names.
    """

    path: str
    python: str | None
    platform: str | None
    torch: str | None
    requirements: tuple[RequirementFacts, ...]
    unrecorded: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_at_load: tuple[str, ...] = ()
    is_lock: bool = False
    has_indirect: bool = False
    comparison: EnvironmentComparison | None = None
    imported: tuple[ImportedDistribution, ...] = ()
    passed: bool | None = None


def requirements_of(
    source: str | os.PathLike[str] | Archive, *, lock: bool = False, check: bool = False
) -> Requirements:
    """Read the requirements of a package, without running code.

    Args:
        source: Package file, or directory of an unzipped package; of modpack or torch.package; or
            an open one, which stays open.
        lock: Whether to include indirect requirements.
        check: Whether to compare the export environment with the installed distributions.

    Raises:
        ArchiveError: If it is not a package, or damaged.
    """
    with opened(source) as archive:
        manifest = read_checked_manifest(archive)
        environment = load_environment(archive, manifest)
        named = sorted(read_externs(archive, manifest))
        externs = [module for module in named if not is_everywhere(module)]
        loose = [module for module in externs if environment.provider_of(module) is None]
        plan = read_plan(archive, manifest) if manifest is not None else None
        self_test = read_self_test(archive, manifest) if manifest is not None else None
        imported = self_test.observations.distributions if self_test is not None else ()
        # Without a graph, nothing is called optional: missing it would break the load.
        at_once = needed_at_once(plan.graph) if plan is not None else None
        comparison = compare(environment, externs, whole=lock) if check else None
        if comparison is not None and plan is not None:
            comparison = comparison.classify_missing(plan)
        decisions = plan.decisions if plan is not None else {}
        decided = [decisions[module] for module in loose if module in decisions]
        absent = _outermost(each.module for each in decided if each.location is None)
        unrecorded = (m for m in loose if not any(is_within(m, each) for each in absent))
        # Parents and submodules of one missing library are one entry.
        inside = {each: [m for m in loose if is_within(m, each)] for each in absent}
        return Requirements(
            archive.path,
            python=environment.python,
            platform=environment.platform_label,
            torch=environment.torch,
            requirements=tuple(_requirements(environment, externs, lock, at_once)),
            unrecorded=_outermost(unrecorded),
            absent=absent,
            absent_at_load=tuple(each for each in absent if not is_optional(inside[each], at_once)),
            is_lock=lock,
            has_indirect=bool(environment.distributions),
            comparison=comparison,
            imported=tuple(ImportedDistribution(*each) for each in imported),
        )


def _requirements(
    environment: RecordedEnvironment,
    externs: Iterable[str],
    lock: bool,
    at_once: frozenset[str] | None,
) -> Iterator[RequirementFacts]:
    # Direct requirements replace these entries below, because they know their modules.
    others = environment.distributions.values() if lock else ()
    found = {normalized(each.name): RequirementFacts.of(each) for each in others}
    for name, (provider, modules) in environment.group_by_distribution(externs).items():
        found[name] = RequirementFacts.of(provider, modules, is_optional(modules, at_once))
    for each in (environment.torch_distribution, environment.modpack_distribution):
        if each is not None:
            # torch and modpack are required even if no module imports them by name.
            found[each.name] = RequirementFacts.of(each, (each.name,))
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
    # Everything from the package is printable here: a line break in a name would add a requirement.
    yield from _head(given)
    for each in given.requirements:
        if not each.is_optional:
            yield from _requirement_lines(each)
    for module in given.unrecorded:
        yield f"# {printable(module)}: its distribution is not recorded"
    yield from _comment(_ABSENT_AT_LOAD, given.absent_at_load)
    if given.imported:
        yield f"# {_IMPORTED}:"
    for found in given.imported:
        if found.by:
            yield f"# {printable(found.distribution)}, by {printable(found.by)}"
        yield found.requirement or f"# {printable(found.distribution)} {printable(found.version)}"
    optional = [each for each in given.requirements if each.is_optional]
    if optional:
        yield f"# {_OPTIONAL}:"
        for each in optional:
            yield from _requirement_lines(each)
    yield from _comment(_ABSENT, [m for m in given.absent if m not in given.absent_at_load])


def _comment(title: str, modules: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a comment that names modules."""
    if modules:
        text = f"{title}: {', '.join(map(printable, modules))}"
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _head(given: Requirements) -> Iterator[str]:
    extent = "All requirements" if given.is_lock else "Requirements"
    yield f"# {extent} of {printable(given.path)}."
    python = f"Python {given.python}" if given.python else None
    if environment := ", ".join(filter(None, (python, given.platform))):
        yield f"# Exported with {printable(environment)}."
    if given.platform is None:
        yield "# The version of torch at export is not recorded."
    if given.is_lock and not given.has_indirect:
        yield "# Indirect requirements are not recorded."


def _requirement_lines(found: RequirementFacts) -> Iterator[str]:
    if found.remark:
        yield f"# {printable(found.distribution)} {printable(found.remark)}"
    if found.requirement is not None:
        yield found.requirement
