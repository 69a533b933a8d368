"""Hooks without a package: captured from a model as a value, and put onto another one.

A capture holds the hooks and what they carry along, but nothing of the model: it refers to the
model's modules, tensors and containers by their paths. Restored onto another model, a closure
over a weight closes over that model's weight.

Pickles in captures name :func:`part` and :func:`handle`; their module path and signatures are
part of the format.
"""

from __future__ import annotations

import copy as copying
import importlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import HookSpec
from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.hooks.collect import HookCollector
from modpack.hooks.ddp import inside
from modpack.hooks.graphbound import GraphHandle
from modpack.hooks.kinds import KINDS, kinds_of
from modpack.hooks.naming import Names
from modpack.hooks.native import travels_natively
from modpack.hooks.observer import HookObserver
from modpack.hooks.parts import Path, part_at, parts_of
from modpack.hooks.resetting import Emptied, find_collected
from modpack.hooks.restoring import register_payload
from modpack.hooks.selection import HookChoice, check_names, selector
from modpack.pickling.loading import unpickle_object
from modpack.pickling.saving import Reference, pickle_object
from modpack.pickling.storages import StorageLoader, storage_bytes, storage_record
from modpack.resolution.importers import Importer, sys_importer

__all__ = ["HookCapture", "capture", "copy", "handle", "part", "restore"]

CAPTURE_VERSION = 1
"""Raise it when a reader of the old version would misunderstand a capture."""


@dataclass(frozen=True)
class HookCapture:
    """The hooks of a model, as a value: it can be pickled, and saved with :func:`torch.save`.

    Restoring it runs what is in it, like loading any pickle: restore only what you trust.

    Attributes:
        specs: what was captured.
        hooks: the pickled hooks; they refer to the model by ``paths``.
        paths: what of the model the hooks refer to.
        storages: the contents of tensors that only the hooks have, by key.
        byteorder: that of those contents.
        version: of this format.
    """

    specs: tuple[HookSpec, ...]
    hooks: bytes = field(repr=False)
    paths: tuple[Path, ...] = field(repr=False)
    storages: Mapping[str, bytes] = field(repr=False)
    byteorder: str = sys.byteorder
    version: int = CAPTURE_VERSION

    def __str__(self) -> str:
        return "\n".join(map(str, self.specs)) or "no hooks"


def capture(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    reset_state: HookChoice = False,
) -> HookCapture:
    """Capture the hooks of a model, and of its optimizer; both are only read.

    Args:
        model: the model; of a DistributedDataParallel wrapper the module inside counts.
        optimizer: its optimizer.
        hooks: which hooks: True, False, names, or a predicate over specs.
        global_hooks: whether to capture the hooks of the whole process as well.
        reset_state: whose collected state to leave behind; see
            :meth:`modpack.PackageExporter.save_model`.

    Raises:
        TypeError, ValueError: an argument is none of these, or no hook has a name.
        PicklingError: a hook cannot be captured; it is named.
    """
    _require(model, optimizer)
    model = inside(model)
    parts = _Parts(model, optimizer)
    collector = HookCollector(parts.is_importable, selector(hooks), references_stay=False)
    emptied = find_collected(model, _extras(optimizer), reset_state, parts.is_importable)
    observer = _CapturingObserver(parts, collector, emptied)
    if global_hooks:
        collector.process_wide()
    resource = f"the hooks of {type(model).__name__}"
    pickled = pickle_object(None, context=parts, resource=resource, protocol=4, observer=observer)
    check_names(hooks, (*observer.specs, *collector.left_out))
    return HookCapture(
        specs=tuple(observer.specs),
        hooks=pickled.data + pickled.appended,
        paths=tuple(parts.referred),
        storages=dict(parts.storages),
    )


def restore(
    model: torch.nn.Module,
    captured: HookCapture,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    hooks: HookChoice = True,
    restore_global: bool = False,
) -> dict[str, Any]:
    """Register captured hooks on a model: the captured one's copy, or one built like it.

    They refer to this model's parameters, modules and containers. Hooks of the same kinds that
    these modules and tensors have already are taken off first.

    Args:
        model: the model.
        captured: what :func:`capture` returned.
        optimizer: its optimizer, if the hooks were captured with one.
        hooks: which hooks: True, False, names, or a predicate over specs.
        restore_global: whether to register process-wide hooks that were captured.

    Returns:
        Handles by hook name.

    Raises:
        TypeError, ValueError: an argument is none of these, or no hook has a name.
        ModpackError: the hooks refer to something that this model has not.
        UnpicklingError: a hook needs a module that cannot be imported here.
    """
    _require(model, optimizer)
    if not isinstance(captured, HookCapture):
        raise TypeError(f"captured must be a HookCapture, not {type(captured).__name__}")
    if captured.version != CAPTURE_VERSION:
        raise ModpackError(
            f"hook captures of version {captured.version!r} are not known, only {CAPTURE_VERSION}"
        )
    check_names(hooks, captured.specs)
    wanted = frozenset(spec.name for spec in captured.specs if selector(hooks)(spec))
    payloads = _loaded(_Target(inside(model), optimizer, captured))
    for payload in payloads:
        _take_off(payload)
    handles: dict[str, Any] = {}
    fresh: dict[Any, Any] = {}
    for payload in payloads:
        handles.update(register_payload(payload, wanted.__contains__, restore_global, fresh))
        for held, attachment in payload["graph_handles"]:
            held.attachment = attachment
    return handles


