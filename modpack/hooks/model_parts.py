"""The parts of a model that hooks may refer to, with their paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.errors import ModpackError
from modpack.hooks.graph_parts import GraphHandle
from modpack.hooks.kinds import kinds_of

Step = tuple[str, Any]
"""``("attribute", name)`` or ``("item", key)``."""

Path = tuple[str, tuple[Step, ...]]
"""The name of a root, and the steps from it."""


def require_model(model: object, optimizer: object) -> None:
    """Check the types of a model and its optimizer.

    Raises:
        TypeError: If one of them has another type.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    require_optimizer(optimizer)


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


def iter_parts(roots: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    """Yield every part of a model that has an identity: modules, tensors, containers, objects.

    Hooks in tables are not parts. Neither are immutable values: references to them would
    be pointless.

    Args:
        roots: The model and the optimizer, by name.
    """
    queue: deque[tuple[Any, Path]] = deque((root, (name, ())) for name, root in roots.items())
    seen: set[int] = set()
    while queue:
        obj, (root, steps) = queue.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if not isinstance(obj, (tuple, frozenset)):
            yield obj, (root, steps)
        children = iter_children(obj)
        queue.extend((child, (root, (*steps, step))) for step, child in children if _is_part(child))


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
    forms = {"attribute": ".{}", "item": "[{!r}]"}
    return "".join((name, *(forms[kind].format(key) for kind, key in steps)))


def iter_children(obj: Any) -> Iterator[tuple[Step, Any]]:
    """Yield the objects that an object contains, each with its step."""
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


def _is_part(obj: Any) -> bool:
    if isinstance(obj, (tuple, list, dict, set, deque, torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(obj, (*_CODE, Enum)):
        return False
    return isinstance(getattr(obj, "__dict__", None), dict)


_CODE = (type, ModuleType, BuiltinFunctionType, FunctionType, MethodType, partial)
_CLOSED = {
    torch.nn.Module: frozenset(vars(torch.nn.Module())),
    torch.optim.Optimizer: frozenset(kind.tables[0] for kind in kinds_of("optimizer")),
    GraphHandle: frozenset({"attachment"}),
}
"""Attributes that no path leads through, by type."""
