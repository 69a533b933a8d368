"""Copies of functions that a model holds: with closures of their own, which hooks may share.

:func:`copy.deepcopy` leaves functions as they are. A copied model's function would then write to
the original's closure, while its hooks have one of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

from modpack.hooks.parts import CLOSURE, Path, children_of, leads_on, part_at
from modpack.pickling.functions import closed_over

__all__ = ["replace_functions", "shared_places"]


def shared_places(
    objects: Mapping[int, tuple[Any, Path]], referred: Collection[Path]
) -> list[Path]:
    """Where a model holds functions that refer to something that its hooks refer to.

    Args:
        objects: the parts of the model, those in closures among them, by their ids.
        referred: the paths of what hooks refer to.
    """
    wanted = {id(obj) for obj, path in objects.values() if path in referred}
    plain = {
        key for key, (_, (_, steps)) in objects.items() if not any(k == CLOSURE for k, _ in steps)
    }
    places = [
        (root, (*steps, step))
        for owner, (root, steps) in objects.values()
        if not isinstance(owner, CellType)
        for step, child in children_of(owner)
        if isinstance(child, (FunctionType, *_FIXED)) and _refers(child, wanted, plain)
    ]
    return sorted(places, key=lambda path: len(path[1]))


def _refers(value: Any, wanted: Collection[int], plain: Collection[int]) -> bool:
    """Whether a closure in a value leads to something, other than through parts of the model."""
    todo, seen = [(value, False)], set()
    while todo:
        obj, is_closed_over = todo.pop()
        if is_closed_over and id(obj) in wanted:
            return True
        if id(obj) not in seen and id(obj) not in plain:
            seen.add(id(obj))
            closes = is_closed_over or isinstance(obj, FunctionType)
            children = [child for _, child in children_of(obj) if leads_on(child)]
            todo.extend((child, closes) for child in children)
    return False


def replace_functions(
    places: list[Path], roots: Mapping[str, Any], copied: Mapping[str, Any], memo: dict[int, Any]
) -> None:
    """Give a copied model functions with closures of their own.

    Args:
        places: where the functions are, or what binds them.
        roots: the original, by the names of its roots.
        copied: the copy.
        memo: what was copied, by the ids of the originals; see :func:`copy.deepcopy`.
    """
    for root, steps in places:
        owner = part_at(copied, (root, steps[:-1]))
        if owner is part_at(roots, (root, steps[:-1])):  # its class shares it among copies
            continue
        twin = _twin(part_at(roots, (root, steps)), memo)
        kind, key = steps[-1]
        if kind == "item":
            owner[key] = twin
        else:
            vars(owner)[key] = twin


_FIXED = (tuple, partial)
"""What is made anew, as a whole, for the functions in it."""


def _twin(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of a function, or of what binds one, that refers to copies."""
    if isinstance(value, FunctionType):
        return memo[id(value)] if id(value) in memo else _function(value, memo)
    if isinstance(value, partial):
        args = [_twin(each, memo) for each in value.args]
        keywords = {name: _twin(each, memo) for name, each in value.keywords.items()}
        return type(value)(_twin(value.func, memo), *args, **keywords)
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [_twin(each, memo) for each in value])
    return value if isinstance(value, ModuleType) else copy.deepcopy(value, memo)


def _function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """A copy of a function with cells of its own, which other copies may share."""
    if not function.__closure__:
        return function
    cells = tuple(memo.setdefault(id(cell), CellType()) for cell in function.__closure__)
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    memo[id(function)] = twin
    twin.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    twin.__defaults__ = copy.deepcopy(function.__defaults__, memo)
    twin.__dict__.update(copy.deepcopy(function.__dict__, memo))
    for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(twin, name, getattr(function, name))
    contents = dict(closed_over(function))
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        if name in contents and not list(_contents(cell)):
            cell.cell_contents = _twin(contents[name], memo)
    return twin


def _contents(obj: object) -> Iterator[object]:
    """What a cell contains, if it is one and not empty."""
    if isinstance(obj, CellType):
        try:
            yield obj.cell_contents
        except ValueError:
            return
