"""What differs between two packages, as values; nothing here reads files or prints."""

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
    """What became of something from the first package to the second."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"

    @classmethod
    def of(cls, before: object | None, after: object | None) -> Change:
        """What became of something that is None in the package that lacks it."""
        if before is None:
            return cls.ADDED
        return cls.REMOVED if after is None else cls.CHANGED


class SourceChoice(str, Enum):
    """Of which modules the sources are compared line by line."""

    OWN = "own"
    """Of those whose distribution, if they have one, is in the same version on both sides."""
    ALL = "all"
    """Of all that differ, and the whole sources of added and removed ones."""
    NONE = "none"
    """Of none."""


class Values(str, Enum):
    """How the elements of two tensors compare."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """They cannot be compared: the shape, the type or the order in which they are stored differs,
    there are gaps between them, what the packages hold does not tell, or comparing all tensors has
    taken too much by then."""


@dataclass(frozen=True)
class FieldChange:
    """Something that has one value in each package.

    Attributes:
        what: what it is called.
        before: its value in the first package; None if it has none there.
        after: its value in the second.
    """

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class TextDifference:
    """Two texts, line by line.

    Attributes:
        unified: a unified diff, without line ends, with the lines ``---`` and ``+++``.
        added: how many lines are in the second only.
        removed: how many are in the first only.
    """

    unified: tuple[str, ...]
    added: int
    removed: int


@dataclass(frozen=True)
class ModuleDifference:
    """A module that is not the same in both packages.

    Attributes:
        module: its path.
        change: what became of it.
        before: the facts in the first package, if it is there.
        after: the facts in the second.
        fields: what changed of its decision, and of the distribution that it belongs to.
        has_other_code: whether both hold its code, and it is not the same.
        source: the difference of the sources, if they were compared.
    """

    module: str
    change: Change
    before: ModuleFacts | None = None
    after: ModuleFacts | None = None
    fields: tuple[FieldChange, ...] = ()
    has_other_code: bool = False
    source: TextDifference | None = None


@dataclass(frozen=True)
class DistributionDifference:
    """A distribution that one package holds or needs modules of, or that such a one requires.

    Attributes:
        name: its name.
        change: what became of it.
        fields: its version, license, and how it was installed, as far as they differ.
        modules: how many modules of the packages belong to it.
    """

    name: str
    change: Change
    fields: tuple[FieldChange, ...] = ()
    modules: int = 0


@dataclass(frozen=True)
class HookDifference:
    """A hook that is not the same in both packages.

    Attributes:
        resource: the record of the saved object.
        change: what became of it.
        before: the hook in the first package, if it is there.
        after: the hook in the second.
        fields: what of it changed, the source aside.
        source: the difference of its source, if it has one that differs.
    """

    resource: str
    change: Change
    before: HookSpec | None = None
    after: HookSpec | None = None
    fields: tuple[FieldChange, ...] = ()
    source: TextDifference | None = None


@dataclass(frozen=True)
class TensorDifference:
    """A named tensor that is not the same in both packages.

    Attributes:
        resource: the record of the saved object.
        name: its name there.
        change: what became of it.
        before: the tensor in the first package, if it is there.
        after: the tensor in the second.
        fields: what changed of its shape, type, kind and so on.
        values: how the elements compare, for a tensor that both have.
        same_as: for an added one: a removed one that has the same elements in the same shape.
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
        resource: the record of the saved object.
        change: ADDED if they share it in the second package, REMOVED if in the first.
        names: the tensors.
    """

    resource: str
    change: Change
    names: tuple[str, ...]


@dataclass(frozen=True)
class StorageDifference:
    """A storage whose content is in one of the packages only.

    Attributes:
        record: the record that holds it.
        change: ADDED if it is in the second package, REMOVED if it is in the first.
        size_bytes: its size.
    """

    record: str
    change: Change
    size_bytes: int


@dataclass(frozen=True)
class StoragesDifference:
    """Storages that no named tensor is in; all of them where tensors are not recorded.

    Attributes:
        are_all: whether a package does not record its tensors, so that all are compared.
        same: how many contents are in both packages.
        different: those that are in one only.
    """

    are_all: bool = False
    same: int = 0
    different: tuple[StorageDifference, ...] = ()


@dataclass(frozen=True)
class ResourceDifference:
    """A record that is neither code nor a tensor.

    Attributes:
        record: its name.
        change: what became of it.
        kind: what it holds.
        before_bytes: its size in the first package, if it is there.
        after_bytes: its size in the second.
        owner: the module or distribution that it came with, if it came with one.
        text: the difference line by line, if both are text and were compared.
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
    """An import between modules that both packages have, which only one of them does."""

    change: Change
    edge: Edge


@dataclass(frozen=True)
class NoteDifference:
    """A note that only one of the packages has."""

    change: Change
    note: Diagnostic


@dataclass(frozen=True)
class UseDifference:
    """A use of a mocked module's name that is in one of the packages only."""

    change: Change
    use: MockUse


@dataclass(frozen=True)
class ExampleDifference:
    """What is not the same in an example of the self-tests.

    Attributes:
        number: of the example.
        parts: ``inputs``, ``conditions``, ``output``, as far as they differ.
    """

    number: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class RecordDifference:
    """A record that differs, without that anything above tells how."""

    record: str
    change: Change


@dataclass(frozen=True)
class PackageDifferences:
    """All that differs between two packages.

    Attributes:
        before: the first package.
        after: the second.
        package: what they say about themselves: format, Python, torch, platform, entry.
        distributions: what the modules belong to.
        modules: the modules.
        imports: who imports whom.
        uses: what is done with names of mocked modules.
        hooks: the hooks of saved objects.
        tensors: parameters, buffers, and other named tensors.
        sharing: which of them share storages.
        storages: the other storages.
        resources: pickles, texts, files.
        self_test: what the self-tests came to.
        examples: what they ran.
        notes: hazards and remarks.
        records: what else differs.
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
        """Whether the packages are the same, record for record."""
        return self.before.digest == self.after.digest

    @property
    def are_none(self) -> bool:
        """Whether nothing differs that is worth telling."""
        parts: tuple[tuple[object, ...], ...] = (
            *(self.package, self.distributions, self.modules, self.imports, self.uses),
            *(self.hooks, self.tensors, self.sharing, self.storages.different, self.resources),
            *(self.self_test, self.examples, self.notes, self.records),
        )
        return not any(parts)
