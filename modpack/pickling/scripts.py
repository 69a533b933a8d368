"""Script definitions in a package, and the values that pickles set in them.

A script's definitions are packaged as a module. Values that the script computed and that the
definitions use are part of the pickle. They are set in that module before a class or function is
taken from it, so objects that the script shared remain shared.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from modpack.pickling.rebuild import named_in_packages

SCRIPT_MARK = "__modpack_script__"
"""Attribute that marks a module of script definitions; its value names the script."""


FILLED = "__modpack_filled__"
"""Attribute of such a module with the attribute paths that were set in it."""


def has_script_definitions(namespace: dict[str, Any]) -> bool:
    """Return whether globals belong to a module of script definitions."""
    return SCRIPT_MARK in namespace


@named_in_packages
def defined(module: ModuleType, name: str, *filled: None) -> Any:
    """Return a class, function, or other object from a module of script definitions.

    Args:
        module: The module.
        name: The name in the module, possibly dotted.
        *filled: Results of earlier :func:`set_in_script` calls, which pickle evaluates first.
    """
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


@named_in_packages
def script_module(module: ModuleType, *filled: None) -> ModuleType:
    """Return the module itself, for functions that use its globals; see :func:`defined`."""
    return module


@named_in_packages
def set_in_script(module: ModuleType, path: tuple[str, ...], value: Any) -> None:
    """Set a value in a module of script definitions, or on a class that a script has changed.

    Args:
        module: The module.
        path: A name or attribute path; see :class:`modpack.saving.base.Filling`.
        value: The value.
    """
    # A pickle may name any module here, even one of the loading environment.
    if not (has_script_definitions(vars(module)) or "__modpack__" in vars(module)):
        raise ValueError(f"{module.__name__} is not a module of a package")
    owner = owner_of(vars(module), path)
    if isinstance(owner, dict):
        owner[path[0]] = value
    else:
        setattr(owner, path[-1], value)
    vars(module).setdefault(FILLED, {})[path] = None


def owner_of(namespace: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return the owner of a path's last name: the module's globals, a class, or a function."""
    owner: Any = namespace
    for part in path[:-1]:
        # Not getattr, which would run descriptors, and find what a base class owns.
        owner = owner[part] if isinstance(owner, dict) else vars(owner)[part]
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    return owner
