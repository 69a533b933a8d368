"""Saved objects: pickles and storages go into the archive, references into the graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from modpack.archive.layout import is_internal
from modpack.archive.writer import ArchiveWriter
from modpack.core.graph import Edge
from modpack.core.names import is_everywhere
from modpack.core.plan import Note, NoteKind, Plan
from modpack.core.process import gc_paused
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.tensors import TensorFacts
from modpack.core.text import listed
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.importers import Importer, importer_of, local_path, sys_importer
from modpack.errors import ObjMismatchError, ObjNotFoundError
from modpack.exporting.origins import ObjectOrigins
from modpack.exporting.planner import Planner
from modpack.exporting.scripts import ScriptExporter, stored_values
from modpack.exporting.secret_guard import SecretScan
from modpack.pickling.base import is_of_script
from modpack.pickling.functions import SCRIPTS, home_module
from modpack.security.pickle_names import PickledName, read_nested_names

if TYPE_CHECKING:
    import torch

    from modpack.exporting.hook_saver import HookOptions
    from modpack.exporting.tensor_index import StorageUsage
    from modpack.hooks.report import HookStatus
    from modpack.pickling.base import GlobalReference, ScriptSource
    from modpack.pickling.pickler import Pickled
    from modpack.pickling.tensors import StorageSaver

DEFAULT_PROTOCOL = 3
"""Of pickles: what torch.package writes."""
_MAX_NAMES = 4


class ObjectSaver:
    """Pickles objects for one exporter, and remembers where their classes live.

    torch is imported when the first object is saved, not before.

    Args:
        exporter: what ``__reduce_package__`` is called with.
        writer: where pickles and storages go.
        origins: the exporter's importers.
        planner: where the definitions of scripts go.
        guard: looks for secrets in what is saved.
    """

    def __init__(
        self,
        exporter: object,
        writer: ArchiveWriter,
        origins: ObjectOrigins,
        planner: Planner,
        guard: SecretScan,
    ) -> None:
        self.exporter = exporter
        self.resources: list[tuple[str, str]] = []
        self.hook_statuses: list[HookStatus] = []
        self.tensors: dict[str, tuple[TensorFacts, ...]] = {}
        self.scripts = ScriptExporter(planner, self._store_value)
        self._origins = origins
        self._writer = writer
        self._planner = planner
        self._guard = guard
        self._models: list[tuple[str, str]] = []
        self._nested: dict[str, Mapping[PickledName, None]] = {}
        self._values: dict[str, bytes] = {}
        self._storages: StorageSaver | None = None
        self._usage: StorageUsage | None = None
        self._reduced = 0
        self._attached = 0

    @gc_paused()
    def save(
        self,
        record: str,
        obj: object,
        protocol: int,
        hooks: HookOptions | None = None,
        follow: bool = True,
    ) -> list[Edge]:
        """Write an object's pickle, storages and hooks; returns what they refer to.

        Args:
            record: where the pickle goes.
            obj: the object.
            protocol: the pickle protocol.
            hooks: what to do about hooks; by default all of the object's own are captured.
            follow: whether to follow what the definitions of scripts import.

        Raises:
            ObjMismatchError: two versions of one library would have to go into the package.
        """
        from modpack.exporting.hook_saver import HookExporter
        from modpack.exporting.tensor_index import StorageUsage, named_tensors
        from modpack.pickling.pickler import pickle_object
        from modpack.pickling.tensors import StorageSaver

        name = "obj" if hooks is None else "model"
        if self._storages is None or self._usage is None:
            self._storages = StorageSaver(self._writer)
            self._usage = StorageUsage(self._storages)
        self._storages.next_object()
        self.scripts.refresh()
        hooked = HookExporter(self.is_importable, obj, hooks)
        observer = hooked.observer
        pickled = pickle_object(
            obj, context=self, resource=record, protocol=protocol, root=name, observer=observer
        )
        self._writer.write(record, pickled.data)
        self._look_at(record, pickled, (obj, hooked.extras), name)
        self.hook_statuses.extend(hooked.write(self._writer, record, pickled.appended))
        if not is_internal(record):
            # An object without anything of torch's has no tensors to list.
            self.tensors[record] = (
                named_tensors(observer.root, hooked.extras, self._storages.key_of)
                if observer.has_met_torch
                else ()
            )
        roots = {"example" if is_internal(record) else name: obj, **hooked.extras}
        self._usage.look_at(record, observer.reductions, roots)
        self.scripts.provide(follow)
        nested = {**read_nested_names(pickled.data), **read_nested_names(pickled.appended)}
        if nested:
            self._nested[record] = nested
        self._origins.pin(self._planner.walker)
        return list(_edges(record, pickled, nested))

    def _look_at(
        self, record: str, pickled: Pickled, parts: tuple[object, object], name: str
    ) -> None:
        """Look for secrets in a pickle; they are told at the attribute path of the live object."""
        from modpack.pickling.object_paths import places_of_texts

        def places(texts: Sequence[bytes]) -> dict[bytes, str]:
            obj, extras = parts
            return {**places_of_texts(extras, texts, "extras"), **places_of_texts(obj, texts, name)}

        self._guard.look_at_pickle(record, pickled.data + pickled.appended, places)

    def write_values(self) -> None:
        """Write the values that definitions of scripts need while they are imported."""
        for record, data in self._values.items():
            self._writer.write(record, data)

    def notes(self, plan: Plan) -> Iterator[Note]:
        """Notes about the saved objects."""
        if self._usage is not None:
            yield from self._usage.notes()
        for record, names in self._nested.items():
            packaged = _packaged(plan, names)
            of_scripts = [str(each) for each in names if each.module in SCRIPTS]
            if packaged:
                text = (
                    f"{record} contains bytes that are pickles themselves, made by a __getstate__ "
                    f"for example. They name {listed(packaged, _MAX_NAMES)}, which pickle.loads "
                    "looks up among the process's own modules. So the package records "
                    "namespace='process'. modpack.load uses that; pass namespace='process' to "
                    "PackageImporter"
                )
                yield Note(NoteKind.NESTED_PICKLE, record, text)
            if of_scripts:
                text = (
                    f"{record} contains bytes that are pickles themselves. They name "
                    f"{listed(of_scripts, _MAX_NAMES)}, of the script that runs, which is not "
                    "there when the package is loaded. Move what they name into a module, and "
                    "import it"
                )
                yield Note(NoteKind.NESTED_PICKLE, record, text)

    def needs_process_namespace(self, plan: Plan) -> bool:
        """Whether nested pickles name modules of the package by their real names."""
        return any(_packaged(plan, names) for names in self._nested.values())

    @property
    def generation(self) -> int:
        """How many objects were saved by now."""
        return self._storages.generation if self._storages is not None else 0

    def restore_tensors(self, since: int) -> None:
        """Give tensors that have changed the values again with which they were saved.

        Args:
            since: those that were saved after so many objects.
        """
        if self._storages is not None:
            self._storages.put_back(since, self._writer.stored_chunks)

    def note_resource(self, package: str, resource: str, main: bool = False) -> None:
        """Remember a saved object, so that the package can list what can be loaded.

        Args:
            package: the package that it belongs to.
            resource: its name.
            main: whether it is a model.
        """
        self.resources.append((package, resource))
        if main:
            self._models.append((package, resource))

    @property
    def main(self) -> tuple[str, str] | None:
        """The model that the package is about; None if there is none, or more than one."""
        return self._models[0] if len(self._models) == 1 else None

    # The methods of modpack.pickling.base.PickleContext follow.

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """How a class or function is named, in the first importer that has the very object."""
        from modpack.pickling.base import GlobalReference

        importer, module, attribute = self._origins.find(obj, name)
        self._remember_home(importer, module, obj)
        live = getattr(obj, "__module__", None)
        return GlobalReference(module, attribute, live if isinstance(live, str) else module)

    def module_name(self, module: ModuleType) -> str:
        """The module path by which a live module is imported after loading.

        Raises:
            ObjNotFoundError: If it comes from a package whose importer is not listed.
            ObjMismatchError: If something of the same library is saved from another importer.
        """
        owner = importer_of(module) or sys_importer
        name = module.__name__
        local = local_path(name)
        if local != name:
            self._origins.require_listed(owner, module)
        self._remember_home(owner, local, module)
        return local

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""
        return home_module(function)

    def is_importable(self, function: FunctionType) -> bool:
        """Whether a function can be named, so that its source need not travel."""
        try:
            self._origins.find(function, function.__qualname__)
        except (ObjNotFoundError, ObjMismatchError):
            return False
        return function.__module__ not in SCRIPTS

    def script(self, module: str) -> ScriptSource | None:
        """A script whose definitions are taken along; None for a module that is only named."""
        return self.scripts.find(module)

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, once, and return its key."""
        if self._storages is None:  # pragma: no cover - save() has made it
            raise RuntimeError("no object is being saved")
        return self._storages.add(storage)

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialized itself, and return the record's name."""
        record = f".data/modpack/torchscript/{self._attached}.pt"
        self._attached += 1
        self._guard.look_at_script(record, data)
        self._writer.write(record, data)
        return record

    def next_reduce_id(self) -> int:
        """A number for the next object that packages itself."""
        self._reduced += 1
        return self._reduced

    def _store_value(self, record: str, value: object, unless: str = "") -> bool:
        """Pickle a value into a record of its own, unless it refers to a module."""
        from modpack.pickling.pickler import pickle_object

        pickled = pickle_object(value, context=self, resource=record, protocol=DEFAULT_PROTOCOL)
        if any(reference.module == unless for reference in pickled.references):
            return False
        self._values[record] = pickled.data
        self._look_at(record, pickled, (value, {}), "value")
        self._planner.add_resource(f"<{record}>", _edges(record, pickled), follow=True)
        return True

    def _keep_values(self, importer: Importer, module: str) -> None:
        """Take along what a module of definitions, out of a package, loads while it is imported."""
        live = sys.modules.get(module)
        if live is None or not is_of_script(vars(live)):
            return
        for package, resource in stored_values(live):
            record = f"{package}/{resource}"
            if record not in self._values:
                self._values[record] = b""
                load = getattr(importer, "load_pickle")  # noqa: B009  # of package importers
                self._store_value(record, load(package, resource))

    def _remember_home(self, importer: Importer, module: str, obj: object) -> None:
        if module == "__main__" or not is_everywhere(module):
            self._keep_values(importer, str(getattr(obj, "__module__", None) or module))
            self._origins.remember(importer, module, obj)


def _packaged(plan: Plan, names: Iterable[PickledName]) -> list[str]:
    interned = set(plan.modules(Action.INTERN))
    return [str(each) for each in names if each.module in interned]


def _edges(record: str, pickled: Pickled, nested: Iterable[PickledName] = ()) -> Iterator[Edge]:
    """References of an object's pickle: names, nested names, and imports of loose functions."""
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
