"""Names for hook targets: the paths that lead to them from the saved object."""

from __future__ import annotations

from typing import Any

import torch

from modpack.pickling.paths import path_to

__all__ = ["Names"]


class Names:
    """The paths to every module, parameter and buffer of a saved object.

    Args:
        root: the saved object.
        extras: other roots by name, such as the optimizer.
    """

    def __init__(self, root: Any, extras: dict[str, Any]) -> None:
        self._root = root
        self._extras = extras
        self._paths: dict[int, list[str]] = {}
        for name, extra in extras.items():
            self._paths.setdefault(id(extra), []).append(name)
        if isinstance(root, torch.nn.Module):
            self._name_parts(root)

    def of(self, target: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The canonical path of a target, or of each member of a group, and the other paths."""
        if target is None:
            return (), ()
        if isinstance(target, list):
            return tuple(self._path(member) for member in target), ()
        paths = self._paths.get(id(target)) or [self._path(target)]
        return (paths[0],), tuple(paths[1:])

    @staticmethod
    def hook_name(target: tuple[str, ...], kind: str, position: int) -> str:
        """A hook's name: ``layer1.conv/forward/0``; without a target, ``global.forward/0``."""
        parts = [part for part in ("+".join(target), kind, str(position)) if part]
        return "/".join(parts)

    def _path(self, target: Any) -> str:
        known = self._paths.get(id(target))
        if known:
            return known[0]
        for name, root in ((("", self._root)), *self._extras.items()):
            found = path_to(root, target, name)
            if found is not None:
                path = found.lstrip(".")
                self._paths[id(target)] = [path]
                return path
        return "(not reachable by attributes)"

    def _name_parts(self, root: torch.nn.Module) -> None:
        for named in (root.named_modules, root.named_parameters, root.named_buffers):
            for path, part in named(remove_duplicate=False):
                self._paths.setdefault(id(part), []).append(path)
