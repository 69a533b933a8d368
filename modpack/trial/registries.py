"""Tables of this process that name classes of the model: a constructor may have filled them.

A library may note in a table of a module, when an object is constructed, what its class can do.
Loading makes objects without their constructors, so that such a table stays empty: torch.load and
copies have the same gap. The trial compares the tables of both interpreters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from modpack.resolution.distributions import is_everywhere
from modpack.resolution.live import is_a

__all__ = ["Table", "mentioned", "tables_naming"]

Table = tuple[str, str, str]
"""A module path, the name of the table there, and the class that it names."""

_NAMESPACE = re.compile(r"\bmodpack_[0-9a-f]{12,}(_\d+)?\.")
_SHOWN = re.compile(r"<class '([^']+)'>")
_MOST_ENTRIES = 10_000
_LONGEST = 300


def tables_naming(model: object) -> list[Table]:
    """The tables of loaded modules that name classes of a model's modules.

    Args:
        model: the live model.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    kinds = {name for kind in set(map(type, modules)) for name in _names_of(kind)}
    wanted = {name for name in kinds if not is_everywhere(name)}
    return sorted(_tables_naming(wanted)) if wanted else []


def _tables_naming(wanted: set[str]) -> Iterator[Table]:
    for name, module in list(sys.modules.items()):
        loaded: object = module  # not always a module
        if not is_a(loaded, ModuleType) or is_everywhere(name) or name == "__main__":
            continue
        for attribute, value in list(vars(loaded).items()):
            for kind in mentioned(value) & wanted:
                yield local_name(name), attribute, kind


def mentioned(table: object) -> set[str]:
    """The classes that keys of a dict, or members of a list or set, name.

    They name one by being it, or being its path, or what ``str`` makes of it.
    """
    return {name for entry in list(_entries(table)) for name in _names_of(entry)}


def local_name(name: str) -> str:
    """A module path, or a class's, without the namespace of a package."""
    return _NAMESPACE.sub("", name)


def _entries(table: Any) -> Iterable[object]:
    """What a table holds, without asking methods of a class of its own."""
    for kind in (dict, list, set):
        if is_a(table, kind):
            plain: Any = kind
            return plain.__iter__(table) if plain.__len__(table) <= _MOST_ENTRIES else ()
    return ()


def _names_of(entry: object) -> Iterator[str]:
    if is_a(entry, type):
        yield local_name(f"{entry.__module__}.{entry.__qualname__}")
    elif type(entry) is str and "." in entry and len(entry) <= _LONGEST:
        shown = _SHOWN.fullmatch(entry)
        yield local_name(shown[1] if shown else entry)
