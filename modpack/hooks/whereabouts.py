"""Telling where in a hook an object is that could not be pickled, and what can be done."""

from __future__ import annotations

from typing import Any

from modpack.hooks.state import carried_by, functions_of, state_of_hook
from modpack.pickling.paths import objects_in, path_to

__all__ = ["place_in_hooks"]


def place_in_hooks(payload: dict[str, Any] | None, target: object) -> str | None:
    """The hook that leads to an object, and the path from the hook on.

    Args:
        payload: what was being pickled.
        target: the object that could not be; a class stands for an instance of it.

    Returns:
        ``hook 'layer1/forward/0' -> collector.lock``, or None if no hook leads to it.
    """
    for name, _, _, _, _, hook in (payload or {}).get("hooks", ()):
        found = _place_in(hook, name, target)
        if found is not None:
            return found
    return None


def _place_in(hook: Any, name: str, target: object) -> str | None:
    head = f"hook {name!r}"
    if any(each is target for each in (hook, *functions_of(hook).values())):
        return head
    sought = _instance_of(target, hook) if isinstance(target, type) else target
    if sought is None:
        return None
    for key, value in (*state_of_hook(hook).items(), *carried_by(hook).items()):
        found = path_to(value, sought, f"{head} -> {key}")
        if found is not None:
            return found
    return path_to(hook, sought, head)


def _instance_of(kind: type, hook: Any) -> object:
    return next((part for part in objects_in(hook) if type(part) is kind), None)
