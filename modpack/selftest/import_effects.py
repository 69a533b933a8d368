"""Effects of imports on other modules, which decide whether an import may wait.

A module may register its classes in a table of another one, or replace functions there. If its
import waits, lookups in that table fail until something else imports it, although no example shows
it. The trial run therefore imports everything that waited, and searches what was loaded before for
objects of the new modules.

Objects under keys that only the new modules have, such as their classes, or names that contain the
module's path, are harmless: without the module, no code looks them up.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, NoneType
from typing import Final

from modpack.core.names import is_within
from modpack.environment.importers import module_dict
from modpack.examples.outputs import attributes_of
from modpack.loading.lazy import LazyImports
from modpack.loading.namespace import Namespace
from modpack.loading.waiting_imports import without_text
from modpack.selftest.process import WaitingNames

_MAX_DEPTH: Final = 4
_INTERPRETER: Final = ("_warnings", "sys", "warnings")
"""Modules whose finders and filters only serve the modules that have added them."""
_ATOMS: Final = (str, bytes, int, float, complex, NoneType)
_CHAIN: Final = re.compile(rb"(?<![\w.])([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)+)")
"""A name and attributes of it."""
_ELEMENTS: Final = (list, tuple, set, frozenset, deque)


def examine_waiting(namespace: Namespace, imports: LazyImports) -> WaitingNames:
    """Return the names that wait, import all of them, and return the effects of these imports."""
    loaded = _loaded(namespace)
    waiting: dict[str, set[str]] = {name: set() for name in loaded}
    for module, name, _ in imports.waiting():
        waiting.setdefault(module, set()).add(name)
    # Copies the names of all modules, so it comes before what waits is imported.
    search = _Search(namespace)
    recorder = _ChainRecorder(namespace)
    sys.meta_path.insert(0, recorder)
    failures = imports.end()
    sys.meta_path.remove(recorder)
    if failures:
        return WaitingNames(problem=f"{type(failures[0]).__name__}: {failures[0]}")
    new = {namespace.full_name(name): name for name in _loaded(namespace) - loaded}
    effects = {*search.effects(new, recorder), *search.resized(), *search.submodules()}
    # Effects on what was loaded change it: only another trial shows what else does.
    is_known = any(not module or module in loaded for module, _ in effects)
    changed = None if is_known else search.changed()
    if changed is not None:
        return WaitingNames(problem=f"importing what waits changes {changed}")
    names = {module: tuple(sorted(each)) for module, each in sorted(waiting.items())}
    return WaitingNames(names, tuple(sorted(effects)))


def _source(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # compiled code, or none
        return b""


def _is_memo(name: str, names: Mapping[str, object]) -> bool:
    """Return whether a module's functions assign a name only if it is None.

    They would compute the value without the imports, too.
    """
    source = without_text(_source(str(names.get("__file__")))).decode("utf-8", "replace")
    assigned = rf"[ \t]+{re.escape(name)}[ \t]*=(?!=)"
    guarded = rf"\bif {re.escape(name)} is None:\s*\n{assigned}"
    count = len(re.findall(rf"(?m)^{assigned}", source))
    return 0 < count == len(re.findall(guarded, source))


def _loaded(namespace: Namespace) -> set[str]:
    index = namespace.finder.index
    names = (name for name, entry in index.entries.items() if entry.is_code)
    return {name for name in names if namespace.full_name(name) in sys.modules}


class _ChainRecorder(MetaPathFinder):
    """Records which packaged modules are being imported when another one is.

    Attributes:
        chains: Those modules, by the path of the imported one.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.chains: dict[str, tuple[str, ...]] = {}
        self._running: list[str] = []
        self._namespace = namespace

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        index, local = self._namespace.finder.index, self._namespace.local_name(fullname)
        if local in index.entries and fullname == self._namespace.full_name(local):
            # importlib.util.find_spec looks modules up, too. The last lookup is the import.
            self.chains.pop(local, None)
            self._running = list(filter(self._is_being_imported, self._running))
            self.chains[local] = tuple(self._running)
            self._running.append(local)
        return None

    def completed(self) -> list[str]:
        """Return the imported modules in the order in which their imports ended."""
        ended: list[str] = []
        running: list[str] = []
        for module, chain in self.chains.items():
            # A module has ended once another one starts outside of its import.
            while running and running[-1] not in chain:
                ended.append(running.pop())
            running.append(module)
        return [*ended, *reversed(running)]

    def may_be_changed_by(self, module: str, other: str) -> bool:
        """Return whether the other module has put its objects into a module.

        Otherwise, the module has taken them: it imported the other one, or found it imported.
        """
        if module == other or not {module, other} <= self.chains.keys():
            return False
        order = list(self.chains)
        was_first = order.index(other) < order.index(module) and other not in self.chains[module]
        return not was_first and module not in self.chains[other]

    def _is_being_imported(self, local: str) -> bool:
        module = sys.modules.get(self._namespace.full_name(local))
        return bool(getattr(module_dict(module).get("__spec__"), "_initializing", False))


