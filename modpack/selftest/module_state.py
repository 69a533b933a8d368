"""Descriptions of modules, to compare the live ones with those that a package loads.

Both processes describe the same names by the same rules, as rows like those of saved objects.
Classes are described once, attribute by attribute, under the name of their own module; functions by
name and by a checksum of their code. No code of the modules runs.
"""

from __future__ import annotations

import enum
import re
import zlib
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from opcode import opmap
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final, TypeAlias

import torch

from modpack.archive.layout import RUNTIME_MODULE
from modpack.archive.module_index import MODULES_NAME
from modpack.core.names import dotted, is_stdlib, is_within, strip_namespaces
from modpack.environment.finder import is_a
from modpack.environment.importers import module_dict
from modpack.examples.outputs import attributes_of
from modpack.pickling.functions import closed_over
from modpack.selftest.object_rows import ANYTHING, SAME, Row
from modpack.selftest.object_state import (
    MAX_ENTRIES,
    PLAIN,
    Describer,
    DescriptionOptions,
    contents_of,
    shortened,
)

Namespace: TypeAlias = Mapping[str, object]

ALL_NAMES: Final = "*"
"""Stands for all names of a module."""
BASES: Final = "<bases>"
"""Last step of the path of the row with the bases of a class."""
CUT: Final = "<cut>"
"""Last step of the path of a row that stands for the parts which are not described."""
HOLDERS: Final[Mapping[type, tuple[str, ...]]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    MethodType: ("__func__",),
}
"""Python's own wrappers of functions, and the attributes with the functions."""
CODE_HOLDERS: Final = (*HOLDERS, FunctionType, type, partial, MappingProxyType)
_MAX_ROWS: Final = 2000
"""Rows of one name. What is deeper is not compared."""
_RECORDS: Final = ("types.SimpleNamespace", "argparse.Namespace")
"""Classes outside of packages whose objects consist of their attributes."""
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")
_IMPORT: Final = opmap["IMPORT_NAME"]


def describe_modules(
    modules: Mapping[str, Namespace],
    names: Mapping[str, Sequence[str]],
    packaged: Container[str],
    folders: Iterable[str],
    scripts: frozenset[str] = frozenset(),
) -> tuple[Row, ...]:
    """Describe modules as they are now.

    Args:
        modules: The namespaces of the loaded modules.
        names: The names to describe by module: :data:`ALL_NAMES`, names, or attribute paths.
        packaged: The modules that the package contains.
        folders: Folders that contain the code. They differ between the processes.
        scripts: Modules whose definitions are packaged as those of a script.
    """
    describer = _ModuleDescriber(packaged, folders, DescriptionOptions(scripts))
    # Tensor subclasses may reject these operations.
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        describer.describe_all(
            {
                module: dict(_select(modules[module], chosen))
                for module, chosen in names.items()
                if module in modules
            }
        )
    return tuple(describer.rows)


