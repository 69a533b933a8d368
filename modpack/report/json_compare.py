"""JSON documents of comparisons: packages with each other, or with this environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modpack.report.json_output import pick

if TYPE_CHECKING:
    from modpack.core.environment import EnvironmentRow
    from modpack.core.observations import UndeclaredImport
    from modpack.core.rules import Action
    from modpack.core.tensors import TensorFacts, TensorKind
    from modpack.report.diff_facts import (
        Change,
        DistributionDifference,
        ExampleDifference,
        FieldChange,
        HookDifference,
        ImportDifference,
        ModuleDifference,
        NoteDifference,
        PackageDifferences,
        RecordDifference,
        ResourceDifference,
        SharingDifference,
        StoragesDifference,
        TensorDifference,
        TextDifference,
        UseDifference,
        Values,
    )
    from modpack.report.requirements import Needed, Requirements


class PackageIdentity(NamedTuple):
    """A package that was compared.

    Attributes:
        path: The package, as the user named it.
        size_bytes: Size of the file. For an unzipped package, of all its records.
        format: Its format: ``modpack 2``, ``modpack 1`` or ``torch.package``.
        digest: SHA-256 that names its content, in hex.
    """

    path: str
    size_bytes: int
    format: str
    digest: str


class ModuleState(NamedTuple):
    """A module in one of two packages.

    Attributes:
        action: The decision.
        rule: Rule that matched, or null if not recorded.
        overridden_by: Hook that changed the action of the rule, or null.
        distribution: Distribution that the module belonged to at export, or null.
        version: Version of the distribution, or null.
        license: License of the distribution, or null.
        record: Record of its source or of its mock, or null.
        size_bytes: Size of the record, or null.
    """

    action: Action
    rule: str | None
    overridden_by: str | None
    distribution: str | None
    version: str | None
    license: str | None
    record: str | None
    size_bytes: int | None


class ModuleChange(NamedTuple):
    """A module that differs.

    Attributes:
        module: Path of the module.
        change: Kind of change.
        before: The module in the first package, or null.
        after: The module in the second package, or null.
        fields: Changes of its decision and of its distribution.
        source_changed: Whether both packages contain its code, and the code differs.
        source: Difference of the sources, or null if they were not compared.
    """

    module: str
    change: Change
    before: ModuleState | None
    after: ModuleState | None
    fields: tuple[FieldChange, ...]
    source_changed: bool
    source: TextDifference | None


class TensorState(NamedTuple):
    """A tensor in one of two packages.

    Attributes:
        kind: Role of the tensor in the object.
        dtype: Element type, as torch names it.
        shape: Sizes of the dimensions, or null if it has none yet.
        requires_grad: Whether gradients are computed for it.
        persistent: For a buffer, whether the state dict contains it.
        device: Device on which it was saved.
        size_bytes: Size of its elements, or null if unknown.
    """

    kind: TensorKind
    dtype: str
    shape: tuple[int, ...] | None
    requires_grad: bool
    persistent: bool
    device: str
    size_bytes: int | None


class TensorChange(NamedTuple):
    """A named tensor that differs.

    Attributes:
        resource: Record of the saved object.
        name: Name of the tensor in the object.
        change: Kind of change.
        before: The tensor in the first package, or null.
        after: The tensor in the second package, or null.
        fields: Changes of its shape, type, kind and so on.
        values: Result of comparing the elements.
        same_as: For an added tensor, a removed one with the same elements and shape, or null.
    """

    resource: str
    name: str
    change: Change
    before: TensorState | None
    after: TensorState | None
    fields: tuple[FieldChange, ...]
    values: Values
    same_as: str | None


class DiffDocument(NamedTuple):
    """The differences between two packages.

    Attributes:
        before: The first package.
        after: The second package.
        passed: Whether no differences were found.
        identical: Whether the packages have the same digest.
        package: Changes of format, Python, torch, platform and main resource.
        distributions: Distributions that differ.
        modules: Modules that differ.
        imports: Imports that only one package has.
        uses: Uses of mocked names that only one package has.
        hooks: Hooks of saved objects that differ.
        tensors: Parameters, buffers and other named tensors that differ.
        sharing: Tensors that share a storage in one package only.
        storages: Storages without a named tensor.
        resources: Pickles, texts and files that differ.
        self_test: Changes of the self-test.
        examples: Examples of the self-test that differ.
        notes: Notes that only one package has.
        records: Other records that differ.
    """

    before: PackageIdentity
    after: PackageIdentity
    passed: bool
    identical: bool
    package: tuple[FieldChange, ...]
    distributions: tuple[DistributionDifference, ...]
    modules: tuple[ModuleChange, ...]
    imports: tuple[ImportDifference, ...]
    uses: tuple[UseDifference, ...]
    hooks: tuple[HookDifference, ...]
    tensors: tuple[TensorChange, ...]
    sharing: tuple[SharingDifference, ...]
    storages: StoragesDifference
    resources: tuple[ResourceDifference, ...]
    self_test: tuple[FieldChange, ...]
    examples: tuple[ExampleDifference, ...]
    notes: tuple[NoteDifference, ...]
    records: tuple[RecordDifference, ...]


def diff_document(found: PackageDifferences) -> DiffDocument:
    """Return the document of a comparison."""
    return pick(
        DiffDocument,
        found,
        before=pick(PackageIdentity, found.before),
        after=pick(PackageIdentity, found.after),
        passed=found.is_empty,
        identical=found.is_same_content,
        modules=tuple(map(_module_change, found.modules)),
        tensors=tuple(map(_tensor_change, found.tensors)),
    )


def _module_change(module: ModuleDifference) -> ModuleChange:
    before = module.before and pick(ModuleState, module.before)
    after = module.after and pick(ModuleState, module.after)
    return pick(ModuleChange, module, before=before, after=after)


def _tensor_change(tensor: TensorDifference) -> TensorChange:
    before, after = map(_tensor_state, (tensor.before, tensor.after))
    return pick(TensorChange, tensor, before=before, after=after)


def _tensor_state(tensor: TensorFacts | None) -> TensorState | None:
    if tensor is None:
        return None
    return pick(TensorState, tensor, persistent=tensor.is_persistent)


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