class _Search:
    """Searches loaded modules for effects of modules that are loaded later.

    Args:
        namespace: The package's namespace.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._new: Mapping[str, str] = {}
        self._before = {name: dict(module_dict(each)) for name, each in list(sys.modules.items())}
        self._own = {namespace.full_name(name) for name in _loaded(namespace)}
        self._sizes = self._measure()

    def effects(
        self, new: Mapping[str, str], recorder: _ChainRecorder
    ) -> Iterator[tuple[str, str]]:
        """Yield pairs of a module and a new one that has put objects into it.

        Args:
            new: The paths of the new modules, by their names in ``sys.modules``.
            recorder: The order in which they were imported.
        """
        self._new = new
        seen: set[int] = set()
        for local in recorder.completed():  # an object is found in the module that created it
            module = sys.modules.get(self._namespace.full_name(local))
            for value in list(module_dict(module).values()):
                for each in _walk(value, _MAX_DEPTH, seen, self._is_own_entry):
                    origin = self._origin(each)
                    if origin is not None and recorder.may_be_changed_by(local, origin):
                        yield local, origin
        # Objects that new modules contain may have been put into older modules, too.
        seen.clear()
        for name, known in self._before.items():
            is_own = name in self._own
            local = self._namespace.local_name(name) if is_own else ""
            # modpack itself records what it imports.
            if name in _INTERPRETER or (is_within(name, "modpack") and not is_own):
                continue
            for key, value in list(module_dict(sys.modules.get(name)).items()):
                if key in known:  # others were bound by the imports themselves
                    origin = self._origin(value)
                    if known[key] is not value and origin is not None:
                        yield local, origin
                    depth = _MAX_DEPTH if is_own else 2
                    for each in _walk(value, depth, seen, self._is_own_entry):
                        origin = self._origin(each)
                        if origin is not None:
                            yield local, origin

    def submodules(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of a module and an extern submodule that it reads as an attribute.

        ``torch.distributed.nn`` is an attribute of ``torch.distributed`` only because some module
        imports it, which may have waited.
        """
        for local in _loaded(self._namespace):
            names = module_dict(sys.modules[self._namespace.full_name(local)])
            source = _source(str(names.get("__file__")))
            for name, attributes in set(_CHAIN.findall(without_text(source))):
                value = names.get(name.decode())
                path = value.__name__ if isinstance(value, ModuleType) else ""
                for attribute in attributes.decode().split(".")[1:]:
                    has_hook = "__getattr__" in module_dict(sys.modules.get(path))
                    path = f"{path}.{attribute}"
                    is_new = path not in self._before and path not in self._new
                    if path not in sys.modules or (is_new and has_hook):  # which imports it
                        break
                    if is_new:
                        yield local, path

    def resized(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of a module with a container that has grown, and a new one that may do it.

        The new elements may be plain data, which has no origin. So these are the new modules that
        bind the container, or else those that bind a function or class of its module. The next
        trial shows whether they are all.
        """
        for path in self._resized_paths:
            local, _, key = path.rpartition(".")
            full_name = self._namespace.full_name(local)
            container = module_dict(sys.modules.get(full_name)).get(key)
            holders, users = [], []
            for name, other in self._new.items():
                bound = list(module_dict(sys.modules.get(name)).values())
                if any(each is container for each in bound):
                    holders.append(other)
                elif any(_definer(each) == full_name for each in bound):
                    users.append(other)
            yield from ((local, other) for other in holders or users)

    def changed(self) -> str | None:
        """Return a packaged container or name that has changed otherwise, or None."""
        for name in sorted(self._own):
            names = module_dict(sys.modules.get(name))
            for key, value in self._before[name].items():
                if names.get(key) is not value and key not in ("__builtins__", "__class__"):
                    if value is not None or not _is_memo(key, names):
                        return f"{self._namespace.local_name(name)}.{key}"
        return next(iter(self._resized_paths), None)

    @cached_property
    def _resized_paths(self) -> list[str]:
        """The paths of containers whose sizes have changed."""
        sizes = self._measure()
        return [path for path, size in self._sizes.items() if sizes.get(path, size) != size]

    def _measure(self) -> dict[str, int]:
        """Return the sizes of containers in packaged modules, by path."""
        sizes: dict[str, int] = {}
        for name in sorted(self._own):
            for key, value in self._before[name].items():
                if not key.startswith("__"):
                    path = f"{self._namespace.local_name(name)}.{key}"
                    # A set of its own for each name, because sizes are compared by path.
                    inner = _walk(value, _MAX_DEPTH, set(), self._is_own_entry, enters_all=False)
                    sizes[path] = sum(1 for _ in inner)
        return sizes

    def _origin(self, value: object) -> str | None:
        """Return the new module that defines a class or function, or the class of an object."""
        return self._new.get(_definer(value))

    def _is_own_entry(self, key: object, value: object) -> bool:
        """Return whether a table has an entry under a key that only a new module has."""
        if isinstance(key, str):
            origin = self._origin(value)
            return origin is not None and origin in key
        return key is not None and self._origin(key) is not None


def _definer(value: object) -> str:
    """Return the module that defines a class or function, or the class of an object."""
    # Not of the object itself, whose attribute hooks could run.
    kind = value if isinstance(value, (type, FunctionType)) else type(value)
    return str(getattr(kind, "__module__", ""))


def _walk(
    value: object,
    depth: int,
    seen: set[int],
    is_harmless: Callable[[object, object], bool],
    enters_all: bool = True,
) -> Iterator[object]:
    """Yield what is in containers and attributes inside a value, without repetition.

    Args:
        value: The value.
        depth: The number of containers inside each other.
        seen: Ids of the containers that were entered before.
        is_harmless: Tells entries, by key and value, that are left out with all that is in them.
        enters_all: Whether to enter objects of the standard library, which have caches, and
            classes, which have more references than entries of their own.
    """
    if depth == 0 or id(value) in seen or isinstance(value, (*_ATOMS, FunctionType, ModuleType)):
        return
    is_foreign = str(type(value).__module__).partition(".")[0] in sys.stdlib_module_names
    seen.add(id(value))
    contents: list[tuple[object, object]]
    if isinstance(value, dict):
        contents = list(dict.items(value))
    elif isinstance(value, _ELEMENTS):
        contents = [(None, each) for each in value]
    elif enters_all or not is_foreign:
        # Without plain data, which objects note as they are used, such as a computed answer.
        held = vars(value) if isinstance(value, type) else attributes_of(value)
        contents = [(None, each) for each in list(held.values()) if not isinstance(each, _ATOMS)]
    else:
        return
    for key, each in contents:
        # What only an own key leads to is not looked up without the module that has the key.
        if not is_harmless(key, each):
            yield each
            yield from _walk(each, depth - 1, seen, is_harmless, enters_all)
