"""Which importer the modules of saved objects come from.

Pickles inside of pickles: what they name, and the namespace in which that can be found.

Saving objects: pickles and storages into the archive, references into the graph.

The hooks of a saved object: their specs and their pickle go beside the object's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from modpack.archive.layout import is_internal
from modpack.archive.writer import ArchiveWriter
from modpack.core.graph import Edge
from modpack.core.names import is_everywhere, root_of
from modpack.core.plan import Note, NoteKind, Plan, Problem
from modpack.core.process import collection_paused
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.core.tensors import TensorFacts
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.importers import Importer, importer_of, local_path, sys_importer
from modpack.discovery.walk import Walker
from modpack.errors import ObjMismatchError, ObjNotFoundError
from modpack.exporting.planner import Planner
from modpack.exporting.records import ImporterEnvironments
from modpack.exporting.script import ScriptSaver, stored_values
from modpack.exporting.secret_guard import LeakGuard
from modpack.pickling.base import is_of_script
from modpack.pickling.functions import SCRIPTS, home_module
from modpack.security.pickle_names import nested_names
from modpack.security.pickle_tree import PickledName

if TYPE_CHECKING:
    import torch

    from modpack.exporting.hook_saver import HookOptions, HookSaver
    from modpack.exporting.tensor_index import StorageNotes
    from modpack.hooks.report import HookStatus
    from modpack.pickling.base import Reference, ScriptSource
    from modpack.pickling.pickler import Pickled
    from modpack.pickling.storages import StorageSaver


class ObjectHomes:
    """Finds saved classes and functions in the importers, and remembers where they were.

    Args:
        environments: the exporter's importers.
    """

    def __init__(self, environments: ImporterEnvironments) -> None:
        self._environments = environments
        self._homes: dict[str, tuple[Importer, object]] = {}

    def find(self, obj: object, name: str) -> tuple[Importer, str, str]:
        """The first importer that has an object, with the module path and the name that it has.

        Args:
            obj: a class, a function, or whatever else has a name in a module.
            name: its qualified name.

        Raises:
            ObjNotFoundError: no importer knows it.
            ObjMismatchError: one knows something else by that name.
        """
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self._environments.importers:
            try:
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        mismatches = [f for f in failures if isinstance(f, ObjMismatchError)]
        raise (mismatches or failures)[0]

    def require_listed(self, importer: Importer, obj: object) -> None:
        """Refuse an object of a package that the exporter does not know.

        Raises:
            ObjNotFoundError: If its importer is none of the exporter's.
        """
        if not any(importer is each for each in self._environments.importers):
            raise ObjNotFoundError(
                f"{obj!r} was loaded from {importer!r}: name that one too, "
                "importer=[package, sys_importer]"
            )

    def remember(self, importer: Importer, module: str, obj: object) -> None:
        """Note that something of a module is saved.

        Args:
            importer: what has it.
            module: the module path that it has there.
            obj: what is saved.

        Raises:
            ObjMismatchError: something of the same library is saved from another importer.
        """
        if not self._environments.holds(importer, module):
            importer = sys_importer  # extern in its package: the host's, like everywhere else
        root = root_of(module)
        home, first = self._homes.setdefault(root, (importer, obj))
        if home is not importer:
            raise ObjMismatchError(
                f"{obj!r} comes from {importer!r}, but {first!r} comes from {home!r}: a package "
                f"holds one version of {root!r}. Save them into two packages"
            )

    def pin(self, walker: Walker) -> None:
        """Tell the walk from which environment the objects' own modules come.

        Raises:
            ObjMismatchError: modules of the same library came from another one already.
        """
        if len(self._environments.importers) > 1:
            for root, (importer, first) in self._homes.items():
                module = walker.pin(root, self._environments.of(importer))
                if module is not None:
                    raise ObjMismatchError(
                        f"{first!r} comes from {importer!r}, but the module {module!r} was taken "
                        f"from another importer: a package holds one version of {root!r}. Save "
                        "them into two packages"
                    )


_SCRIPTS = ("__main__", "__mp_main__")
_MOST_NAMES = 4

Nested = Mapping[str, Iterable[PickledName]]
"""By the record of a saved object, what the pickles among its bytes name."""


def nested_edges(node: str, names: Iterable[PickledName]) -> Iterator[Edge]:
    """Return what nested pickles name, as edges to the modules.

    Args:
        node: The saved object.
        names: What they name.
    """
    by_module: dict[str, list[str]] = {}
    for named in names:
        by_module.setdefault(named.module, []).append(named.name)
    for module, used in by_module.items():
        if module not in _SCRIPTS:
            yield Edge(node, module, ImportKind.PICKLE, None, tuple(used))


def needs_process_namespace(plan: Plan, nested: Nested) -> bool:
    """Return whether nested pickles name modules of the package by their real names."""
    return any(_packaged(plan, names) for names in nested.values())


def nested_notes(plan: Plan, nested: Nested) -> Iterator[Note]:
    """Return what a user should know of nested pickles.

    Args:
        plan: What the package will contain.
        nested: What they name.
    """
    for record, names in nested.items():
        packaged = _packaged(plan, names)
        of_scripts = [str(each) for each in names if each.module in _SCRIPTS]
        if packaged:
            text = (
                f"{record} contains bytes that are pickles themselves, made by a __getstate__ for "
                f"example. They name {_shown(packaged)}, which pickle.loads looks up among the "
                "process's own modules. So the package records namespace='process'. modpack.load "
                "uses that; pass namespace='process' to PackageImporter"
            )
            yield Note(NoteKind.NESTED_PICKLE, record, text)
        if of_scripts:
            text = (
                f"{record} contains bytes that are pickles themselves. They name "
                f"{_shown(of_scripts)}, of the script that runs, which is not there when the "
                "package is loaded. Move what they name into a module, and import it"
            )
            yield Note(NoteKind.NESTED_PICKLE, record, text)


def _packaged(plan: Plan, names: Iterable[PickledName]) -> list[str]:
    interned = set(plan.modules(Action.INTERN))
    return [str(each) for each in names if each.module in interned]


def _shown(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


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
        from modpack.pickling.pickler import pickle_object
        from modpack.pickling.storages import StorageSaver

        name = "obj" if hooks is None else "model"
        if self._storages is None:
            self._storages = StorageSaver(self._writer)
        self._storages.next_object()
        self._scripts.refresh()
        from modpack.exporting.hook_saver import HookSaver  # it needs torch

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
        from modpack.exporting.tensor_index import StorageNotes

        if self._storage_notes is None:
            self._storage_notes = StorageNotes(storages)
        return self._storage_notes

    def _named_tensors(self, hooked: HookSaver) -> tuple[TensorFacts, ...]:
        """The tensors of the object that was saved last."""
        from modpack.exporting.tensor_index import named_tensors

        observer = hooked.observer
        if self._storages is None or not observer.has_met_torch:  # then there is nothing to find
            return ()
        return named_tensors(observer.root, hooked.extras, self._storages.key_of)

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

    # -- what pickling asks for (modpack.pickling.base.PickleContext) -----------------------

    def resolve(self, obj: object, name: str) -> Reference:
        """How a class or function is named, in the first importer that has the very object."""
        from modpack.pickling.base import Reference

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
        from modpack.pickling.pickler import pickle_object

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
