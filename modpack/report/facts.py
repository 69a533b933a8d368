"""Facts about a package or a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from modpack.archive.base import Shard
from modpack.core.call_signature import CallSignature
from modpack.core.codec import Line, json_keys
from modpack.core.environment import RecordedDistribution
from modpack.core.graph import CodeKind
from modpack.core.hookspec import HookSpec
from modpack.core.names import RUNTIME_ROOTS, is_stdlib, module_record, root_of
from modpack.core.plan import Decision, MockUse, Plan, UseKind
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestRecord, WaitingImports
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import DistributionIndex

Provider: TypeAlias = Literal[Owner.STDLIB, Owner.RUNTIME, Owner.INSTALLED, Owner.LOCAL]
"""Provider of an extern module in the loading environment."""


def location_of(importer: str, path: str | None, line: int | None) -> str:
    """Return ``path:line`` of an import. Without a path, the importer's name is in its place."""
    file = path or importer.strip("<>")
    return file if line is None else f"{file}:{line}"


class ImporterFacts(NamedTuple):
    """One piece of evidence that a module is needed.

    Attributes:
        importer: Path of the importing module, or a saved object (``<model/model.pkl>``).
        path: Code of the importer: a record of the package, or a file for a plan. None if unknown.
        line: 1-based line of the import. None without such a line.
        kind: Strength of the dependency.
    """

    importer: str
    path: str | None
    line: Line | None
    kind: ImportKind

    @property
    def location(self) -> str:
        """``path:line``, as far as known."""
        return location_of(self.importer, self.path, self.line)


@json_keys(derived=("location",))
class UseFacts(NamedTuple):
    """A use of a mocked module's name.

    Attributes:
        module: Path of the mocked module.
        name: Dotted name, relative to the module. Empty for the module itself.
        importer: Module or saved object that contains the use.
        path: Record or file of the importer, or None if unknown.
        line: Line of the use.
        kind: How the name is used.
        scope: Qualified name of the surrounding function or class. Empty at module level.
        via: Interned modules through which the importer gets the name, in order.
    """

    module: str
    name: str
    importer: str
    path: str | None
    line: Line
    kind: UseKind
    scope: str = ""
    via: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """Path and line."""
        return location_of(self.importer, self.path, self.line)


@dataclass(frozen=True)
class ModuleFacts:
    """The decision about one module, with the evidence.

    Attributes:
        module: Path of the module.
        action: The decision.
        rule: Rule that matched. None if the package does not record it.
        overridden_by: Hook that changed the action of the rule, or None.
        importers: Modules and saved objects that need it. Empty if not recorded.
        provided_by: Provider of an extern module in the loading environment. None for others.
        distribution: Distribution that the module belonged to at export, or None.
        version: Version of the distribution at export, or None.
        record: Record of its source or of its mock, or None.
        size_bytes: Size of the record, or None.
        license: License of the distribution, as its metadata states, or None.
        editable: Whether the distribution was an editable install.
    """

    module: str
    action: Action
    rule: str | None = None
    overridden_by: str | None = None
    importers: tuple[ImporterFacts, ...] = ()
    provided_by: Provider | None = None
    distribution: str | None = None
    version: str | None = None
    record: str | None = None
    size_bytes: int | None = None
    license: str | None = None
    editable: bool = False

    def of_distribution(self, found: RecordedDistribution) -> ModuleFacts:
        """Return the facts with those of the module's distribution at export."""
        return replace(
            self,
            distribution=found.name,
            version=found.version,
            license=found.license,
            editable=found.editable,
        )

    @property
    def why(self) -> str:
        """The rule, and the hook that overrode it, for people."""
        rule = self.rule or "not recorded"
        return f"{rule}, overridden by hook {self.overridden_by}" if self.overridden_by else rule

    @property
    def requirement(self) -> str | None:
        """The requirement for pip of an extern module (``numpy==2.1.0``), if known."""
        return f"{self.distribution}=={self.version}" if self.distribution else None


