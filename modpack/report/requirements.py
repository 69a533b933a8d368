"""What must be installed where a package is loaded: facts first, then a requirements file."""

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
from modpack.core.selftest import UndeclaredImport
from modpack.core.text import counted, printable
from modpack.discovery.environment import compare
from modpack.report.package_info import read_checked_manifest

_LATER = "Not needed at once: imported in functions only, or where the code copes with the absence"
_ABSENT_AT_ONCE = "Imported when the package is loaded, but not installed where it was made either"
_ABSENT = "Not needed at once, and not installed where the package was made either"
_IMPORTED = "Imported by extern modules in the self-test, and named by nothing in the package"
_WIDTH = 100
_HASH = re.compile(r"sha(256|384|512):[0-9a-f]+")


@dataclass(frozen=True)
class Needed:
    """One distribution that must be installed.

    Attributes:
        distribution: what is recorded of it.
        modules: the extern modules that it provides; none if only others require it.
        is_optional: whether loading can do without it: its modules are imported in functions only,
            or where the code copes with their absence.
    """

    distribution: RecordedDistribution
    modules: tuple[str, ...] = ()
    is_optional: bool = False

    @property
    def remark(self) -> str:
        """What a reader should know about the distribution; empty if there is nothing to say."""
        found = self.distribution
        if found.editable:
            return f"{found.version} was an editable install: pip cannot repeat it, get the project"
        if found.requirement is None:
            return f"{found.version} is no name and version that pip takes"
        if "+" in found.version:
            return f"was {found.version}: an index has it without the label of a local build"
        return ""

    @property
    def hashes(self) -> tuple[str, ...]:
        """Digests of what was installed, as pip writes them: ``sha256:...``."""
        written = (f"{name}:{digest}" for name, digest in self.distribution.hashes.items())
        return tuple(sorted(filter(_HASH.fullmatch, written)))


@dataclass(frozen=True)
class Requirements:
    """What must be installed where a package is loaded.

    Attributes:
        file: the package.
        environment: where it was made.
        needed: the distributions, by name.
        unknown: extern modules of which no distribution is recorded, the outermost of each.
        absent: extern modules that were not installed where the package was made either.
        absent_at_once: those of ``absent`` that loading imports all the same.
        is_lock: whether ``needed`` has all that others require.
        comparison: what is here, beside it.
        imported: what extern modules imported in the self-test, and nothing in the package names.
    """

    file: str
    environment: RecordedEnvironment
    needed: tuple[Needed, ...]
    unknown: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    absent_at_once: tuple[str, ...] = ()
    is_lock: bool = False
    comparison: EnvironmentComparison = field(default_factory=EnvironmentComparison)
    imported: tuple[UndeclaredImport, ...] = ()

    @cached_property  # each line asks
    def has_all_hashes(self) -> bool:
        """Whether each requirement has a hash: pip takes hashes for all of them, or for none."""
        wanted = [each for each in self.needed if each.distribution.requirement is not None]
        return bool(wanted) and all(each.hashes for each in wanted)


def requirements_of(source: str | os.PathLike[str], *, lock: bool = False) -> Requirements:
    """Read from a package what it needs where it is loaded; nothing is run.

    Args:
        source: a package file, or the folder of an unzipped package; modpack's or torch.package's.
        lock: whether to tell all that the needed distributions require as well.

    Raises:
        ArchiveError: it is no package, or a damaged one.
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
        unknown = (m for m in loose if not any(is_within(m, each) for each in absent))
        inside = {each: [m for m in loose if is_within(m, each)] for each in absent}
        return Requirements(
            archive.path,
            environment,
            tuple(_needed(environment, externs, lock, at_once)),
            _outermost(unknown),
            absent,
            tuple(each for each in absent if not is_optional(inside[each], at_once)),
            lock,
            comparison.classify_missing(plan) if plan is not None else comparison,
            self_test.undeclared_imports if self_test is not None else (),
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
    """Those modules that are not below another of them, sorted."""
    listed = set(modules)
    return tuple(sorted(m for m in listed if not listed.intersection(parents(m))))


def requirements_text(requirements: Requirements) -> str:
    """A requirements file: what pip installs, and comments on what it cannot."""
    return "\n".join(_lines(requirements)) + "\n"


def _lines(given: Requirements) -> Iterator[str]:
    yield from _head(given)
    for each in given.needed:
        if not each.is_optional:
            yield from _of_one(each, given)
    for module in given.unknown:
        yield f"# {printable(module)}: which distribution provided it is not recorded"
    yield from _named(_ABSENT_AT_ONCE, given.absent_at_once)
    yield from _outside(given)
    optional = [each for each in given.needed if each.is_optional]
    if optional:
        yield f"# {_LATER}:"
        for each in optional:
            yield from _of_one(each, given)
    yield from _named(_ABSENT, [m for m in given.absent if m not in given.absent_at_once])


def _outside(given: Requirements) -> Iterator[str]:
    if given.imported:
        yield f"# {_IMPORTED}:"
    for each in given.imported:
        if each.by:
            yield f"# {printable(each.distribution)}, by {printable(each.by)}"
        pin = RecordedDistribution(each.distribution, each.version).requirement
        yield pin or f"# {printable(each.distribution)} {printable(each.version)}"


def _named(what: str, modules: Sequence[str]) -> Iterator[str]:
    """A comment that names modules."""
    if modules:
        text = f"{what}: {', '.join(map(printable, modules))}"
        yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _head(given: Requirements) -> Iterator[str]:
    made = given.environment
    what = "All that" if given.is_lock else "What"
    yield f"# {what} {printable(given.file)} needs where it is loaded."
    with_what = [f"Python {made.python}" if made.python else "", made.place or ""]
    if told := ", ".join(filter(None, with_what)):
        yield f"# It was made with {printable(told)}."
    if made.place is None:
        yield "# Which torch it was made with is not recorded."
    if given.is_lock and not made.has_requirements:
        yield "# What these distributions require themselves is not recorded."
    if given.is_lock and not given.has_all_hashes:
        known = sum(1 for each in given.needed if each.hashes)
        yield (
            f"# Hashes are known of {known} of {counted(len(given.needed), 'distribution')}: pip "
            "records them only of what it"
        )
        yield "# installs from a file or an address. It takes hashes of all of them, or of none."


def _of_one(needed: Needed, given: Requirements) -> Iterator[str]:
    found = needed.distribution
    if needed.remark:
        yield f"# {printable(found.name)} {printable(needed.remark)}"
    if given.is_lock and not given.has_all_hashes:
        yield from (f"# {each}" for each in needed.hashes)
    if found.requirement is not None:
        hashes = needed.hashes if given.is_lock and given.has_all_hashes else ()
        options = "".join(f" \\\n    --hash={each}" for each in hashes)
        yield found.requirement + options
