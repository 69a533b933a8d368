"""The link between the pickler and the collector of hooks."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.core.hookspec import HookSpec
from modpack.hooks.collect import HookCollector
from modpack.hooks.naming import Names
from modpack.hooks.parametrized import is_parametrized, reduce_parametrized

__all__ = ["HookObserver"]

_Own = Callable[[], Any]


class HookObserver:
    """Shows modules, tensors, optimizers and handles to a collector while they are pickled.

    Args:
        root: the saved object.
        extras: what is saved along with it, by name; pickled right after it.
        collector: notes the hooks.

    Attributes:
        specs: the hooks that went into the package, so far.
    """

    def __init__(self, root: Any, extras: dict[str, Any], collector: HookCollector) -> None:
        self.specs: list[HookSpec] = []
        self._collector = collector
        self._extras = {name: extra for name, extra in extras.items() if extra is not None}
        self._pending = bool(self._extras)
        self._names: Names | None = None
        self._root = root

    @property
    def names(self) -> Names:
        """The paths to the parts of the saved object; made when a hook has to be named."""
        if self._names is None:
            self._names = Names(self._root, self._extras)
        return self._names

    def reducer(self, kind: type) -> Callable[[Any, _Own], Any] | None:
        """What turns an object's own reduction into the one to write, by its type."""
        if issubclass(kind, torch.nn.Module):
            return self._module
        if issubclass(kind, torch.Tensor):
            return self._tensor
        if issubclass(kind, torch.optim.Optimizer):
            return self._optimizer
        if issubclass(kind, RemovableHandle):
            return self._handle
        return None

    def packaged(self, obj: object) -> None:
        """Note the hooks of a module that packages itself, such as an FX GraphModule."""
        if isinstance(obj, torch.nn.Module):
            self._collector.module(obj)

    def next_payload(self) -> dict[str, Any] | None:
        """First what is saved along, then hooks, until no new ones turn up."""
        if self._pending:
            self._pending = False
            return {"extras": self._extras}
        if not self._collector.has_news:
            return None
        specs, payload = self._collector.take(self.names)
        self.specs.extend(specs)
        return payload

    def _module(self, module: torch.nn.Module, own: _Own) -> Any:
        self._collector.module(module)
        if is_parametrized(module):
            state = self._collector.state_without_hooks(dict(module.__dict__))
            return reduce_parametrized(module, state)
        reduction = own()
        if not isinstance(reduction, tuple) or len(reduction) < 3:
            return reduction
        function, arguments, state, *rest = reduction
        return (function, arguments, self._collector.state_without_hooks(state), *rest)

    def _tensor(self, tensor: torch.Tensor, own: _Own) -> Any:
        self._collector.tensor(tensor)
        if not tensor._backward_hooks:
            return own()
        with warnings.catch_warnings():  # torch warns that it loses the hooks; we do not
            warnings.filterwarnings("ignore", message="backward hook", category=UserWarning)
            return own()

    def _optimizer(self, optimizer: torch.optim.Optimizer, own: _Own) -> Any:
        self._collector.optimizer(optimizer)
        return own()

    def _handle(self, handle: RemovableHandle, own: _Own) -> Any:
        """A handle travels dead; it is linked to its hook again when that is registered."""
        self._collector.handle(handle)
        nothing: tuple[Any, ...] = tuple(OrderedDict() for _ in handle.extra_dict_ref)
        return RemovableHandle.__new__, (RemovableHandle,), (None, handle.id, nothing)
