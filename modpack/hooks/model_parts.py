"""The parts of a model that hooks may refer to, with their paths; copies of its functions."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.errors import ModpackError
from modpack.hooks.graph_parts import GraphHandle
from modpack.hooks.kinds import kinds_of
from modpack.pickling.functions import closed_over

CLOSURE: Final = "closure"

Step = tuple[str, Any]
"""``("attribute", name)``, ``("item", key)``, or ``(CLOSURE, index)`` of a closure cell."""

Path = tuple[str, tuple[Step, ...]]
"""The name of a root, and the steps from it."""


def require_optimizer(optimizer: object) -> None:
    """Check that an argument is an optimizer or None.

    Raises:
        TypeError: If it is neither.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )


def extra_roots(optimizer: Any) -> dict[str, Any]:
    """Return the roots of paths other than the model, by name."""
    return {} if optimizer is None else {"optimizer": optimizer}


def iter_parts(
    roots: Mapping[str, Any], enters: Callable[[FunctionType], bool] | None = None
) -> Iterator[tuple[Any, Path]]:
    """Yield every part of a model that has an identity: modules, tensors, containers, objects.

    Hooks in tables are not parts. Neither are immutable values: references to them would
    be pointless.

    Args:
        roots: The model and the optimizer, by name.
        enters: Returns for a function whether the parts include its closure: the cells, their
            contents, and the objects that methods and partials bind. None for no function.
    """

    def is_part(obj: Any) -> bool:
        if isinstance(obj, FunctionType):
            return enters is not None and enters(obj)
        return is_traversable(obj) if enters is not None else _has_identity(obj)

    queue: deque[tuple[Any, Path]] = deque((root, (name, ())) for name, root in roots.items())
    seen: set[int] = set()
    while queue:
        obj, (root, steps) = queue.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if not isinstance(obj, (tuple, frozenset, *_BINDING)):
            yield obj, (root, steps)
        children = iter_children(obj)
        queue.extend((child, (root, (*steps, step))) for step, child in children if is_part(child))


def resolve_path(roots: Mapping[str, Any], path: Path) -> Any:
    """Return the object at a path.

    Raises:
        ModpackError: If the path leads to no object.
    """
    name, steps = path
    found = roots.get(name)
    if found is None:
        raise ModpackError(
            f"the captured hooks refer to an {name}, but none was passed",
            hint=f"Pass the {name} argument.",
        )
    for index, (kind, key) in enumerate(steps):
        try:
            found = found.__closure__ if kind == CLOSURE else found
            found = getattr(found, key) if kind == "attribute" else found[key]
        except (AttributeError, LookupError, TypeError) as failure:
            missing = format_path((name, steps[: index + 1]))
            raise ModpackError(
                f"the captured hooks refer to {format_path(path)}, but this model has no {missing}",
                hint="Restore them on a model that is built and prepared like the captured one.",
            ) from failure
    return found


def format_path(path: Path) -> str:
    """Return a path as code."""
    name, steps = path
    forms = {"attribute": ".{}", "item": "[{!r}]", CLOSURE: ".__closure__[{}]"}
    return "".join((name, *(forms[kind].format(key) for kind, key in steps)))


def iter_children(obj: Any) -> Iterator[tuple[Step, Any]]:
    """Yield the objects that an object contains or binds, each with its step."""
    if isinstance(obj, (CellType, *_BINDING)):
        yield from _bound_by(obj)
        return
    if isinstance(obj, dict):
        plain = (str, int, float, bool, bytes)
        items = ((key, value) for key, value in list(obj.items()) if type(key) in plain)
        yield from ((("item", key), value) for key, value in items)
    elif isinstance(obj, (list, tuple, deque)):
        yield from ((("item", index), value) for index, value in enumerate(obj))
    if isinstance(obj, torch.nn.Module):
        for table in (obj._parameters, obj._buffers, obj._modules):
            yield from ((("attribute", name), part) for name, part in list(table.items()))
    if isinstance(obj, torch.jit.ScriptModule) or holds_tables(type(obj)):
        return  # the attributes of a ScriptModule lead to its source module
    closed = [names for kind, names in _CLOSED.items() if isinstance(obj, kind)]
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        if not any(name in names for names in closed):
            yield ("attribute", name), value


def holds_tables(kind: type) -> bool:
    """Return whether handles of a type refer to hook tables; handles of groups contain others."""
    own = RemovableHandle.__getstate__
    return issubclass(kind, RemovableHandle) and kind.__getstate__ is own


