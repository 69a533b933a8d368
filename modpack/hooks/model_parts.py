"""The parts of a model that hooks may refer to, with their paths, and copies of its functions."""

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
"""``("attribute", name)``, ``("item", key)``, or ``(CLOSURE, index)`` of a function's cell."""

Path = tuple[str, tuple[Step, ...]]
"""The name of a root, and the steps from it on."""


def require_optimizer(optimizer: object) -> None:
    """Check an argument that must be an optimizer, or None.

    Raises:
        TypeError: it is neither.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )


def roots_beside(optimizer: Any) -> dict[str, Any]:
    """The roots of paths other than the model, by name."""
    return {} if optimizer is None else {"optimizer": optimizer}


def parts_of(
    roots: Mapping[str, Any], enters: Callable[[FunctionType], bool] | None = None
) -> Iterator[tuple[Any, Path]]:
    """Every part of a model that has an identity: modules, tensors, containers, objects.

    What hangs in hook tables is no part. Immutable values have no identity worth a reference.

    Args:
        roots: the model, the optimizer, by name.
        enters: tells of which functions the closures are parts as well: their cells, and what
            these contain; and whatever methods and partials bind. None for nothing of that.
    """

    def is_part(obj: Any) -> bool:
        if isinstance(obj, FunctionType):
            return enters is not None and enters(obj)
        return leads_on(obj) if enters is not None else _has_identity(obj)

    queue: deque[tuple[Any, Path]] = deque((root, (name, ())) for name, root in roots.items())
    seen: set[int] = set()
    while queue:
        obj, (root, steps) = queue.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if not isinstance(obj, (tuple, frozenset, *_BINDING)):
            yield obj, (root, steps)
        children = children_of(obj)
        queue.extend((child, (root, (*steps, step))) for step, child in children if is_part(child))


def part_at(roots: Mapping[str, Any], path: Path) -> Any:
    """Follow a path.

    Raises:
        ModpackError: there is nothing there.
    """
    name, steps = path
    found = roots.get(name)
    if found is None:
        raise ModpackError(f"the captured hooks refer to an {name}. Remedy: pass {name}=")
    for index, (kind, key) in enumerate(steps):
        try:
            found = found.__closure__ if kind == CLOSURE else found
            found = getattr(found, key) if kind == "attribute" else found[key]
        except (AttributeError, LookupError, TypeError) as failure:
            missing = shown((name, steps[: index + 1]))
            raise ModpackError(
                f"the captured hooks refer to {shown(path)}, but here is no {missing}. Remedy: "
                "restore them onto a model that is built and prepared like the captured one"
            ) from failure
    return found


def shown(path: Path) -> str:
    """A path as code."""
    name, steps = path
    forms = {"attribute": ".{}", "item": "[{!r}]", CLOSURE: ".__closure__[{}]"}
    return "".join((name, *(forms[kind].format(key) for kind, key in steps)))


def children_of(obj: Any) -> Iterator[tuple[Step, Any]]:
    """What an object holds or binds, each with the step that leads to it."""
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
        return  # attributes of a ScriptModule lead to what it was made from
    closed = [names for kind, names in _CLOSED.items() if isinstance(obj, kind)]
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        if not any(name in names for names in closed):
            yield ("attribute", name), value


def holds_tables(kind: type) -> bool:
    """Whether handles of a type refer to tables of hooks; one for a group holds other handles."""
    own = RemovableHandle.__getstate__
    return issubclass(kind, RemovableHandle) and kind.__getstate__ is own


def _bound_by(obj: Any) -> Iterator[tuple[Step, Any]]:
    """What a function, a method, a partial or a cell refers to."""
    if isinstance(obj, FunctionType):
        yield from (((CLOSURE, index), cell) for index, cell in enumerate(obj.__closure__ or ()))
    elif isinstance(obj, CellType):
        with suppress(ValueError):  # nothing was bound to it yet
            yield ("attribute", "cell_contents"), obj.cell_contents
    else:
        names = ("__self__",) if isinstance(obj, MethodType) else ("func", "args", "keywords")
        yield from ((("attribute", name), getattr(obj, name)) for name in names)


def leads_on(obj: Any) -> bool:
    """Whether something may hold or bind what has an identity."""
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
"""The attributes through which no path leads, by type."""


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

    :func:`copy.deepcopy` leaves functions as they are. A copied model's function would then write
    to the original's closure, while its hooks have one of their own.

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
        if name in contents and not list(_bound_by(cell)):  # another copy may have filled it
            cell.cell_contents = _twin(contents[name], memo)
    return twin
