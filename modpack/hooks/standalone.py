"""Hooks without a package: captured from a model as a value, and put onto another one.

A capture holds the hooks and what they carry along, but nothing of the model: it refers to the
model's modules, tensors and containers by their paths. Restored onto another model, a closure
over a weight closes over that model's weight.
"""

from __future__ import annotations

import copy as copying
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, is_lazy

from modpack.errors import ModpackError
from modpack.hooks.captured import CAPTURE_VERSION, HookCapture
from modpack.hooks.capturing import CapturingObserver, ModelParts
from modpack.hooks.collect import HookCollector
from modpack.hooks.ddp import inside
from modpack.hooks.kinds import kinds_of
from modpack.hooks.loadedmodules import instances_in
from modpack.hooks.native import travels_natively
from modpack.hooks.parts import roots_beside, shown
from modpack.hooks.recalling import Target, payloads_of, take_off
from modpack.hooks.resetting import Emptied, find_collected
from modpack.hooks.restoring import register_payload
from modpack.hooks.selection import HookChoice, check_names, selector
from modpack.hooks.twins import replace_functions, shared_places
from modpack.pickling.remade import fresh_lock, fresh_rlock
from modpack.pickling.saving import pickle_object
from modpack.pickling.torchscript import script_bytes

__all__ = ["HookCapture", "capture", "copy", "restore"]


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
    parts = ModelParts(inside(model), optimizer)
    return _captured(model, parts, hooks, global_hooks, reset_state)[0]


def _captured(
    model: torch.nn.Module,
    parts: ModelParts,
    hooks: HookChoice,
    global_hooks: bool,
    reset_state: HookChoice,
) -> tuple[HookCapture, Emptied]:
    collector = HookCollector(parts.is_importable, selector(hooks), references_stay=False)
    extras = roots_beside(parts.optimizer)
    emptied = find_collected(model, extras, reset_state, parts.is_importable, global_hooks)
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
    payloads = payloads_of(Target(inside(model), optimizer, captured))
    for payload in payloads:
        take_off(payload)
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
    parameters and writes to the original's lists, and hooks of parameters are lost. Functions of
    the model that refer to something that its hooks refer to are copied with them; all other
    functions are left as they are, as :func:`copy.deepcopy` does.

    Args:
        model: the model.
        optimizer: its optimizer.
        reset_state: whose collected state to leave behind.

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
    captured, emptied = _captured(model, parts, True, False, reset_state)
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
    for lock in instances_in((parts.model, parts.optimizer), tuple(_FRESH)):
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
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
