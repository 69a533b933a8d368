"""Saved objects: pickles and storages go into the archive, references into the graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from modpack.archive import layout
from modpack.core.graph import Edge
from modpack.core.names import is_everywhere
from modpack.core.plan import Plan
from modpack.core.process import gc_paused
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.tensors import TensorFacts
from modpack.diagnostics import Diagnostic
from modpack.discovery.import_scanner import scan_source
from modpack.environment.importers import Importer, importer_of, local_path, sys_importer
from modpack.errors import ObjMismatchError, ObjNotFoundError, listed
from modpack.exporting.origins import ObjectOrigins
from modpack.exporting.planner import Planner
from modpack.exporting.scripts import ScriptExporter, stored_values
from modpack.exporting.secret_guard import SecretScan
from modpack.options import DEFAULT_PROTOCOL
from modpack.pickling.functions import SCRIPTS
from modpack.pickling.scripts import has_script_definitions
from modpack.trust.pickle_names import PickledName, read_nested_names
from modpack.writing.writer import ArchiveWriter

if TYPE_CHECKING:
    import torch

    from modpack.capturing.report import HookStatus
    from modpack.exporting.hook_saver import HookOptions
    from modpack.exporting.tensor_index import StorageUsage
    from modpack.saving.base import Filling, GlobalReference, ScriptSource
    from modpack.saving.pickler import Pickled
    from modpack.saving.tensors import StorageSaver

_MAX_NAMES = 4


class SavedObject(NamedTuple):
    """A live object as it was saved.

    Attributes:
        root: The object; for a wrapper, the module inside.
        extras: Objects that were saved with it, by name.
        hooks: The status of each hook.
    """

    root: object
    extras: Mapping[str, object]
    hooks: tuple[HookStatus, ...]


class ObjectSaver:
    """Pickles the objects of one exporter and records the origins of their classes.

    torch is imported when the first object is saved, not before.

    Args:
        exporter: Passed to ``__reduce_package__``.
        writer: Writes pickles and storages.
        origins: The exporter's importers.
        planner: Receives the definitions of scripts.
        secret_scan: Searches saved objects for secrets.
    """

    def __init__(
        self,
        exporter: object,
        writer: ArchiveWriter,
        origins: ObjectOrigins,
        planner: Planner,
        secret_scan: SecretScan,
    ) -> None:
        self.exporter = exporter
        self.resources: list[tuple[str, str]] = []
        self.hook_statuses: list[HookStatus] = []
        self.tensors: dict[str, tuple[TensorFacts, ...]] = {}
        self.scripts = ScriptExporter(planner, self._store_value)
        self.needs_modpack = False
        self._origins = origins
        self._writer = writer
        self._planner = planner
        self.last: SavedObject | None = None
        self._secret_scan = secret_scan
        self._models: list[tuple[str, str]] = []
        self._nested: dict[str, Mapping[PickledName, None]] = {}
        self._values: dict[str, bytes] = {}
        self._storages: StorageSaver | None = None
        self._usage: StorageUsage | None = None
        self._reduce_count = 0
        self._attachment_count = 0

    @gc_paused()
    def save(
        self,
        record: str,
        obj: object,
        protocol: int,
        hooks: HookOptions | None = None,
        follow: bool = True,
    ) -> list[Edge]:
        """Write an object's pickle, storages, and hooks, and return its references.

        Args:
            record: The record of the pickle.
            obj: The object.
            protocol: The pickle protocol.
            hooks: How to treat hooks. By default, all hooks of the object are captured.
            follow: Whether to follow the imports of script definitions.

        Raises:
            ObjMismatchError: If the package would need two versions of one library.
        """
        from modpack.exporting.hook_saver import HookExporter
        from modpack.exporting.tensor_index import StorageUsage, named_tensors
        from modpack.saving.pickler import pickle_object
        from modpack.saving.tensors import StorageSaver

        name = "obj" if hooks is None else "model"
        if self._storages is None or self._usage is None:
            self._storages = StorageSaver(self._writer)
            self._usage = StorageUsage(self._storages)
        # Between two objects, the process may train the model further or run a cell again.
        self._storages.next_object()
        self.scripts.refresh()
        hooked = HookExporter(self.is_importable, obj, hooks)
        observer = hooked.observer
        pickled = pickle_object(
            obj, context=self, resource=record, protocol=protocol, root=name, observer=observer
        )
        self._writer.write(record, pickled.data)
        self._scan_for_secrets(record, pickled, (obj, hooked.extras), name)
        statuses = tuple(hooked.write(self._writer, record, pickled.appended))
        self.hook_statuses.extend(statuses)
        self.last = SavedObject(observer.root, hooked.extras, statuses)
        if not layout.is_internal(record):
            self.needs_modpack |= pickled.needs_modpack or observer.needs_modpack
            # An object without torch objects has no tensors to list.
            self.tensors[record] = (
                named_tensors(observer.root, hooked.extras, self._storages.key_of)
                if observer.has_met_torch
                else ()
            )
        roots = {"example" if layout.is_internal(record) else name: obj, **hooked.extras}
        self._usage.add_object(record, observer.reductions, roots)
        # Only now is it known which definitions the object needs: pickling collects them.
        self.scripts.provide(follow)
        nested = {**read_nested_names(pickled.data), **read_nested_names(pickled.appended)}
        if nested:
            self._nested[record] = nested
        self._origins.pin(self._planner.walker)
        return list(_edges(record, pickled, nested))

    def _scan_for_secrets(
        self, record: str, pickled: Pickled, parts: tuple[object, object], name: str
    ) -> None:
        """Search a pickle for secrets, reported with attribute paths of the live object."""
        from modpack.saving.object_paths import find_string_paths

        def places(texts: Sequence[bytes]) -> dict[bytes, str]:
            obj, extras = parts
            return {
                **find_string_paths(extras, texts, "extras"),
                **find_string_paths(obj, texts, name),
            }

        self._secret_scan.scan_pickle(record, pickled.data + pickled.appended, places)

    def write_values(self) -> None:
        """Write the values that script definitions need at import."""
        for record, data in self._values.items():
            self._writer.write(record, data)

    def notes(self, plan: Plan) -> Iterator[Diagnostic]:
        """Yield notes about the saved objects."""
        if self._usage is not None:
            yield from self._usage.notes()
        for record, names in self._nested.items():
            packaged = _interned_names(plan, names)
            script_names = [str(each) for each in names if each.module in SCRIPTS]
            if packaged:
                text = (
                    f"{record} contains pickled bytes, such as those of a __getstate__, that name "
                    f"{listed(packaged, _MAX_NAMES)}; pickle.loads looks these up in the "
                    "process's own modules, so the package records namespace='process'"
                )
                hint = "modpack.load uses it. Pass namespace='process' to PackageImporter."
                yield Diagnostic.from_code("nested-pickle", record, text, hint=hint)
            if script_names:
                text = (
                    f"{record} contains pickled bytes that name {listed(script_names, _MAX_NAMES)} "
                    "of the running script, which the loading environment does not have"
                )
                hint = "Move these definitions into a module, and import it."
                yield Diagnostic.from_code("nested-pickle", record, text, hint=hint)

    def needs_process_namespace(self, plan: Plan) -> bool:
        """Return whether nested pickles name modules of the package by their real names."""
        return any(_interned_names(plan, names) for names in self._nested.values())

    @property
    def generation(self) -> int:
        """The number of objects saved so far."""
        return self._storages.generation if self._storages is not None else 0

    def restore_tensors(self, since: int) -> None:
        """Restore the saved values of tensors that have changed.

        Args:
            since: The number of objects saved before those to restore.
        """
        if self._storages is not None:
            self._storages.restore_contents(since, self._writer.stored_chunks)

    def add_to_index(self, package: str, resource: str, main: bool = False) -> None:
        """Record a saved object in the package's list of resources.

        Args:
            package: The package of the resource.
            resource: The name of the resource.
            main: Whether it is a model.
        """
        self.resources.append((package, resource))
        if main:
            self._models.append((package, resource))

    @property
    def main(self) -> tuple[str, str] | None:
        """The main resource: the only saved model, or None if there are several or none."""
        return self._models[0] if len(self._models) == 1 else None

    # The methods of modpack.saving.base.PickleContext follow.

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """Return the reference to a class or function in the first importer that has it."""
        from modpack.saving.base import GlobalReference

        importer, module, attribute = self._origins.find(obj, name)
        self._remember_origin(importer, module, obj)
        live = getattr(obj, "__module__", None)
        return GlobalReference(module, attribute, live if isinstance(live, str) else module)

    def module_name(self, module: ModuleType) -> str:
        """Return the path by which packaged code imports a live module.

        Raises:
            ObjMismatchError: If the library's other modules come from another importer.
        """
        owner = importer_of(module) or sys_importer
        name = module.__name__
        local = local_path(name)
        self._origins.add_owner(name)
        self._remember_origin(owner, local, module)
        return local

    def is_importable(self, function: FunctionType) -> bool:
        """Return whether a function can be imported by name, so that its source is not needed."""
        try:
            self._origins.find(function, function.__qualname__)
        except (ObjNotFoundError, ObjMismatchError):
            return False
        # In the loading environment, ``__main__`` is another script.
        return function.__module__ not in SCRIPTS

    def script(self, module: str) -> ScriptSource | None:
        """Return the script whose definitions are included, or None for another module."""
        return self.scripts.find(module)

    def script_additions(self, kind: type) -> Sequence[Filling]:
        """Return what scripts have set on a class of an interned module."""
        return self.scripts.additions(kind)

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Write a storage's bytes once and return its key."""
        if self._storages is None:  # pragma: no cover - save() has made it
            raise RuntimeError("no object is being saved")
        return self._storages.add(storage)

    def add_attachment(self, data: bytes) -> str:
        """Write bytes that torch serialized itself and return the name of their record."""
        record = f"{layout.TORCHSCRIPT}{self._attachment_count}.pt"
        self._attachment_count += 1
        self._secret_scan.scan_torchscript(record, data)
        self._writer.write(record, data)
        return record

    def next_reduce_id(self) -> int:
        """Return a number for the next object with ``__reduce_package__``."""
        self._reduce_count += 1
        return self._reduce_count

    def _store_value(self, record: str, value: object, unless: str = "") -> bool:
        """Pickle a value into its own record, unless it refers to the module ``unless``."""
        from modpack.saving.pickler import pickle_object

        pickled = pickle_object(value, context=self, resource=record, protocol=DEFAULT_PROTOCOL)
        # The module would have to be imported before it can load the value.
        if any(reference.module == unless for reference in pickled.references):
            return False
        self._values[record] = pickled.data
        self._scan_for_secrets(record, pickled, (value, {}), "value")
        self._planner.add_resource(f"<{record}>", _edges(record, pickled), follow=True)
        return True

    def _copy_values(self, importer: Importer, module: str) -> None:
        """Copy the values that a definitions module from another package loads at import."""
        live = sys.modules.get(module)
        if live is None or not has_script_definitions(vars(live)):
            return
        for package, resource in stored_values(live):
            record = f"{package}/{resource}"
            if record not in self._values:
                self._values[record] = b""  # first, because the value may refer to its module
                load = getattr(importer, "load_pickle")  # noqa: B009  # only PackageImporter has it
                self._store_value(record, load(package, resource))

    def _remember_origin(self, importer: Importer, module: str, obj: object) -> None:
        # Modules that every environment has are the same for all importers.
        if module == "__main__" or not is_everywhere(module):
            self._copy_values(importer, str(getattr(obj, "__module__", None) or module))
            self._origins.remember(importer, module, obj)


def _interned_names(plan: Plan, names: Iterable[PickledName]) -> list[str]:
    interned = set(plan.modules(Action.INTERN))
    return [str(each) for each in names if each.module in interned]


def _edges(record: str, pickled: Pickled, nested: Iterable[PickledName] = ()) -> Iterator[Edge]:
    """Yield edges for names in a pickle, nested names, and imports of functions without module."""
    node = f"<{record}>"
    own = [(reference.module, reference.name) for reference in pickled.references]
    inner = [(each.module, each.name) for each in nested if each.module not in SCRIPTS]
    for referred in (own, inner):
        names: dict[str, list[str]] = {}
        for module, name in referred:
            names.setdefault(module, []).extend([name] if name else ())
        for module, used in names.items():
            yield Edge(node, module, ImportKind.PICKLE, None, tuple(used))
    for source in pickled.loose_sources:  # of functions without a module of their own
        for statement in scan_source(source, "__main__", False).imports:
            if statement.kind.is_dependency:
                yield Edge(node, statement.module, statement.kind, None, statement.names)
