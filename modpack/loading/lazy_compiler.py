"""Waiting imports and torch's compilers, which read names in other ways than Python does.

torch.compile looks globals up in a function's module without calling ``__missing__``. Everything
that waits is therefore imported before the compiler traces for the first time in a process, and
nothing waits from then on. torch.jit.script copies the globals of each function that it compiles.

``@torch.compiler.disable`` and its like import the compiler, a second of CPU time, only to mark a
function. Such marks are noted, and made when ``torch._dynamo`` is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from modpack.loading.waiting_imports import COMPILER_DECORATORS

if TYPE_CHECKING:
    from modpack.loading.lazy import LazyImports

_COMPILER: Final = "torch._dynamo"
_live: WeakSet[LazyImports] = WeakSet()
"""The namespaces in which imports may wait."""
_noted: list[Callable[[], object]] = []
"""Marks of functions that are made when the compiler is imported."""
_watches = False


def end_before_tracing(imports: LazyImports) -> None:
    """Import everything that waits in a namespace before the compiler traces something."""
    _live.add(imports)
    _watch()


def _watch() -> None:
    """Call :func:`_prepare` once the compiler is imported."""
    global _watches
    if _watches:
        return
    _watches = True
    _resolve_before_scripting()
    if _COMPILER in sys.modules:
        _prepare()
    else:
        sys.meta_path.insert(0, _Watcher())


def _resolve_before_scripting() -> None:
    """Import what waits in the module of a function before torch.jit.script reads its globals."""
    scripting = sys.modules.get("torch._jit_internal")
    get_closure = getattr(scripting, "get_closure", None)
    if scripting is None or get_closure is None:  # torch without TorchScript
        return

    @wraps(get_closure)
    def get_resolved_closure(fn: Any) -> Any:
        resolve = getattr(fn.__globals__.get("__builtins__"), "resolve_all", None)
        if resolve is not None:
            resolve()
        return get_closure(fn)

    scripting.get_closure = get_resolved_closure  # type: ignore[attr-defined]


def decorate(marker: Any, is_called: bool = False, *arguments: Any, **options: Any) -> Any:
    """Return a decorator of torch's compiler, or one that notes it if that is not imported yet.

    Args:
        marker: The function in the decorator.
        is_called: Whether the decorator is a call, of these arguments.
        *arguments: Positional arguments of the call.
        **options: Keyword arguments of the call.
    """
    name = getattr(marker, "__name__", "")
    real = getattr(sys.modules.get("torch.compiler"), name, None)
    is_known = name in COMPILER_DECORATORS and real is marker and not arguments
    if not is_known or _COMPILER in sys.modules:
        return marker(*arguments, **options) if is_called else marker
    _watch()
    return partial(_note, marker, options)


def _note(marker: Any, options: dict[str, Any], function: Any) -> Any:
    if marker.__name__ != "disable":  # these mark the function or class itself
        if not isinstance(function, (FunctionType, type)):
            return marker(function, **options)
        _noted.append(partial(marker, function, **options))
        return function
    if type(function) is not FunctionType:
        return marker(function, **options)
    target: Any = function

    # Other code has this function when the mark is made, so it forwards to the marked one.
    @wraps(function)
    def disabled(*arguments: Any, **keywords: Any) -> Any:
        return target(*arguments, **keywords)

    def disable() -> None:
        nonlocal target
        target = marker(function, **options)

    _noted.append(disable)
    return disabled


def _prepare() -> None:
    """Make the noted marks, and import everything that waits before the first trace."""
    while _noted:
        _noted.pop(0)()
    handler = getattr(sys.modules[_COMPILER], "callback_handler", None)
    run = getattr(handler, "run_start_callbacks", None)
    if run is None:
        _end_all()
        return

    def run_start_callbacks(*arguments: Any, **options: Any) -> Any:
        _end_all()
        return run(*arguments, **options)

    # A registered callback would be lost by torch.compiler.reset().
    handler.run_start_callbacks = run_start_callbacks  # type: ignore[union-attr]


def _end_all() -> None:
    for imports in list(_live):
        # Removed first, because an import may start a trace, which calls this function again.
        _live.discard(imports)
        imports.end()


class _Watcher(MetaPathFinder):
    """Notices the import of the compiler, and finds no modules itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _COMPILER:
            return None
        # Not importlib.util.find_spec, which would ask this finder again.
        others = [each for each in sys.meta_path if each is not self]
        found = (each.find_spec(fullname, path, target) for each in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _PreparingLoader(spec.loader, self)  # type: ignore[assignment]
        return spec


class _PreparingLoader:
    """The compiler's loader, with :func:`_prepare` after the import."""

    def __init__(self, loader: Any, watcher: _Watcher) -> None:
        self._loader = loader
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        # First, so that the module has its own loader while it is executed.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._watcher in sys.meta_path:
            sys.meta_path.remove(self._watcher)
        _prepare()
