"""The ordinary module hooks that put graph-bound hooks onto each new graph.

What is attached consists of parts. Each part is an instance of a class of this module and hangs
on one module as a forward or forward-pre hook, so that it is captured, restored and copied like
any other hook. What belongs to one forward pass is kept outside of its state.

Attaching hooks that belong to the autograd graph, and taking them off again.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from modpack.hooks.graph import (
    AfterBackward,
    CaptureGrad,
    GraphSpec,
    MultiGrad,
    NodeHook,
    NodePreHook,
    OpenCalls,
    OutputGrad,
    SavedTensors,
    tensors_in,
)
from modpack.pickling.rebuild import named_in_packages


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
        self.calls = OpenCalls()
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


class Part:
    """An ordinary module hook that carries out a part of an attachment.

    Attributes:
        attachment: what it is a part of.
        path: the module path that the spec gives; None for what only helps the other parts.
        index: its place among the parts.
    """

    def __init__(self, attachment: Attachment, path: str | None = None) -> None:
        self.attachment = attachment
        self.path = path
        self.index = attachment.size
        attachment.size += 1

    def register_on(self, module: torch.nn.Module) -> Any:
        """Register it as a hook of the kind that it is; returns torch's handle.

        With torch's own method: a class that overrides it may wrap the part, which nobody would
        find again.
        """
        return torch.nn.Module.register_forward_hook(module, self)

    def __call__(self, *given: Any) -> None:
        raise NotImplementedError


@named_in_packages
class OutputGradPart(Part):
    """Hooks the gradients of a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached: Any = self.attachment
        for tensor in tensors_in(output):
            attached.hook_gradient(tensor, attached.spec.hook, self.index)


@named_in_packages
class NodePart(Part):
    """Hooks the nodes that made a module's output tensors, before or after they run."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        spec: Any = self.attachment.spec
        before = isinstance(spec, NodePreHook)
        for node in dict.fromkeys(tensor.grad_fn for tensor in tensors_in(output)):
            if node is not None:
                register = node.register_prehook if before else node.register_hook
                register(OnGraph(self.attachment, spec.hook))


@named_in_packages
class EnterPart(Part):
    """Enters the pair of saved-tensor hooks before a module's forward."""

    def register_on(self, module: torch.nn.Module) -> Any:
        return torch.nn.Module.register_forward_pre_hook(module, self)

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
class LeavePart(Part):
    """Leaves it again, first of all hooks after the forward, also if that raised."""

    def register_on(self, module: torch.nn.Module) -> Any:
        return torch.nn.Module.register_forward_hook(module, self, prepend=True, always_call=True)

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        attached = self.attachment
        context = attached.calls.close()
        if context is not None:
            context.__exit__()
        attached.call_is_over()


@named_in_packages
class AfterBackwardPart(Part):
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
class BeginPart(Part):
    """Starts afresh at each call of the model."""

    def register_on(self, module: torch.nn.Module) -> Any:
        return torch.nn.Module.register_forward_pre_hook(module, self)

    def __call__(self, module: Any, args: Any) -> None:
        spec = self.attachment.spec
        self.attachment.calls.abandoned()
        if isinstance(spec, CaptureGrad):
            spec.store.clear()
        else:
            self.attachment.calls.open({})


@named_in_packages
class CollectPart(Part):
    """Notes a module's output tensors for a hook that is about several."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        collected = self.attachment.calls.innermost
        if collected is not None:
            tensors = [t for t in tensors_in(output) if not t.is_leaf]
            collected.setdefault(self.path, []).extend(tensors)


@named_in_packages
class EndPart(Part):
    """Registers the hook over what was noted, at the end of a call of the model."""

    def register_on(self, module: torch.nn.Module) -> Any:
        return torch.nn.Module.register_forward_hook(module, self, always_call=True)

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
class CaptureOutputsPart(Part):
    """Captures the gradients of a module's output tensors."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        _capture(self, output)


@named_in_packages
class CaptureInputsPart(Part):
    """Captures the gradients of a module's input tensors."""

    def register_on(self, module: torch.nn.Module) -> Any:
        return torch.nn.Module.register_forward_pre_hook(module, self, with_kwargs=True)

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        _capture(self, (args, kwargs))


def _capture(part: Part, tree: object) -> None:
    """Make room for the gradient of each tensor, and a hook that puts it there."""
    spec: Any = part.attachment.spec
    places = spec.store.setdefault(part.path, [])
    for tensor in tensors_in(tree):
        put, place = _putting(places, len(places)), (part.path, len(places))
        part.attachment.hook_gradient(tensor, put, place)
        places.append(None)


def _putting(places: list[Any], index: int) -> Callable[[torch.Tensor], None]:
    def put(grad: torch.Tensor) -> None:
        places[index] = grad

    return put


_Parts = Iterator[tuple[str, Part]]


def _output_grad(attachment: Attachment) -> _Parts:
    for path in attachment.spec.paths:
        yield path, OutputGradPart(attachment, path)


def _node(attachment: Attachment) -> _Parts:
    for path in attachment.spec.paths:
        yield path, NodePart(attachment, path)


def _saved_tensors(attachment: Attachment) -> _Parts:
    for path in attachment.spec.paths:
        yield path, EnterPart(attachment, path)
        yield path, LeavePart(attachment)


def _after_backward(attachment: Attachment) -> _Parts:
    for path in attachment.spec.paths:
        yield path, AfterBackwardPart(attachment, path)


def _multi_grad(attachment: Attachment) -> _Parts:
    yield "", BeginPart(attachment)
    for path in attachment.spec.paths:
        yield path, CollectPart(attachment, path)
    yield "", EndPart(attachment)


def _capture_grad(attachment: Attachment) -> _Parts:
    inputs = attachment.spec.flags["of"] == "inputs"
    part = CaptureInputsPart if inputs else CaptureOutputsPart
    yield "", BeginPart(attachment)
    for path in attachment.spec.paths:
        yield path, part(attachment, path)


PARTS: dict[type[GraphSpec], Callable[[Attachment], _Parts]] = {
    OutputGrad: _output_grad,
    NodeHook: _node,
    NodePreHook: _node,
    SavedTensors: _saved_tensors,
    AfterBackward: _after_backward,
    MultiGrad: _multi_grad,
    CaptureGrad: _capture_grad,
}
"""Everything that can be attached, each with what carries it out and where that hangs."""


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
