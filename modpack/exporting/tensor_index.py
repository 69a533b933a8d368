"""The named tensors of a saved object, and large storages that are mostly unused.

A package records the metadata of each tensor and the record of its elements. Nothing is copied and
no code of the object runs: not ``state_dict`` and its hooks, not properties, and not the torch
functions that a Tensor subclass overrides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from modpack.core.names import dotted
from modpack.core.tensors import StorageView, TensorFacts, TensorKind, bytes_used, is_underused
from modpack.core.text import dtype_name, human_size
from modpack.diagnostics import Diagnostic
from modpack.errors import listed
from modpack.saving.object_paths import iter_with_paths
from modpack.saving.tensors import ORDINARY, StorageSaver, find_large_view, is_ordinary

_MAX_PATHS: Final = 1000
"""Maximum number of paths to one module. Nested shared modules multiply them."""
_PLAIN: Final = (str, bytes, int, float, type(None))
_LEAVES: Final = frozenset({*_PLAIN, bool})
"""The most frequent types of container elements."""

_Found = tuple[str, TensorKind, torch.Tensor, bool]
"""A tensor's name, its kind, the tensor, and whether it is in the state dict."""


def named_tensors(
    obj: object,
    extras: Mapping[str, object],
    key_of: Callable[[torch.UntypedStorage], str | None],
) -> tuple[TensorFacts, ...]:
    """Return the tensors of an object that has just been saved.

    For a module, these are the parameters and buffers, under all their names. Containers, and
    attributes of objects that pickle saves by default, are searched for modules and tensors. Of
    those tensors, the result contains the ones that were stored or that are composed of other
    tensors.

    Args:
        obj: The object.
        extras: Objects saved together with it, by name.
        key_of: Returns the key of a storage that was stored with it, or None.
    """
    walk = _TensorWalk()
    roots = {"": obj, **extras}
    found = [each for name, root in roots.items() for each in walk.find(name, root)]
    # The shape or stride of a subclass may run its own code.
    with torch._C.DisableTorchFunctionSubclass():
        described = [_describe(*each, key_of) for each in found]
    is_own = (TensorKind.PARAMETER, TensorKind.BUFFER)
    return tuple(
        t
        for t in described
        if t.kind in is_own or t.storage is not None or t.form in _MADE_OF_OTHERS
    )


class _TensorWalk:
    """Finds tensors. Visits each container once and each module by all of its paths."""

    def __init__(self) -> None:
        self._entered: set[int] = set()
        self._paths: dict[int, int] = {}

    def find(self, path: str, root: object) -> Iterator[_Found]:
        todo: list[tuple[str, Any]] = [(path, root)]
        while todo:
            path, each = todo.pop()
            if isinstance(each, torch.Tensor):
                yield path, TensorKind.VALUE, each, True
            elif isinstance(each, torch.nn.Module):
                yield from self._module_tensors(path, each)
            elif isinstance(each, torch.optim.Optimizer):
                yield from _optimizer_tensors(path, each)
            elif not isinstance(each, _PLAIN) and id(each) not in self._entered:
                self._entered.add(id(each))
                parts = [(n, part) for n, part in _inner_parts(each) if type(part) not in _LEAVES]
                todo.extend((dotted(path, name), part) for name, part in reversed(parts))

    def _module_tensors(self, path: str, root: torch.nn.Module) -> Iterator[_Found]:
        todo: list[tuple[str, torch.nn.Module, tuple[int, ...]]] = [(path, root, ())]
        while todo:
            path, module, above = todo.pop()
            while isinstance(module, DistributedDataParallel):
                module = module.module  # only the wrapped module is saved
            followed = self._paths[id(module)] = self._paths.get(id(module), 0) + 1
            # A module may contain itself, or be reached by exponentially many paths.
            if id(module) in above or followed > _MAX_PATHS:
                continue
            if isinstance(module, torch.jit.ScriptModule):
                # The tables of a TorchScript module are not in Python.
                for name, parameter in module.named_parameters(remove_duplicate=False):
                    yield dotted(path, name), TensorKind.PARAMETER, parameter, True
                for name, buffer in module.named_buffers(remove_duplicate=False):
                    yield dotted(path, name), TensorKind.BUFFER, buffer, True
                continue
            yield from _own_tensors(path, module)
            children = [
                (n, child) for n, child in _module_table(module, "_modules") if child is not None
            ]
            inner = (*above, id(module))
            todo.extend((dotted(path, name), child, inner) for name, child in reversed(children))