class ResourceKind(str, Enum):
    """Content of a record that is neither source code nor a tensor storage."""

    PICKLE = "pickle"
    """A saved object."""
    TORCHSCRIPT = "torchscript"
    """A part of a TorchScript module, as torch serialized it."""
    FILE = "file"
    """Text or bytes that the user saved."""
    DATA = "data"
    """A data file next to the code, for the code to read."""
    METADATA = "metadata"
    """Metadata of a distribution: name, version, license, entry points."""
    NATIVE = "native"
    """A native extension, or a native library that one needs."""

    @property
    def comes_with_code(self) -> bool:
        """Whether modpack included it with the code; the user saved the others."""
        return self in (ResourceKind.DATA, ResourceKind.METADATA, ResourceKind.NATIVE)


@dataclass(frozen=True)
class ResourceFacts:
    """One record that is neither source code nor a tensor storage.

    Attributes:
        record: Name of the record.
        kind: Content of the record.
        size_bytes: Its size, uncompressed.
        owner: Module or distribution that it was included with, or None.
    """

    record: str
    kind: ResourceKind
    size_bytes: int
    owner: str | None = None


@dataclass(frozen=True)
class HookFacts:
    """One hook of a saved object.

    Attributes:
        resource: Record of the object.
        spec: The hook that loading the object restores, with the callable in its pickle.
    """

    resource: str
    spec: HookSpec


class LoaderFacts(NamedTuple):
    """The loader in a package, which loads it where modpack is not installed.

    Attributes:
        version: The modpack version that the package states for it.
        known: Whether its files are those of a release, or of this installation.
    """

    version: str
    known: bool

    def __str__(self) -> str:
        files = "known files" if self.known else "files that this modpack does not know"
        return f"of modpack {self.version}, with {files}"


@dataclass(frozen=True)
class StorageFacts:
    """The tensor storages of a package.

    Attributes:
        count: Number of storages.
        size_bytes: Size of all storages.
    """

    count: int
    size_bytes: int


class MainResource(NamedTuple):
    """The name, ``PACKAGE/RESOURCE``, of the object that :func:`modpack.load` loads.

    Attributes:
        package: First part of the name.
        resource: Second part of the name.
    """

    package: str
    resource: str


