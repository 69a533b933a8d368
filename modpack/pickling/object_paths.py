"""Where an object hangs: the attribute path that leads to it, for error messages.

Where texts hang in an object: the attribute paths of strings that contain them.

Objects that modules hold under a name, found by identity.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

_MOST_OBJECTS = 1_000_000
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_LEAVES = (str, bytes, int, float)


def path_to(
    root: object, target: object, name: str = "obj", closed: tuple[type, ...] = ()
) -> str | None:
    """The shortest attribute path from one object to another.

    Follows attributes, items of containers, and what functions, bound methods and partials
    hold. Reads ``__dict__`` and slots only: no property and no ``__getattr__`` runs. Takes
    time in proportion to the number of objects.

    Args:
        root: where the path starts.
        target: the object to find, by identity; a class is found at an instance of it, too.
        name: what to call ``root``.
        closed: types of objects that no path leads through.

    Returns:
        A path such as ``model.encoder.layers[3].attn``, or None if there is none.

    >>> path_to({"a": [1, (inner := object())]}, inner, "d")
    "d['a'][1]"
    """
    return paths_to(root, [target], name, closed).get(id(target))


def paths_to(
    root: object, targets: Iterable[object], name: str = "obj", closed: tuple[type, ...] = ()
) -> dict[int, str]:
    """The shortest paths to several objects, by their ids; see :func:`path_to`."""
    known: dict[type, tuple[_Steps, ...]] = {}
    wanted = {id(target) for target in targets}
    found: dict[int, str] = {}
    seen = {id(root)}
    queue = deque([(root, name)])
    while queue and wanted and len(seen) < _MOST_OBJECTS:
        obj, path = queue.popleft()
        for each in (id(obj), id(type(obj))):
            if each in wanted:
                wanted.remove(each)
                found[each] = path
        if issubclass(type(obj), closed):
            continue
        for step, child in _children(obj, known):
            if id(child) not in seen and not issubclass(type(child), _LEAVES):
                seen.add(id(child))
                queue.append((child, path + step))
    return found


def objects_in(root: object, closed: tuple[type, ...] = ()) -> Iterator[object]:
    """Every object that :func:`path_to` can reach, once, the root first.

    Weak proxies are left out: they pretend to be what they refer to, or raise if it is gone.

    Args:
        root: where to begin.
        closed: types of objects that are not looked into.
    """
    known: dict[type, tuple[_Steps, ...]] = {}
    seen = {id(root)}
    queue = deque([root])
    while queue and len(seen) < _MOST_OBJECTS:
        obj = queue.popleft()
        if not issubclass(type(obj), weakref.ProxyTypes):
            yield obj
        if issubclass(type(obj), closed):
            continue
        for _, child in _children(obj, known):
            if id(child) not in seen and not issubclass(type(child), _LEAVES):
                seen.add(id(child))
                queue.append(child)


def with_paths(root: object, name: str) -> Iterator[tuple[object, str]]:
    """Every object that :func:`path_to` can reach, texts too, each with its shortest path."""
    known: dict[type, tuple[_Steps, ...]] = {}
    seen = {id(root)}
    queue = deque([(root, name)])
    while queue and len(seen) < _MOST_OBJECTS:
        obj, path = queue.popleft()
        yield obj, path
        for step, child in _children(obj, known):
            if id(child) not in seen:
                seen.add(id(child))
                queue.append((child, path + step))


def reached_from(root: object, seen: set[int], homes: set[str]) -> None:
    """Add all objects that are kept alive by a root, however many there are.

    Args:
        root: where to begin.
        seen: ids of those that were found before, which are not looked into again.
        homes: paths of the modules in which their classes, and functions among them, live.
    """
    known: dict[type, tuple[_Steps, ...]] = {}
    todo = [root]
    while todo:
        obj = todo.pop()
        if id(obj) not in seen and not issubclass(type(obj), _LEAVES):
            seen.add(id(obj))
            homes.update(_home_of(obj))
            todo.extend(child for _, child in _children(obj, known))
    homes.update(str(base.__module__) for kind in known for base in type.mro(kind))


def _home_of(obj: Any) -> Iterator[str]:
    """The module of a function or a class."""
    if type(obj) is FunctionType:
        yield str(obj.__globals__.get("__name__"))
    elif issubclass(type(obj), type):
        yield str(obj.__module__)


_Steps = Callable[[Any], Iterator[tuple[str, object]]]


def _children(obj: object, known: dict[type, tuple[_Steps, ...]]) -> Iterator[tuple[str, object]]:
    """What an object holds, each with the step that leads to it.

    Args:
        obj: the object.
        known: what was found out about types by now.
    """
    kind = type(obj)
    try:
        ways = known[kind]
    except KeyError:
        ways = known[kind] = tuple(_ways_into(kind))
    for way in ways:
        yield from way(obj)


def _ways_into(kind: type) -> Iterator[_Steps]:
    """How to look into the objects of a type."""
    if issubclass(kind, dict):
        yield _entries
    elif issubclass(kind, (set, frozenset)):
        yield functools.partial(_members, set if issubclass(kind, set) else frozenset)
    else:
        sequences = (base for base in (list, tuple, deque) if issubclass(kind, base))
        yield from (functools.partial(_items, base) for base in sequences)
    if issubclass(kind, type):
        yield _standing_in
    if issubclass(kind, (type, ModuleType)):
        return
    if any("__dict__" in vars(base) for base in type.mro(kind)):
        yield _attributes
    if slots := tuple(_slots_of(kind)):
        yield functools.partial(_slots, slots)
    yield from _ways_into_builtins(kind)
    if "<locals>" in kind.__qualname__:  # such a class travels along
        yield lambda obj: iter([(".__class__", kind)])


def _entries(obj: Any) -> Iterator[tuple[str, object]]:
    for key, value in list(dict.items(obj)):
        yield f"[{_shown(key)}]", value
        yield f".keys()[{_shown(key)}]", key


# The base's own method is called, whatever a derived class makes of iterating.


def _members(base: Any, obj: Any) -> Iterator[tuple[str, object]]:
    yield from (("{...}", value) for value in list(base.__iter__(obj)))


def _items(base: Any, obj: Any) -> Iterator[tuple[str, object]]:
    yield from ((f"[{index}]", value) for index, value in enumerate(list(base.__iter__(obj))))


def _standing_in(cls: type) -> Iterator[tuple[str, object]]:
    """What stands in a class that travels along, for it cannot be imported."""
    if "<locals>" in cls.__qualname__:
        yield from ((f".{name}", value) for name, value in list(vars(cls).items()))
        yield from ((f".__bases__[{n}]", base) for n, base in enumerate(cls.__bases__))


def _ways_into_builtins(kind: type) -> Iterator[_Steps]:
    """What objects of Python's own types hold without saying so."""
    if issubclass(kind, FunctionType):
        yield _captured
    elif issubclass(kind, (MappingProxyType, *_VIEWS)):
        yield lambda obj: iter([(".mapping", gc.get_referents(obj)[0])])
    elif issubclass(kind, CellType):
        yield lambda obj: iter([(".cell_contents", held) for held in gc.get_referents(obj)])
    for base, names in _HOLDERS.items():
        if issubclass(kind, base):
            yield functools.partial(_slots, [(name, vars(base)[name]) for name in names])


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_HOLDERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    BuiltinFunctionType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    super: ("__self__",),
}