def _own_tensors(path: str, module: torch.nn.Module) -> Iterator[_Found]:
    for name, tensor in _module_table(module, "_parameters"):
        if isinstance(tensor, torch.Tensor):
            yield dotted(path, name), TensorKind.PARAMETER, tensor, True
    temporary = vars(module).get("_non_persistent_buffers_set", ())
    for name, tensor in _module_table(module, "_buffers"):
        if isinstance(tensor, torch.Tensor):
            yield dotted(path, name), TensorKind.BUFFER, tensor, name not in temporary


def _module_table(module: torch.nn.Module, name: str) -> Iterable[tuple[str, Any]]:
    """Return the items of a module's table. Empty if ``__init__`` has never run."""
    return list(vars(module).get(name, {}).items())


def _optimizer_tensors(path: str, optimizer: torch.optim.Optimizer) -> Iterator[_Found]:
    """Yield the state of an optimizer, with parameters numbered as in its state dict."""
    groups: Any = vars(optimizer).get("param_groups", ())
    state_of: Any = vars(optimizer).get("state", {})
    for number, parameter in enumerate(p for group in groups for p in group["params"]):
        state = state_of.get(parameter)
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                yield dotted(path, f"state.{number}.{name}"), TensorKind.STATE, value, True


def _inner_parts(obj: object) -> Iterable[tuple[str, Any]]:
    """Return a container's items, or an object's attributes if pickle saves them by default."""
    # ``dict.items``, because a subclass may have its own ``items``, which must not run.
    if isinstance(obj, dict):
        return ((str(k), v) for k, v in list(dict.items(obj)) if isinstance(k, (str, int)))
    if isinstance(obj, (list, tuple)):
        entries = list.__iter__(obj) if isinstance(obj, list) else tuple.__iter__(obj)
        return ((str(number), value) for number, value in enumerate(entries))
    kind = type(obj)
    own = ("__reduce_ex__", "__reduce__", "__getstate__")
    is_plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in own)
    has_attributes = kind.__dictoffset__ and not issubclass(kind, type)
    return list(vars(obj).items()) if is_plain and has_attributes else ()


def _describe(
    name: str,
    kind: TensorKind,
    tensor: torch.Tensor,
    is_persistent: bool,
    key_of: Callable[[torch.UntypedStorage], str | None],
) -> TensorFacts:
    dtype, device = dtype_name(tensor.dtype), str(tensor.device)
    grad, form = tensor.requires_grad, _form(tensor)
    shape = None
    if form not in _WITHOUT_SHAPE:
        # A subclass may compute its own shape, or fail.
        with contextlib.suppress(RuntimeError, TypeError, AttributeError):
            shape = tuple(map(int, tensor.shape))
    storage = None if form in _WITHOUT_STORAGE else tensor.untyped_storage()
    key = None if storage is None else key_of(storage)
    # Sharded training frees the storages of parameters between uses.
    if key is not None and storage is not None and not storage.nbytes() and tensor.numel():
        key, form = None, "freed"
    if key is None:
        return TensorFacts(name, kind, dtype, shape, grad, is_persistent, device, form=form)
    offset, stride = int(tensor.storage_offset()), tuple(tensor.stride())
    where = key, offset, stride
    return TensorFacts(name, kind, dtype, shape, grad, is_persistent, device, *where, form)


