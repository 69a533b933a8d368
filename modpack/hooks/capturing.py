"""Capturing hooks without a package: what the pickler is given."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.hooks.collect import HookCollector
from modpack.hooks.graphbound import GraphHandle
from modpack.hooks.naming import Names
from modpack.hooks.observer import HookObserver
from modpack.hooks.parts import Path, holds_tables, parts_of, roots_beside
from modpack.hooks.recalling import handle, part
from modpack.hooks.resetting import Emptied
from modpack.pickling.context import Reference
from modpack.pickling.functions import home_module
from modpack.pickling.storages import storage_bytes
from modpack.resolution.importers import Importer, sys_importer

__all__ = ["CapturingObserver", "ModelParts"]


class _ThisProcess(Importer):
    """Names in the running interpreter, those of loaded packages included."""

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

    def whichmodule(self, obj: object, name: str) -> str:
        return sys_importer.whichmodule(obj, name)

    def loaded_module(self, module_name: str) -> ModuleType | None:
        return sys.modules.get(module_name)


class _NoExporter:
    """What ``__reduce_package__`` is called with: there is no package to write to."""

    def __getattr__(self, name: str) -> Any:
        raise ModpackError(
            "it packages itself, which needs an exporter. Remedy: save the model with "
            "modpack.save, or make it a part of the model"
        )


class ModelParts:
    """The parts of a model, and where references and storages of its hooks go.

    Args:
        model: the model.
        optimizer: its optimizer.
        closures: whether hooks refer to the closures of the model's functions, too.
    """

    exporter = _NoExporter()

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        closures: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.objects: dict[int, tuple[Any, Path]] = {}
        self.referred: dict[Path, int] = {}
        self.storages: dict[str, bytes] = {}
        self._of_the_model: dict[int, Path] = {}
        self._kept: list[torch.UntypedStorage] = []
        self._reduced = 0
        self._names = _ThisProcess()
        self.roots = {"model": model, **roots_beside(optimizer)}
        for obj, path in parts_of(self.roots, self._enters if closures else None):
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

    def _enters(self, function: FunctionType) -> bool:
        return bool(function.__closure__) and not self.is_importable(function)

    def module_name(self, module: ModuleType) -> str:
        """The module path by which a live module is imported."""
        return module.__name__

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""
        return home_module(function)

    def script(self, module: str) -> None:
        """None: here, functions of scripts come with their globals."""

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


class CapturingObserver(HookObserver):
    """Notes the hooks of a whole model at once, and refers to its parts by their paths."""

    def __init__(
        self, given: Any, parts: ModelParts, collector: HookCollector, emptied: Emptied
    ) -> None:
        super().__init__(parts.model, {}, collector, emptied)
        self._names = Names(parts.model, roots_beside(parts.optimizer))
        self._parts = parts
        self._graph_handles: list[GraphHandle] = []
        if isinstance(given, DistributedDataParallel):
            self.wrapper(given)
        for obj, _ in parts.objects.values():
            self._note_part(obj)

    def next_payload(self) -> dict[str, Any] | None:
        """The hooks that were noted, and the handles of attachments that the model holds."""
        payload = super().next_payload()
        if payload is not None:
            held, self._graph_handles = self._graph_handles, []
            payload["graph_handles"] = [
                (each, each.attachment) for each in held if not each.attachment.removed
            ]
        return payload

    def stand_in(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """References in place of the model's parts."""
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
        elif isinstance(obj, torch.Tensor):
            self._note_tensor(obj)
        elif isinstance(obj, torch.optim.Optimizer):
            self._collector.optimizer(obj)
        elif holds_tables(type(obj)):
            self._collector.handle(obj)
        elif isinstance(obj, GraphHandle):
            self._graph_handles.append(obj)


def _has_storage(tensor: torch.Tensor) -> bool:
    if is_lazy(tensor):  # it raises whatever it is asked
        return False
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have none
        return False
    return True
