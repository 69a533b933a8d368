"""Hooks without a package: captured from a model as a value, for another model.

A capture contains the hooks and the objects that they refer to, but no part of the model: it refers
to the model's modules, tensors, and containers by their paths. A closure over a weight, restored
on another model, closes over that model's weight.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from modpack.capturing.collect import HookCollector
from modpack.capturing.describe import ObjectPaths
from modpack.capturing.observe import HookObserver, ResetState, find_recorded_state
from modpack.environment.importers import Importer
from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.hooks.choice import HookChoice, check_names, selector
from modpack.hooks.ddp import unwrap
from modpack.hooks.graph_parts import GraphHandle
from modpack.hooks.model_parts import (
    Path,
    extra_roots,
    iter_parts,
    require_model,
)
from modpack.hooks.restoring import (
    HookCapture,
    handle,
    part,
)
from modpack.saving.base import GlobalReference
from modpack.saving.function_source import globals_module
from modpack.saving.pickler import pickle_object
from modpack.saving.tensors import storage_bytes


class _ThisProcess(Importer):
    """Resolves names in the running interpreter, including those of loaded packages."""

    modules = sys.modules

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        return sys.modules.get(module_name)


class _NoExporter:
    """The argument of ``__reduce_package__`` when there is no package to write to."""

    def __getattr__(self, name: str) -> Any:
        raise ModpackError(
            "the object's __reduce_package__ requires an exporter",
            hint="Save the model with modpack.save, or make the object part of the model.",
        )


class ModelParts:
    """The parts of a model, and the references and storages of its hooks.

    Args:
        model: The model.
        optimizer: Its optimizer.
    """

    exporter = _NoExporter()

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.model = model
        self.optimizer = optimizer
        self.objects: dict[int, tuple[Any, Path]] = {}
        self.referred: dict[Path, int] = {}
        self.storages: dict[str, bytes] = {}
        self._model_storages: dict[int, Path] = {}
        self._kept: dict[int, tuple[str, torch.UntypedStorage]] = {}
        self._reduced = 0
        self._names = _ThisProcess()
        for obj, path in iter_parts({"model": model, **extra_roots(optimizer)}):
            self.objects[id(obj)] = (obj, path)
            if isinstance(obj, torch.Tensor) and _has_storage(obj):
                self._model_storages.setdefault(obj.untyped_storage()._cdata, path)

    def refer(self, path: Path) -> int:
        """Return the number that represents a path."""
        return self.referred.setdefault(path, len(self.referred))

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """Return the reference of a class or function in this interpreter."""
        module, attribute = self._names.get_name(obj, name)
        return GlobalReference(module, attribute, module)

    def is_importable(self, function: FunctionType) -> bool:
        """Return whether a function can be saved by name, without its source."""
        try:
            self._names.get_name(function, function.__qualname__)
        except (ObjNotFoundError, ObjMismatchError):
            return False
        return function.__module__ != "__main__"

    def module_name(self, module: ModuleType) -> str:
        """Return the module path by which a live module is imported."""
        return module.__name__

    def globals_module(self, function: FunctionType) -> ModuleType | None:
        """Return the importable module with a function's globals; None for ``__main__``."""
        return globals_module(function)

    def script(self, module: str) -> None:
        """Return None: in captures, functions of scripts are saved with their globals."""

    def script_additions(self, kind: type) -> tuple[()]:
        """Return nothing: captures refer to the classes of this process."""
        return ()

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Return the key of a storage: a path in the model, or newly stored contents."""
        path = self._model_storages.get(storage._cdata)
        if path is not None:
            return f"part {self.refer(path)}"
        if storage._cdata not in self._kept:
            key = str(len(self._kept))
            self._kept[storage._cdata] = key, storage  # keeps the address from being reused
            self.storages[key] = bytes(storage_bytes(storage))
        return self._kept[storage._cdata][0]

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialized, and return their key."""
        key = f"attached {len(self.storages)}"
        self.storages[key] = data
        return key

    def next_reduce_id(self) -> int:
        """Return a number for the next object that is referred to."""
        self._reduced += 1
        return self._reduced


class CapturingObserver(HookObserver):
    """Records the hooks of a whole model at once, and refers to its parts by their paths."""

    def __init__(
        self, given: Any, parts: ModelParts, collector: HookCollector, emptied: ResetState
    ) -> None:
        super().__init__(parts.model, {}, collector, emptied)
        self._parts = parts
        objects = [obj for obj, _ in parts.objects.values()]
        self._graph_handles = [obj for obj in objects if isinstance(obj, GraphHandle)]
        if isinstance(given, DistributedDataParallel):
            self.note_wrapper(given)
        for obj in objects:
            self.note(obj)

    @cached_property
    def names(self) -> ObjectPaths:
        """The paths of the parts of the model and its optimizer."""
        return ObjectPaths(self._parts.model, extra_roots(self._parts.optimizer))

    def next_payload(self) -> dict[str, Any] | None:
        """Return the recorded hooks, and the model's handles of attachments."""
        payload = super().next_payload()
        if payload is not None:
            held, self._graph_handles = self._graph_handles, []
            payload["graph_handles"] = [
                (each, each.attachment) for each in held if not each.attachment.removed
            ]
        return payload

    def replacement(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """Return a function that replaces the model's parts by references."""
        if issubclass(kind, (str, int, float, bytes, type(None), FunctionType, type)):
            return None
        empty = super().replacement(kind)

        def refer(obj: Any) -> tuple[Any, ...] | None:
            known = self._parts.objects.get(id(obj))
            if known is not None:
                function = handle if isinstance(obj, (RemovableHandle, GraphHandle)) else part
                return function, (self._parts.refer(known[1]),)
            return None if empty is None else empty(obj)

        return refer


def _has_storage(tensor: torch.Tensor) -> bool:
    if is_lazy(tensor):  # it raises for any attribute
        return False
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have none
        return False
    return True


def capture(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    hooks: HookChoice = True,
    global_hooks: bool = False,
    reset_hook_state: HookChoice = False,
) -> HookCapture:
    """Capture the hooks of a model and its optimizer. Both are only read.

    Args:
        model: The model. For a DistributedDataParallel wrapper, the module inside is used.
        optimizer: Its optimizer.
        hooks: The hooks to capture: True, False, names, or a predicate over specs.
        global_hooks: Whether to capture process-wide hooks too.
        reset_hook_state: The hooks whose collected state to exclude; see
            :meth:`modpack.PackageExporter.save_model`.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If no hook has a chosen name.
        PicklingError: If a hook cannot be captured. The message names it.
    """
    require_model(model, optimizer)
    parts = ModelParts(unwrap(model), optimizer)
    collector = HookCollector(parts.is_importable, selector(hooks), references_stay=False)
    extras = extra_roots(optimizer)
    emptied = find_recorded_state(
        model, extras, reset_hook_state, parts.is_importable, global_hooks
    )
    observer = CapturingObserver(model, parts, collector, emptied)
    if global_hooks:
        collector.note_global_hooks()
    resource = f"the hooks of {type(model).__name__}"
    pickled = pickle_object(None, context=parts, resource=resource, protocol=4, observer=observer)
    check_names(hooks, (*observer.specs, *collector.left_out))
    list(observer.warn_unsaved())
    return HookCapture(
        specs=tuple(observer.specs),
        hooks=pickled.data + pickled.appended,
        paths=tuple(parts.referred),
        storages=dict(parts.storages),
    )
