"""The facts about a package or a plan, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from modpack.core.graph import CodeKind
from modpack.core.hookspec import HookSpec
from modpack.core.names import RUNTIME_ROOTS, is_stdlib, module_record, root_of
from modpack.core.plan import Decision, MockUse, Plan
from modpack.core.process import phase
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestRecord
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex


class ImporterFacts(NamedTuple):
    """One piece of evidence that a module is needed.

    Attributes:
        importer: the module path of what imports it, or a saved object (``<model/model.pkl>``).
        file: where the importer's code is: the record in a package, the file for a plan; None
            if it is not known.
        line: 1-based line of the import; None where there is no such line.
        kind: how strong the dependency is.
    """

    importer: str
    file: str | None
    line: int | None
    kind: ImportKind

    @property
    def place(self) -> str:
        """``file:line``, or what of it is known."""
        where = self.file or self.importer.strip("<>")
        return where if self.line is None else f"{where}:{self.line}"


@dataclass(frozen=True)
class ModuleFacts:
    """What happened to one module, and why.

    Attributes:
        module: its path.
        action: what happened to it.
        rule: the rule that matched; None if the package does not record it.
        overridden_by: the hook that changed the rule's action, if one did.
        importers: who needs it; empty if the package does not record it.
        provided_by: who provides an extern module where the package is loaded; None for others.
        distribution: the distribution that the module belonged to at export, if known.
        version: that distribution's version at export.
        record: the record that holds its source or its stand-in, if there is one.
        size_bytes: bytes of that source.
        license: the distribution's license, as its metadata says, if known.
        editable: whether the distribution was an editable install.
    """

    module: str
    action: Action
    rule: str | None = None
    overridden_by: str | None = None
    importers: tuple[ImporterFacts, ...] = ()
    provided_by: Owner | None = None
    distribution: str | None = None
    version: str | None = None
    record: str | None = None
    size_bytes: int | None = None
    license: str | None = None
    editable: bool = False

    @property
    def why(self) -> str:
        """The rule, and the hook that overrode it, as a person reads them."""
        rule = self.rule or "not recorded"
        return f"{rule}, overridden by hook {self.overridden_by}" if self.overridden_by else rule

    @property
    def requirement(self) -> str | None:
        """What to give to pip for an extern module (``numpy==2.1.0``), if known."""
        return f"{self.distribution}=={self.version}" if self.distribution else None


class ResourceKind(str, Enum):
    """What a record that is no code and no tensor storage holds."""

    PICKLE = "pickle"
    """A saved object."""
    TORCHSCRIPT = "torchscript"
    """A part of a compiled module, as torch serialized it."""
    FILE = "file"
    """Text or bytes that the user saved."""
    DATA = "data"
    """A file that lay beside the code, for the code to read."""
    METADATA = "metadata"
    """What is known of a distribution: name, version, license, entry points."""
    COMPILED = "compiled"
    """A compiled module, or a library that one needs."""

    @property
    def goes_along(self) -> bool:
        """Whether nobody saved it: it came with the code."""
        return self in (ResourceKind.DATA, ResourceKind.METADATA, ResourceKind.COMPILED)


@dataclass(frozen=True)
class ResourceFacts:
    """One record that is no code and no tensor storage.

    Attributes:
        record: its name.
        kind: what it holds.
        size_bytes: its size, uncompressed.
        owner: the module or distribution that it came with, if it came with one.
    """

    record: str
    kind: ResourceKind
    size_bytes: int
    owner: str | None = None


@dataclass(frozen=True)
class HookFacts:
    """One hook that travels with a saved object.

    Attributes:
        resource: the record of the object.
        spec: what hangs where, and what it calls: what the pickle restores.
        disagreement: how the package's spec shows something else; None if it does not.
    """

    resource: str
    spec: HookSpec
    disagreement: str | None = None


@dataclass(frozen=True)
class StorageFacts:
    """The tensor storages of a package.

    Attributes:
        count: how many there are.
        size_bytes: their bytes together.
    """

    count: int
    size_bytes: int


@dataclass(frozen=True)
class PlanFacts:
    """What a package will hold.

    Attributes:
        modules: every module that was decided, sorted by path.
        problems: everything that stops the package from being written.
        notes: hazards and remarks.
        files: the files that come with the code.
    """

    modules: tuple[ModuleFacts, ...]
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    files: tuple[ResourceFacts, ...] = ()


@dataclass(frozen=True)
class PackageFacts:
    """What a package holds.

    Attributes:
        file: the package, as the user named it.
        size_bytes: bytes of the file; for an unzipped package, of all its records.
        format: in which format it is written (``modpack 1``, ``torch.package``).
        digest: the hex digest that names its content, whatever the file is called.
        writer: the program that wrote it, if recorded.
        python: the version of the Python that wrote it, if recorded.
        torch: the version of the torch that wrote it, if recorded.
        platform: operating system and machine where it was written, if recorded.
        entry: package and resource of the object that :func:`modpack.load` loads, if any.
        modules: every module that it holds or needs, sorted by path.
        resources: every record that is no code and no tensor storage.
        storages: its tensor storages.
        hooks: the hooks of its saved objects.
        notes: hazards and remarks that were recorded when it was written.
        namespace: the one in which :func:`modpack.load` loads it.
        self_test: how it was tried when it was written, if it was.
    """

    file: str
    size_bytes: int
    format: str
    digest: str
    modules: tuple[ModuleFacts, ...]
    resources: tuple[ResourceFacts, ...]
    storages: StorageFacts
    writer: str | None = None
    python: str | None = None
    torch: str | None = None
    platform: str | None = None
    entry: tuple[str, str] | None = None
    hooks: tuple[HookFacts, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    namespace: str = "private"
    self_test: SelfTestRecord | None = None

    @property
    def made_with(self) -> str:
        """The versions and the platform that wrote it; empty if none is recorded."""
        python = f"Python {self.python}" if self.python else None
        torch = f"torch {self.torch}" if self.torch else None
        return ", ".join(filter(None, (python, torch, self.platform)))


def plan_facts(plan: Plan) -> PlanFacts:
    """The facts about a plan that was made in this process.

    Asks the installed distributions for versions, and source files for their sizes.

    Args:
        plan: what an exporter's ``plan()`` or ``close()`` returned.
    """
    index = DistributionIndex()
    modules = (_module(plan, decision, index) for decision in plan.decisions.values())
    ordered = tuple(sorted(modules, key=lambda facts: facts.module))
    files = (
        ResourceFacts(
            each.record, ResourceKind(each.kind.value), _size(each.source) or 0, each.owner
        )
        for each in plan.files
    )
    return PlanFacts(ordered, plan.problems, plan.notes, tuple(files))


def hook_target(spec: HookSpec) -> str:
    """Where a hook hangs, for people."""
    return " + ".join(spec.target) or "the object itself"


def hook_flags(spec: HookSpec) -> str:
    """What a hook was registered with, for people; empty if with nothing."""
    return ", ".join(f"{name}={value}" for name, value in sorted(spec.flags.items()))


def used_name(use: MockUse) -> str:
    """The name that is used of a mocked module, with the module's path."""
    return f"{use.module}.{use.name}" if use.name else use.module


