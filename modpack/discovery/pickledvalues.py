"""What is told about a pickle that was read and not loaded: names, uses, flaws."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "FlawKind",
    "NameUse",
    "PickleFlaw",
    "PickleScan",
    "PickledName",
    "PickledSource",
    "PickledStorage",
]


class FlawKind(str, Enum):
    """Why a pickle cannot be relied upon to do only what it names."""

    MALFORMED = "malformed"
    """It is no pickle, or is cut off."""
    UNRESOLVED = "unresolved"
    """It takes a name that is made while it runs."""
    EXTENSION = "extension"
    """It names something by a number of copyreg's registry."""
    TRAILING = "trailing"
    """Something follows where it ends."""
    NESTED = "nested"
    """Bytes in it are a pickle themselves, which names something."""
    BUFFER = "buffer"
    """It takes data that is not in it."""
    CODE = "code"
    """It runs a text as code."""
    CALLS = "calls"
    """It calls what another call has made, so that nobody can tell what that is."""
    CHANGES = "changes"
    """It changes a class, function or module that it only names."""
    REACHES = "reaches"
    """It reaches for the inside of something: ``__globals__`` and the like."""

    @property
    def hides_names(self) -> bool:
        """Whether the pickle may look up more than it seems to."""
        return self in (FlawKind.MALFORMED, FlawKind.UNRESOLVED, FlawKind.EXTENSION)


class NameUse(str, Enum):
    """What a pickle does with something that it names, from little to much."""

    HELD = "held"
    """It becomes a part of the loaded object."""
    BUILT = "built"
    """It is a class of which an instance is made without a call of ``__init__``."""
    CALLED = "called"
    """It is called, with arguments of the pickle's choice."""


@dataclass(frozen=True)
class PickledName:
    """Something that a pickle looks up in a module.

    Attributes:
        module: the module path, as today's Python calls it.
        name: what is taken from it, dotted; empty for the module itself, which packages hold as a
            persistent id.
        position: of the opcode, in bytes from the start.
        use: the most that is done with it.
        used_at: of the opcode that does it.
    """

    module: str
    name: str
    position: int
    use: NameUse = NameUse.HELD
    used_at: int = 0

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True)
class PickleFlaw:
    """Something in a pickle that keeps one from knowing what it does.

    Attributes:
        kind: what it is.
        text: the same in one sentence.
        position: of the opcode, in bytes from the start.
    """

    kind: FlawKind
    text: str
    position: int


@dataclass(frozen=True)
class PickledStorage:
    """A storage that a pickle refers to by a persistent id.

    Attributes:
        key: the storage's key.
        kind: the storage class, by its full name; empty if it is none.
        size: the most elements that are asked of it; None if that is no plain number.
        position: of the opcode, in bytes from the start.
    """

    key: str
    kind: str
    size: int | None
    position: int


@dataclass(frozen=True)
class PickledSource:
    """A function that travels in a pickle by its source.

    Attributes:
        name: its qualified name.
        text: its source.
        line: the line of the source's first line in the file that it comes from.
        position: of the opcode that makes it, in bytes from the start.
    """

    name: str
    text: str
    line: int
    position: int


@dataclass(frozen=True)
class PickleScan:
    """What the opcodes tell.

    Attributes:
        names: everything that is looked up, each at its first place, in order.
        flaws: what keeps this from being all; empty for what picklers write.
        end: where the pickle ends, in bytes from the start.
        storages: the storages that it refers to, each once for each class.
        sources: the functions that travel by their source.
        nested: bytes in it that are pickles themselves, with their places.
    """

    names: tuple[PickledName, ...] = ()
    flaws: tuple[PickleFlaw, ...] = ()
    end: int = 0
    storages: tuple[PickledStorage, ...] = ()
    sources: tuple[PickledSource, ...] = ()
    nested: tuple[tuple[int, bytes], ...] = ()
