"""Where an object hangs: the attribute path that leads to it, for error messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import cast

__all__ = ["objects_in", "path_to"]

_MOST_OBJECTS = 1_000_000
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_LEAVES = (str, bytes, int, float)


def path_to(
    root: object, target: object, name: str = "obj", closed: tuple[type, ...] = ()
) -> str | None:
    """The shortest attribute path from one object to another.

    Follows attributes, items of containers, and what bound methods and partials hold. Reads
    ``__dict__`` only: no property and no ``__getattr__`` runs.

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
    seen = {id(root)}
    queue = deque([(root, name)])
    while queue and len(seen) < _MOST_OBJECTS:
        obj, path = queue.popleft()
        if obj is target or type(obj) is target:
            return path
        if isinstance(obj, closed):
            continue
        for step, child in _children(obj):
            if id(child) not in seen and not issubclass(type(child), _LEAVES):
                seen.add(id(child))
                queue.append((child, path + step))
    return None


def objects_in(root: object) -> Iterator[object]:
    """Every object that :func:`path_to` can reach, once, the root first."""
    seen = {id(root)}
    queue = deque([root])
    while queue and len(seen) < _MOST_OBJECTS:
        obj = queue.popleft()
        yield obj
        for _, child in _children(obj):
            if id(child) not in seen and not issubclass(type(child), _LEAVES):
                seen.add(id(child))
                queue.append(child)


def _children(obj: object) -> Iterator[tuple[str, object]]:
    kind = type(obj)
    if issubclass(kind, dict):
        for key, value in list(dict.items(cast("dict[object, object]", obj))):
            yield f"[{_shown(key)}]", value
            yield f".keys()[{_shown(key)}]", key
    elif issubclass(kind, (list, tuple, deque)):
        yield from ((f"[{index}]", v) for index, v in enumerate(cast("list[object]", obj)))
    elif issubclass(kind, (set, frozenset)):
        yield from (("{...}", value) for value in list(cast("set[object]", obj)))
    if issubclass(kind, (type, ModuleType)):
        return
    attributes = _attributes_of(obj)
    yield from _attributes(attributes)
    yield from _slots(obj)
    for special in ("__self__", "__func__", "func", "args", "keywords"):
        if type(obj).__name__ in ("method", "partial") and hasattr(obj, special):
            yield f".{special}", getattr(obj, special)
    if issubclass(kind, FunctionType):
        yield from _captured(cast(FunctionType, obj))


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


def _attributes_of(obj: object) -> dict[str, object]:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _slots(obj: object) -> Iterator[tuple[str, object]]:
    slotted = [kind for kind in type(obj).__mro__ if "__slots__" in vars(kind)]
    for kind in slotted:
        for name, slot in list(vars(kind).items()):
            if type(slot) is MemberDescriptorType:
                try:
                    yield f".{name}", slot.__get__(obj, type(obj))
                except AttributeError:  # never set
                    continue


def _attributes(attributes: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Attributes, with torch's module tables spelled the way a user reaches into them."""
    for name, value in list(attributes.items()):
        if name in _MODULE_TABLES and isinstance(value, dict):
            for key, child in list(value.items()):
                yield (f"[{key}]" if str(key).isdigit() else f".{key}"), child
        else:
            yield f".{name}", value
