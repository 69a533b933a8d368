"""The ordinary module hooks that put graph-bound hooks onto each new graph.

What is attached consists of parts. Each part is an instance of a class of this module and hangs
on one module as a forward or forward-pre hook, so that it is captured, restored and copied like
any other hook. What belongs to one forward pass is kept outside of its state.
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


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Each tensor that requires a gradient in a tensor, tuple, list, dict or dataclass, once."""
    seen: set[int] = set()
    todo = [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, torch.Tensor):
            if part.requires_grad and id(part) not in seen:
                seen.add(id(part))
                yield part
        elif isinstance(part, Mapping):
            todo.extend(reversed(list(part.values())))
        elif isinstance(part, (list, tuple)):
            todo.extend(reversed(part))
        elif is_dataclass(part) and not isinstance(part, type):
            todo.extend(getattr(part, each.name, None) for each in reversed(fields(part)))


class CallStack:
    """What was opened for calls that are not over yet: by thread, innermost last.

    A hook that closes runs for a call that raised too, even if the hook that opens was not
    reached because an earlier one raised. So each entry remembers its call.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._count = 0

    def open(self, value: Any) -> None:
        """Note a value for the call that runs the calling hook."""
        self._entries.append((next(_running_calls(), None), value))
        self._add(1)

    def close(self) -> Any:
        """Take the value of the call that runs the calling hook; None if it opened nothing."""
        entries = self._entries
        if not entries or entries[-1][0] is not next(_running_calls(), None):
            return None
        self._add(-1)
        return entries.pop()[1]

    def abandoned(self) -> list[Any]:
        """Take the values of calls of this thread that ended without any hook being told.

        torch runs no hook when a call ends by KeyboardInterrupt or another BaseException.
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
        """The value of the innermost open call of this thread, or None."""
        return self._entries[-1][1] if self._entries else None

    @property
    def are_open(self) -> bool:
        """Whether any thread has a call under way."""
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
    """The frames of the module calls that are under way, innermost first; they stand for them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            yield frame
        frame = frame.f_back


_CALL = torch.nn.Module._call_impl.__code__


@named_in_packages
class Attachment:
    """A spec that is in force on a model; shared by the hooks that carry it out.

    Attributes:
        spec: what was attached.
        size: the number of its parts.
        removed: whether its handle was removed: what still hangs on living graphs is silent.
    """

    def __init__(self, spec: GraphSpec, size: int = 0) -> None:
        self.spec = spec
        self.size = size
        self.removed = False
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "size": self.size, "removed": self.removed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def hook_gradient(
        self, tensor: torch.Tensor, function: Callable[..., Any], place: object
    ) -> None:
        """Hook a tensor's gradient, for its current graph only.

        Args:
            tensor: the tensor.
            function: what to call with its gradient.
            place: tells what the hook is for. A leaf tensor outlives its graphs: the hook that
                an earlier pass put onto it for the same place is taken off.
        """
        with torch._C.DisableTorchFunctionSubclass():  # as in Part.register_on
            handle = torch.Tensor.register_hook(tensor, OnGraph(self, function))  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            handles = self._leaves.setdefault(tensor, {})
            if place in handles:
                handles[place].remove()
            handles[place] = handle

    def call_is_over(self) -> None:
        """Take off what could not be removed while a call was under way."""
        if self.removed and not self.calls.are_open:
            while self.leftover:
                self.leftover.pop().remove()

    def _forget(self) -> None:
        self.calls = CallStack()
        self.queued: set[int] = set()
        self.leftover: list[Any] = []
        self._leaves: Any = WeakTensorKeyDictionary()


@named_in_packages
class OnGraph:
    """A function as it hangs on one graph: silent once its attachment was removed."""

    def __init__(self, attachment: Attachment, function: Callable[..., Any]) -> None:
        self._attachment = attachment
        self._function = function

    def __call__(self, *given: Any) -> Any:
        return None if self._attachment.removed else self._function(*given)


class GraphPart:
    """An ordinary module hook that carries out a part of an attachment.

    Attributes:
        helps_others: whether it only helps the parts that a path of the spec has.
        on_model: whether it hangs on the model itself, and not on each module of the spec.
        attachment: what it is a part of.
        path: the module path that the spec gives; None for what only helps the other parts.
        index: its place among the parts.
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
        """Register it as a hook of the kind that it is; returns torch's handle.

        With torch's own method: a class that overrides it may wrap the part, which nobody would
        find again.
        """
        return getattr(torch.nn.Module, self._method)(module, self, **self._options)

    def __call__(self, *given: Any) -> None:
        raise NotImplementedError