def _select(namespace: Namespace, names: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the chosen names and values of a module."""
    if ALL_NAMES in names:
        yield from (each for each in list(namespace.items()) if not _is_special(*each))
    for path in names:
        inside, value = namespace, None
        for step in path.split("."):
            if step not in inside:
                break
            value = inside[step]
            inside = type.__dict__["__dict__"].__get__(value) if is_a(value, type) else {}
        else:
            yield path, value


def _is_special(name: str, value: object) -> bool:
    """Return whether a name is Python's own, such as ``__file__`` and ``_member_map_``."""
    return name[:1] == "_" == name[-1:] and not is_a(value, (FunctionType, *HOLDERS))


class _ModuleDescriber(Describer):
    def __init__(
        self, packaged: Container[str], folders: Iterable[str], options: DescriptionOptions
    ) -> None:
        super().__init__(options)
        self._packaged = packaged
        self._origins: dict[int, str] = {}
        """The paths of the objects that modules bind, by their ids."""
        self._classes: deque[tuple[str, type]] = deque()
        self._found: set[str] = set()
        parts = "|".join(map(re.escape, sorted(folders, key=len, reverse=True)))
        self._folders = re.compile(parts) if parts else None
        self._modules: dict[type, str] = {}
        self._limit = 0

    def describe_all(self, values: Mapping[str, Namespace]) -> None:
        """Add the rows of all values of modules, and of the classes that they refer to."""
        # First, all names: a shared object is described where the first module binds it, and not
        # where a description leads to it, which depends on the modules that are loaded.
        for module, each in values.items():
            for name, value in each.items():
                self._origins.setdefault(id(value), f"{module}:{name}")
        for module, each in values.items():
            self._add(module, "a module")
            for name, value in each.items():
                self.describe(value, f"{module}:{name}")
        while self._classes:
            path, kind = self._classes.popleft()
            self._add(f"{path}.{BASES}", ", ".join(map(self._name_of, kind.__bases__)))
            for name, value in list(vars(kind).items()):
                if not _is_special(name, value):
                    self.describe(value, f"{path}.{name}")

    def describe(self, root: object, name: str) -> None:
        self._limit = len(self.rows) + _MAX_ROWS
        super().describe(root, name)
        if len(self.rows) >= self._limit:
            self._add(f"{name}.{CUT}", "more parts")

    def _describe(self, value: object, path: str) -> Sequence[tuple[str, object]]:
        kind = type(value)
        if len(self.rows) >= self._limit:
            return ()
        if kind in PLAIN:
            # The package's files are in another folder than those of the live modules.
            value = self._without_folders(str(value)) if kind is str else value
            return super()._describe(value, path)
        called = value.__func__ if is_a(value, MethodType) else value
        names = called.__globals__ if is_a(called, FunctionType) else {}
        is_of_modpack = is_within(strip_namespaces(str(names.get("__name__"))), "modpack")
        if self._module_of(kind) == RUNTIME_MODULE or is_of_modpack:
            # A mock, or the ``import_module`` of packages, for example.
            return self._add(path, ANYTHING)
        if is_a(value, ModuleType):  # one with a class of its own may run code on access
            name = str(module_dict(value).get("__name__"))
            return self._add(path, f"module {name}", name)
        if is_a(value, type):
            self._find_class(value)
            return self._add(path, f"class {self._name_of(value)}", self._module_of(value))
        if is_a(value, FunctionType):
            return self._describe_function(value, path)
        if is_a(value, enum.Enum):
            self._find_class(kind)
            super()._describe(value, path)
            attributes = attributes_of(value)
            # The value counts once, where the class defines the member. Elsewhere, the name does.
            is_definition = path.endswith(f":{kind.__qualname__}.{attributes.get('_name_')}")
            return [(f"{path}.value", attributes.get("_value_"))] if is_definition else ()
        for holder, held in HOLDERS.items():
            if is_a(value, holder):
                self._add(path, kind.__name__)
                return [(dotted(path, name), getattr(value, name)) for name in held]
        return super()._describe(value, path)

    def _is_known(self, value: object, path: str) -> bool:
        origin = self._origins.get(id(value), path)
        if origin != path and not is_a(value, (tuple, frozenset)):
            self._add(path, f"{SAME}{origin}")
            return True
        return super()._is_known(value, path)

    def _describe_function(self, function: Any, path: str) -> Sequence[tuple[str, object]]:
        code: CodeType = function.__code__
        module = strip_namespaces(str(function.__globals__.get("__name__")))
        is_packaged = module in self._packaged
        # functools.wraps copies the wrapped name to the function, but not to its code.
        name = self._own_names(f"{module}.{getattr(code, 'co_qualname', code.co_name)}")
        self._add(path, f"function {name}{_checksum(code) if is_packaged else ''}", module)
        if id(function) in self._seen or self._origins.get(id(function), path) != path:
            return ()
        self._seen[id(function)] = path, function
        parts = [(f"{path}.<{name}>", value) for name, value in closed_over(function)]
        attributes = function.__dict__.items()
        parts += [(dotted(path, n), v) for n, v in attributes if n[:1] != "_" or n == "__wrapped__"]
        if not is_packaged:  # the wrapper of a library, around packaged functions
            return [(step, value) for step, value in parts if is_a(value, CODE_HOLDERS)]
        defaults = {
            **dict(enumerate(function.__defaults__ or ())),
            **(function.__kwdefaults__ or {}),
        }
        return [*parts, *((f"{path}.<default {name}>", value) for name, value in defaults.items())]

    def _describe_module(self, module: Any, path: str) -> Sequence[tuple[str, object]]:
        self._find_class(type(module))
        parts = super()._describe_module(module, path)
        # A layer that the saved object uses, too, is in its mode.
        left_out = {f"{path}.{name}" for name in ("training", *_caches_in(module))}
        return [part for part in parts if part[0] not in left_out]

    def _describe_other(self, value: object, path: str) -> Sequence[tuple[str, object]]:
        kind = type(value)
        module = self._module_of(kind)
        if _is_value(kind, module):
            text = _ADDRESS.sub("", strip_namespaces(repr(value)))
            return self._add_typed(path, kind, shortened(self._without_folders(text)))
        self._find_class(kind)
        text, parts = self._parts_of(value, path)
        self._add_typed(path, kind, text)
        caches = _caches_in(value)
        own = {n: each for n, each in attributes_of(value).items() if n not in caches}.items()
        if module not in self._packaged and f"{module}.{kind.__qualname__}" not in _RECORDS:
            # Of the objects of other libraries, only packaged code in them counts.
            own = {n: each for n, each in own if is_a(each, CODE_HOLDERS)}.items()
        return [*parts, *((dotted(path, name), each) for name, each in own)]

    def _parts_of(self, value: Any, path: str) -> tuple[str, list[tuple[str, object]]]:
        """Return a text and the parts of a container, whose entries count one by one."""
        if is_a(value, (set, frozenset)):
            names = {self._key(each): each for each in islice(value, MAX_ENTRIES)}
            parts = [(f"{path}{{{name}}}", names[name]) for name in sorted(names)]
            return "", [(step, each) for step, each in parts if not step.endswith("{}")]
        if is_a(value, (dict, MappingProxyType)):
            items = dict.items(value) if is_a(value, dict) else value.items()
            if len(items) > MAX_ENTRIES:
                return f"of {len(items)}", []
            keys = [(self._key(key), each) for key, each in list(items)]
            return "", [(f"{path}[{key}]", each) for key, each in keys if key]
        if contents := contents_of(value):
            is_list = is_a(value, (list, tuple, deque)) and len(contents[1]) < MAX_ENTRIES
            return "" if is_list else contents[0], [(f"{path}{n}", v) for n, v in contents[1]]
        return "", []

    def _key(self, key: Any) -> str:
        """Return the text of a key; empty if it has none that is the same in another process."""
        if type(key) is str:
            return shortened(repr(self._without_folders(key)))
        if type(key) in PLAIN or (type(key) is tuple and {type(each) for each in key} <= {*PLAIN}):
            return shortened(repr(key))
        if is_a(key, type):
            return self._name_of(key)
        if is_a(key, FunctionType):
            return f"{strip_namespaces(str(key.__module__))}.{key.__qualname__}"
        is_named = is_a(key, enum.Enum)
        return f"{self._name_of(type(key))}.{attributes_of(key).get('_name_')}" if is_named else ""

    def _find_class(self, kind: type) -> None:
        """Remember to describe a packaged class, and its bases."""
        for each in kind.__mro__:
            module = self._module_of(each)
            path = f"{module}:{each.__qualname__}"
            is_ours = module in self._packaged and "<locals>" not in path
            if is_ours and path not in self._found:
                self._found.add(path)
                self._classes.append((path, each))

    def _module_of(self, kind: type) -> str:
        if kind not in self._modules:
            module = str(type.__getattribute__(kind, "__module__"))
            self._modules[kind] = strip_namespaces(module)
        return self._modules[kind]

    def _name_of(self, kind: type) -> str:
        return self._own_names(f"{self._module_of(kind)}.{kind.__qualname__}")

    def _without_folders(self, text: str) -> str:
        return self._folders.sub("<folder>", text) if self._folders is not None else text


def _is_value(kind: Any, module: str) -> bool:
    """Return whether objects of a class are compared by value, such as paths and patterns."""
    if not is_stdlib(module) or module == "weakref":  # classes of others may run code
        return False
    is_hashed = kind.__hash__ not in (None, object.__hash__) and kind.__eq__ is not object.__eq__
    return is_hashed and not issubclass(kind, (tuple, frozenset, CodeType, MappingProxyType))


def _checksum(code: CodeType) -> str:
    """Return a checksum of a function's code; empty if modpack compiles it differently."""
    names = code.co_names
    # modpack compiles imports in functions into relative ones, and ``sys.modules`` into a name.
    is_changed = MODULES_NAME in names or ("sys" in names and "modules" in names)
    # Bytecode alternates operations and arguments.
    if is_changed or _IMPORT in code.co_code[::2]:
        return ""
    constants = ",".join(map(_constant, code.co_consts))
    # Without file and lines, in which the package's copy may differ.
    text = f"{names} {code.co_varnames} {code.co_freevars} {constants}"
    return f" {zlib.crc32(code.co_code, zlib.crc32(text.encode(errors='replace'))):08x}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return f"{value.co_name}{_checksum(value)}"
    # The order in a set depends on the process.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _caches_in(value: object) -> set[str]:
    """Return the attributes that a descriptor of the class stores, as ``cached_property`` does."""
    found = {name: _class_attribute(type(value), name) for name in attributes_of(value)}
    return {
        name
        for name, each in found.items()
        if hasattr(type(each), "__get__") and not hasattr(type(each), "__set__")
        if not is_a(each, (FunctionType, *HOLDERS))
    }


def _class_attribute(kind: type, name: str) -> object:
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
