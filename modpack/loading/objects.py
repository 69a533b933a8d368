"""Loading saved objects: the pickle, its hooks, and what is explained when one of them fails.

Operators that a package needs and cannot bring along are checked before its code runs.
"""

from __future__ import annotations

import io
import re
import sys
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
from modpack.core.json_values import as_list, as_text
from modpack.core.process import find_instances, gc_paused, gc_resumed
from modpack.discovery.importers import importer_of, local_path, module_dict
from modpack.errors import (
    ArchiveError,
    OperatorConflictError,
    OperatorNotFoundError,
    TrustError,
    UnpicklingError,
)
from modpack.loading.checks import require_hook_kinds
from modpack.pickling.tensor_loading import StorageLoader, map_location_scope
from modpack.pickling.unpickler import unpickle_object

if TYPE_CHECKING:
    from modpack.core.hookspec import HookSpec
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.describe import HookChoice
    from modpack.hooks.restoring import Fresh

_CONFLICTS: Final = (
    r"register the namespace (?P<name>[\w.]+); .*?registered at (?P<file>.+?):(?P<line>\d+);",
    r"register an operator \((?P<name>[\w:.]+).*Original registration: registered at (?P<file>.+)"
    r":(?P<line>\d+)",
    r"the operator (?P<name>[\w:.]+) already has an? .* at (?P<file>.+):(?P<line>\d+)",
)
"""What torch says where an operator, or a part of it, is registered for a second time."""


@contextmanager
def operator_conflicts_explained(source: str) -> Iterator[None]:
    """Explain why packaged code cannot define an operator.

    Args:
        source: the package file.

    Raises:
        OperatorConflictError: the process has it already.
    """
    try:
        yield
    except RuntimeError as failure:
        found = next(filter(None, (re.search(each, str(failure)) for each in _CONFLICTS)), None)
        if found is None or isinstance(failure, OperatorConflictError):
            raise
        place = _packaged_place(failure)
        first = _first(found["file"], found["line"])
        raise OperatorConflictError(source, found["name"], place, first) from failure


def _packaged_place(failure: BaseException) -> str | None:
    """Where packaged code was when it failed: the module that it knows, and the line."""
    place, trace = None, failure.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_globals
        if "__modpack__" in names:
            owner, name = names["__modpack__"], str(names.get("__name__"))
            module = owner.whichmodule(SimpleNamespace(__module__=name), "")
            place = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _first(file: str, line: str) -> str | None:
    """Who defined an operator, as torch has noted it; None if it has noted only itself."""
    if Path(file).is_relative_to(Path(torch.__file__).parent):
        return None
    for name, module in list(sys.modules.items()):
        owner = importer_of(module) if module_dict(module).get("__file__") == file else None
        if owner is not None:
            return f"{local_path(name)}:{line} of {getattr(owner, 'filename', owner)}"
    return f"{file}:{line}"


def require_operators(archive: Archive) -> None:
    """Refuse to load what its self-test only loaded with operators that are not here.

    Raises:
        OperatorNotFoundError: names all of them.
        ArchiveError: the record of the self-test is damaged.
    """
    if not archive.has(layout.SELF_TEST):
        return
    with decoding(archive, layout.SELF_TEST):
        listed = read_document(archive, layout.SELF_TEST, None).get("operators", [])
        schemas = [as_text(each, "an operator") for each in as_list(listed, "operators")]
    missing = tuple(schema for schema in schemas if not _exists(schema))
    if missing:
        raise OperatorNotFoundError(archive.path, missing)


def _exists(schema: str) -> bool:
    namespace, _, signature = schema.partition("::")
    name = signature.partition("(")[0].partition(".")[0]
    return hasattr(getattr(torch.ops, namespace), name)


