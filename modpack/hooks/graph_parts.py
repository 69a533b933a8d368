"""Module hooks that register graph hooks on each new graph.

An attachment consists of parts. Each part is an instance of a class of this module, registered on
one module as a forward or forward-pre hook. It is therefore captured, restored, and copied like any
other model hook. Data of a single forward pass is not part of its state.
"""

from __future__ import annotations

import difflib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import FrameType
from typing import Any, ClassVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from modpack.core.process import calling_frames
from modpack.hooks.graph import (
    AfterBackward,
    CaptureGrad,
    GraphSpec,
    MultiGrad,
    NodeHook,
    NodePreHook,
    OutputGrad,
    SavedTensors,
)
from modpack.pickling.rebuild import named_in_packages


def iter_tensors(tree: object) -> Iterator[torch.Tensor]:
    """Yield the tensors requiring a gradient in nested tuples, lists, dicts, and dataclasses."""
    seen: set[int] = set()
    todo = [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, torch.Tensor):
            if part.requires_grad and id(part) not in seen:
                seen.add(id(part))
                yield part
        elif isinstance(part, Mapping):
            # Reversed, because the last one is taken first: tensors come in the order of the tree.
            todo.extend(reversed(list(part.values())))
        elif isinstance(part, (list, tuple)):
            todo.extend(reversed(part))
        elif is_dataclass(part) and not isinstance(part, type):
            todo.extend(getattr(part, each.name, None) for each in reversed(fields(part)))


class CallStack:
    """Values opened for calls that have not ended yet: by thread, innermost last.

    A closing hook runs even for a call that raised, and even if an earlier hook raised before the
    opening hook ran. Each entry therefore remembers its call.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._count = 0

    def open(self, value: Any) -> None:
        """Add a value for the call that runs the calling hook."""
        self._entries.append((next(_running_calls(), None), value))
        self._add(1)

    def close(self) -> Any:
        """Remove and return the value of the call that runs the calling hook, or None."""
        entries = self._entries
        # If an earlier hook raised, the opening hook of this call did not run, and the innermost
        # entry belongs to an outer call.
        if not entries or entries[-1][0] is not next(_running_calls(), None):
            return None
        self._add(-1)
        return entries.pop()[1]

    def pop_abandoned(self) -> list[Any]:
        """Remove and return the values of calls of this thread that ended without running hooks.

        torch runs no hook when a KeyboardInterrupt or another BaseException ends a call.
        """
        entries = self._entries
        running = set(map(id, _running_calls())) if entries else set()
        dead = [entry for entry in entries if entry[0] is not None and id(entry[0]) not in running]
        for entry in dead:
            entries.remove(entry)
        self._add(-len(dead))
        return [value for _, value in reversed(dead)]

    @property
    def innermost(self) -> Any:
        """The value of this thread's innermost open call, or None."""
        return self._entries[-1][1] if self._entries else None

    @property
    def has_open_calls(self) -> bool:
        """Whether any thread has an open call."""
        return self._count > 0

    def _add(self, number: int) -> None:
        with self._lock:
            self._count += number

    @property
    def _entries(self) -> list[tuple[FrameType | None, Any]]:
        if not hasattr(self._local, "entries"):
            self._local.entries = []
        entries: list[tuple[FrameType | None, Any]] = self._local.entries
        return entries


def _running_calls() -> Iterator[FrameType]:
    """Yield the frames of running module calls, innermost first; a frame identifies its call."""
    yield from (f for f in calling_frames(sys._getframe(1)) if f.f_code is _CALL)


_CALL = torch.nn.Module._call_impl.__code__


@named_in_packages
class Attachment:
    """A spec that is attached to a model; shared by the hooks that implement it.

    Attributes:
        spec: The spec.
        size: The number of its parts.
        removed: Whether its handle was removed; its hooks on live graphs then do nothing.
    """

    def __init__(self, spec: GraphSpec, size: int = 0) -> None:
        self.spec = spec
        self.size = size
        self.removed = False
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "size": self.size, "removed": self.removed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def hook_gradient(
        self, tensor: torch.Tensor, function: Callable[..., Any], purpose: object
    ) -> None:
        """Register a hook on a tensor's gradient, for its current graph only.

        Args:
            tensor: The tensor.
            function: Called with the gradient.
            purpose: Identifies the hook's purpose. A leaf tensor outlives its graphs, so the hook
                that an earlier pass registered for the same purpose is removed.
        """
        with torch._C.DisableTorchFunctionSubclass():  # see GraphPart.register_on
            handle = torch.Tensor.register_hook(tensor, OnGraph(self, function))  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            handles = self._leaves.setdefault(tensor, {})
            if purpose in handles:
                handles[purpose].remove()
            handles[purpose] = handle

    def finish_call(self) -> None:
        """Remove hooks that could not be removed during a call."""
        if self.removed and not self.calls.has_open_calls:
            while self.leftover:
                self.leftover.pop().remove()

    def _reset(self) -> None:
        self.calls = CallStack()
        self.queued: set[int] = set()
        self.leftover: list[Any] = []
        self._leaves: Any = WeakTensorKeyDictionary()


