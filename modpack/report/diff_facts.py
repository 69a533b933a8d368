"""Differences between two packages, as values. Nothing here reads files or prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from modpack.core.graph import Edge
from modpack.core.hookspec import HookSpec
from modpack.core.plan import MockUse
from modpack.core.tensors import TensorFacts
from modpack.diagnostics import Diagnostic
from modpack.report.facts import ModuleFacts, PackageFacts, ResourceKind


class Change(str, Enum):
    """Kind of change from the first package to the second."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"

    @classmethod
    def of(cls, before: object | None, after: object | None) -> Change:
        """Return the change of something that is None in the package that lacks it."""
        if before is None:
            return cls.ADDED
        return cls.REMOVED if after is None else cls.CHANGED


class SourceChoice(str, Enum):
    """Modules whose sources are compared line by line."""

    OWN = "own"
    """Modules without a distribution, or with the same version of it in both packages."""
    ALL = "all"
    """All modules that differ, with the whole sources of added and removed ones."""
    NONE = "none"
    """No modules."""


class Values(str, Enum):
    """Result of comparing the elements of two tensors."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """Not compared: the shape, the type or the storage order differs, the elements have gaps
    between them, the packages do not record enough, or the limit for comparing tensors is used
    up."""


@dataclass(frozen=True)
class FieldChange:
    """A property of a module, tensor, hook, or other compared item, whose value differs.

    Attributes:
        name: Name of the property, for example ``version`` or ``dtype``.
        before: Its value in the first package, or None if it has none there.
        after: Its value in the second package, or None if it has none there.
    """

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class TextDifference:
    """Two texts, compared line by line.

    Attributes:
        unified: Lines of a unified diff, without line ends, with the lines ``---`` and ``+++``.
        added: Number of lines that only the second text has.
        removed: Number of lines that only the first text has.
    """

    unified: tuple[str, ...]
    added: int
    removed: int


@dataclass(frozen=True)
class ModuleDifference:
    """A module that differs.

    Attributes:
        module: Path of the module.
        change: Kind of change.
        before: The module in the first package, or None.
        after: The module in the second package, or None.
        fields: Changes of its decision and of its distribution.
        source_changed: Whether both packages contain its code, and the code differs.
        source: Difference of the sources, or None if they were not compared.
    """

    module: str
    change: Change
    before: ModuleFacts | None = None
    after: ModuleFacts | None = None
    fields: tuple[FieldChange, ...] = ()
    source_changed: bool = False
    source: TextDifference | None = None


@dataclass(frozen=True)
class DistributionDifference:
    """A distribution that differs: it provides modules, or a provider requires it.

    Attributes:
        name: Name of the distribution.
        change: Kind of change.
        fields: Changes of its version, its license and its installation.
        modules: Number of modules in the packages that belong to it.
    """

    name: str
    change: Change
    fields: tuple[FieldChange, ...] = ()
    modules: int = 0


@dataclass(frozen=True)
class HookDifference:
    """A hook that differs.

    Attributes:
        resource: Record of the saved object.
        change: Kind of change.
        before: The hook in the first package, or None.
        after: The hook in the second package, or None.
        fields: Changes other than that of the source.
        source: Difference of its source, or None if the sources are equal or were not compared.
    """

    resource: str
    change: Change
    before: HookSpec | None = None
    after: HookSpec | None = None
    fields: tuple[FieldChange, ...] = ()
    source: TextDifference | None = None


@dataclass(frozen=True)
class TensorDifference:
    """A named tensor that differs.

    Attributes:
        resource: Record of the saved object.
        name: Name of the tensor in the object.
        change: Kind of change.
        before: The tensor in the first package, or None.
        after: The tensor in the second package, or None.
        fields: Changes of its shape, type, kind and so on.
        values: Result of comparing the elements of a tensor that both packages have.
        same_as: For an added tensor, a removed one with the same elements and shape, or None.
    """

    resource: str
    name: str
    change: Change
    before: TensorFacts | None = None
    after: TensorFacts | None = None
    fields: tuple[FieldChange, ...] = ()
    values: Values = Values.UNKNOWN
    same_as: str | None = None


@dataclass(frozen=True)
class SharingDifference:
    """Tensors that share one storage in one of the packages only.

    Attributes:
        resource: Record of the saved object.
        change: ``added`` if they share it in the second package, ``removed`` if in the first.
        names: Names of the tensors.
    """

    resource: str
    change: Change
    names: tuple[str, ...]


@dataclass(frozen=True)
class StorageDifference:
    """A storage whose content is in one of the packages only.

    Attributes:
        record: Record of the storage.
        change: ``added`` if it is in the second package, ``removed`` if it is in the first.
        size_bytes: Size of the storage.
    """

    record: str
    change: Change
    size_bytes: int


@dataclass(frozen=True)
class StoragesDifference:
    """Storages without a named tensor, or all storages if a package does not record its tensors.

    Attributes:
        all_compared: Whether all storages were compared.
        same: Number of contents that both packages have.
        different: Storages that only one package has.
    """

    all_compared: bool = False
    same: int = 0
    different: tuple[StorageDifference, ...] = ()


@dataclass(frozen=True)
class ResourceDifference:
    """A record that differs and is neither source code nor a tensor.

    Attributes:
        record: Name of the record.
        change: Kind of change.
        kind: Content of the record.
        before_bytes: Size in the first package, or None.
        after_bytes: Size in the second package, or None.
        owner: Module or distribution that it was included with, or None.
        text: Difference of the texts, or None if they were not compared.
    """

    record: str
    change: Change
    kind: ResourceKind
    before_bytes: int | None = None
    after_bytes: int | None = None
    owner: str | None = None
    text: TextDifference | None = None


@dataclass(frozen=True)
class ImportDifference:
    """An import between modules of both packages that only one package has.

    Attributes:
        change: Kind of change.
        edge: The import.
    """

    change: Change
    edge: Edge


@dataclass(frozen=True)
class NoteDifference:
    """A note that only one package has.

    Attributes:
        change: Kind of change.
        note: The note.
    """

    change: Change
    note: Diagnostic


@dataclass(frozen=True)
class UseDifference:
    """A use of a mocked name that only one package has.

    Attributes:
        change: Kind of change.
        use: The use.
    """

    change: Change
    use: MockUse


@dataclass(frozen=True)
class ExampleDifference:
    """An example of the self-tests that differs.

    Attributes:
        number: Number of the example.
        parts: Parts that differ: ``inputs``, ``conditions`` and ``output``.
    """

    number: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class RecordDifference:
    """A record that differs, although no other difference explains it.

    Attributes:
        record: Name of the record.
        change: Kind of change.
    """

    record: str
    change: Change


@dataclass(frozen=True)
class PackageDifferences:
    """The differences between two packages.

    Attributes:
        before: The first package.
        after: The second package.
        package: Changes of format, Python, torch, platform, main resource and call.
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

    before: PackageFacts
    after: PackageFacts
    package: tuple[FieldChange, ...] = ()
    distributions: tuple[DistributionDifference, ...] = ()
    modules: tuple[ModuleDifference, ...] = ()
    imports: tuple[ImportDifference, ...] = ()
    uses: tuple[UseDifference, ...] = ()
    hooks: tuple[HookDifference, ...] = ()
    tensors: tuple[TensorDifference, ...] = ()
    sharing: tuple[SharingDifference, ...] = ()
    storages: StoragesDifference = field(default_factory=StoragesDifference)
    resources: tuple[ResourceDifference, ...] = ()
    self_test: tuple[FieldChange, ...] = ()
    examples: tuple[ExampleDifference, ...] = ()
    notes: tuple[NoteDifference, ...] = ()
    records: tuple[RecordDifference, ...] = ()

    @property
    def is_same_content(self) -> bool:
        """Whether the packages have the same digest."""
        return self.before.digest == self.after.digest

    @property
    def is_empty(self) -> bool:
        """Whether no difference is worth reporting."""
        parts: tuple[tuple[object, ...], ...] = (
            *(self.package, self.distributions, self.modules, self.imports, self.uses),
            *(self.hooks, self.tensors, self.sharing, self.storages.different, self.resources),
            *(self.self_test, self.examples, self.notes, self.records),
        )
        return not any(parts)
