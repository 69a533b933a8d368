"""Saving objects: pickles and storages into the archive, references into the graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from modpack.archive.layout import is_internal
from modpack.archive.writer import ArchiveWriter
from modpack.core.garbage import collection_paused
from modpack.core.graph import Edge
from modpack.core.imports import ImportKind
from modpack.core.plan import Note, Problem
from modpack.core.tensors import TensorFacts
from modpack.discovery.source import scan_source
from modpack.discovery.walk import Walker
from modpack.errors import ObjMismatchError, ObjNotFoundError
from modpack.packing.leakguard import LeakGuard
from modpack.packing.nested import nested_edges
from modpack.packing.objecthomes import ObjectHomes
from modpack.packing.scriptsaver import ScriptSaver, stored_values
from modpack.packing.sources import ImporterEnvironments
from modpack.pickling.definitions import is_of_script
from modpack.pickling.functions import SCRIPTS, home_module
from modpack.planning.planner import Planner
from modpack.resolution.distributions import is_everywhere
from modpack.resolution.importers import Importer, importer_of, local_path, sys_importer
from modpack.security.nested_pickles import nested_names

if TYPE_CHECKING:
    import torch

    from modpack.hooks.report import HookStatus
    from modpack.packing.hooked import HookOptions, HookSaver
    from modpack.packing.storagenotes import StorageNotes
    from modpack.pickling.context import Reference
    from modpack.pickling.definitions import ScriptSource
    from modpack.pickling.saving import Pickled
    from modpack.pickling.storages import StorageSaver
    from modpack.security.pickle_tree import PickledName

__all__ = ["ObjectSaver"]

_VALUES_PROTOCOL = 3


class ObjectSaver:
    """Pickles objects for one exporter, and remembers where their classes live.

    torch is imported when the first object is saved, not before.

    Args:
        exporter: what ``__reduce_package__`` is called with.
        writer: where pickles and storages go.
        environments: the exporter's importers.
        planner: where the definitions of scripts go.
        guard: looks for secrets in what is saved.
    """

    def __init__(
        self,
        exporter: object,
        writer: ArchiveWriter,
        environments: ImporterEnvironments,
        planner: Planner,
        guard: LeakGuard,
    ) -> None:
        self.exporter = exporter
        self.resources: list[tuple[str, str]] = []
        self.main: tuple[str, str] | None = None
        self.hook_statuses: list[HookStatus] = []
        self.nested: dict[str, Mapping[PickledName, None]] = {}
        self.tensors: dict[str, tuple[TensorFacts, ...]] = {}
        self._writer = writer
        self._planner = planner
        self._guard = guard
        self._scripts = ScriptSaver(planner, self._store_value)
        self._values: dict[str, bytes] = {}
        self._homes = ObjectHomes(environments)
        self._storages: StorageSaver | None = None
        self._storage_notes: StorageNotes | None = None
        self._models = 0
        self._reduced = 0
        self._attached = 0

    @collection_paused()
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
        """
        from modpack.packing.hooked import HookSaver
        from modpack.pickling.saving import pickle_object
        from modpack.pickling.storages import StorageSaver

        name = "obj" if hooks is None else "model"
        if self._storages is None:
            self._storages = StorageSaver(self._writer)
        self._storages.next_object()
        self._scripts.refresh()
        hooked = HookSaver(self, obj, hooks)
        pickled = pickle_object(
            obj,
            context=self,
            resource=record,
            protocol=protocol,
            root=name,
            observer=hooked.observer,
        )
        self._writer.write(record, pickled.data)
        self._look_at(record, pickled, (obj, hooked.extras), name)
        self.hook_statuses.extend(hooked.write(self._writer, record, pickled.appended))
        if not is_internal(record):
            self.tensors[record] = self._named_tensors(hooked)
        if self._storages.large:
            roots = {"example" if is_internal(record) else name: obj, **hooked.extras}
            self._notes_of(self._storages).look_at(record, hooked.observer.reductions, roots)
        self._scripts.provide(follow)
        node = f"<{record}>"
        nested = self._nested_in(record, pickled)
        return [
            *_named(node, pickled.references),
            *_imported(node, pickled.loose_sources),
            *nested_edges(node, nested),
        ]

    def _nested_in(self, record: str, pickled: Pickled) -> Mapping[PickledName, None]:
        """What pickles among the bytes of an object's pickle name."""
        found = {**nested_names(pickled.data), **nested_names(pickled.appended)}
        if found:
            self.nested[record] = found
        return found

    def _notes_of(self, storages: StorageSaver) -> StorageNotes:
        from modpack.packing.storagenotes import StorageNotes

        if self._storage_notes is None:
            self._storage_notes = StorageNotes(storages)
        return self._storage_notes

    def _named_tensors(self, hooked: HookSaver) -> tuple[TensorFacts, ...]:
        """The tensors of the object that was saved last."""
        from modpack.packing.tensors import named_tensors

        observer = hooked.observer
        if self._storages is None or not observer.has_met_torch:  # then there is nothing to find
            return ()
        return named_tensors(observer.root, hooked.extras, self._storages.key_of)

    def _look_at(
        self, record: str, pickled: Pickled, parts: tuple[object, object], name: str
    ) -> None:
        """Look for secrets in a pickle; they are told at the attribute path of the live object."""
        from modpack.pickling.textplaces import places_of_texts

        def places(texts: Sequence[bytes]) -> dict[bytes, str]:
            obj, extras = parts
            return {**places_of_texts(extras, texts, "extras"), **places_of_texts(obj, texts, name)}

        self._guard.look_at_pickle(record, pickled.data + pickled.appended, places)

    def write_values(self) -> None:
        """Write the values that definitions of scripts need while they are imported."""
        for record, data in self._values.items():
            self._writer.write(record, data)

    def add_script(self, module: str) -> None:
        """Take of a module only the definitions that saved objects need."""
        self._scripts.add(module)

    def problems(self) -> Iterator[Problem]:
        """What of scripts cannot be taken along."""
        yield from self._scripts.problems()

    def notes(self) -> tuple[Note, ...]:
        """What a user should know about what was saved."""
        return () if self._storage_notes is None else tuple(self._storage_notes.notes())

    def script_place(self, place: str) -> str:
        """A place, in the script itself if it is in the module of a script's definitions."""
        return self._scripts.place(place)

    @property
    def script_files(self) -> tuple[str, ...]:
        """The files of scripts of which definitions were taken."""
        return self._scripts.files

    @property
    def generation(self) -> int:
        """How many objects were saved by now."""
        return self._storages.generation if self._storages is not None else 0

    def put_back(self, since: int) -> None:
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
            main: whether it is a model; a single one is what the package is about.
        """
        self.resources.append((package, resource))
        if main:
            self._models += 1
            self.main = (package, resource) if self._models == 1 else None

    def pin_homes(self, walker: Walker) -> None:
        """Tell the walk from which environment the objects' own modules come.

        Raises:
            ObjMismatchError: modules of the same library came from another one already.
        """
        self._homes.pin(walker)

    # -- what pickling asks for (modpack.pickling.context.PickleContext) -----------------------

    def resolve(self, obj: object, name: str) -> Reference:
        """How a class or function is named, in the first importer that has the very object."""
        from modpack.pickling.context import Reference

        importer, module, attribute = self._homes.find(obj, name)
        self._remember_home(importer, module, obj)
        live = getattr(obj, "__module__", None)
        return Reference(module, attribute, live if isinstance(live, str) else module)

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
            self._homes.require_listed(owner, module)
        self._remember_home(owner, local, module)
        return local

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""
        return home_module(function)

    def is_importable(self, function: FunctionType) -> bool:
        """Whether a function can be named, so that its source need not travel."""
        try:
            self._homes.find(function, function.__qualname__)
        except (ObjNotFoundError, ObjMismatchError):
            return False
        return function.__module__ not in SCRIPTS

    def script(self, module: str) -> ScriptSource | None:
        """A script whose definitions are taken along; None for a module that is only named."""
        return self._scripts.find(module)

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, once, and return its key."""
        if self._storages is None:  # pragma: no cover - save() has made it
            raise RuntimeError("no object is being saved")
        return self._storages.add(storage)

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialised itself, and return the record's name."""
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
        from modpack.pickling.saving import pickle_object

        pickled = pickle_object(value, context=self, resource=record, protocol=_VALUES_PROTOCOL)
        if any(reference.module == unless for reference in pickled.references):
            return False
        self._values[record] = pickled.data
        self._look_at(record, pickled, (value, {}), "value")
        node = f"<{record}>"
        edges = [*_named(node, pickled.references), *_imported(node, pickled.loose_sources)]
        self._planner.add_resource(node, edges, follow=True)
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
            self._homes.remember(importer, module, obj)


def _named(node: str, references: Iterable[Reference]) -> Iterator[Edge]:
    """What a pickle names, as edges to the modules."""
    names: dict[str, list[str]] = {}
    for reference in references:
        names.setdefault(reference.module, []).extend(filter(None, [reference.name]))
    for module, used in names.items():
        yield Edge(node, module, ImportKind.PICKLE, None, tuple(used))


def _imported(node: str, sources: tuple[str, ...]) -> Iterator[Edge]:
    """What functions import that travel by their source, without a module of their own."""
    for source in sources:
        for statement in scan_source(source, "__main__", False).imports:
            if statement.kind.is_dependency:
                yield Edge(node, statement.module, statement.kind, None, statement.names)
