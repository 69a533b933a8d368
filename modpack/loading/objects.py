"""Loading saved objects: their pickles, hooks, and required operators."""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.records import decoding, read_document, read_specs
from modpack.core.json_values import as_list, as_mapping, as_text
from modpack.core.process import find_instances, gc_paused, gc_resumed
from modpack.environment.importers import importer_of, local_path, module_dict
from modpack.errors import (
    ArchiveError,
    ModpackWarning,
    OperatorConflictError,
    OperatorNotFoundError,
    TrustError,
    UnpicklingError,
    listed,
)
from modpack.pickling.tensor_loading import StorageLoader, map_location_scope
from modpack.pickling.unpickler import unpickle_object

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.choice import HookChoice
    from modpack.hooks.restoring import NewHandles

_CONFLICTS: Final = (
    r"register the namespace (?P<name>[\w.]+); .*?registered at (?P<file>.+?):(?P<line>\d+);",
    r"register an operator \((?P<name>[\w:.]+).*Original registration: registered at (?P<file>.+)"
    r":(?P<line>\d+)",
    r"the operator (?P<name>[\w:.]+) already has an? .* at (?P<file>.+):(?P<line>\d+)",
)
"""Messages of torch when an operator, or a part of it, is registered for a second time."""


@contextmanager
def operator_conflicts_explained(source: str) -> Iterator[None]:
    """Replace torch's error if packaged code defines an operator that the process already has.

    Args:
        source: The package file.

    Raises:
        OperatorConflictError: If the process already has the operator.
    """
    try:
        yield
    except RuntimeError as failure:
        found = next(filter(None, (re.search(each, str(failure)) for each in _CONFLICTS)), None)
        # An inner load has already explained its error.
        if found is None or isinstance(failure, OperatorConflictError):
            raise
        place = packaged_location(failure)
        location = None if place is None else f"{place[0]}:{place[1]}"
        first = _first_definition(found["file"], found["line"])
        raise OperatorConflictError(source, found["name"], location, first) from failure


def packaged_location(failure: BaseException) -> tuple[str, int] | None:
    """Return module and line of the innermost packaged code in a traceback."""
    location, trace = None, failure.__traceback__
    # A traceback leads from the outermost frame to the innermost, so the last one counts.
    while trace is not None:
        names = trace.tb_frame.f_globals
        if "__modpack__" in names:
            owner, name = names["__modpack__"], str(names.get("__name__"))
            module = owner.whichmodule(SimpleNamespace(__module__=name), "")
            location = (module, trace.tb_lineno)
        trace = trace.tb_next
    return location


def _first_definition(file: str, line: str) -> str | None:
    """Return the definition that torch recorded; None if torch recorded only its own code."""
    if Path(file).is_relative_to(Path(torch.__file__).parent):
        return None
    for name, module in list(sys.modules.items()):
        owner = importer_of(module) if module_dict(module).get("__file__") == file else None
        if owner is not None:
            return f"{local_path(name)}:{line} of {getattr(owner, 'filename', owner)}"
    return f"{file}:{line}"


def require_operators(archive: Archive) -> None:
    """Refuse a package that requires operators which are not declared in this process.

    Warns of tables that the self-test found without a class of the model.

    Raises:
        OperatorNotFoundError: If operators are missing; the error lists all of them.
        ArchiveError: If the record of the self-test is damaged.
    """
    if not archive.has(layout.SELF_TEST):
        return
    with decoding(archive, layout.SELF_TEST):
        record = read_document(archive, layout.SELF_TEST, None)
        operators = as_list(record.get("operators", []), "operators")
        schemas = [as_text(each, "an operator") for each in operators]
        observed = as_mapping(record.get("observations", {}), "observations")
        unfilled = as_list(observed.get("unfilled_tables", []), "unfilled_tables")
    missing = tuple(schema for schema in schemas if not _exists(schema))
    if missing:
        raise OperatorNotFoundError(archive.path, missing)
    if unfilled:  # seldom
        from modpack.core.codec import from_json
        from modpack.core.observations import UnfilledTable
        from modpack.core.process import stacklevel_outside_package

        with decoding(archive, layout.SELF_TEST):
            tables = [from_json(UnfilledTable, each, "a table") for each in unfilled]
        names = listed(f"{t.module}.{t.name} (for {t.kind})" for t in tables)
        text = (
            f"{archive.path}: tables of the package's modules lack a class that they had at "
            f"export: {names}. Code that looks it up there may ignore an option or return None. "
            "Construct one object of the class after loading."
        )
        warnings.warn(text, ModpackWarning, stacklevel=stacklevel_outside_package())