@named_in_packages
class OnGraph:
    """A function registered on one graph; it does nothing after its attachment was removed."""

    def __init__(self, attachment: Attachment, function: Callable[..., Any]) -> None:
        self._attachment = attachment
        self._function = function

    def __call__(self, *given: Any) -> Any:
        return None if self._attachment.removed else self._function(*given)


class GraphPart:
    """A module hook that implements a part of an attachment.

    Attributes:
        helps_others: Whether it only supports the parts that have a path of the spec.
        on_model: Whether it is registered on the model itself, not on each module of the spec.
        attachment: Its attachment.
        path: The module path in the spec; None if it only supports other parts.
        index: Its position among the parts.
    """

    helps_others: ClassVar[bool] = False
    on_model: ClassVar[bool] = False
    _method: ClassVar[str] = "register_forward_hook"
    _options: ClassVar[Mapping[str, bool]] = {}

    def __init__(self, attachment: Attachment, path: str) -> None:
        self.attachment = attachment
        self.path = None if self.helps_others else path
        self.index = attachment.size
        attachment.size += 1

    def register_on(self, module: torch.nn.Module) -> Any:
        """Register the part as a hook of its kind, and return torch's handle.

        This calls torch's own method. A class that overrides the method may wrap the part, and
        modpack would not recognize it.
        """
        return getattr(torch.nn.Module, self._method)(module, self, **self._options)

    def __call__(self, *given: Any) -> None:
        raise NotImplementedError


@named_in_packages
class OutputGradPart(GraphPart):
    """Registers hooks on the gradients of a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached: Any = self.attachment
        for tensor in iter_tensors(output):
            attached.hook_gradient(tensor, attached.spec.hook, self.index)


@named_in_packages
class NodePart(GraphPart):
    """Registers hooks on the nodes that created a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        spec: Any = self.attachment.spec
        before = isinstance(spec, NodePreHook)
        # Several outputs may come from one node, on which the hook runs once.
        for node in dict.fromkeys(tensor.grad_fn for tensor in iter_tensors(output)):
            if node is not None:
                register = node.register_prehook if before else node.register_hook
                register(OnGraph(self.attachment, spec.hook))


@named_in_packages
class EnterPart(GraphPart):
    """Enters the saved-tensor hooks before a module's forward."""

    _method = "register_forward_pre_hook"

    def __call__(self, module: Any, args: Any) -> None:
        attached: Any = self.attachment
        # After a KeyboardInterrupt, no hook has left the pair, and it would apply to all later
        # code.
        for context in attached.calls.pop_abandoned():
            context.__exit__()
        if not attached.removed:
            pair = attached.spec.pack, attached.spec.unpack
            context = torch.autograd.graph.saved_tensors_hooks(*pair)
            context.__enter__()
            attached.calls.open(context)


@named_in_packages
class LeavePart(GraphPart):
    """Leaves the saved-tensor hooks before all other forward hooks, even if the forward raised."""

    helps_others = True
    _options: ClassVar[Mapping[str, bool]] = {"prepend": True, "always_call": True}

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached = self.attachment
        context = attached.calls.close()
        if context is not None:
            context.__exit__()
        attached.finish_call()


@named_in_packages
class AfterBackwardPart(GraphPart):
    """Queues a function in the autograd engine as soon as a backward pass arrives."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        for tensor in iter_tensors(output):
            self.attachment.hook_gradient(tensor, self._queue, self.index)

    def _queue(self, grad: torch.Tensor) -> None:
        spec: Any = self.attachment.spec
        queued, task = self.attachment.queued, torch._C._current_graph_task_id()
        # A backward pass arrives at every output tensor, and the function runs once per pass.
        if task in queued:
            return
        queued.add(task)

        def run() -> None:
            queued.discard(task)
            OnGraph(self.attachment, spec.hook)()

        torch.autograd.Variable._execution_engine.queue_callback(run)


@named_in_packages
class BeginPart(GraphPart):
    """Resets the attachment at each call of the model."""

    helps_others = on_model = True
    _method = "register_forward_pre_hook"

    def __call__(self, module: Any, args: Any) -> None:
        spec = self.attachment.spec
        # Tensors that an interrupted call has collected must not count for this one.
        self.attachment.calls.pop_abandoned()
        if isinstance(spec, CaptureGrad):
            spec.store.clear()
        else:
            self.attachment.calls.open({})


@named_in_packages
class CollectPart(GraphPart):
    """Collects a module's output tensors for a multi-grad hook."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        collected = self.attachment.calls.innermost
        if collected is not None:
            # A leaf is not computed by the module: it only passes through.
            tensors = [t for t in iter_tensors(output) if not t.is_leaf]
            collected.setdefault(self.path, []).extend(tensors)


