"""The parts of a model, each with the path that leads to it: what hooks may refer to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.errors import ModpackError
from modpack.hooks.graphbound import GraphHandle

__all__ = [
    "CLOSURE",
    "Path",
    "Step",
    "children_of",
    "holds_tables",
    "leads_on",
    "part_at",
    "parts_of",
    "roots_beside",
    "shown",
]

CLOSURE: Final = "closure"

Step = tuple[str, Any]
"""``("attribute", name)``, ``("item", key)``, or ``(CLOSURE, index)`` of a function's cell."""

Path = tuple[str, tuple[Step, ...]]
"""The name of a root, and the steps from it on."""


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
        yield from _parts_of_module(obj)
    elif not holds_tables(type(obj)):
        yield from _attributes(obj, _GRAPH_HANDLE if isinstance(obj, GraphHandle) else frozenset())


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


def _parts_of_module(module: torch.nn.Module) -> Iterator[tuple[Step, Any]]:
    for table in (module._parameters, module._buffers, module._modules):
        yield from ((("attribute", name), part) for name, part in list(table.items()))
    if not isinstance(module, torch.jit.ScriptModule):  # those lead to what it was made from
        yield from _attributes(module, _TORCHS_OWN)


def _attributes(obj: Any, but: frozenset[str]) -> Iterator[tuple[Step, Any]]:
    attributes = getattr(obj, "__dict__", {})
    tables = _OPTIMIZERS_OWN if isinstance(obj, torch.optim.Optimizer) else ()
    for name, value in list(attributes.items()):
        if name not in but and name not in tables:
            yield ("attribute", name), value


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
_TORCHS_OWN = frozenset(vars(torch.nn.Module()))
_GRAPH_HANDLE = frozenset({"attachment"})
_OPTIMIZERS_OWN = frozenset(
    f"_optimizer_{event}_{moment}_hooks"
    for event in ("step", "state_dict", "load_state_dict")
    for moment in ("pre", "post")
)
