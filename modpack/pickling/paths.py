"""Where an object hangs: the attribute path that leads to it, for error messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

__all__ = ["objects_in", "path_to"]

_MOST_OBJECTS = 1_000_000
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def path_to(root: object, target: object, name: str = "obj") -> str | None:
    """The shortest attribute path from one object to another.

    Follows attributes, items of containers, and what bound methods and partials hold. Reads
    ``__dict__`` only: no property and no ``__getattr__`` runs.

    Args:
        root: where the path starts.
        target: the object to find, by identity.
        name: what to call ``root``.

    Returns:
        A path such as ``model.encoder.layers[3].attn``, or None if there is none.

    >>> path_to({"a": [1, (inner := object())]}, inner, "d")
    "d['a'][1]"
    """
    seen = {id(root)}
    queue = deque([(root, name)])
    while queue and len(seen) < _MOST_OBJECTS:
        obj, path = queue.popleft()
        if obj is target:
            return path
        for step, child in _children(obj):
            if id(child) not in seen and not isinstance(child, (str, bytes, int, float)):
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
            if id(child) not in seen and not isinstance(child, (str, bytes, int, float)):
                seen.add(id(child))
                queue.append(child)


def _children(obj: object) -> Iterator[tuple[str, object]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(obj.items()))
    elif isinstance(obj, (list, tuple)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif isinstance(obj, (set, frozenset)):
        yield from (("{...}", value) for value in list(obj))
    if isinstance(obj, type):
        return
    attributes = getattr(obj, "__dict__", None)
    if isinstance(attributes, dict):
        yield from _attributes(attributes)
    for special in ("__self__", "__func__", "func", "args", "keywords"):
        if type(obj).__name__ in ("method", "partial") and hasattr(obj, special):
            yield f".{special}", getattr(obj, special)


def _attributes(attributes: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Attributes, with torch's module tables spelled the way a user reaches into them."""
    for name, value in list(attributes.items()):
        if name in _MODULE_TABLES and isinstance(value, dict):
            for key, child in list(value.items()):
                yield (f"[{key}]" if str(key).isdigit() else f".{key}"), child
        else:
            yield f".{name}", value