def copy(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    reset_state: HookChoice = False,
) -> Any:
    """Copy a model together with its hooks: the copy's hooks refer to the copy.

    :func:`copy.deepcopy` shares closures: a hook of its copy still reads the original's
    parameters and writes to the original's lists, and hooks of parameters are lost.

    Args:
        model: the model.
        optimizer: its optimizer.
        reset_state: whose collected state to leave behind.

    Returns:
        The copy; with an optimizer, the copies of both.

    Raises:
        PicklingError: a hook cannot be captured; it is named.

    >>> model = torch.nn.Linear(2, 2)
    >>> seen = []
    >>> handle = model.register_forward_hook(lambda module, args, output: seen.append(1))
    >>> duplicate = copy(model)
    >>> _ = duplicate(torch.ones(1, 2))
    >>> seen
    []
    """
    captured = capture(model, optimizer, reset_state=reset_state)
    model = inside(model)
    parts = _Parts(model, optimizer)
    emptied = find_collected(model, _extras(optimizer), reset_state, parts.is_importable)
    memo: dict[int, Any] = {key: emptied.fresh(each) for key, each in emptied.containers.items()}
    tables = list(_hook_tables(parts))
    memo.update((id(table), type(table)()) for table, _ in tables)
    duplicates = copying.deepcopy((model, optimizer), memo)
    for table, native in tables:
        kept = {i: copying.deepcopy(hook, memo) for i, hook in table.items() if i in native}
        memo[id(table)].update(kept)
    restore(duplicates[0], captured, duplicates[1])
    return duplicates[0] if optimizer is None else duplicates


# -- what pickles name -----------------------------------------------------------------------


def part(target: _Target, index: int) -> Any:
    """A part of the model that hooks are restored onto."""
    return target.part(index)


def handle(target: _Target, index: int) -> Any:
    """A handle that the model holds; a dead one if this model holds none."""
    try:
        return target.part(index)
    except ModpackError:
        return RemovableHandle(OrderedDict())


# -- capturing -------------------------------------------------------------------------------


class _ThisProcess(Importer):
    """Names in the running interpreter, those of loaded packages included."""

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

    def whichmodule(self, obj: object, name: str) -> str:
        return sys_importer.whichmodule(obj, name)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        return sys.modules.get(module_name)


class _Parts:
    """The parts of a model, and where references and storages of its hooks go."""

    exporter = None

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.model = model
        self.optimizer = optimizer
        self.objects: dict[int, tuple[Any, Path]] = {}
        self.referred: dict[Path, int] = {}
        self.storages: dict[str, bytes] = {}
        self._of_the_model: dict[int, Path] = {}
        self._kept: list[torch.UntypedStorage] = []
        self._reduced = 0
        self._names = _ThisProcess()
        roots = {"model": model, **_extras(optimizer)}
        for obj, path in parts_of(roots):
            self.objects[id(obj)] = (obj, path)
            if isinstance(obj, torch.Tensor) and _has_storage(obj):
                self._of_the_model.setdefault(obj.untyped_storage()._cdata, path)

    def refer(self, path: Path) -> int:
        """The number under which a path is kept."""
        return self.referred.setdefault(path, len(self.referred))

    def resolve(self, obj: object, name: str) -> Reference:
        """How a class or function is named in this interpreter."""
        module, attribute = self._names.get_name(obj, name)
        return Reference(module, attribute, module)

    def is_importable(self, function: FunctionType) -> bool:
        """Whether a function can be named, so that its source need not travel."""
        try:
            self._names.get_name(function, function.__qualname__)
        except (ObjNotFoundError, ObjMismatchError):
            return False
        return function.__module__ != "__main__"

    def module_name(self, module: ModuleType) -> str:
        """The module path by which a live module is imported."""
        return module.__name__

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""
        module = sys.modules.get(function.__module__ or "")
        if module is None or module.__name__ == "__main__":
            return None
        return module if vars(module) is function.__globals__ else None

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """A storage of the model by its path; the contents of any other, once."""
        path = self._of_the_model.get(storage._cdata)
        if path is not None:
            return f"part {self.refer(path)}"
        known = {kept._cdata: str(index) for index, kept in enumerate(self._kept)}
        if storage._cdata not in known:
            key = known[storage._cdata] = str(len(self._kept))
            self._kept.append(storage)
            self.storages[key] = bytes(storage_bytes(storage))
        return known[storage._cdata]

    def add_attachment(self, data: bytes) -> str:
        """What torch serialised itself."""
        key = f"attached {len(self.storages)}"
        self.storages[key] = data
        return key

    def next_reduce_id(self) -> int:
        """A number for the next object that is referred to."""
        self._reduced += 1
        return self._reduced