class LoadedObject:
    """What was loaded.

    Attributes:
        obj: the object.
        extras: what was saved along with it, by name.
        handles: torch's handles of the hooks that were registered, by hook name.
        hooks: the hooks themselves, by name.
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
    """Load one pickle of an open package, and register its hooks.

    Args:
        importer: the package's importer.
        archive: its records.
        record: the pickle's record.
        map_location: where tensors go; see :func:`torch.load`.
        hooks: which hooks to register.
        global_hooks: whether process-wide hooks are among them.
        policy: whether it may be more than data, and which hooks it may have; None for anything.

    Raises:
        TrustError: it has hooks that are not allowed.
        UnpicklingError: the pickle is damaged, or holds code although none is allowed.
    """
    if policy is not None and not policy.allow_code:
        return LoadedObject(_data(importer, archive, record, map_location, policy))
    data = archive.read(record)
    require_operators(archive)
    result = LoadedObject()
    _, appended_record = layout.hook_records(record)
    appended = archive.read(appended_record) if archive.has(appended_record) else b""
    specs = read_specs(archive, record)
    wanted = _wanted_names(specs, hooks)
    fresh: Fresh = {}
    found: set[str] = set()

    def take(payload: dict[str, Any]) -> None:
        result.extras.update(payload.get("extras", {}))
        if "hooks" in payload:
            if policy is not None:
                kinds = ((kind, name) for name, kind, *_ in payload["hooks"])
                require_hook_kinds(archive.path, policy, kinds)
            found.update(name for name, *_ in payload["hooks"])
            from modpack.hooks.restoring import register_payload  # few models have hooks

            names = wanted.__contains__
            handles = register_payload(payload, names, global_hooks, fresh)
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
            import_module=partial(_imported, importer),
            storages=StorageLoader(archive, map_location, record),
            package=_Rebuilding(importer, archive, map_location),
            appended=appended,
            on_payload=take,
        )
    if policy is not None and policy.allow_hook_kinds is not None:
        from modpack.hooks.restoring import kinds_in

        require_hook_kinds(archive.path, policy, kinds_in((result.obj, result.extras)))
    _refuse_disagreement(archive.path, record, specs, found)
    torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]
    if hooks is False:
        from modpack.hooks.restoring import remove_hooks

        remove_hooks(result.obj)
    elif not appended:
        _reserve_ids(result.obj)
    return result


@contextmanager
def _lookups_explained(importer: Any, record: str) -> Iterator[None]:
    """Explain why packaged code did not find a packaged module among those of the process.

    Raises:
        UnpicklingError: It did not find one.
    """
    try:
        yield
    except (KeyError, ModuleNotFoundError) as failure:
        missing = getattr(failure, "name", None) or (failure.args[0] if failure.args else None)
        if type(missing) is not str or not importer.hides(missing):
            raise
        reason = (
            f"packaged code looked {missing!r} up among the process's own modules, as pickle.loads "
            f"and torch.load do ({type(failure).__name__}: {failure}). The package contains this "
            "module, but in a private namespace. Load the package with namespace='process'"
        )
        raise UnpicklingError(record, reason) from failure


def _data(
    importer: Any, archive: Archive, record: str, map_location: Any, policy: TrustPolicy
) -> Any:
    """A saved object of which the policy says that it is data."""
    from modpack.pickling.data_unpickler import unpickle_data  # most loads do without

    if any(map(archive.has, layout.hook_records(record))):
        raise TrustError(archive.path, (f"{record} has hooks, which are code",))
    with map_location_scope(map_location), gc_paused():
        return unpickle_data(
            archive.read(record),
            resource=record,
            storages=StorageLoader(archive, map_location, record),
            added=policy.allow_pickle_globals,
            import_module=partial(_imported, importer),
        )


def _imported(importer: Any, module: str) -> ModuleType:
    ready: ModuleType | None = importer.ready_module(module)
    if ready is not None:
        return ready
    with gc_resumed():  # what a module does when it is imported may take long
        return importer.import_module(module)  # type: ignore[no-any-return]


def _refuse_disagreement(
    source: str, record: str, specs: tuple[HookSpec, ...], found: set[str]
) -> None:
    """Refuse a package whose specs and whose pickle do not tell of the same hooks."""
    if not (specs or found):
        return
    from modpack.core.hookspec import PARAMETRIZATION

    told = {spec.name for spec in specs if spec.kind != PARAMETRIZATION}
    if told != found:
        odd = ", ".join(sorted(map(repr, told ^ found)))
        reason = f"the specs and the pickle of its hooks disagree about {odd}"
        raise ArchiveError(source, reason, record)


def _wanted_names(specs: tuple[HookSpec, ...], hooks: HookChoice) -> frozenset[str]:
    if hooks is True and not specs:
        return frozenset()
    from modpack.hooks.describe import check_names, selector  # few models have hooks

    check_names(hooks, specs)
    return frozenset(spec.name for spec in filter(selector(hooks), specs))


_HOOK_TABLES = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)
"""The attributes of a module that have its hooks by their ids. :data:`.KINDS` knows more of them,
and takes a while to import, which the first load of a process need not pay."""


def _reserve_ids(obj: Any) -> None:
    """Keep torch from giving ids again that hooks in loaded modules have.

    A package of torch.package brings hooks in the modules' state, with the ids that they had
    where it was written, while torch counts from 0 in a new process: the next hook that is
    registered would overwrite one of them.
    """
    for part in find_instances(obj, (torch.nn.Module,)):
        for table in _HOOK_TABLES:
            for identity in getattr(part, table, None) or ():
                RemovableHandle.next_id = max(RemovableHandle.next_id, identity + 1)


class _Rebuilding:
    """The importer as functions that rebuild packaged objects see it, for one load.

    torch's own such functions read three attributes of the importer, which belong to one
    load and not to the importer: giving each load an object of its own keeps threads apart.
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
        """Torch's own reader where there are ScriptModules of torch.package, else ours."""
        if not any(name.startswith(".data/ts_code/") for name in self._archive.names()):
            return self._importer.zip_reader
        return torch._C.PyTorchFileReader(_rewritten(self._archive))


def _rewritten(archive: Archive) -> io.BytesIO:
    """The package as one zip in memory: torch's reader takes neither folders nor our views."""
    from modpack.archive.writer import ArchiveWriter  # readers do without

    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        for name in archive.names():
            writer.write(name, archive.read(name))
        writer.commit()
    buffer.seek(0)
    return buffer
