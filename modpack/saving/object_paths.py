"""Attribute paths of objects, and of strings in objects, for messages; walks without paths.

No code of the walked objects runs: ``__dict__`` and slots are read directly, without properties
or ``__getattr__``.
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
from modpack.saving.function_source import find_live_object, is_made_by_python

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
"""References of built-in types that are not in ``__dict__`` or slots."""


def path_to(
    root: object, target: object, name: str = "obj", closed: tuple[type, ...] = ()
) -> str | None:
    """Return the shortest attribute path from one object to another.

    The path follows attributes, items of containers, and the references of functions, bound
    methods, and partials. Only ``__dict__`` and slots are read: no property and no
    ``__getattr__`` runs. The search takes time proportional to the number of objects.

    Args:
        root: The start of the path.
        target: The object to find, by identity. A class is also found through an instance.
        name: The name of ``root`` in the path.
        closed: Types of objects that no path leads through.

    Returns:
        A path such as ``model.encoder.layers[3].attn``, or None.
    >>> path_to({"a": [1, (inner := object())]}, inner, "d")
    "d['a'][1]"
    """
    return paths_to(root, [target], name, closed).get(id(target))


def paths_to(
    root: object, targets: Iterable[object], name: str = "obj", closed: tuple[type, ...] = ()
) -> dict[int, str]:
    """Return the shortest paths to several objects, by their ids; see :func:`path_to`."""
    wanted = {id(target) for target in targets}
    found: dict[int, str] = {}
    for obj, trail in _walk(root, name, closed) if wanted else ():
        for each in wanted.intersection((id(obj), id(type(obj)))):
            wanted.remove(each)
            found[each] = _format_trail(trail)
        if not wanted:
            break
    return found


def iter_objects(root: object, closed: tuple[type, ...] = ()) -> Iterator[object]:
    """Yield every object that :func:`path_to` can reach, once, starting with the root.

    Weak proxies are skipped: they act like their referent, or raise if it is dead.

    Args:
        root: The first object.
        closed: Types of objects whose references are not followed.
    """
    for obj, _ in _walk(root, "", closed):
        if not issubclass(type(obj), weakref.ProxyTypes):
            yield obj


def iter_with_paths(root: object, name: str) -> Iterator[tuple[object, str]]:
    """Yield every object that :func:`path_to` can reach, and strings, with its shortest path."""
    return ((obj, _format_trail(trail)) for obj, trail in _walk(root, name, unseen=()))


_Trail = tuple["_Trail | None", str]
"""The last step to an object, linked to earlier steps: full paths would take quadratic space."""


def _walk(
    root: object,
    name: str,
    closed: tuple[type, ...] = (),
    unseen: tuple[type, ...] = _LEAVES,
) -> Iterator[tuple[object, _Trail]]:
    known: dict[type, tuple[_Steps, ...]] = {}
    seen = {id(root)}
    queue: deque[tuple[object, _Trail]] = deque([(root, (None, name))])
    # Breadth first, so that the first path to an object is the shortest.
    while queue and len(seen) < _MAX_OBJECTS:
        obj, trail = queue.popleft()
        yield obj, trail
        if issubclass(type(obj), closed):
            continue
        for step, child in _children(obj, known):
            if id(child) not in seen and not issubclass(type(child), unseen):
                seen.add(id(child))
                queue.append((child, (trail, step)))


def _format_trail(trail: _Trail) -> str:
    steps = []
    last: _Trail | None = trail
    while last is not None:
        last, step = last
        steps.append(step)
    return "".join(reversed(steps))


def add_reachable(root: object, seen: set[int], modules: set[str]) -> None:
    """Add all objects that a root keeps alive, without a limit on their number.

    Args:
        root: The first object.
        seen: Ids of the objects found so far; these are not searched again.
        modules: Paths of the modules that define their classes, and the functions among them.
    """
    known: dict[type, tuple[_Steps, ...]] = {}
    # A list instead of recursion, because objects may be nested deeper than Python's stack.
    todo: list[Any] = [root]
    while todo:
        obj = todo.pop()
        if id(obj) not in seen and not issubclass(type(obj), _LEAVES):
            seen.add(id(obj))
            if type(obj) is FunctionType:
                modules.add(str(obj.__globals__.get("__name__")))
            elif issubclass(type(obj), type):
                modules.add(str(obj.__module__))
            todo.extend(child for _, child in _children(obj, known))
    modules.update(str(base.__module__) for kind in known for base in type.mro(kind))


_Steps = Callable[[Any], Iterator[tuple[str, object]]]


def _children(obj: object, known: dict[type, tuple[_Steps, ...]]) -> Iterator[tuple[str, object]]:
    """Yield the references of an object, each with its path step.

    Args:
        obj: The object.
        known: A cache of step functions by type.
    """
    kind = type(obj)
    try:
        functions = known[kind]
    except KeyError:
        functions = known[kind] = tuple(_step_functions(kind))
    for steps in functions:
        yield from steps(obj)


def _step_functions(kind: type) -> Iterator[_Steps]:
    """Yield the functions that list the references of a type's objects."""
    if issubclass(kind, dict):
        yield _entries
    elif issubclass(kind, (set, frozenset)):
        yield functools.partial(_members, set if issubclass(kind, set) else frozenset)
    else:
        sequences = (base for base in (list, tuple, deque) if issubclass(kind, base))
        yield from (functools.partial(_items, base) for base in sequences)
    if issubclass(kind, type):
        yield _class_attributes
    # The attributes of importable classes and of modules lead to everything in the process.
    if issubclass(kind, (type, ModuleType)):
        return
    # The class shows whether its objects have a `__dict__`; an object's own code might answer.
    if any("__dict__" in vars(base) for base in type.mro(kind)):
        yield _attributes
    bases = [base for base in type.mro(kind) if "__slots__" in vars(base)]
    slots = [slot for base in bases for slot in vars(base).items() if type(slot[1]) is _SLOT]
    for base, names in _HOLDERS.items():
        slots += [(name, vars(base)[name]) for name in names if issubclass(kind, base)]
    if slots:
        yield functools.partial(_slots, slots)
    if issubclass(kind, FunctionType):
        yield captured
    elif issubclass(kind, (MappingProxyType, *_VIEWS)):
        yield lambda obj: iter([(".mapping", gc.get_referents(obj)[0])])
    elif issubclass(kind, CellType):
        yield lambda obj: iter([(".cell_contents", held) for held in gc.get_referents(obj)])
    if _is_saved_in_parts(kind):
        yield lambda obj: iter([(".__class__", kind)])