@json_keys(omitted=("modules", "notes"))  # documents list them next to the package
@dataclass(frozen=True)
class PackageFacts:
    """The contents of a package.

    Attributes:
        path: The package, as the user named it.
        size_bytes: Size of the file. For an unzipped package, of all its records.
        format: Its format: ``modpack 2``, ``modpack 1`` or ``torch.package``.
        digest: SHA-256 that names its content, in hex.
        modules: All modules that it contains or needs, sorted by path.
        resources: All records that are neither source code nor tensor storages.
        storages: Its tensor storages.
        writer: Program that wrote it, or None if not recorded.
        python: Version of Python at export, or None if not recorded.
        torch: Version of torch at export, or None if not recorded.
        platform: Operating system and machine of the export environment, or None.
        main_resource: Object that :func:`modpack.load` loads, or None if not clear.
        hooks: Hooks of its saved objects.
        notes: Hazards and remarks that were recorded at export.
        namespace: Namespace in which :func:`modpack.load` loads it.
        self_test: The self-test at export, or None.
        call_signatures: Arguments and outputs of the saved objects that have example inputs.
        loader: The loader in the package, or None.
        waiting: The imports that may wait until a name is looked up, or None.
        shards: The files next to the package that contain its tensors.
    """

    path: str
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
    main_resource: MainResource | None = None
    hooks: tuple[HookFacts, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    namespace: str = "private"
    self_test: SelfTestRecord | None = None
    call_signatures: tuple[CallSignature, ...] = ()
    loader: LoaderFacts | None = None
    waiting: WaitingImports | None = None
    shards: tuple[Shard, ...] = ()

    @property
    def made_with(self) -> str:
        """Versions and platform of the export environment. Empty if not recorded."""
        python = f"Python {self.python}" if self.python else None
        torch = f"torch {self.torch}" if self.torch else None
        return ", ".join(filter(None, (python, torch, self.platform)))


@dataclass(frozen=True)
class PlanFacts:
    """A package, or a plan of one.

    Attributes:
        modules: All modules that the package contains or needs, sorted by path.
        problems: Reasons why the package cannot be written. Empty for a package.
        notes: Hazards and remarks.
        files: Files that were included with the code.
        package: The package. Null if none was written.
    """

    modules: tuple[ModuleFacts, ...]
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    files: tuple[ResourceFacts, ...] = ()
    package: PackageFacts | None = None

    @staticmethod
    def of_package(facts: PackageFacts) -> PlanFacts:
        """Return the document of a package."""
        files = tuple(each for each in facts.resources if each.kind.comes_with_code)
        return PlanFacts(facts.modules, (), facts.notes, files, facts)


def plan_facts(plan: Plan) -> PlanFacts:
    """Return the facts about a plan from this process.

    Versions come from the installed distributions, sizes from the source files.

    Args:
        plan: Result of an exporter's ``plan()`` or ``close()``.
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
    """Return the target of a hook, for people."""
    return " + ".join(spec.target) or "the object itself"


def hook_flags(spec: HookSpec) -> str:
    """Return the registration options of a hook, for people. Empty without options."""
    return ", ".join(f"{name}={value}" for name, value in sorted(spec.flags.items()))


def hooks_by_callable(
    hooks: Iterable[HookFacts],
) -> dict[tuple[str, str, str, str | None], tuple[HookSpec, ...]]:
    """Return the hooks by object, kind, and name and source of their callable."""
    alike: dict[tuple[str, str, str, str | None], list[HookSpec]] = {}
    # By source as well: functions of the same name may differ.
    for each in hooks:
        called = each.spec.callable
        key = (each.resource, each.spec.kind, called.name, called.source)
        alike.setdefault(key, []).append(each.spec)
    return {key: tuple(specs) for key, specs in alike.items()}


def used_name(use: MockUse | UseFacts) -> str:
    """Return the full name of a mock use: the path of the module, and the name in it."""
    return f"{use.module}.{use.name}" if use.name else use.module


def importers_of(plan: Plan, module: str) -> tuple[ImporterFacts, ...]:
    """Return the importers of a module, with locations."""
    return tuple(
        ImporterFacts(each.importer, code_file(plan, each.importer), each.line, each.kind)
        for each in plan.graph.edges_to(module)
    )


def code_file(plan: Plan, module: str) -> str | None:
    """Return the record or file with the code of a module, or None if unknown."""
    decision = plan.decisions.get(module)
    location = decision.location if decision is not None else None
    return location.file if location is not None else None


def provider_of(module: str, is_installed: bool) -> Provider:
    """Return the provider of an extern module.

    Args:
        module: Path of the module.
        is_installed: Whether a distribution that is not editable provided it at export.
    """
    if is_stdlib(module):
        return Owner.STDLIB
    # torch and modpack come with every environment that can load the package.
    if root_of(module) in RUNTIME_ROOTS:
        return Owner.RUNTIME
    return Owner.INSTALLED if is_installed else Owner.LOCAL


def _module(plan: Plan, decision: Decision, index: DistributionIndex) -> ModuleFacts:
    module, action, location = decision.module, decision.action, decision.location
    is_source = location is not None and location.kind is CodeKind.SOURCE
    source = location if action is Action.INTERN and is_source else None
    owner = provider_of(module, is_installed=False) if action is Action.EXTERN else None
    # Only metadata can tell code of an installed library from local code.
    found = index.distribution_of(module, location) if owner is Owner.LOCAL else None
    if found is not None and not found.editable:
        owner = Owner.INSTALLED
    return ModuleFacts(
        module,
        action,
        rule=str(decision.rule),
        overridden_by=decision.overridden_by,
        importers=importers_of(plan, module),
        provided_by=owner,
        distribution=found.name if found is not None else None,
        version=found.version if found is not None else None,
        record=module_record(module, source.is_package) if source is not None else None,
        size_bytes=_size(source.file) if source is not None else None,
    )


def _size(file: str | None) -> int | None:
    """Return the size of a source file, or None for a source without a file of its own."""
    path = Path(file or "")
    return path.stat().st_size if path.is_file() else None