def _captured(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function closes over, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" -> {name}", cell.cell_contents
        except ValueError:  # nothing was bound to it yet
            continue
    for index, default in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{index}]", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", default


def _shown(key: object) -> str:
    """A key as it is written; one that writes itself in a way of its own is only named."""
    return repr(key) if type(key) in (str, int, float, bool, bytes) else type(key).__name__


def _attributes(obj: object) -> Iterator[tuple[str, object]]:
    """Attributes, with torch's module tables spelled the way a user reaches into them."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return
    for name, value in list(found.items()) if isinstance(found, dict) else ():
        if name in _MODULE_TABLES and isinstance(value, dict):
            for key, child in list(value.items()):
                yield _part(str(key)), child
        else:
            yield f".{name}", value


def _slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The slots of a class, with the descriptors that read them."""
    for base in type.mro(kind):
        if "__slots__" in vars(base):
            slots = vars(base).items()
            yield from ((name, slot) for name, slot in slots if type(slot) is MemberDescriptorType)


def _slots(slots: Iterable[tuple[str, Any]], obj: object) -> Iterator[tuple[str, object]]:
    for name, slot in slots:
        try:
            yield f".{name}", slot.__get__(obj, type(obj))
        except AttributeError:  # never set
            continue


def _part(name: str) -> str:
    """A module's part, as it is written: ``.head``, ``[3]``, ``['other name']``."""
    if name.isidentifier():
        return f".{name}"
    return f"[{name}]" if name.isdigit() else f"[{name!r}]"


