"""Attribute paths of objects and of texts in objects, for messages; and walks without paths.

Nothing here runs code of the objects: ``__dict__`` and slots are read, no property is, and no
``__getattr__`` is called.
"""

from __future__ import annotations

import functools
import gc
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

from modpack.pickling.functions import closed_over

_MAX_OBJECTS = 1_000_000
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_LEAVES = (str, bytes, int, float)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_SLOT = MemberDescriptorType
_HOLDERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    BuiltinFunctionType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    super: ("__self__",),
}
"""What objects of Python's own types hold without saying so."""


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
    wanted = {id(target) for target in targets}
    found: dict[int, str] = {}
    for obj, trail in _walk(root, name, closed) if wanted else ():
        for each in wanted.intersection((id(obj), id(type(obj)))):
            wanted.remove(each)
            found[each] = _spelled(trail)
        if not wanted:
            break
    return found


def objects_in(root: object, closed: tuple[type, ...] = ()) -> Iterator[object]:
    """Every object that :func:`path_to` can reach, once, the root first.

    Weak proxies are left out: they pretend to be what they refer to, or raise if it is gone.

    Args:
        root: where to begin.
        closed: types of objects that are not looked into.
    """
    for obj, _ in _walk(root, "", closed):
        if not issubclass(type(obj), weakref.ProxyTypes):
            yield obj


def with_paths(root: object, name: str) -> Iterator[tuple[object, str]]:
    """Every object that :func:`path_to` can reach, texts too, each with its shortest path."""
    return ((obj, _spelled(trail)) for obj, trail in _walk(root, name, unseen=()))


_Trail = tuple["_Trail | None", str]
"""The last step to an object, behind those before it: a whole path for each would be quadratic."""


def _walk(
    root: object,
    name: str,
    closed: tuple[type, ...] = (),
    unseen: tuple[type, ...] = _LEAVES,
) -> Iterator[tuple[object, _Trail]]:
    known: dict[type, tuple[_Steps, ...]] = {}
    seen = {id(root)}
    queue: deque[tuple[object, _Trail]] = deque([(root, (None, name))])
    while queue and len(seen) < _MAX_OBJECTS:
        obj, trail = queue.popleft()
        yield obj, trail
        if issubclass(type(obj), closed):
            continue
        for step, child in _children(obj, known):
            if id(child) not in seen and not issubclass(type(child), unseen):
                seen.add(id(child))
                queue.append((child, (trail, step)))


def _spelled(trail: _Trail) -> str:
    steps = []
    last: _Trail | None = trail
    while last is not None:
        last, step = last
        steps.append(step)
    return "".join(reversed(steps))


def reached_from(root: object, seen: set[int], homes: set[str]) -> None:
    """Add all objects that are kept alive by a root, however many there are.

    Args:
        root: where to begin.
        seen: ids of those that were found before, which are not looked into again.
        homes: paths of the modules in which their classes, and functions among them, live.
    """
    known: dict[type, tuple[_Steps, ...]] = {}
    todo: list[Any] = [root]
    while todo:
        obj = todo.pop()
        if id(obj) not in seen and not issubclass(type(obj), _LEAVES):
            seen.add(id(obj))
            if type(obj) is FunctionType:
                homes.add(str(obj.__globals__.get("__name__")))
            elif issubclass(type(obj), type):
                homes.add(str(obj.__module__))
            todo.extend(child for _, child in _children(obj, known))
    homes.update(str(base.__module__) for kind in known for base in type.mro(kind))


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
    bases = [base for base in type.mro(kind) if "__slots__" in vars(base)]
    slots = [slot for base in bases for slot in vars(base).items() if type(slot[1]) is _SLOT]
    for base, names in _HOLDERS.items():
        slots += [(name, vars(base)[name]) for name in names if issubclass(kind, base)]
    if slots:
        yield functools.partial(_slots, slots)
    if issubclass(kind, FunctionType):
        yield _captured
    elif issubclass(kind, (MappingProxyType, *_VIEWS)):
        yield lambda obj: iter([(".mapping", gc.get_referents(obj)[0])])
    elif issubclass(kind, CellType):
        yield lambda obj: iter([(".cell_contents", held) for held in gc.get_referents(obj)])
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


def _captured(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function closes over, and its defaults."""
    yield from ((f" -> {name}", value) for name, value in closed_over(function))
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
