"""Attaching hooks that belong to the autograd graph, and taking them off again."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from modpack.hooks.graphparts import PARTS, Attachment, Part
from modpack.hooks.graphspecs import GraphSpec
from modpack.pickling.rebuild import named_in_packages

__all__ = ["GraphHandle", "attach", "handle_of"]


@named_in_packages
class GraphHandle:
    """Removes what was attached: every part of it, and what hangs on living graphs.

    Attributes:
        attachment: what it removes.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.handles: list[Any] = []

    @property
    def spec(self) -> GraphSpec:
        """What was attached; ``handle.spec.store`` holds captured gradients."""
        return self.attachment.spec

    def remove(self) -> None:
        """Remove it; a second time does nothing."""
        self.attachment.removed = True
        while self.handles:
            handle = self.handles.pop()
            if self.attachment.calls.are_open:  # what was entered must be left again
                self.attachment.leftover.append(handle)
            else:
                handle.remove()

    def __enter__(self) -> GraphHandle:
        return self

    def __exit__(self, *failure: object) -> None:
        self.remove()


def attach(model: torch.nn.Module, spec: GraphSpec) -> GraphHandle:
    """Attach a hook that belongs to the autograd graph, for all forward passes to come.

    It is saved and restored with the model, like an ordinary hook.

    Args:
        model: the model.
        spec: what to attach and where: an :class:`OutputGrad`, :class:`NodeHook`,
            :class:`NodePreHook`, :class:`SavedTensors`, :class:`AfterBackward`,
            :class:`MultiGrad` or :class:`CaptureGrad`.

    Returns:
        A handle; its ``remove()`` takes everything off again.

    Raises:
        TypeError: an argument is none of these.
        ValueError: the model has no module of that path.

    >>> from modpack.hooks import CaptureGrad
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    >>> capture = CaptureGrad("0")
    >>> handle = attach(model, capture)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> torch.equal(capture.store["0"][0], model[1].weight)
    True
    >>> handle.remove()
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if type(spec) not in PARTS:
        known = ", ".join(kind.__name__ for kind in PARTS)
        raise TypeError(f"spec must be one of {known}, not {type(spec).__name__}")
    modules = {path: _module_at(model, path) for path in ("", *spec.paths)}
    attachment = Attachment(spec)
    handle = GraphHandle(attachment)
    for path, part in PARTS[type(spec)](attachment):
        handle.handles.append(part.register_on(modules[path]))
    return handle


def handle_of(hook: object, registered: Any, earlier: Any) -> Any:
    """The handle of a hook that was registered again: one for all parts of an attachment.

    Args:
        hook: the hook.
        registered: torch's handle.
        earlier: the handle of an earlier part, if there is one.
    """
    if not isinstance(hook, Part):
        return registered
    handle = earlier if isinstance(earlier, GraphHandle) else GraphHandle(hook.attachment)
    handle.handles.append(registered)
    return handle


def _module_at(model: torch.nn.Module, path: str) -> torch.nn.Module:
    modules: dict[str, torch.nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        close = difflib.get_close_matches(path, modules, n=3)
        hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"the model has no module {path!r}.{hint}")
    return modules[path]
