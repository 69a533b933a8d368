"""Hooks without a package: captured from a model as a value, and put onto another one.

A capture holds the hooks and what they carry along, but nothing of the model: it refers to the
model's modules, tensors and containers by their paths. Restored onto another model, a closure
over a weight closes over that model's weight.
"""

from __future__ import annotations

import copy as copying
import importlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torch.utils.hooks import RemovableHandle

from modpack.core.process import find_instances
from modpack.discovery.importers import Importer
from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError
from modpack.hooks.collect import HookCollector
from modpack.hooks.ddp import inside
from modpack.hooks.describe import HookChoice, ObjectPaths, check_names, selector
from modpack.hooks.graph_parts import GraphHandle
from modpack.hooks.kinds import kinds_of, travels_natively
from modpack.hooks.model_parts import (
    Path,
    parts_of,
    replace_functions,
    require_optimizer,
    roots_beside,
    shared_places,
    shown,
)
from modpack.hooks.observe import HookObserver, ResetState, find_collected
from modpack.hooks.restoring import (
    CAPTURE_VERSION,
    HookCapture,
    RestoreTarget,
    handle,
    part,
    payloads_of,
    register_payload,
    take_off,
)
from modpack.pickling.base import GlobalReference
from modpack.pickling.functions import globals_module
from modpack.pickling.pickler import pickle_object
from modpack.pickling.remade import fresh_lock, fresh_rlock
from modpack.pickling.tensors import storage_bytes
from modpack.pickling.torch_archives import script_bytes


