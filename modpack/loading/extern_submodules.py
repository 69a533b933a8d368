"""Submodules of modules outside a package, imported when they are read as attributes.

Python makes ``torch.distributed.tensor`` an attribute of ``torch.distributed`` once some module has
imported it. If that import waits, other code that reads the attribute still has to find it. The
parent gets a ``__getattr__`` that imports the submodule, and loses it when all are imported.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from modpack.environment.importers import module_dict


def promise(path: str) -> SubmoduleHook | None:
    """Import an extern submodule when it is read as an attribute of a module that is loaded.

    Returns:
        The hook that does so. None if it has to be imported now, because no parent is loaded, or
        the parent has a hook of its own.
    """
    parent = path.rpartition(".")[0]
    while parent and parent not in sys.modules:
        parent = parent.rpartition(".")[0]
    module = sys.modules.get(parent)
    # A class of its own may look attributes up itself, and not call the hook.
    if type(module) is not ModuleType:
        return None
    # The module's own hook would be lost if it were replaced.
    hook = module_dict(module).get("__getattr__")
    if hook is None:
        hook = module.__getattr__ = SubmoduleHook(module)  # type: ignore[method-assign]
    if not isinstance(hook, SubmoduleHook):
        return None
    first = path[len(parent) + 1 :].partition(".")[0]
    hook.paths.setdefault(first, []).append(path)
    return hook


class SubmoduleHook:
    """The ``__getattr__`` of a module whose submodules are imported when they are read.

    Attributes:
        paths: The submodules to import for each attribute. Those of a submodule are attributes of
            it, too, if some module imports them.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.paths: dict[str, list[str]] = {}

    def __call__(self, name: str) -> Any:
        own = self._module.__name__
        # Python does not find a submodule that is being imported, either.
        if name in self.paths and f"{own}.{name}" not in sys.modules:
            try:
                for path in self.paths[name]:
                    importlib.import_module(path)
            except AttributeError as failure:  # not the answer that the name does not exist
                text = f"cannot import {own}.{name}: AttributeError: {failure}"
                raise ImportError(text, name=own) from failure
        names = vars(self._module)
        if name in names:
            self.paths.pop(name, None)
            if not self.paths and names.get("__getattr__") is self:
                del self._module.__getattr__
            return names[name]
        text = f"module {own!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=self._module)

    def keep(self) -> None:
        """Import everything that is promised."""
        for name in list(self.paths):
            getattr(self._module, name, None)