def places_of_texts(root: object, texts: Sequence[bytes], name: str) -> dict[bytes, str]:
    """The shortest path to a string, to bytes, or to a function's source that has a text in it.

    Runs no code of the object's, like :func:`modpack.pickling.object_paths.path_to`.

    Args:
        root: the object.
        texts: what to look for.
        name: what to call the object.

    Returns:
        The paths of those that were found. A path never spells one of the texts.

    >>> places_of_texts({"login": ["anna", "my s3cret"]}, [b"s3cret"], "obj")
    {b's3cret': "obj['login'][1]"}
    """
    found: dict[bytes, str] = {}
    for obj, path in with_paths(root, name):
        for held, place in _texts_of(obj, path):
            for text in texts:
                if text in held:
                    found.setdefault(text, _without(place, texts))
        if len(found) == len(texts):
            break
    return found


def _texts_of(obj: object, path: str) -> Iterator[tuple[bytes, str]]:
    if type(obj) is str:
        yield obj.encode("utf-8", "replace"), path
    elif type(obj) is bytes:
        yield obj, path
    elif type(obj) is FunctionType:
        code = obj.__code__
        for held in _constants(code):
            yield held, f"{code.co_filename}:{code.co_firstlineno}"


def _constants(code: CodeType) -> Iterator[bytes]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        elif isinstance(constant, (str, bytes)):
            yield constant.encode("utf-8", "replace") if isinstance(constant, str) else constant


def _without(path: str, texts: Sequence[bytes]) -> str:
    """A path that says where a text is, and not what it is: the text may be a key itself."""
    for text in texts:
        path = path.replace(text.decode("utf-8", "replace"), "...")
    return path


_Index = dict[int, list[tuple[object, ModuleType, str]]]
"""By the object's id: the object, a module, and the name there."""

_FOUND_OTHERWISE = (
    *(ModuleType, FunctionType, BuiltinFunctionType, type),
    *(str, bytes, int, float, complex, type(None), list, tuple, dict, set, frozenset),
)


def name_in_module(obj: object, module: str) -> str | None:
    """The name under which a loaded module holds an object; None if it does not."""
    found = sys.modules.get(module)
    contents = vars(found) if isinstance(found, ModuleType) else {}
    return next((name for name, value in list(contents.items()) if value is obj), None)


class HeldNames:
    """Which loaded modules hold an object under a name.

    All modules are looked through once, when the first such object is met.

    Args:
        scripts: names of modules that cannot be imported elsewhere.
    """

    def __init__(self, scripts: tuple[str, ...]) -> None:
        self._scripts = scripts
        self._index: _Index | None = None

    def find(self, obj: object) -> list[tuple[ModuleType, str]]:
        """The modules that hold the very object, in the order of their import, and the names."""
        if self._index is None:
            self._index = self._look_through()
        found = self._index.get(id(obj), ())
        return [(module, name) for value, module, name in found if value is obj]

    def _look_through(self) -> _Index:
        index: _Index = {}
        for path, module in list(sys.modules.items()):
            if path in self._scripts or not self._is_itself(path, module):
                continue
            for name, value in list(vars(module).items()):
                if not issubclass(type(value), _FOUND_OTHERWISE):
                    index.setdefault(id(value), []).append((value, module, name))
        return index

    def _is_itself(self, path: str, module: Any) -> bool:
        is_module = issubclass(type(module), ModuleType)
        return is_module and vars(module).get("__name__") == path