@named_in_packages
class OutputGradPart(GraphPart):
    """Hooks the gradients of a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached: Any = self.attachment
        for tensor in tensors_in(output):
            attached.hook_gradient(tensor, attached.spec.hook, self.index)


@named_in_packages
class NodePart(GraphPart):
    """Hooks the nodes that made a module's output tensors, before or after they run."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        spec: Any = self.attachment.spec
        before = isinstance(spec, NodePreHook)
        for node in dict.fromkeys(tensor.grad_fn for tensor in tensors_in(output)):
            if node is not None:
                register = node.register_prehook if before else node.register_hook
                register(OnGraph(self.attachment, spec.hook))


@named_in_packages
class EnterPart(GraphPart):
    """Enters the pair of saved-tensor hooks before a module's forward."""

    _method = "register_forward_pre_hook"

    def __call__(self, module: Any, args: Any) -> None:
        attached: Any = self.attachment
        for context in attached.calls.abandoned():
            context.__exit__()
        if not attached.removed:
            pair = attached.spec.pack, attached.spec.unpack
            context = torch.autograd.graph.saved_tensors_hooks(*pair)
            context.__enter__()
            attached.calls.open(context)


@named_in_packages
class LeavePart(GraphPart):
    """Leaves it again, first of all hooks after the forward, also if that raised."""

    helps_others = True
    _options: ClassVar[Mapping[str, bool]] = {"prepend": True, "always_call": True}

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached = self.attachment
        context = attached.calls.close()
        if context is not None:
            context.__exit__()
        attached.call_is_over()


@named_in_packages
class AfterBackwardPart(GraphPart):
    """Puts a function into the engine's queue as soon as a backward pass comes by."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            self.attachment.hook_gradient(tensor, self._queue, self.index)

    def _queue(self, grad: torch.Tensor) -> None:
        spec: Any = self.attachment.spec
        queued, task = self.attachment.queued, torch._C._current_graph_task_id()
        if task in queued:
            return
        queued.add(task)

        def run() -> None:
            queued.discard(task)
            OnGraph(self.attachment, spec.hook)()

        torch.autograd.Variable._execution_engine.queue_callback(run)


@named_in_packages
class BeginPart(GraphPart):
    """Starts afresh at each call of the model."""

    helps_others = on_model = True
    _method = "register_forward_pre_hook"

    def __call__(self, module: Any, args: Any) -> None:
        spec = self.attachment.spec
        self.attachment.calls.abandoned()
        if isinstance(spec, CaptureGrad):
            spec.store.clear()
        else:
            self.attachment.calls.open({})


@named_in_packages
class CollectPart(GraphPart):
    """Notes a module's output tensors for a hook that is about several."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        collected = self.attachment.calls.innermost
        if collected is not None:
            tensors = [t for t in tensors_in(output) if not t.is_leaf]
            collected.setdefault(self.path, []).extend(tensors)


@named_in_packages
class EndPart(GraphPart):
    """Registers the hook over what was noted, at the end of a call of the model."""

    helps_others = on_model = True
    _options: ClassVar[Mapping[str, bool]] = {"always_call": True}

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached: Any = self.attachment
        collected = attached.calls.close()
        spec = attached.spec
        tensors = [t for path in spec.paths for t in (collected or {}).get(path, ())]
        if tensors and output is not None:
            hook = OnGraph(attached, spec.hook)
            torch.autograd.graph.register_multi_grad_hook(tensors, hook, mode=spec.mode)
        attached.call_is_over()


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
    """Make room for the gradient of each tensor, and a hook that puts it there."""
    spec: Any = part.attachment.spec
    places = spec.store.setdefault(part.path, [])
    for index, tensor in enumerate(tensors_in(tree), len(places)):
        places.append(None)
        put = partial(places.__setitem__, index)
        part.attachment.hook_gradient(tensor, put, (part.path, index))


PARTS: dict[type[GraphSpec], tuple[type[GraphPart], ...]] = {
    OutputGrad: (OutputGradPart,),
    NodeHook: (NodePart,),
    NodePreHook: (NodePart,),
    SavedTensors: (EnterPart, LeavePart),
    AfterBackward: (AfterBackwardPart,),
    MultiGrad: (BeginPart, CollectPart, EndPart),
    CaptureGrad: (BeginPart, CaptureOutputsPart),
}
"""Everything that can be attached, each with the parts that carry it out, in their order."""


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
    of_inputs = isinstance(spec, CaptureGrad) and spec.of == "inputs"
    for part in (BeginPart, CaptureInputsPart) if of_inputs else PARTS[type(spec)]:
        for path in ("",) if part.on_model else spec.paths:
            handle.handles.append(part(attachment, path).register_on(modules[path]))
    return handle


def handle_of(hook: object, registered: Any, earlier: Any) -> Any:
    """The handle of a hook that was registered again: one for all parts of an attachment.

    Args:
        hook: the hook.
        registered: torch's handle.
        earlier: the handle of an earlier part, if there is one.
    """
    if not isinstance(hook, GraphPart):
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