def importers_of(plan: Plan, module: str) -> tuple[ImporterFacts, ...]:
    """Who needs a module, with the place where it shows."""
    return tuple(
        ImporterFacts(each.importer, code_file(plan, each.importer), each.line, each.kind)
        for each in plan.graph.edges_to(module)
    )


def code_file(plan: Plan, module: str) -> str | None:
    """Where the code of a module is: a record in a package, or a file; None if not known."""
    decision = plan.decisions.get(module)
    location = decision.location if decision is not None else None
    return location.file if location is not None else None


def provider_of(module: str, is_installed: bool) -> Owner:
    """Who provides an extern module.

    Args:
        module: its path.
        is_installed: whether a distribution, no editable one, provided it at export.
    """
    if is_stdlib(module):
        return Owner.STDLIB
    if root_of(module) in RUNTIME_ROOTS:
        return Owner.RUNTIME
    return Owner.INSTALLED if is_installed else Owner.LOCAL


def sources_here(plan: Plan) -> dict[str, tuple[bytes, bool]]:
    """The sources that a plan of this process takes along, from the files in which they lie.

    Args:
        plan: what an exporter's ``plan()`` returned.

    Returns:
        By module: its source, and whether it can have submodules. Sources that lie in no file,
        because somebody gave them, are left out.
    """
    found = {}
    for module in plan.modules(Action.INTERN):
        location = plan.decisions[module].location
        if location is not None and location.kind is CodeKind.SOURCE and location.file:
            file = Path(location.file)
            if file.is_file():
                found[module] = (file.read_bytes(), location.is_package)
    return found


def plan_with_uses(plan: Plan, sources: Callable[[], Mapping[str, tuple[bytes, bool]]]) -> Plan:
    """A plan with the uses of mocked modules, found now if it does not tell them.

    Args:
        plan: the plan.
        sources: reads the sources of interned modules, as :func:`sources_here` does.
    """
    mocked = plan.modules(Action.MOCK)
    if plan.has_mock_uses or not mocked:
        return plan
    from modpack.discovery.mock_usage import find_uses

    with phase("looking for uses of mocked modules"):
        uses = find_uses(sources(), mocked, plan.graph)
    return replace(plan, mock_uses=uses, has_mock_uses=True)


def _module(plan: Plan, decision: Decision, index: DistributionIndex) -> ModuleFacts:
    module, action, location = decision.module, decision.action, decision.location
    is_source = location is not None and location.kind is CodeKind.SOURCE
    source = location if action is Action.INTERN and is_source else None
    owner = provider_of(module, is_installed=False) if action is Action.EXTERN else None
    found = index.distribution_of(module, location) if owner is Owner.LOCAL else None
    if found is not None and not found.editable:
        owner = Owner.INSTALLED
    return ModuleFacts(
        module,
        action,
        str(decision.rule),
        decision.overridden_by,
        importers_of(plan, module),
        owner,
        found.name if found is not None else None,
        found.version if found is not None else None,
        module_record(module, source.is_package) if source is not None else None,
        _size(source.file) if source is not None else None,
    )


def _size(file: str | None) -> int | None:
    """Bytes of a source file; None for sources that are no files of their own."""
    path = Path(file or "")
    return path.stat().st_size if path.is_file() else None