@named_in_packages
class EndPart(GraphPart):
    """Registers the multi-grad hook on the collected tensors at the end of a call of the model."""

    helps_others = on_model = True
    _options: ClassVar[Mapping[str, bool]] = {"always_call": True}

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached: Any = self.attachment
        collected = attached.calls.close()
        spec = attached.spec
        tensors = [t for path in spec.paths for t in (collected or {}).get(path, ())]
        # Without an output, forward has raised: the hook is also called then.
        if tensors and output is not None:
            hook = OnGraph(attached, spec.hook)
            torch.autograd.graph.register_multi_grad_hook(tensors, hook, mode=spec.mode)
        attached.finish_call()


@named_in_packages
class CaptureOutputsPart(GraphPart):
    """Captures the gradients of a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        _capture(self, output)


@named_in_packages
class CaptureInputsPart(GraphPart):
    """Captures the gradients of a module's input tensors."""

    _method = "register_forward_pre_hook"
    _options: ClassVar[Mapping[str, bool]] = {"with_kwargs": True}

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        _capture(self, (args, kwargs))


def _capture(part: GraphPart, tree: object) -> None:
    """Reserve an entry for the gradient of each tensor, and register a hook that fills it."""
    spec: Any = part.attachment.spec
    entries = spec.store.setdefault(part.path, [])
    for index, tensor in enumerate(iter_tensors(tree), len(entries)):
        entries.append(None)
        store = partial(entries.__setitem__, index)
        part.attachment.hook_gradient(tensor, store, (part.path, index))


PARTS: dict[type[GraphSpec], tuple[type[GraphPart], ...]] = {
    OutputGrad: (OutputGradPart,),
    NodeHook: (NodePart,),
    NodePreHook: (NodePart,),
    SavedTensors: (EnterPart, LeavePart),
    AfterBackward: (AfterBackwardPart,),
    MultiGrad: (BeginPart, CollectPart, EndPart),
    CaptureGrad: (BeginPart, CaptureOutputsPart),
}
"""The parts that implement each spec, in their order."""


@named_in_packages
class GraphHandle:
    """Removes an attachment: all its parts, and its hooks on live graphs.

    Attributes:
        attachment: The attachment.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.handles: list[Any] = []

    @property
    def spec(self) -> GraphSpec:
        """The attached spec; ``handle.spec.store`` contains captured gradients."""
        return self.attachment.spec

    def remove(self) -> None:
        """Remove the attachment. Further calls do nothing."""
        self.attachment.removed = True
        while self.handles:
            handle = self.handles.pop()
            if self.attachment.calls.has_open_calls:  # an entered context must be left first
                self.attachment.leftover.append(handle)
            else:
                handle.remove()

    def __enter__(self) -> GraphHandle:
        return self

    def __exit__(self, *failure: object) -> None:
        self.remove()


def attach(model: torch.nn.Module, spec: GraphSpec) -> GraphHandle:
    """Attach a hook that belongs to the autograd graph, for all future forward passes.

    The hook is saved and restored with the model, like other model hooks.

    Args:
        model: The model.
        spec: The hook and its place: an :class:`OutputGrad`, :class:`NodeHook`,
            :class:`NodePreHook`, :class:`SavedTensors`, :class:`AfterBackward`,
            :class:`MultiGrad`, or :class:`CaptureGrad`.

    Returns:
        A handle; its ``remove()`` removes everything again.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If the model has no module with a path of the spec.

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
    # All paths are looked up first, so that an error leaves the model as it was.
    modules = {path: _get_module(model, path) for path in ("", *spec.paths)}
    attachment = Attachment(spec)
    handle = GraphHandle(attachment)
    of_inputs = isinstance(spec, CaptureGrad) and spec.of == "inputs"
    for part in (BeginPart, CaptureInputsPart) if of_inputs else PARTS[type(spec)]:
        for path in ("",) if part.on_model else spec.paths:
            handle.handles.append(part(attachment, path).register_on(modules[path]))
    return handle


def combined_handle(hook: object, registered: Any, earlier: Any) -> Any:
    """Return the handle of a restored hook; an attachment has one for all parts.

    Args:
        hook: The hook.
        registered: torch's handle.
        earlier: The handle of an earlier part, if any.
    """
    if not isinstance(hook, GraphPart):
        return registered
    handle = earlier if isinstance(earlier, GraphHandle) else GraphHandle(hook.attachment)
    handle.handles.append(registered)
    return handle


def _get_module(model: torch.nn.Module, path: str) -> torch.nn.Module:
    modules: dict[str, torch.nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        close = difflib.get_close_matches(path, modules, n=3)
        hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"the model has no module {path!r}.{hint}")
    return modules[path]
