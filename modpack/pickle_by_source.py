"""A pickle module that saves lambdas and nested functions of loaded packages by their source.

Plain :mod:`pickle` rejects such functions, for example hooks. After :func:`register`, worker
processes receive them through :mod:`multiprocessing`, joblib, and Ray. For files, pass this module
to torch: ``torch.save(model, file, pickle_module=modpack.pickle_by_source)``. Loading needs neither
step. The functions import modules of their package, as they do in the process that loaded it.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from pickle import Unpickler, load, loads
from types import CellType, FunctionType
from typing import IO, Any

from modpack.core.names import PACKAGES, is_within
from modpack.errors import PicklingError
from modpack.loading.namespace import Namespace
from modpack.pickling.functions import GlobalNames, make_cell, make_function
from modpack.saving.function_source import (
    NoSourceError,
    globals_module,
    is_found_by_name,
    reduce_function,
)

__all__ = ["Pickler", "Unpickler", "dump", "dumps", "load", "loads", "register"]


class Pickler(pickle.Pickler):
    """A pickler that saves functions of packages by their source if they cannot be imported."""

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a function of a package (:meth:`pickle.Pickler.reducer_override`)."""
        return _reduce(self, obj, False)


def dump(obj: object, file: IO[bytes], protocol: int | None = None) -> None:
    """Write an object to a file (:func:`pickle.dump`)."""
    Pickler(file, protocol).dump(obj)


def dumps(obj: object, protocol: int | None = None) -> bytes:
    """Return an object as bytes (:func:`pickle.dumps`)."""
    file = io.BytesIO()
    dump(obj, file, protocol)
    return file.getvalue()


def register(*picklers: type[pickle.Pickler]) -> None:
    """Let other picklers save functions of packages by their source.

    A process that receives such a function registers the picklers too, so that it can send the
    function back.

    Args:
        *picklers: Pickler classes. Default: the picklers of multiprocessing and of each imported
            copy of cloudpickle. joblib and Ray contain copies, so import them first.
    """
    for kind in picklers or _known_picklers():
        own = getattr(kind, "reducer_override", None)
        if getattr(own, "__module__", None) != __name__:
            kind.reducer_override = _overriding(own)  # type: ignore[method-assign]


def _known_picklers() -> Iterator[type[pickle.Pickler]]:
    yield ForkingPickler
    for name, module in list(sys.modules.items()):
        if name.rpartition(".")[2] in ("cloudpickle", "cloudpickle_fast"):
            found = getattr(module, "CloudPickler", None)
            if isinstance(found, type):
                yield found


def _overriding(own: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    def reducer_override(self: Any, obj: Any) -> Any:
        reduced = _reduce(self, obj, True)
        return own(self, obj) if reduced is NotImplemented and own is not None else reduced

    return reducer_override


class _Cell:
    """A closure cell of a function; picklers for closures would follow its contents at once."""

    def __reduce__(self) -> tuple[Any, ...]:
        return make_cell, ()


def _reduce(pickler: Any, obj: Any, is_registered: bool) -> Any:
    if type(obj) is GlobalNames and "builtins" in vars(obj):
        return _make_globals, (_namespace_name(obj.builtins), is_registered)
    if type(obj) is not FunctionType:
        torch = sys.modules.get("torch")
        is_tensor = torch is not None and isinstance(obj, torch.Tensor)
        return _reduce_tensor(pickler, obj) if is_tensor else NotImplemented
    builtins = getattr(obj, "__builtins__")  # noqa: B009  # unknown to type checkers
    if not _namespace_name(builtins) or is_found_by_name(obj, obj.__qualname__):
        return NotImplemented
    seen = vars(pickler).setdefault("_modpack_by_source", {})
    module = globals_module(obj)
    if module is None:
        home: Any = seen.setdefault(id(obj.__globals__), (_globals_with(builtins), obj))[0]
    else:
        home = module.__name__
    cells = tuple(seen.setdefault(id(c), (_Cell(), c))[0] for c in obj.__closure__ or ())
    try:
        _, (text, identity, _, _), *rest = reduce_function(obj, home)
    except NoSourceError as failure:
        raise PicklingError(f"function {obj.__qualname__}", ((None, str(failure)),)) from failure
    return _make_function, (text, identity, home, cells, is_registered), *rest


def _reduce_tensor(pickler: Any, tensor: Any) -> Any:
    """Reduce a tensor with hooks of a package, which torch would leave out."""
    tables = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    hooks = [hook for table in tables for hook in (table or {}).values()]
    if not tensor.is_leaf or not any(map(_is_packaged, hooks)):
        return NotImplemented
    own = getattr(pickler, "dispatch_table", copyreg.dispatch_table).get(type(tensor))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "backward hook .* will not be serialized")
        made = own(tensor) if own else tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    return *made[:2], tables, None, None, _set_hooks


def _is_packaged(hook: Any) -> bool:
    """Return whether a hook is a function or an object of a package in a private namespace."""
    made = getattr(hook, "func", hook)  # of a partial function
    made = getattr(made, "__func__", made)
    if type(made) is FunctionType and _namespace_name(getattr(made, "__builtins__", {})):
        return True
    return is_within(str(getattr(made, "__module__", "")), PACKAGES)


def _set_hooks(tensor: Any, tables: tuple[Any, Any]) -> None:
    """Set a tensor's hooks, which its handles refer to by their dictionaries."""
    from torch.utils.hooks import RemovableHandle

    for name, table in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), tables, strict=True):
        if table:
            setattr(tensor, name, table)
            RemovableHandle.next_id = max(RemovableHandle.next_id, *(key + 1 for key in table))


def _globals_with(builtins: Mapping[str, Any]) -> GlobalNames:
    """Return empty globals with these builtins."""
    made = GlobalNames()
    made.builtins = builtins
    return made


def _namespace_name(builtins: Mapping[str, Any]) -> str:
    """Return the private namespace of functions with these builtins; empty for others."""
    owner = getattr(builtins.get("__import__"), "__self__", None)
    return owner.name if isinstance(owner, Namespace) and owner.prefix else ""


def _make_globals(namespace: str, is_registered: bool) -> GlobalNames:
    """Create globals for functions without a module, with the builtins of their package."""
    if is_registered:
        register()
    return _globals_with(importlib.import_module(namespace).__modpack__._code_builtins)


def _make_function(
    fields: tuple[Any, ...],
    identity: tuple[str, str, str],
    home: GlobalNames | str,
    cells: tuple[CellType, ...],
    is_registered: bool,
) -> FunctionType:
    """Create a function from its source; see :func:`.functions.make_function`."""
    if is_registered:
        register()
    module = importlib.import_module(home) if isinstance(home, str) else home
    return make_function(fields, identity, module, cells)