def _entries(obj: Any) -> Iterator[tuple[str, object]]:
    # A derived class may override `items`, and another thread may change the dict.
    for key, value in list(dict.items(obj)):
        yield f"[{_key_text(key)}]", value
        yield f".keys()[{_key_text(key)}]", key


# These call the base's own __iter__, because a derived class may override it.


def _members(base: Any, obj: Any) -> Iterator[tuple[str, object]]:
    yield from (("{...}", value) for value in list(base.__iter__(obj)))


def _items(base: Any, obj: Any) -> Iterator[tuple[str, object]]:
    yield from ((f"[{index}]", value) for index, value in enumerate(list(base.__iter__(obj))))


def _is_saved_in_parts(cls: type) -> bool:
    """Return whether a class is saved with its objects, because it is not found by its name."""
    return is_made_by_python(cls) and find_live_object(cls.__module__, cls.__qualname__) is not cls


def _class_attributes(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the attributes and bases of a class that is saved because it cannot be imported."""
    if _is_saved_in_parts(cls):
        yield from ((f".{name}", value) for name, value in list(vars(cls).items()))
        yield from ((f".__bases__[{n}]", base) for n, base in enumerate(cls.__bases__))


def captured(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield a function's closure variables and defaults."""
    yield from ((f" -> {name}", value) for name, value in closed_over(function))
    for index, default in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{index}]", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", default


def _key_text(key: object) -> str:
    """Return a key's repr; only the type's name if its ``__repr__`` may be custom."""
    return repr(key) if type(key) in (str, int, float, bool, bytes) else type(key).__name__


def _attributes(obj: object) -> Iterator[tuple[str, object]]:
    """Yield attributes; torch's module tables are flattened as in the user's code."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return
    for name, value in list(found.items()) if isinstance(found, dict) else ():
        if name in _MODULE_TABLES and isinstance(value, dict):
            for key, child in list(value.items()):
                yield _format_child(str(key)), child
        else:
            yield f".{name}", value


def _slots(slots: Iterable[tuple[str, Any]], obj: object) -> Iterator[tuple[str, object]]:
    for name, slot in slots:
        try:
            yield f".{name}", slot.__get__(obj, type(obj))
        except AttributeError:  # never set
            continue


def _format_child(name: str) -> str:
    """Return a submodule's or parameter's path step: ``.head``, ``[3]``, ``['other name']``."""
    if name.isidentifier():
        return f".{name}"
    return f"[{name}]" if name.isdigit() else f"[{name!r}]"


def find_string_paths(root: object, texts: Sequence[bytes], name: str) -> dict[bytes, str]:
    """Return the shortest path to a string, bytes, or function source containing each text.

    Args:
        root: The object.
        texts: The texts to find.
        name: The object's name in paths.

    Returns:
        The paths of the texts that were found. Paths never contain any of the texts.

    >>> find_string_paths({"login": ["anna", "my s3cret"]}, [b"s3cret"], "obj")
    {b's3cret': "obj['login'][1]"}
    """
    found: dict[bytes, str] = {}
    for obj, path in iter_with_paths(root, name):
        for held, location in _strings_of(obj, path):
            for text in texts:
                if text in held:
                    found.setdefault(text, _redact(location, texts))
        if len(found) == len(texts):
            break
    return found


def _strings_of(obj: object, path: str) -> Iterator[tuple[bytes, str]]:
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


def _redact(path: str, texts: Sequence[bytes]) -> str:
    """Replace the texts in a path: a text may itself be a key in it."""
    for text in texts:
        path = path.replace(text.decode("utf-8", "replace"), "...")
    return path
