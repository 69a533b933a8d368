"""The names in modules that the code of saved objects reaches.

A library has many names that the package never uses, and that its own code changes. Only those
count that packaged code may look up: global names and attributes of modules, read off the bytecode
of the functions that can be reached from the saved objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from modpack.core.names import strip_namespaces
from modpack.environment.finder import is_a
from modpack.environment.importers import module_dict
from modpack.examples.outputs import attributes_of
from modpack.pickling.functions import codes_in
from modpack.saving.object_paths import captured, iter_objects
from modpack.selftest.module_state import CODE_HOLDERS, HOLDERS
from modpack.selftest.object_state import MAX_ENTRIES

Names: TypeAlias = dict[str, dict[str, None]]


def reached_names(
    roots: Iterable[object],
    is_packaged: Callable[[str], bool],
    is_users: Callable[[str], bool],
) -> Names:
    """Return the names that the classes and functions of objects reach, by module.

    Args:
        roots: The objects.
        is_packaged: Returns whether a module is interned.
        is_users: Returns whether a module is the user's own. Of other modules that are not
            interned, only names count that such a module has set to a function.
    """
    reach = _Reach(is_packaged, is_users)
    for root in roots:
        for each in iter_objects(root):
            reach.add(type(each))
            if is_a(each, CODE_HOLDERS):
                reach.add(each)
    reach.run()
    return reach.names


class _Reach:
    def __init__(self, is_packaged: Callable[[str], bool], is_users: Callable[[str], bool]) -> None:
        self.names: Names = {}
        self._is_packaged = is_packaged
        self._is_users = is_users
        self._seen: dict[int, object] = {}
        self._waiting: list[object] = []

    def add(self, value: object) -> None:
        """Follow an object later. Of modules, only the names count that functions use."""
        if id(value) not in self._seen and not is_a(value, ModuleType):
            # Kept alive: another object could get its id.
            self._seen[id(value)] = value
            self._waiting.append(value)

    def run(self) -> None:
        """Follow everything that was added."""
        while self._waiting:
            value = self._waiting.pop()
            if is_a(value, type):
                for each in value.__mro__:
                    self._add_class(each)
            elif is_a(value, FunctionType):
                self._add_function(value)
            else:
                for each in self._parts(value):
                    self.add(each)

    def _parts(self, value: Any) -> Iterator[object]:
        """Yield the functions and classes in an object."""
        for holder, names in HOLDERS.items():
            if is_a(value, holder):
                yield from (getattr(value, name) for name in names)
        yield type(value)
        found: list[object] = list(attributes_of(value).values())
        if is_a(value, dict):
            found += [*dict.values(value)][:MAX_ENTRIES]
        for kind in (list, tuple, set):
            found += [*kind.__iter__(value)][:MAX_ENTRIES] if is_a(value, kind) else ()
        yield from (each for each in found if is_a(each, (*CODE_HOLDERS, dict, list, tuple)))

    def _add_class(self, kind: type) -> None:
        module = strip_namespaces(str(type.__getattribute__(kind, "__module__")))
        if self._is_packaged(module):
            # A module binds only the outermost class, which leads to those inside.
            self._mark(module, kind.__qualname__.partition(".")[0])
            for value in list(vars(kind).values()):
                self.add(value)
            return
        for name, value in list(vars(kind).items()):
            if self._is_set_by_user(value, module):
                self._mark(module, f"{kind.__qualname__}.{name}")

    def _add_function(self, function: Any) -> None:
        for value in (*dict(captured(function)).values(), *function.__dict__.values()):
            self.add(value)
        module = strip_namespaces(str(function.__globals__.get("__name__")))
        if not self._is_packaged(module):
            return
        # These include attributes: of ``config.rate``, both the global name and the name that is
        # looked up in the module which it binds.
        names = {name for code in codes_in(function.__code__) for name in code.co_names}
        package = str(function.__globals__.get("__package__"))
        spaces: list[tuple[str, Mapping[str, object]]] = [(module, function.__globals__)]
        for name in names:  # of import statements
            for path in (name, f"{package}.{name}"):
                if found := module_dict(sys.modules.get(path)):
                    spaces.append((strip_namespaces(path), found))
        seen = {id(each) for _, each in spaces}
        for module, space in spaces:  # grows
            is_packaged = self._is_packaged(module)
            for name in names.intersection(space):
                value = space[name]
                if is_packaged or self._is_set_by_user(value, module):
                    self._mark(module, name)
                if is_a(value, ModuleType) and id(module_dict(value)) not in seen:
                    inner = module_dict(value)
                    seen.add(id(inner))
                    spaces.append((strip_namespaces(str(inner.get("__name__"))), inner))
                elif is_packaged:
                    self.add(value)

    def _is_set_by_user(self, value: Any, module: str) -> bool:
        if not is_a(value, FunctionType):
            return False
        origin = strip_namespaces(str(value.__globals__.get("__name__")))
        return origin != module and self._is_users(origin)

    def _mark(self, module: str, name: str) -> None:
        self.names.setdefault(module, {})[name] = None
