"""JSON documents of comparisons: packages with each other, or with this environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modpack.report.json_output import pick

if TYPE_CHECKING:
    from modpack.core.environment import EnvironmentRow
    from modpack.core.observations import UndeclaredImport
    from modpack.report.requirements import Needed, Requirements


class RequirementFacts(NamedTuple):
    """A distribution that must be installed.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        requirement: Requirement for pip (PEP 508), or null if pip cannot install it.
        editable: Whether it was an editable install.
        license: Its license, as its metadata states, or null.
        modules: Extern modules that it provides. Empty if only other distributions require it.
        requires: Normalized names of the distributions that it requires.
        hashes: Digests of the installed file, as ``sha256:...``.
        optional: Whether the package loads without it.
    """

    distribution: str
    version: str
    requirement: str | None
    editable: bool
    license: str | None
    modules: tuple[str, ...]
    requires: tuple[str, ...]
    hashes: tuple[str, ...]
    optional: bool


class ImportedDistribution(NamedTuple):
    """A distribution that extern modules imported in the self-test.

    Attributes:
        distribution: Name of the distribution.
        version: Its version at export.
        requirement: Requirement for pip (PEP 508), or null if pip cannot install it.
        module: First of its modules that was imported.
        by: Module that imported it, or null if unknown.
    """

    distribution: str
    version: str
    requirement: str | None
    module: str
    by: str | None


class ComparisonFacts(NamedTuple):
    """The export environment compared with the installed distributions.

    Attributes:
        matches: Whether loading raises no warning.
        matches_exactly: Whether loading with ``on_mismatch="error"`` accepts the environment.
        install_command: The pip command that installs the recorded versions, or null.
        rows: Python, the platform and torch, then the distributions by name.
    """

    matches: bool
    matches_exactly: bool
    install_command: str | None
    rows: tuple[EnvironmentRow, ...]


class RequirementsDocument(NamedTuple):
    """The distributions that a package needs.

    Attributes:
        path: The package, as the user named it.
        passed: Result of ``--check``. Null without it.
        python: Version of Python at export, or null.
        platform: Operating system and machine at export, or null.
        torch: Version of torch at export, or null.
        lock: Whether indirect requirements are listed (``--lock``).
        requirements: The distributions, by name.
        unrecorded: Extern modules without a recorded distribution.
        absent_at_export: Extern modules that were not installed at export.
        imported: Distributions that extern modules imported in the self-test, and that nothing in
            the package names.
        comparison: The comparison of ``--check``. Null without it.
    """

    path: str
    passed: bool | None
    python: str | None
    platform: str | None
    torch: str | None
    lock: bool
    requirements: tuple[RequirementFacts, ...]
    unrecorded: tuple[str, ...]
    absent_at_export: tuple[str, ...]
    imported: tuple[ImportedDistribution, ...]
    comparison: ComparisonFacts | None


def requirements_document(
    found: Requirements, *, check: bool = False, passed: bool | None = None
) -> RequirementsDocument:
    """Return the document of ``modpack requirements``.

    Args:
        found: The requirements.
        check: Whether to include the comparison.
        passed: Result of the comparison.
    """
    compared, environment = found.comparison, found.environment
    comparison = ComparisonFacts(
        not compared.differences, not compared.deviations, compared.install_command, compared.rows
    )
    return RequirementsDocument(
        found.path,
        passed if check else None,
        environment.python,
        environment.platform_label,
        environment.torch,
        found.is_lock,
        tuple(map(_requirement_facts, found.needed)),
        found.unrecorded,
        found.absent,
        tuple(map(_imported_distribution, found.imported)),
        comparison if check else None,
    )


def _requirement_facts(needed: Needed) -> RequirementFacts:
    distribution = needed.distribution
    return pick(
        RequirementFacts,
        distribution,
        distribution=distribution.name,
        modules=needed.modules,
        hashes=needed.hashes,
        optional=needed.is_optional,
    )


def _imported_distribution(found: UndeclaredImport) -> ImportedDistribution:
    from modpack.core.environment import RecordedDistribution

    distribution = RecordedDistribution(found.distribution, found.version)
    return pick(ImportedDistribution, found, requirement=distribution.requirement)
