"""What an audit tells, as values; nothing here reads files or prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modpack.core.codec import json_keys
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import DependencyGraph
from modpack.core.plan import MockEvent, MockRisk, MockUse
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.facts import ImporterFacts, ModuleFacts, PackageFacts, ResourceFacts
from modpack.security.code_listing import CodeListing


@dataclass(frozen=True)
class MockFacts:
    """One mocked module: who wants it, what for, and what will happen.

    Attributes:
        module: its path.
        rule: the rule that mocked it; None if the package does not record it.
        importers: who imports it, with places.
        uses: where packaged code uses its names.
        risk: what becomes of the package because of it.
        touches: what the self-test did with it.
        is_tried: whether there was a self-test that could touch it.
    """

    module: str
    rule: str | None
    importers: tuple[ImporterFacts, ...] = ()
    uses: tuple[MockUse, ...] = ()
    risk: MockRisk = MockRisk.UNUSED
    touches: tuple[MockEvent, ...] = ()
    is_tried: bool = False


@json_keys({"is_optional": "optional"})
@dataclass(frozen=True)
class DistributionFacts:
    """One distribution of which the package holds or needs modules.

    Attributes:
        name: its name.
        version: its version at export.
        license: its license, as its metadata says; None if it says nothing.
        editable: whether it was an editable install.
        interned: how many modules of it are in the package.
        extern: how many modules of it must be installed where the package is loaded.
        size_bytes: bytes of its interned sources.
        is_optional: whether loading can do without its extern modules, and none is interned.
    """

    name: str
    version: str
    license: str | None = None
    editable: bool = False
    interned: int = 0
    extern: int = 0
    size_bytes: int = 0
    is_optional: bool = False


@dataclass(frozen=True)
class AuditFacts:
    """An audit of a package file, or of a plan.

    Attributes:
        subject: the package's file, or the target of a dry run.
        modules: every module with its decision, sorted by path.
        package: the facts about the file; None for a plan.
        mocks: the mocked modules, the worst risk first.
        distributions: what the modules belong to, by name.
        findings: errors first, then warnings, then notes.
        problems: what stops a plan from being written.
        notes: what was remarked when it was planned.
        graph: who imports whom.
        environment: where it was made; None if that is not recorded.
        files: the files that come with the code.
        absent: extern modules that were not installed at export either.
        code: what of the package is code; None for a plan.
    """

    subject: str
    modules: tuple[ModuleFacts, ...]
    package: PackageFacts | None = None
    mocks: tuple[MockFacts, ...] = ()
    distributions: tuple[DistributionFacts, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    graph: DependencyGraph = field(default_factory=DependencyGraph)
    environment: RecordedEnvironment | None = None
    files: tuple[ResourceFacts, ...] = ()
    absent: frozenset[str] = frozenset()
    code: CodeListing | None = None

    def is_settled(self, finding: Diagnostic) -> bool:
        """Return whether a passed self-test has already done what the finding's hint asks for."""
        self_test = self.package.self_test if self.package is not None else None
        has_passed = self_test is not None and self_test.passed
        return has_passed and finding.code == "dynamic-import-library"


def files_of(audit: AuditFacts) -> dict[str, str]:
    """The record of each module's code; for a plan its file, as far as something needs it."""
    files = {facts.module: facts.record for facts in audit.modules if facts.record is not None}
    for facts in audit.modules:
        files.update((i.importer, i.path) for i in facts.importers if i.path is not None)
    return files


def place_in(files: Mapping[str, str], module: str, line: int | None) -> str:
    """``file:line``, or what of it is known."""
    file = files.get(module, module.strip("<>"))
    return file if line is None else f"{file}:{line}"


def importers_by_name(mock: MockFacts) -> tuple[ImporterFacts, ...]:
    """Who imports a mocked module itself, not just one that it contains, in code that can run."""
    return tuple(
        each
        for each in mock.importers
        if each.kind.is_dependency and each.kind is not ImportKind.PARENT
    )