class _ThisProcess(Importer):
    """Names in the running interpreter, those of loaded packages included."""

    modules = sys.modules

    def import_module(self, module_name: str) -> ModuleType:
        return importlib.import_module(module_name)

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
        self._kept: dict[int, tuple[str, torch.UntypedStorage]] = {}
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

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """How a class or function is named in this interpreter."""
        module, attribute = self._names.get_name(obj, name)
        return GlobalReference(module, attribute, module)

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

    def globals_module(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""
        return globals_module(function)

    def script(self, module: str) -> None:
        """None: here, functions of scripts come with their globals."""

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """A storage of the model by its path; the contents of any other, once."""
        path = self._of_the_model.get(storage._cdata)
        if path is not None:
            return f"part {self.refer(path)}"
        if storage._cdata not in self._kept:
            key = str(len(self._kept))
            self._kept[storage._cdata] = key, storage  # else another one may get its address
            self.storages[key] = bytes(storage_bytes(storage))
        return self._kept[storage._cdata][0]

    def add_attachment(self, data: bytes) -> str:
        """What torch serialized itself."""
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
        self, given: Any, parts: ModelParts, collector: HookCollector, emptied: ResetState
    ) -> None:
        super().__init__(parts.model, {}, collector, emptied)
        self._parts = parts
        objects = [obj for obj, _ in parts.objects.values()]
        self._graph_handles = [obj for obj in objects if isinstance(obj, GraphHandle)]
        if isinstance(given, DistributedDataParallel):
            self.wrapper(given)
        for obj in objects:
            self.note(obj)

    @cached_property
    def names(self) -> ObjectPaths:
        """The paths to the parts of the model and of its optimizer."""
        return ObjectPaths(self._parts.model, roots_beside(self._parts.optimizer))

    def next_payload(self) -> dict[str, Any] | None:
        """The hooks that were noted, and the handles of attachments that the model holds."""
        payload = super().next_payload()
        if payload is not None:
            held, self._graph_handles = self._graph_handles, []
            payload["graph_handles"] = [
                (each, each.attachment) for each in held if not each.attachment.removed
            ]
        return payload

    def replacement(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """References in place of the model's parts."""
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
    if is_lazy(tensor):  # it raises whatever it is asked
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
    """Capture the hooks of a model, and of its optimizer; both are only read.

    Args:
        model: the model; of a DistributedDataParallel wrapper the module inside counts.
        optimizer: its optimizer.
        hooks: which hooks: True, False, names, or a predicate over specs.
        global_hooks: whether to capture the hooks of the whole process as well.
        reset_hook_state: whose collected state to leave behind; see
            :meth:`modpack.PackageExporter.save_model`.

    Raises:
        TypeError, ValueError: an argument is none of these, or no hook has a name.
        PicklingError: a hook cannot be captured; it is named.
    """
    _require(model, optimizer)
    parts = ModelParts(inside(model), optimizer)
    return _captured(model, parts, hooks, global_hooks, reset_hook_state)[0]


def _captured(
    model: torch.nn.Module,
    parts: ModelParts,
    hooks: HookChoice,
    global_hooks: bool,
    reset_hook_state: HookChoice,
) -> tuple[HookCapture, ResetState]:
    collector = HookCollector(parts.is_importable, selector(hooks), references_stay=False)
    extras = roots_beside(parts.optimizer)
    emptied = find_collected(model, extras, reset_hook_state, parts.is_importable, global_hooks)
    observer = CapturingObserver(model, parts, collector, emptied)
    if global_hooks:
        collector.process_wide()
    resource = f"the hooks of {type(model).__name__}"
    pickled = pickle_object(None, context=parts, resource=resource, protocol=4, observer=observer)
    check_names(hooks, (*observer.specs, *collector.left_out))
    list(observer.lost())  # it warns of those
    captured = HookCapture(
        specs=tuple(observer.specs),
        hooks=pickled.data + pickled.appended,
        paths=tuple(parts.referred),
        storages=dict(parts.storages),
    )
    return captured, emptied


def restore(
    model: torch.nn.Module,
    captured: HookCapture,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    hooks: HookChoice = True,
    global_hooks: bool = False,
) -> dict[str, Any]:
    """Register captured hooks on a model: the captured one's copy, or one built like it.

    They refer to this model's parameters, modules and containers. Hooks of the same kinds that
    these modules and tensors have already are taken off first.

    Args:
        model: the model.
        captured: what :func:`capture` returned.
        optimizer: its optimizer, if the hooks were captured with one.
        hooks: which hooks: True, False, names, or a predicate over specs.
        global_hooks: whether to register process-wide hooks that were captured.

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
    payloads = payloads_of(RestoreTarget(inside(model), optimizer, captured))
    for payload in payloads:
        take_off(payload)
    handles: dict[str, Any] = {}
    fresh: dict[Any, Any] = {}
    for payload in payloads:
        handles.update(register_payload(payload, wanted.__contains__, global_hooks, fresh))
        for held, attachment in payload["graph_handles"]:
            held.attachment = attachment
    return handles


def copy_model(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    reset_hook_state: HookChoice = False,
) -> Any:
    """Copy a model together with its hooks: the copy's hooks refer to the copy.

    :func:`copy.deepcopy` shares closures: a hook of its copy still reads the original's
    parameters and writes to the original's lists, and hooks of parameters are lost. Functions of
    the model that refer to something that its hooks refer to are copied with them; all other
    functions are left as they are, as :func:`copy.deepcopy` does.

    Args:
        model: the model.
        optimizer: its optimizer.
        reset_hook_state: whose collected state to leave behind.

    Returns:
        The copy; with an optimizer, the copies of both.

    Raises:
        PicklingError: a hook cannot be captured; it is named.
        ModpackError: a part of the model cannot be copied; it is named.

    >>> model = torch.nn.Linear(2, 2)
    >>> seen = []
    >>> handle = model.register_forward_hook(lambda module, args, output: seen.append(1))
    >>> duplicate = copy(model)
    >>> _ = duplicate(torch.ones(1, 2))
    >>> seen
    []
    """
    _require(model, optimizer)
    parts = ModelParts(inside(model), optimizer, closures=True)
    captured, emptied = _captured(model, parts, True, False, reset_hook_state)
    memo = dict(_uncopied(parts))
    memo.update((key, emptied.fresh(each)) for key, each in emptied.containers.items())
    tables = _hook_tables(parts)
    memo.update((id(table), type(table)()) for table, _ in tables)
    with _naming_what_fails(parts, memo):
        duplicates = copying.deepcopy((parts.model, optimizer), memo)
        for table, native in tables:
            kept = {i: copying.deepcopy(hook, memo) for i, hook in table.items() if i in native}
            memo[id(table)].update(kept)
        copied = {"model": duplicates[0], **roots_beside(duplicates[1])}
        replace_functions(shared_places(parts.objects, parts.referred), parts.roots, copied, memo)
    restore(duplicates[0], captured, duplicates[1])
    return duplicates[0] if optimizer is None else duplicates


def _hook_tables(parts: ModelParts) -> list[tuple[dict[int, Any], frozenset[int]]]:
    """The hook tables of all modules, each with the ids of hooks that travel natively."""
    tables = []
    modules = (obj for obj, _ in parts.objects.values() if isinstance(obj, torch.nn.Module))
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):  # torch makes a new one, without tables
            continue
        for kind in kinds_of("module"):
            hooks = getattr(module, kind.tables[0])
            native = frozenset(i for i, hook in hooks.items() if travels_natively(hook))
            tables += [(getattr(module, table), native) for table in kind.tables]
    return tables


@contextmanager
def _naming_what_fails(parts: ModelParts, memo: Mapping[int, Any]) -> Iterator[None]:
    """Tell where a part is that cannot be copied; a class's own methods may raise anything."""
    before = dict(memo)
    try:
        yield
    except Exception as failure:
        for obj, path in reversed(parts.objects.values()):  # those inside others come later
            try:
                copying.deepcopy(obj, dict(before))
            except Exception as reason:  # what it holds could be copied: it is its own
                raise ModpackError(
                    f"{shown(path)}: a {type(obj).__name__} cannot be copied ({reason}). Remedy: "
                    "let its class say how (__deepcopy__), or leave the attribute out while copying"
                ) from failure
        raise


def _uncopied(parts: ModelParts) -> Iterator[tuple[int, Any]]:
    """Copies of what cannot be copied deeply, by the ids of the originals."""
    for lock in find_instances((parts.model, parts.optimizer), tuple(_FRESH)):
        yield id(lock), _FRESH[type(lock)]()
    inside_others: set[int] = set()
    for obj, _ in parts.objects.values():
        if isinstance(obj, torch.jit.ScriptFunction):  # nothing about it can change
            yield id(obj), obj
        elif isinstance(obj, torch.jit.ScriptModule):  # its parameters would be no leaves
            if id(obj) not in inside_others:
                inside_others.update(map(id, obj.modules()))
                yield id(obj), torch.jit.load(io.BytesIO(script_bytes(obj)))  # type: ignore[no-untyped-call]
        elif isinstance(obj, torch.Tensor) and not obj.is_leaf:  # such as a pruned weight
            yield id(obj), obj.detach().clone().requires_grad_(obj.requires_grad)
        elif isinstance(obj, UninitializedBuffer) or _is_sparse_parameter(obj):
            with torch._C.DisableTorchFunctionSubclass():
                data = obj.detach().clone()
                copied = torch.Tensor._make_subclass(type(obj), data, obj.requires_grad)
            copied.__dict__.update(obj.__dict__)
            yield id(obj), copied


_FRESH = {type(make()): make for make in (fresh_lock, fresh_rlock)}


def _is_sparse_parameter(obj: object) -> bool:
    if not isinstance(obj, torch.nn.Parameter) or is_lazy(obj):
        return False
    return obj.layout is not torch.strided


def _require(model: object, optimizer: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    require_optimizer(optimizer)
