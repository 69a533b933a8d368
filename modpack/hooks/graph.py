"""Specs of hooks that belong to an autograd graph.

Such a hook is registered on an object that each forward pass creates: an output tensor, a node of
the graph, or the engine's queue. The hook cannot be listed, and it is freed with the graph. A spec
says where it belongs; :func:`modpack.hooks.attach` registers it there on every forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from modpack.pickling.rebuild import named_in_packages


@dataclass(frozen=True)
class GraphSpec:
    """Base class of the specs.

    Attributes:
        kind: The kind of hook, as specs in packages and reports name it.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if hasattr(self, "modules"):
            # A string is iterable, too: a tuple of it would have a path for each letter.
            given = (self.modules,) if isinstance(self.modules, str) else self.modules
            if not isinstance(given, Iterable):
                text = f"{kind}: modules must be module paths (str), not {type(given).__name__}"
                raise TypeError(text)
            object.__setattr__(self, "modules", tuple(given))
        for path in self.paths:
            if not isinstance(path, str):
                raise TypeError(
                    f"{kind}: module must be a module path such as 'layer1.conv' (str), "
                    f"not {type(path).__name__}"
                )
        # A part is registered for each path, so that a repeated path would call the hook twice.
        if not self.paths or len(set(self.paths)) < len(self.paths):
            text = f"{kind}: modules must be one or more different paths, not {self.paths!r}"
            raise ValueError(text)
        for name, function in self.functions.items():
            if not callable(function):
                raise TypeError(f"{kind}: {name} must be callable, not {function!r:.100}")

    @property
    def paths(self) -> tuple[str, ...]:
        """The module paths that the spec names, relative to the model that it is attached to."""
        several: tuple[str, ...] | None = getattr(self, "modules", None)
        return (getattr(self, "module", ""),) if several is None else several

    @property
    def functions(self) -> dict[str, Any]:
        """The user's callables, by the name of the field."""
        names = ("hook", "pack", "unpack")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @property
    def flags(self) -> dict[str, bool | str]:
        """The flags of the hook's spec in a package."""
        return {name: getattr(self, name) for name in ("mode", "of") if hasattr(self, name)}


@named_in_packages
@dataclass(frozen=True)
class OutputGrad(GraphSpec):
    """A hook on the gradient of a module's output; see :meth:`torch.Tensor.register_hook`.

    It receives the gradient of each output tensor that requires one, including tensors in tuples,
    lists, and dicts, and may return another. If the module has full backward pre-hooks, it
    receives their results: torch inserts them between the output and the module's caller.

    Args:
        module: The module's path in the model; ``""`` for the model itself.
        hook: ``hook(grad) -> None or a gradient``.
    """

    module: str
    hook: Callable[..., Any]
    kind: ClassVar[str] = "graph.output_grad"


@named_in_packages
@dataclass(frozen=True)
class NodeHook(GraphSpec):
    """A hook that runs after the graph node that created a module's output (C++: post hook).

    See :meth:`torch.autograd.graph.Node.register_hook`. Outputs without a node, such as a tensor
    that the module passes through from outside the graph, are ignored.

    Args:
        module: The module's path in the model.
        hook: ``hook(grad_inputs, grad_outputs) -> None or a tuple of gradients``.
    """

    module: str
    hook: Callable[..., Any]
    kind: ClassVar[str] = "graph.node"


@named_in_packages
@dataclass(frozen=True)
class NodePreHook(GraphSpec):
    """A hook that runs before the graph node that created a module's output (C++: pre hook).

    See :meth:`torch.autograd.graph.Node.register_prehook` and :class:`NodeHook`.

    Args:
        module: The module's path in the model.
        hook: ``hook(grad_outputs) -> None or a tuple of gradients``.
    """

    module: str
    hook: Callable[..., Any]
    kind: ClassVar[str] = "graph.node_pre"


@named_in_packages
@dataclass(frozen=True)
class SavedTensors(GraphSpec):
    """A pair of functions for the tensors that a module's forward saves for the backward pass.

    It acts like :class:`torch.autograd.graph.saved_tensors_hooks` around the module's forward. As
    with torch, the innermost pair applies: a submodule's before its parent's, and the one that
    was attached last to a module. The pair is removed even if the forward raises.

    Args:
        module: The module's path in the model.
        pack: ``pack(tensor) -> anything``.
        unpack: ``unpack(result of pack) -> tensor``.
    """

    module: str
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    kind: ClassVar[str] = "graph.saved_tensors"


@named_in_packages
@dataclass(frozen=True)
class AfterBackward(GraphSpec):
    """A function to call once after a backward pass, after all other hooks.

    It runs if the backward pass goes through an output of the module.

    Args:
        hook: ``hook() -> None``.
        module: The module's path in the model. Default: the model itself.
    """

    hook: Callable[[], Any]
    module: str = ""
    kind: ClassVar[str] = "graph.after_backward"


@named_in_packages
@dataclass(frozen=True)
class MultiGrad(GraphSpec):
    """A hook for the gradients of several modules' outputs together.

    It acts like :func:`torch.autograd.graph.register_multi_grad_hook` on the outputs of the modules
    in one call of the model, in the order in which the spec names the modules. Outputs that require
    no gradient, and tensors from outside the graph, are ignored.

    Args:
        modules: Module paths in the model.
        hook: For ``"all"``, ``hook(grads)`` after all gradients are computed, with None for outputs
            that the backward pass does not reach; for ``"any"``, ``hook(grad)`` with the first.
        mode: ``"all"`` or ``"any"``.
    """

    modules: tuple[str, ...]
    hook: Callable[..., Any]
    mode: str = "all"
    kind: ClassVar[str] = "graph.multi_grad"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("all", "any"):
            raise ValueError(f"MultiGrad: mode must be 'all' or 'any', not {self.mode!r}")


@named_in_packages
@dataclass(frozen=True)
class CaptureGrad(GraphSpec):
    """Stores the gradients of modules' outputs or inputs, as autograd.grad would return them.

    After a backward pass, ``store[path]`` is a list with an entry for each tensor that requires
    a gradient, in the order in which the latest call of the model created them: its gradient, or
    None if the backward pass did not reach it. No ``.grad`` is changed.

    Args:
        modules: Module paths in the model.
        of: ``"outputs"`` or ``"inputs"``.
        store: The mapping for the gradients. Default: a new dict.
    """

    modules: tuple[str, ...]
    of: str = "outputs"
    store: MutableMapping[str, list[Any]] = field(default_factory=dict, compare=False)
    kind: ClassVar[str] = "graph.capture_grad"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in ("outputs", "inputs"):
            raise ValueError(f"CaptureGrad: of must be 'outputs' or 'inputs', not {self.of!r}")
        if not isinstance(self.store, MutableMapping):
            raise TypeError(
                f"CaptureGrad: store must be a mutable mapping, not {type(self.store).__name__}"
            )
