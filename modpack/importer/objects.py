"""What an importer loads from a package: objects, models, and their hooks."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

from modpack.archive.specs import read_specs
from modpack.core.progress import phase
from modpack.errors import ModpackError
from modpack.importer.opening import OpenPackage
from modpack.unpacking.entry import find_entry
from modpack.unpacking.trusting import ObjectTrust

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec
    from modpack.hooks.selection import HookChoice
    from modpack.unpacking.objects import Loaded

__all__ = ["ImporterObjects", "loader_of", "loader_of_part"]

_LOADERS: dict[int, tuple[weakref.ref[Any], ImporterObjects]] = {}
"""Which importer has loaded a model, by its id: the class of a model may be torch's own."""


def loader_of(obj: object) -> ImporterObjects | None:
    """The open importer that has loaded this very model or optimizer; None for anything else."""
    known, importer = _LOADERS.get(id(obj), (None, None))
    return importer if known is not None and known() is obj else None


def loader_of_part(module: object) -> ImporterObjects | None:
    """The open importer that has loaded a model which a module is a part of."""
    import torch  # it is loaded, for there is a module

    for known, importer in list(_LOADERS.values()):
        model = known()
        if isinstance(model, torch.nn.Module) and any(each is module for each in model.modules()):
            return importer
    return None


class ImporterObjects(OpenPackage):
    """The part of an importer that unpickles."""

    def load_pickle(
        self, package: str | ModuleType, resource: str, map_location: Any = None
    ) -> Any:
        """Load an object that was saved with ``save_pickle``.

        Tensors are mapped from the file where possible: they cost no copy and no memory until
        they are used, and writing to them does not change the file. Each call gives objects
        of its own. Safe to call from several threads.

        Args:
            package: the package that the resource belongs to: its path, or the loaded module.
            resource: its name.
            map_location: where tensors go; see :func:`torch.load`.

        Raises:
            TypeError, ValueError: an argument is none of these.
            RecordNotFoundError: there is no such resource.
            ExternNotFoundError: the object needs a module that is not installed here.
            UnpicklingError: the pickle is damaged, or names something that is not there.
        """
        return self._load(package, resource, map_location, True, False).obj

    def load_model(
        self,
        package: str,
        resource: str,
        map_location: Any = None,
        *,
        hooks: HookChoice = True,
        optimizer: bool = False,
        restore_global: bool = False,
    ) -> Any:
        """Load a model with its hooks registered again.

        Args:
            package: the package that the resource belongs to.
            resource: its name.
            map_location: where tensors go; see :func:`torch.load`.
            hooks: which hooks to register: True, False, names, or a predicate over specs.
            optimizer: whether to return the optimizer that was saved with it as well.
            restore_global: whether to register process-wide hooks that were captured.

        Returns:
            The model; with ``optimizer=True`` the model and its optimizer, or None.

        Raises:
            RecordNotFoundError: there is no such resource.
            UnpicklingError: a pickle is damaged, or names something that is not there.
            ValueError: no hook has a name that ``hooks`` gives.
        """
        loaded = self._load(package, resource, map_location, hooks, restore_global)
        return (loaded.obj, loaded.extras.get("optimizer")) if optimizer else loaded.obj

    def hook_specs(self, package: str, resource: str) -> tuple[HookSpec, ...]:
        """The hooks of a saved object, as they were captured; nothing is executed.

        Raises:
            ModpackError: the specs are damaged or of an unknown version.
        """
        return read_specs(self._archive, self._record(package, resource))

    def hook_state(self, name: str) -> dict[str, Any]:
        """What a registered hook carries along, by name: its collected lists, its parameters.

        Args:
            name: the hook's name, as :meth:`hook_specs` gives it.

        Returns:
            The live objects: closure variables, attributes of callable objects (a bound method's
            object is ``"self"``), arguments bound by partial.

        Raises:
            ModpackError: no load registered a hook of that name.
        """
        from modpack.hooks.state import state_of_hook

        if name not in self.hooks:
            known = ", ".join(map(repr, self.hooks)) or "none"
            raise ModpackError(f"no load registered a hook {name!r}; there are: {known}")
        return state_of_hook(self.hooks[name])

    def main_resource(self) -> tuple[str, str]:
        """The saved object that :func:`modpack.load` loads: the main one, or the only one.

        Raises:
            ModpackError: there is none, or there are several; they are listed.
        """
        return find_entry(self._archive)

    def _load(
        self,
        package: str | ModuleType,
        resource: str,
        map_location: Any,
        hooks: HookChoice,
        restore_global: bool,
    ) -> Loaded:
        from modpack.unpacking.objects import load_object

        record = self._record(package, resource)
        with phase(f"loading {record}", is_major=True):
            loaded = load_object(
                self,
                self._archive,
                record,
                map_location,
                hooks,
                restore_global,
                self._trust(),
            )
        self.hook_handles.update(loaded.handles)
        self.hooks.update(loaded.hooks)
        for made in (loaded.obj, *loaded.extras.values()):
            self._remember(made)
        return loaded

    def _remember(self, made: Any) -> None:
        from torch.nn import Module  # imported by now, as the next one
        from torch.optim import Optimizer

        if isinstance(made, (Module, Optimizer)):
            key = id(made)
            known = weakref.ref(made, lambda _: _LOADERS.pop(key, None))
            _LOADERS[key] = known, self

    def _forget_loaded(self) -> None:
        for key, (_, importer) in list(_LOADERS.items()):
            if importer is self:
                _LOADERS.pop(key, None)

    def _trust(self) -> ObjectTrust | None:
        """What its objects may name and have."""
        if self._policy is None:
            return None
        return ObjectTrust(self._archive, self._policy)