class _CapturingObserver(HookObserver):
    """Notes the hooks of a whole model at once, and refers to its parts by their paths."""

    def __init__(self, parts: _Parts, collector: HookCollector, emptied: Emptied) -> None:
        super().__init__(parts.model, {}, collector, emptied)
        self._names = Names(parts.model, _extras(parts.optimizer))
        self._parts = parts
        self._graph_handles: list[GraphHandle] = []
        for obj, _ in parts.objects.values():
            self._note_part(obj)

    def next_payload(self) -> dict[str, Any] | None:
        payload = super().next_payload()
        if payload is not None:
            held, self._graph_handles = self._graph_handles, []
            payload["graph_handles"] = [
                (each, each.attachment) for each in held if not each.attachment.removed
            ]
        return payload

    def stand_in(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        if issubclass(kind, (str, int, float, bytes, type(None), FunctionType, type)):
            return None
        empty = super().stand_in(kind)

        def refer(obj: Any) -> tuple[Any, ...] | None:
            known = self._parts.objects.get(id(obj))
            if known is not None:
                function = handle if isinstance(obj, (RemovableHandle, GraphHandle)) else part
                return function, (self._parts.refer(known[1]),)
            return None if empty is None else empty(obj)

        return refer

    def _note_part(self, obj: Any) -> None:
        if isinstance(obj, torch.nn.Module):
            self._note_module(obj)
        elif isinstance(obj, torch.Tensor) and obj.is_leaf:
            self._collector.tensor(obj)
        elif isinstance(obj, torch.optim.Optimizer):
            self._collector.optimizer(obj)
        elif isinstance(obj, RemovableHandle):
            self._collector.handle(obj)
        elif isinstance(obj, GraphHandle):
            self._graph_handles.append(obj)


def _has_storage(tensor: torch.Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have none
        return False
    return True


# -- restoring -------------------------------------------------------------------------------


class _Target:
    """The model that captured hooks are put onto."""

    last_map_location = None

    def __init__(self, model: Any, optimizer: Any, captured: HookCapture) -> None:
        self.captured = captured
        self._roots = {"model": model, **_extras(optimizer)}

    def part(self, index: int) -> Any:
        """A part of the model that the hooks refer to."""
        return part_at(self._roots, self.captured.paths[index])

    @property
    def zip_reader(self) -> _Target:
        """Where attachments are read."""
        return self

    def get_record(self, name: str) -> bytes:
        """An attachment."""
        return self.captured.storages[name]

    # -- what storages are loaded from (modpack.pickling.storages.StorageSource) --------------

    def has(self, name: str) -> bool:
        """Whether the capture holds a record."""
        return name == "byteorder" or name in self._records

    def read(self, name: str) -> bytes:
        """A record of the capture."""
        return self.captured.byteorder.encode() if name == "byteorder" else self._records[name]

    def data_range(self, name: str) -> None:
        """Nothing of it is in a file."""

    def has_changed(self) -> bool:
        """It is a value."""
        return False

    @property
    def _records(self) -> dict[str, bytes]:
        return {storage_record(key): data for key, data in self.captured.storages.items()}


class _StorageLoader(StorageLoader):
    """Gives the model's own storages where hooks refer to those."""

    def __init__(self, target: _Target) -> None:
        super().__init__(target, None, "captured hooks")
        self._target = target

    def load(self, storage_type: Any, key: Any, location: Any, size: Any) -> Any:
        kind, _, index = str(key).partition(" ")
        if kind != "part":
            return super().load(storage_type, key, location, size)
        dtype = torch.uint8
        if storage_type is not torch.UntypedStorage:
            dtype = torch.storage._get_dtype_from_pickle_storage_type(storage_type.__name__)
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=self._target.part(int(index)).untyped_storage(),
            dtype=dtype,
            _internal=True,
        )


def _loaded(target: _Target) -> list[dict[str, Any]]:
    payloads: list[dict[str, Any]] = []
    unpickle_object(
        target.captured.hooks,
        resource="captured hooks",
        import_module=importlib.import_module,
        storages=_StorageLoader(target),
        package=target,
        on_payload=payloads.append,
    )
    return payloads


def _take_off(payload: dict[str, Any]) -> None:
    """Remove the hooks of tensors and optimizers that are going to be registered again."""
    for _, kind, target, *_ in payload["hooks"]:
        row = KINDS[kind]
        for each in target if row.scope == "group" else [target]:
            if row.scope in ("tensor", "group"):
                (getattr(each, row.tables[0], None) or {}).clear()


def _hook_tables(parts: _Parts) -> list[tuple[dict[int, Any], frozenset[int]]]:
    """The hook tables of all modules, each with the ids of hooks that travel natively."""
    tables = []
    for module in (obj for obj, _ in parts.objects.values() if isinstance(obj, torch.nn.Module)):
        for kind in kinds_of("module"):
            hooks = getattr(module, kind.tables[0])
            native = frozenset(i for i, hook in hooks.items() if travels_natively(hook))
            tables += [(getattr(module, table), native) for table in kind.tables]
    return tables


def _extras(optimizer: Any) -> dict[str, Any]:
    return {} if optimizer is None else {"optimizer": optimizer}


def _require(model: object, optimizer: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