def _exists(schema: str) -> bool:
    namespace, _, signature = schema.partition("::")
    name = signature.partition("(")[0].partition(".")[0]
    return hasattr(getattr(torch.ops, namespace), name)


class LoadedObject:
    """A loaded object and its hooks.

    Attributes:
        obj: The object.
        extras: Objects that were saved with it, by name.
        handles: torch's handles of the registered hooks, by hook name.
        hooks: The hooks themselves, by name.
    """

    __slots__ = ("extras", "handles", "hooks", "obj")

    def __init__(self, obj: Any = None) -> None:
        self.obj = obj
        self.extras: dict[str, Any] = {}
        self.handles: dict[str, Any] = {}
        self.hooks: dict[str, Any] = {}


def load_object(
    importer: Any,
    archive: Archive,
    record: str,
    map_location: Any,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    policy: TrustPolicy | None = None,
) -> LoadedObject:
    """Load one pickle of an open package and register its hooks.

    Args:
        importer: The package's importer.
        archive: The package.
        record: The pickle's record.
        map_location: Device of the tensors; see :func:`torch.load`.
        hooks: The hooks to register.
        global_hooks: Whether to register process-wide hooks.
        policy: The trust policy; None allows everything.

    Raises:
        TrustError: If the policy does not allow a hook.
        UnpicklingError: If the pickle is damaged, or contains code that the policy does not allow.
    """
    if policy is not None and not policy.allow_code:
        return LoadedObject(load_data(importer, archive, record, map_location, policy))
    data = archive.read(record)
    require_operators(archive)
    result = LoadedObject()
    _, appended_record = layout.hook_records(record)
    appended = archive.read(appended_record) if archive.has(appended_record) else b""
    if any(b"reduce_package" in each for each in (data, appended)):  # may keep the importer
        importer._namespace.is_used = True
    specs = read_specs(archive, record)
    wanted = _select_hooks(specs, hooks)
    new_handles: NewHandles = {}
    found: set[str] = set()

    def register(payload: dict[str, Any]) -> None:
        result.extras.update(payload.get("extras", {}))
        if "hooks" in payload:
            found.update(name for name, *_ in payload["hooks"])
            from modpack.hooks.restoring import register_payload  # few models have hooks

            names = wanted.__contains__
            handles = register_payload(payload, names, global_hooks, new_handles)
            result.handles.update(handles)
            result.hooks.update({n: hook for n, *_, hook in payload["hooks"] if n in handles})

    with (
        operator_conflicts_explained(archive.path),
        _lookups_explained(importer, record),
        map_location_scope(map_location),
        gc_paused(),
    ):
        result.obj = unpickle_object(
            data,
            resource=record,
            import_module=partial(_import, importer),
            storages=StorageLoader(archive, map_location, record),
            package=_LoadContext(importer, archive, map_location),
            appended=appended,
            on_payload=register,
        )
    # inspect and audit show the specs, so nothing else may have been registered.
    _require_agreement(archive.path, record, specs, found)
    # torch only notes sparse tensors while it rebuilds them. Wrong indices would read other memory.
    torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    if hooks is False:
        from modpack.hooks.restoring import remove_hooks

        remove_hooks(result.obj)
    elif not appended:
        _reserve_ids(result.obj)
    return result


@contextmanager
def _lookups_explained(importer: Any, record: str) -> Iterator[None]:
    """Replace an error if code looked a packaged module up in ``sys.modules`` by its own name.

    Raises:
        UnpicklingError: If a lookup failed for a packaged module.
    """
    try:
        yield
    except (KeyError, ModuleNotFoundError) as failure:
        # Packaged code may raise a KeyError for other reasons, with a key of any type.
        missing = getattr(failure, "name", None) or (failure.args[0] if failure.args else None)
        if type(missing) is not str or not importer.hides(missing):
            raise
        reason = (
            f"packaged code looked up module {missing!r} in sys.modules, as pickle.loads and "
            f"torch.load do, but the package's modules are in a private namespace "
            f"({type(failure).__name__}: {failure})"
        )
        hint = "Load the package with namespace='process'."
        raise UnpicklingError(record, reason, hint=hint) from failure


