"""The parts of a model, each with the path that leads to it: what hooks may refer to."""

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
from modpack.hooks.graphbound import GraphHandle

__all__ = ["Path", "Step", "part_at", "parts_of", "roots_beside", "shown"]

Step = tuple[str, Any]
"""``("attribute", name)`` or ``("item", key)``."""

Path = tuple[str, tuple[Step, ...]]
"""The name of a root, and the steps from it on."""


def roots_beside(optimizer: Any) -> dict[str, Any]:
    """The roots of paths other than the model, by name."""
    return {} if optimizer is None else {"optimizer": optimizer}


def parts_of(roots: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    """Every part of a model that has an identity: modules, tensors, containers, objects.

    What hangs in hook tables is no part. Immutable values have no identity worth a reference.

    Args:
        roots: the model, the optimizer, by name.
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
        queue.extend(
            (child, (root, (*steps, step)))
            for step, child in _children(obj)
            if _has_identity(child)
        )


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
    parts = [f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in steps]
    return "".join((name, *parts))


def _children(obj: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(obj, dict):
        plain = (str, int, float, bool, bytes)
        items = ((key, value) for key, value in list(obj.items()) if type(key) in plain)
        yield from ((("item", key), value) for key, value in items)
    elif isinstance(obj, (list, tuple, deque)):
        yield from ((("item", index), value) for index, value in enumerate(obj))
    if isinstance(obj, torch.nn.Module):
        yield from _parts_of_module(obj)
    elif not isinstance(obj, RemovableHandle):
        yield from _attributes(obj, _GRAPH_HANDLE if isinstance(obj, GraphHandle) else frozenset())


def _parts_of_module(module: torch.nn.Module) -> Iterator[tuple[Step, Any]]:
    for table in (module._parameters, module._buffers, module._modules):
        yield from ((("attribute", name), part) for name, part in list(table.items()))
    yield from _attributes(module, _TORCHS_OWN)


def _attributes(obj: Any, but: frozenset[str]) -> Iterator[tuple[Step, Any]]:
    attributes = getattr(obj, "__dict__", {})
    tables = _OPTIMIZERS_OWN if isinstance(obj, torch.optim.Optimizer) else ()
    for name, value in list(attributes.items()):
        if name not in but and name not in tables:
            yield ("attribute", name), value


def _has_identity(obj: Any) -> bool:
    if isinstance(obj, (tuple, list, dict, set, deque, torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(obj, (*_CODE, Enum)):
        return False
    return isinstance(getattr(obj, "__dict__", None), dict)


_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial)
_TORCHS_OWN = frozenset(vars(torch.nn.Module()))
_GRAPH_HANDLE = frozenset({"attachment"})
_OPTIMIZERS_OWN = frozenset(
    f"_optimizer_{event}_{moment}_hooks"
    for event in ("step", "state_dict", "load_state_dict")
    for moment in ("pre", "post")
)
