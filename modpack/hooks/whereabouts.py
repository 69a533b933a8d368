"""Telling where in a hook an object is that could not be pickled, and what can be done."""

from __future__ import annotations

from typing import Any

import torch

from modpack.hooks.state import functions_of, state_of_hook
from modpack.pickling.paths import path_to

__all__ = ["place_in_hooks"]


def place_in_hooks(payload: dict[str, Any] | None, target: object) -> tuple[str, str] | None:
    """The hook that leads to an object, the path from the hook on, and what else can be done.

    Args:
        payload: what was being pickled.
        target: the object that could not be; a class stands for an instance of it.

    Returns:
        ``hook 'layer1/forward/0' -> collector.lock`` and how to leave the hook out; None
        if no hook leads to it.
    """
    hooks = [(name, hook) for name, *_, hook in (payload or {}).get("hooks", ())]
    for closed in (_PARTS_OF_THE_MODEL, ()):  # those are in the pickle already, mostly
        for name, hook in hooks:
            path = _path_in(hook, target, closed)
            if path is not None:
                return f"hook {name!r}{path}", _leave_out(name)
    for name, extra in (payload or {}).get("extras", {}).items():
        path = path_to(extra, target, name)
        if path is not None:
            return path, ""
    return None


_PARTS_OF_THE_MODEL = (torch.nn.Module, torch.optim.Optimizer)


def _path_in(hook: Any, target: object, closed: tuple[type, ...]) -> str | None:
    if any(each is target or type(each) is target for each in (hook, *functions_of(hook).values())):
        return ""
    for key, value in state_of_hook(hook).items():
        found = path_to(value, target, f" -> {key}", closed)
        if found is not None:
            return found
    return path_to(hook, target, "", closed)


def _leave_out(name: str) -> str:
    return f"leave the hook out (hooks=lambda spec: spec.name != {name!r})"