def load_data(
    importer: Any, archive: Archive, record: str, map_location: Any, policy: TrustPolicy
) -> Any:
    """Load an object under a policy that does not allow code.

    Args:
        importer: Imports the globals that the policy adds.
        archive: The package.
        record: The record of the object.
        map_location: Device of its tensors, as for :func:`torch.load`.
        policy: The policy.

    Raises:
        TrustError: If the object has hooks.
        UnpicklingError: If the object is more than plain data.
    """
    from modpack.pickling.data_unpickler import unpickle_data  # few loads have such a policy

    if any(map(archive.has, layout.hook_records(record))):
        raise TrustError(archive.path, (f"record {record!r} has hooks, but allow_code is false",))
    # modpack does not compress pickles. A few deflated bytes could fill memory with plain values.
    if archive.size(record) > archive.stored_bytes():
        raise UnpicklingError(record, "the pickle is larger than its package")
    with map_location_scope(map_location), gc_paused():
        return unpickle_data(
            archive.read(record),
            resource=record,
            storages=StorageLoader(archive, map_location, record),
            added=policy.allow_pickle_globals,
            import_module=partial(_import, importer),
        )


def _import(importer: Any, module: str) -> ModuleType:
    ready: ModuleType | None = importer._ready_module(module)
    if ready is not None:
        return ready
    with gc_resumed():  # the module's code may run for a long time
        return importer.import_module(module)  # type: ignore[no-any-return]


def _require_agreement(
    source: str, record: str, specs: tuple[HookSpec, ...], found: set[str]
) -> None:
    """Refuse a package whose hook specs and pickle contain different hooks."""
    if not (specs or found):
        return
    from modpack.core.hookspec import PARAMETRIZATION

    # Parametrizations have specs, but are not registered as hooks.
    specified = {spec.name for spec in specs if spec.kind != PARAMETRIZATION}
    if specified != found:
        names = listed(sorted(map(repr, specified ^ found)))
        reason = f"the hook specs and the pickle disagree about the hooks {names}"
        raise ArchiveError(source, reason, record)


def _select_hooks(specs: tuple[HookSpec, ...], hooks: HookChoice) -> frozenset[str]:
    if hooks is True and not specs:
        return frozenset()
    from modpack.hooks.choice import check_names, selector

    check_names(hooks, specs)
    return frozenset(spec.name for spec in filter(selector(hooks), specs))


def _reserve_ids(obj: Any) -> None:
    """Keep torch from reusing the ids of hooks in loaded modules.

    A torch.package archive stores hooks in the state of modules, with their ids from the exporting
    process. torch counts from 0 in a new process, so the next registered hook would overwrite one.
    """
    # torch's counter is one for the whole process, so the largest id counts.
    for part in find_instances(obj, (torch.nn.Module,)):
        for name, table in vars(part).items():
            if name.endswith("_hooks") and isinstance(table, dict):
                ids = (identity for identity in table if type(identity) is int)
                RemovableHandle.next_id = max(RemovableHandle.next_id, 1 + max(ids, default=-1))


class _LoadContext:
    """The importer during one load, as passed to the functions that rebuild objects.

    torch's functions read three attributes of the importer that belong to a single load. A separate
    object for each load keeps threads apart.
    """

    def __init__(self, importer: Any, archive: Archive, map_location: Any) -> None:
        self._importer = importer
        self._archive = archive
        self.last_map_location = map_location

    def __getattr__(self, name: str) -> Any:
        return getattr(self._importer, name)

    @cached_property
    def storage_context(self) -> Any:
        """Storages shared among the ScriptModules of a torch.package archive."""
        return torch._C.DeserializationStorageContext()

    @cached_property
    def zip_reader(self) -> Any:
        """The zip reader: torch's for torch.package's ScriptModules, otherwise modpack's."""
        if not any(name.startswith(layout.TORCH_PACKAGE_SCRIPTS) for name in self._archive.names()):
            return self._importer.zip_reader
        return torch._C.PyTorchFileReader(_copy_to_zip(self._archive))


def _copy_to_zip(archive: Archive) -> io.BytesIO:
    """Copy a package to a zip in memory: torch's reader accepts neither folders nor views."""
    import zipfile  # rarely needed

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as copy:
        for name in archive.names():
            copy.writestr(f"archive/{name}", archive.read(name))
    buffer.seek(0)
    return buffer