_WITHOUT_SHAPE: Final = frozenset({"lazy", "nested"})
_MADE_OF_OTHERS: Final = frozenset({"meta", "nested", "sparse", "wrapper"})
_WITHOUT_STORAGE: Final = _WITHOUT_SHAPE | {"wrapper", "sparse", "meta"}


def _form(tensor: torch.Tensor) -> str:
    """Return how to interpret the elements if the storage alone does not determine it."""
    if type(tensor) in ORDINARY and is_ordinary(tensor):
        return ""
    if torch.nn.parameter.is_lazy(tensor):
        return "lazy"
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "meta"
    if tensor.layout is not torch.strided:
        return "sparse"
    if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
        return "wrapper"  # only its class knows how to find the elements
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_conj():
        return "conjugated"
    if tensor.is_neg():
        return "negated"
    return "" if type(tensor) in ORDINARY else "subclass"


_MAX_SHOWN_PATHS: Final = 3


@dataclass
class _StorageUse:
    """The use of a large storage.

    Attributes:
        record: The saved object that it was first stored for.
        size: Its size in bytes.
        views: The parts that saved tensors use, across all objects.
        is_whole: Whether it was also saved as a storage.
        paths: The paths of the tensors that use it.
    """

    record: str
    size: int
    views: set[StorageView] = field(default_factory=set)
    is_whole: bool = False
    paths: dict[str, None] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return self.size if self.is_whole else bytes_used(self.views)

    @property
    def is_wasteful(self) -> bool:
        return is_underused(self.size, self.used)


class StorageUsage:
    """Tracks the use of the storages of one package.

    Args:
        storages: The written storages.
    """

    def __init__(self, storages: StorageSaver) -> None:
        self._storages = storages
        self._uses: dict[str, _StorageUse] = {}

    def add_object(
        self, record: str, reductions: Iterable[Any], roots: Mapping[str, object]
    ) -> None:
        """Add an object that has just been saved.

        Args:
            record: The record of the object.
            reductions: The reductions of its tensors.
            roots: The object, and objects saved together with it, by display name.
        """
        if not self._storages.large:
            return
        keys: set[str] = set()
        for storage, view in filter(None, map(find_large_view, reductions)):
            key = self._storages.key_of(storage)
            if key is not None:
                self._uses.setdefault(key, _StorageUse(record, storage.nbytes())).views.add(view)
                keys.add(key)
        wasteful = {key for key in keys if self._uses[key].is_wasteful}
        # Searching the object for paths is slow, and wasteful storages are rare.
        for name, root in roots.items() if wasteful else ():
            for obj, path in iter_with_paths(root, name):
                stored, is_tensor = _storage_of(obj)
                key = None if stored is None else self._storages.key_of(stored)
                if key in wasteful:
                    self._uses[key].is_whole |= not is_tensor
                    self._uses[key].paths[path] = None

    def notes(self) -> Iterator[Diagnostic]:
        """Yield notes about mostly unused storages, in the order in which they were saved."""
        for use in (use for use in self._uses.values() if use.is_wasteful):
            paths = list(use.paths) or [f"a tensor of {use.record}"]
            verb, copies = ("use", "copies of them") if len(paths) > 1 else ("uses", "a copy of it")
            text = (
                f"{listed(paths, _MAX_SHOWN_PATHS)} {verb} {human_size(use.used)} of a storage of "
                f"{human_size(use.size)}, which is saved in full"
            )
            hint = f"If the rest is not needed, save {copies} (.clone())."
            yield Diagnostic.from_code("large-storage-view", paths[0], text, hint=hint)


def _storage_of(obj: Any) -> tuple[torch.UntypedStorage | None, bool]:
    """Return the storage of an object, if any, and whether the object is a tensor."""
    kind = type(obj)
    if issubclass(kind, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return (obj.untyped_storage() if torch._C._has_storage(obj) else None), True
    if issubclass(kind, torch.UntypedStorage):
        return obj, False
    return (obj._untyped_storage if issubclass(kind, torch.TypedStorage) else None), False