def _bound_by(obj: Any) -> Iterator[tuple[Step, Any]]:
    """Yield the objects that a function, method, partial, or cell refers to."""
    if isinstance(obj, FunctionType):
        yield from (((CLOSURE, index), cell) for index, cell in enumerate(obj.__closure__ or ()))
    elif isinstance(obj, CellType):
        with suppress(ValueError):  # an empty cell
            yield ("attribute", "cell_contents"), obj.cell_contents
    else:
        names = ("__self__",) if isinstance(obj, MethodType) else ("func", "args", "keywords")
        yield from ((("attribute", name), getattr(obj, name)) for name in names)


def is_traversable(obj: Any) -> bool:
    """Return whether an object may contain or bind objects with an identity."""
    return isinstance(obj, (CellType, *_BINDING)) or _has_identity(obj)


def _has_identity(obj: Any) -> bool:
    if isinstance(obj, (tuple, list, dict, set, deque, torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(obj, (*_CODE, Enum)):
        return False
    return isinstance(getattr(obj, "__dict__", None), dict)


_BINDING = (FunctionType, MethodType, partial)
_CODE = (type, ModuleType, BuiltinFunctionType, *_BINDING)
_CLOSED = {
    torch.nn.Module: frozenset(vars(torch.nn.Module())),
    torch.optim.Optimizer: frozenset(kind.tables[0] for kind in kinds_of("optimizer")),
    GraphHandle: frozenset({"attachment"}),
}
"""Attributes that no path leads through, by type."""


def find_shared_functions(
    objects: Mapping[int, tuple[Any, Path]], referred: Collection[Path]
) -> list[Path]:
    """Return the paths of a model's functions that share objects with its hooks.

    Args:
        objects: The parts of the model, including those in closures, by their ids.
        referred: The paths of the objects that hooks refer to.
    """
    wanted = {id(obj) for obj, path in objects.values() if path in referred}
    plain = {
        key for key, (_, (_, steps)) in objects.items() if not any(k == CLOSURE for k, _ in steps)
    }
    paths = [
        (root, (*steps, step))
        for owner, (root, steps) in objects.values()
        if not isinstance(owner, CellType)
        for step, child in iter_children(owner)
        if isinstance(child, (FunctionType, *_FIXED)) and _refers(child, wanted, plain)
    ]
    return sorted(paths, key=lambda path: len(path[1]))


def _refers(value: Any, wanted: Collection[int], plain: Collection[int]) -> bool:
    """Return whether a closure in a value leads to a wanted object without crossing the model."""
    todo, seen = [(value, False)], set()
    while todo:
        obj, is_closed_over = todo.pop()
        if is_closed_over and id(obj) in wanted:
            return True
        if id(obj) not in seen and id(obj) not in plain:
            seen.add(id(obj))
            closes = is_closed_over or isinstance(obj, FunctionType)
            children = [child for _, child in iter_children(obj) if is_traversable(child)]
            todo.extend((child, closes) for child in children)
    return False


def replace_functions(
    paths: list[Path], roots: Mapping[str, Any], copied: Mapping[str, Any], memo: dict[int, Any]
) -> None:
    """Give a copied model its own functions with its own closures.

    :func:`copy.deepcopy` does not copy functions. A copied model's function would write to the
    original's closure, while the model's hooks have their own.

    Args:
        paths: The paths of the functions, or of the objects that bind them.
        roots: The original's roots, by name.
        copied: The copy's roots, by name.
        memo: Copies by the ids of the originals; see :func:`copy.deepcopy`.
    """
    for root, steps in paths:
        owner = resolve_path(copied, (root, steps[:-1]))
        if owner is resolve_path(roots, (root, steps[:-1])):  # its class shares it between copies
            continue
        twin = _copy_value(resolve_path(roots, (root, steps)), memo)
        kind, key = steps[-1]
        if kind == "item":
            owner[key] = twin
        else:
            vars(owner)[key] = twin


_FIXED = (tuple, partial)
"""Immutable types that are re-created as a whole to replace the functions in them."""


def _copy_value(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a function, or of an object that binds one, that refers to copies."""
    if isinstance(value, FunctionType):
        return memo[id(value)] if id(value) in memo else _copy_function(value, memo)
    if isinstance(value, partial):
        args = [_copy_value(each, memo) for each in value.args]
        keywords = {name: _copy_value(each, memo) for name, each in value.keywords.items()}
        return type(value)(_copy_value(value.func, memo), *args, **keywords)
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [_copy_value(each, memo) for each in value])
    return value if isinstance(value, ModuleType) else copy.deepcopy(value, memo)


def _copy_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Return a copy of a function with new cells, which other copies may share."""
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
        if name in contents and not list(_bound_by(cell)):  # not filled by another copy
            cell.cell_contents = _copy_value(contents[name], memo)
    return twin
