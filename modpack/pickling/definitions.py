"""Definitions of a script: how what is made by them goes through a pickle.

The package holds a module with the definitions' source. Values that the script computed, and
that the definitions use, are a part of the pickle: they are set in that module before a class
or function is taken from it, so that what the script shared stays shared. Pickles in packages
name :func:`defined`, :func:`script_module` and :func:`set_in_script`; their module paths and
signatures are part of the archive format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from modpack.pickling.rebuild import named_in_packages

__all__ = [
    "FILLED",
    "SCRIPT_MARK",
    "Filling",
    "ScriptSource",
    "defined",
    "fillings_of",
    "is_of_script",
    "script_module",
    "set_in_script",
]

SCRIPT_MARK = "__modpack_script__"
"""The name by which a module of definitions says which script they are from."""

FILLED = "__modpack_filled__"
"""The name under which such a module keeps what was set in it: attribute paths."""


@dataclass(frozen=True, eq=False)
class Filling:
    """A value to be set in a module of definitions.

    Attributes:
        path: where: a name, or the path of an attribute of a class or function.
        value: the value.
    """

    path: tuple[str, ...]
    value: Any


class ScriptSource(Protocol):
    """A script whose definitions are taken along."""

    @property
    def module(self) -> str:
        """The path of the module in the package that holds them."""

    def holds(self, name: str, obj: object) -> bool:
        """Whether an object is what the script binds to a name at its top level."""

    def require_current(self, name: str, obj: object) -> None:
        """Refuse a class that the script has defined anew since (ObjMismatchError)."""

    def take(self, name: str) -> Sequence[Filling] | None:
        """Take a definition, and all that it needs.

        Args:
            name: the name in the script; may be dotted.

        Returns:
            The values that it needs; None if it cannot be taken, which was noted.
        """

    def take_all(self, names: Sequence[str]) -> Sequence[Filling]:
        """Take what a function of the script uses that is not itself a definition."""


def is_of_script(namespace: dict[str, Any]) -> bool:
    """Whether globals are those of a module of definitions."""
    return SCRIPT_MARK in namespace


def fillings_of(namespace: dict[str, Any]) -> list[Filling]:
    """What was set in a module of definitions, as it is now: to save it again."""
    found = []
    for path in namespace.get(FILLED, ()):
        owner, last = _owner(namespace, path), path[-1]
        value = owner[last] if isinstance(owner, dict) else _kept(owner, last)
        found.append(Filling(path, value))
    return found


@named_in_packages
def defined(module: ModuleType, name: str, *filled: None) -> Any:
    """A class, function or other object of a module of definitions.

    Args:
        module: the module.
        name: the name in it; may be dotted.
        *filled: nothing; but what was set in the module before.
    """
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


@named_in_packages
def script_module(module: ModuleType, *filled: None) -> ModuleType:
    """The module of definitions itself, for functions that use its globals; see :func:`defined`."""
    return module


@named_in_packages
def set_in_script(module: ModuleType, path: tuple[str, ...], value: Any) -> None:
    """Set a value in a module of definitions.

    Args:
        module: the module.
        path: where; see :class:`Filling`.
        value: the value.
    """
    if not is_of_script(vars(module)):
        raise ValueError(f"{module.__name__} is no module of definitions")
    owner = _owner(vars(module), path)
    if isinstance(owner, dict):
        owner[path[0]] = value
    else:
        setattr(owner, path[-1], value)
    vars(module).setdefault(FILLED, {})[path] = None


def _owner(namespace: dict[str, Any], path: tuple[str, ...]) -> Any:
    """What holds the last name of a path: the module's globals, a class, or a function."""
    owner: Any = namespace
    for part in path[:-1]:
        owner = owner[part] if isinstance(owner, dict) else vars(owner)[part]
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    return owner


def _kept(owner: Any, name: str) -> Any:
    return vars(owner)[name] if name in vars(owner) else getattr(owner, name)
