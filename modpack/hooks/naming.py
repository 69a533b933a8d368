"""Names for hook targets: the paths that lead to them from the saved object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from modpack.pickling.paths import objects_in, path_to

__all__ = ["Names"]

_MOST_PATHS = 16
"""So many paths to one module are followed: shared modules in shared modules multiply."""


class Names:
    """The paths to every module, parameter and buffer of a saved object.

    Args:
        root: the saved object.
        extras: other roots by name, such as the optimizer.
    """

    def __init__(self, root: Any, extras: dict[str, Any]) -> None:
        self._roots = [("", root), *extras.items()]
        self._paths: dict[int, list[str]] = {id(extra): [name] for name, extra in extras.items()}
        self._unreachable = 0
        for name, each in self._roots:
            for module in _modules_in(each):
                if id(module) not in self._paths:  # it is inside of none before it
                    path = path_to(each, module, name) or ""
                    self._name_parts(path.lstrip("."), module)

    def of(self, target: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The canonical path of a target, or of each member of a group, and the other paths."""
        if target is None:
            return (), ()
        if isinstance(target, list):
            return tuple(self._paths_to(member)[0] for member in target), ()
        canonical, *aliases = self._paths_to(target)
        return (canonical,), tuple(aliases)

    @staticmethod
    def hook_name(target: tuple[str, ...], kind: str, position: int) -> str:
        """A hook's name: ``layer1.conv/forward/0``; without a target, ``global.forward/0``."""
        parts = [part for part in ("+".join(target), kind, str(position)) if part]
        return "/".join(parts)

    def _paths_to(self, target: Any) -> list[str]:
        if id(target) not in self._paths:
            self._paths[id(target)] = [self._searched(target)]
        return self._paths[id(target)]

    def _searched(self, target: Any) -> str:
        for name, root in self._roots:
            found = path_to(root, target, name)
            if found is not None:
                return found.lstrip(".")
        self._unreachable += 1
        return f"({type(target).__name__} {self._unreachable}, not reachable by attributes)"

    def _name_parts(self, path: str, module: torch.nn.Module) -> None:
        """Name a module's parts as ``named_modules`` and ``named_parameters`` do."""
        todo = [(path, module)]
        while todo:
            path, module = todo.pop()
            known = self._paths.setdefault(id(module), [])
            if len(known) == _MOST_PATHS:
                continue
            known.append(path)
            for name, tensor in _tensors_of(module):
                self._paths.setdefault(id(tensor), []).append(_below(path, name))
            children = [(n, child) for n, child in module._modules.items() if child is not None]
            todo.extend((_below(path, name), child) for name, child in reversed(children))


def _modules_in(root: Any) -> Iterator[torch.nn.Module]:
    """The modules in an object, each before those inside it."""
    if isinstance(root, torch.nn.Module):
        yield root
    elif not isinstance(root, torch.optim.Optimizer):
        yield from (part for part in objects_in(root) if isinstance(part, torch.nn.Module))


def _tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for table in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in table.items() if tensor is not None)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
