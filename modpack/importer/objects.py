"""What an importer loads from a package: objects, models, and their hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modpack.archive.specs import read_specs
from modpack.core.names import resource_record
from modpack.core.progress import phase
from modpack.errors import ModpackError
from modpack.importer.opening import OpenPackage
from modpack.unpacking.entry import find_entry
from modpack.unpacking.trusting import ObjectTrust

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec
    from modpack.hooks.selection import HookChoice
    from modpack.unpacking.objects import Loaded

__all__ = ["ImporterObjects"]


class ImporterObjects(OpenPackage):
    """The part of an importer that unpickles."""

    def load_pickle(self, package: str, resource: str, map_location: Any = None) -> Any:
        """Load an object that was saved with ``save_pickle``.

        Tensors are mapped from the file where possible: they cost no copy and no memory until
        they are used, and writing to them does not change the file. Each call gives objects
        of its own. Safe to call from several threads.

        Args:
            package: the package that the resource belongs to.
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
        return read_specs(self._archive, resource_record(package, resource))

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
        package: str,
        resource: str,
        map_location: Any,
        hooks: HookChoice,
        restore_global: bool,
    ) -> Loaded:
        from modpack.unpacking.objects import load_object

        record = resource_record(package, resource)
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
        return loaded

    def _trust(self) -> ObjectTrust | None:
        """What its objects may name and have."""
        if self._policy is None:
            return None
        return ObjectTrust(self._archive, self._policy, self._index, self._namespace.local_name)
