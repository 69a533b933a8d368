"""The results of an audit as values. Nothing here reads files or prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from modpack.core.codec import json_keys
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import DependencyGraph
from modpack.core.observations import MockEvent, MockRisk
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic, Severity
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    PackageFacts,
    ResourceFacts,
    UseFacts,
)
from modpack.trust.code_listing import CodeListing

LICENSE: Final = "license"
"""Code of the findings of license gates."""


@dataclass(frozen=True)
class MockFacts:
    """A mocked module with its importers, its uses, and what runs showed about it.

    Attributes:
        module: The module path.
        rule: The rule that mocks it. None if the package does not record it.
        importers: The imports of the module.
        uses: The uses of its names in packaged code, those of saved classes first.
        risk: What the recorded runs showed.
        events: The accesses to the mock in the self-test.
        runs: The number of examples that the self-test ran successfully.
    """

    module: str
    rule: str | None
    importers: tuple[ImporterFacts, ...] = ()
    uses: tuple[UseFacts, ...] = ()
    risk: MockRisk = MockRisk.NOT_OBSERVED
    events: tuple[MockEvent, ...] = ()
    runs: int = 0

    @property
    def observed(self) -> str:
        """The risk as text."""
        return self.risk.describe(self.runs)


@json_keys({"is_optional": "optional"})
@dataclass(frozen=True)
class DistributionFacts:
    """A distribution with interned or extern modules.

    Attributes:
        name: The name.
        version: The version at export.
        license: The license in its metadata, if any.
        editable: Whether it was an editable install.
        interned: The number of its interned modules.
        extern: The number of its extern modules, which the loading environment must provide.
        size_bytes: The size of its interned sources.
        is_optional: Whether it has no interned modules, and loading does not need the extern ones.
    """

    name: str
    version: str
    license: str | None = None
    editable: bool = False
    interned: int = 0
    extern: int = 0
    size_bytes: int = 0
    is_optional: bool = False


class GateResult(NamedTuple):
    """A gate of ``--fail-on``.

    Attributes:
        gate: The gate, as it was given.
        fired: Whether it fired.
        findings: The findings that made it fire.
    """

    gate: str
    fired: bool
    findings: tuple[Diagnostic, ...]


@json_keys(
    {"is_verified": "verified"},
    omitted=("graph", "absent", "environment"),
    derived=("path", "passed"),
)
@dataclass(frozen=True)
class AuditFacts:
    """An audit of a package.

    Attributes:
        package: The package.
        modules: Every module with its decision, sorted by path.
        mocks: The mocked modules, the highest risk first.
        distributions: The distributions of the modules, by name.
        findings: The findings, the most severe first.
        gates: The gates of ``--fail-on``.
        notes: The hazards and remarks that were recorded at export.
        graph: The import graph.
        environment: The export environment, if recorded.
        files: The files that the package includes with its code.
        absent: Extern modules that the export environment lacked.
        code: The code in the package.
        is_verified: Whether one of the trusted signers signed the package. If not, no gate passes
            on its observations of mocks.
    """

    package: PackageFacts
    modules: tuple[ModuleFacts, ...]
    mocks: tuple[MockFacts, ...] = ()
    distributions: tuple[DistributionFacts, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    gates: tuple[GateResult, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    graph: DependencyGraph = field(default_factory=DependencyGraph)
    environment: RecordedEnvironment | None = None
    files: tuple[ResourceFacts, ...] = ()
    absent: frozenset[str] = frozenset()
    code: CodeListing | None = None
    is_verified: bool = False

    @property
    def path(self) -> str:
        """The package, as the user named it."""
        return self.package.path

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The findings that fail every audit."""
        return tuple(each for each in self.findings if each.severity is Severity.ERROR)

    @property
    def passed(self) -> bool:
        """Whether there are no errors, and no gates that fired."""
        return not (self.errors or any(each.fired for each in self.gates))


def files_of(modules: Iterable[ModuleFacts]) -> dict[str, str]:
    """Return the record of each module's code. For a plan, the file of each importer."""
    modules = tuple(modules)
    files = {facts.module: facts.record for facts in modules if facts.record is not None}
    for facts in modules:
        files.update((i.importer, i.path) for i in facts.importers if i.path is not None)
    return files


def importers_by_name(mock: MockFacts) -> tuple[ImporterFacts, ...]:
    """Return the imports of a mocked module itself, in code that can run."""
    return tuple(
        each
        for each in mock.importers
        if each.kind.is_dependency and each.kind is not ImportKind.PARENT
    )
