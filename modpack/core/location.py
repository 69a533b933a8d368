"""Where a module's code is, and the environment that knows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["CodeKind", "Environment", "Location"]


class CodeKind(str, Enum):
    """In which form a module's code exists."""

    SOURCE = "source"
    EXTENSION = "extension"
    BYTECODE = "bytecode"
    BUILTIN = "builtin"
    NAMESPACE = "namespace"
    """A folder without ``__init__`` (PEP 420): a package, but no code."""
    UNKNOWN = "unknown"
    """A finder knows it, but neither a file nor a source can be had."""


@dataclass(frozen=True)
class Location:
    """A module that was found, without importing it.

    Attributes:
        module: its path.
        kind: in which form its code exists.
        file: the file or record that holds it, for people.
        is_package: whether it can have submodules.
        search: the folders in which its submodules are looked for.
    """

    module: str
    kind: CodeKind
    file: str | None = None
    is_package: bool = False
    search: tuple[str, ...] = ()


class Environment(Protocol):
    """A place that modules come from: this interpreter, or another package.

    Finding and reading never executes anything.
    """

    def locate(self, module: str) -> Location | None:
        """Find a module, or return None."""

    def read_source(self, location: Location) -> bytes:
        """The source of a module whose kind is SOURCE, as it is stored."""

    def live_attribute(self, module: str, name: str) -> str | None:
        """What a loaded module binds a name to.

        Returns:
            ``"submodule"``, ``"attribute"``, or None if the module is not loaded here or
            does not bind the name.
        """

    def live_home(self, module: str, name: str) -> str | None:
        """Where the class or function lives that a loaded module binds to a name.

        Returns:
            Its module path; None if the module is not loaded here, does not bind the name, or
            binds it to something that does not say where it is from.
        """

    def loaded(self) -> Collection[str]:
        """The modules that are known to be needed: those that are loaded, or all of a package."""

    def lacks(self, module: str) -> bool:
        """Whether code from here cannot import a module, wherever it runs."""

    @property
    def is_package(self) -> bool:
        """Whether it is a package, which lacks what was left out when it was made."""
