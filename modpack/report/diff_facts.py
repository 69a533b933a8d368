"""Differences between two packages, as values. Nothing here reads files or prints."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from modpack.core.codec import json_keys

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Part(str, Enum):
    """Part of a package that is compared."""

    PACKAGE = "package"
    """A property of the whole package, such as its format, or the version of torch at export."""
    DISTRIBUTION = "distribution"
    MODULE = "module"
    HOOK = "hook"
    TENSOR = "tensor"
    """A parameter, a buffer, or another named tensor."""
    SHARED_STORAGE = "shared-storage"
    """Tensors that share one storage."""
    STORAGE = "storage"
    """A storage without a named tensor, or any storage if a package does not name its tensors."""
    RESOURCE = "resource"
    """A record that is neither source code nor a tensor."""
    SELF_TEST = "self-test"
    """A property or an observation of the self-test."""
    NOTE = "note"
    RECORD = "record"
    """A record that differs, although no other difference explains it."""


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


class Contents(str, Enum):
    """Result of comparing the code of a module or a hook, the elements of a tensor, or bytes."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """Not compared: the shape, the type or the storage order differs, the elements have gaps
    between them, the packages do not record enough, or the limit for comparing tensors is used
    up."""


VALUE = "value"
"""Name of the only field of a difference that is about one value."""
SIZE = "size_bytes"


class FieldChange(NamedTuple):
    """A property of a compared item, whose value differs.

    Attributes:
        name: Name of the property, for example ``version`` or ``dtype``.
        before: Its value in the first package, or None if it has none there.
        after: Its value in the second package, or None if it has none there.
    """

    name: str
    before: str | None
    after: str | None


class TextDifference(NamedTuple):
    """Two texts, compared line by line.

    Attributes:
        unified: Lines of a unified diff, without line ends, with the lines ``---`` and ``+++``.
        added: Number of lines that only the second text has.
        removed: Number of lines that only the first text has.
    """

    unified: tuple[str, ...]
    added: int
    removed: int


class Difference(NamedTuple):
    """An item of a package that differs.

    Attributes:
        part: Part of the package that the item belongs to.
        subject: Name of the item: a module, a distribution, a tensor, a record, and so on.
        change: Kind of change.
        about: Description of the item, for people. May be empty.
        fields: Its properties whose values differ; all that are known of an item that only one
            package has.
        contents: Result of comparing its contents. None if they were not compared, and for an item
            that only one package has.
        text: Difference of its source or text, or None if that was not compared line by line.
        owner: Saved object with the hook or tensor, distribution of the module, or module or
            distribution that the file was included with. None for other items.
        same_as: For an added tensor, a removed one with the same elements and shape, or None.
    """

    part: Part
    subject: str
    change: Change
    about: str = ""
    fields: tuple[FieldChange, ...] = ()
    contents: Contents | None = None
    text: TextDifference | None = None
    owner: str | None = None
    same_as: str | None = None


class ComparedFacts(NamedTuple):
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


@json_keys(derived=("passed", "identical"))
@dataclass(frozen=True)
class PackageDifferences:
    """The differences between two packages.

    Attributes:
        before: The first package.
        after: The second package.
        differences: The differences, by part.
        names_tensors: Whether both packages name their tensors. If not, all storages were compared
            by content only.
    """

    before: ComparedFacts
    after: ComparedFacts
    differences: tuple[Difference, ...] = ()
    names_tensors: bool = True

    @property
    def passed(self) -> bool:
        """Whether no difference is worth reporting."""
        return not self.differences

    @property
    def identical(self) -> bool:
        """Whether the packages have the same digest."""
        return self.before.digest == self.after.digest

    def of(self, *parts: Part) -> tuple[Difference, ...]:
        """Return the differences of some parts."""
        return tuple(each for each in self.differences if each.part in parts)


def changed_fields(
    before: Mapping[str, str | None], after: Mapping[str, str | None]
) -> tuple[FieldChange, ...]:
    """Return the fields whose values differ. Only one side has those of an item that it adds."""
    names = dict.fromkeys([*before, *after])
    pairs = (FieldChange(name, before.get(name), after.get(name)) for name in names)
    return tuple(each for each in pairs if each.before != each.after)


def attributes(item: object | None, names: Iterable[str]) -> dict[str, str | None]:
    """Return attributes of a compared item as text; empty for an item that a package lacks."""
    values = {} if item is None else {name: getattr(item, name) for name in names}
    return {name: _text(value) for name, value in values.items()}


def _text(value: object) -> str | None:
    if isinstance(value, Enum):
        return str(value.value)
    # False counts as absent, so that an item lists the properties that it has.
    if isinstance(value, bool):
        return "yes" if value else None
    return None if value in (None, "", ()) else str(value)


def fields_of(change: Change, values: Mapping[str, object]) -> tuple[FieldChange, ...]:
    """Return the fields of an item that only one package has. Those without a value are omitted."""
    shown = {name: str(value) for name, value in values.items() if value not in (None, "", ())}
    return changed_fields(shown, {}) if change is Change.REMOVED else changed_fields({}, shown)


def in_one_only(before: Mapping[_K, _V], after: Mapping[_K, _V]) -> Iterator[tuple[Change, _V]]:
    """Yield the values whose key only one mapping has: those of the first, then of the second."""
    yield from ((Change.REMOVED, each) for key, each in before.items() if key not in after)
    yield from ((Change.ADDED, each) for key, each in after.items() if key not in before)
