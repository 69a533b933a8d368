"""The table of hook kinds: one row for each kind of hook that PyTorch supports.

A row lists the hooks of its kind on a target, registers one again through torch's public API, and
removes all of them. A new kind of hook needs a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import MethodType
from typing import Any, Final, NamedTuple

import torch
from torch.nn.modules import module as module_globals
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod
from torch.optim import optimizer as optimizer_globals

from modpack.hooks.ddp import keep_comm_hook
from modpack.hooks.graph_nodes import AFTER, BEFORE, NodeKeeper, leaf_hooks, register_on_node
from modpack.hooks.graph_parts import PARTS, attach

MULTI_GRAD: Final = "multi_grad"
Flags = Mapping[str, "bool | str"]


class InstalledHook(NamedTuple):
    """A hook registered on its target.

    Attributes:
        identity: torch's id of the hook, which also orders hooks across tensors.
        hook: The registered callable.
        flags: The flags that it was registered with.
    """

    identity: int
    hook: Any
    flags: Flags


class HookKind(NamedTuple):
    """One row: how a kind of hook is listed, registered, and cleared.

    Attributes:
        name: The name in specs.
        scope: The kind of target: ``module``, ``tensor``, ``accumulator`` (a tensor's node),
            ``group`` (of tensors), ``optimizer``, or ``global``.
        find: Lists the hooks of a target in the order in which they run.
        register: Registers a hook again and returns torch's handle.
        tables: The dictionaries with the hooks, by attribute of the target. The first one maps
            ids to hooks, the others contain flags by id.
        global_module: The module with the tables of a process-wide kind.
    """

    name: str
    scope: str
    find: Callable[[Any], Iterator[InstalledHook]]
    register: Callable[[Any, Any, Flags], Any]
    tables: tuple[str, ...] = ()
    global_module: Any = None

    def clear(self, target: Any, identities: Collection[int] | None = None) -> None:
        """Remove hooks of this kind from a module or optimizer, except torch's own.

        Args:
            target: The module or optimizer.
            identities: The ids of the hooks to remove. None removes all.
        """
        for identity, hook in list(getattr(target, self.tables[0], {}).items()):
            if not is_native(hook) and (identities is None or identity in identities):
                for name in self.tables:
                    getattr(target, name).pop(identity, None)
        if "_backward_hooks" in self.tables and not target._backward_hooks:
            target._is_full_backward_hook = None  # or torch would reject the other kind


def is_native(hook: object) -> bool:
    """Return whether a hook belongs to one of torch's utilities, judging by its type.

    weight_norm, spectral_norm, pruning, and lazy modules keep their data in hooks and own the
    handles. These hooks are saved as part of the module's state; registering them again would run
    them twice.
    """
    is_wrapper = type(hook).__module__ == torch.nn.Module.__module__
    called = getattr(hook, "hook", hook) if is_wrapper else hook
    if isinstance(called, (BasePruningMethod, torch.jit.ScriptFunction)):
        return True  # a ScriptModule's own hooks are compiled as part of it
    if isinstance(called, MethodType):
        own = called.__func__.__module__ == LazyModuleMixin.__module__
        return own and isinstance(called.__self__, LazyModuleMixin)
    return type(called).__module__.startswith("torch.nn.utils.")


class MultiGradPart(NamedTuple):
    """The multi-grad hook of which one tensor has a part.

    Attributes:
        key: The same value for all tensors of a group.
        function: The callable that the user registered.
        mode: ``all`` or ``any``.
        nodes: For ``all``, the graph nodes of all tensors, in the order in which the function
            receives their gradients.
    """

    key: int
    function: Any
    mode: str
    nodes: Sequence[Any] = ()


def multi_grad_part(hook: Any) -> MultiGradPart | None:
    """Recover a multi-grad hook from the closure that torch registers on each of its tensors.

    torch has no list of these hooks (:func:`torch.autograd.graph.register_multi_grad_hook`).
    """
    code, closure = getattr(hook, "__code__", None), getattr(hook, "__closure__", None)
    if code is None or not closure or code.co_filename != torch.autograd.graph.__file__:
        return None
    cells = dict(zip(code.co_freevars, closure, strict=True))
    # The names of variables in torch's function are all that identifies such a hook.
    if code.co_name == "inner_hook" and {"fn", "buffer", "grad_fns"} <= set(cells):
        buffer, nodes = cells["buffer"].cell_contents, cells["grad_fns"].cell_contents
        return MultiGradPart(id(buffer), cells["fn"].cell_contents, "all", nodes)
    if code.co_name == "wrapped_fn" and {"fn", "ran_hook"} <= set(cells):
        key = id(cells["ran_hook"].cell_contents)
        return MultiGradPart(key, cells["fn"].cell_contents, "any")
    return None


_FLAG_TABLES = {"with_kwargs": "_with_kwargs", "always_call": "_always_called"}
"""What follows a table's name in the name of the table with the ids of hooks that have a flag."""


def _kind(
    scope: str,
    owner: Any,
    name: str,
    method: str,
    table: str,
    is_kind: Callable[[Any, Any], bool] | None = None,
    flags: Sequence[str] = (),
) -> HookKind:
    """Return a kind with a table on the target and a registration method on ``owner``.

    ``owner`` is torch's own class, because a subclass may override the method and wrap hooks. torch
    then stores the wrapper, which the override would wrap again on each load.

    Args:
        scope: The kind of target.
        owner: The class or module with the method; for process-wide kinds, also the tables.
        name: The name in specs.
        method: The name of the registration method.
        table: The name of the table that maps ids to hooks.
        is_kind: Returns for a target and a hook in the table whether the hook is of this kind. None
            if all are.
        flags: The flags that hooks of this kind may have.
    """
    holders = {flag: table + _FLAG_TABLES[flag] for flag in flags}

    def find(target: Any) -> Iterator[InstalledHook]:
        for identity, hook in list((getattr(target, table, None) or {}).items()):
            if is_kind is None or is_kind(target, hook):
                given = {f: True for f, n in holders.items() if identity in getattr(target, n, {})}
                yield InstalledHook(identity, hook, given)

    def register(target: Any, hook: Any, given: Flags) -> Any:
        targets = () if scope == "global" else (target,)
        kept = {flag: given[flag] for flag in flags if flag in given}
        with _differentiable(targets if scope == "tensor" else ()):
            return getattr(owner, method)(*targets, hook, **kept)

    tables = (table, *holders.values())
    return HookKind(name, scope, find, register, tables, owner if scope == "global" else None)


@contextmanager
def _differentiable(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Make frozen tensors accept hooks, and bypass ``__torch_function__`` of their classes."""
    with torch._C.DisableTorchFunctionSubclass():
        frozen = [tensor for tensor in tensors if not tensor.requires_grad]
        for tensor in frozen:
            torch.Tensor.requires_grad_(tensor, True)
        try:
            yield
        finally:
            for tensor in frozen:
                torch.Tensor.requires_grad_(tensor, False)


def _is_full(target: Any, hook: object) -> bool:
    scope = "_global" if target is module_globals else ""
    return bool(getattr(target, f"{scope}_is_full_backward_hook", None))


def _is_public(target: Any, hook: object) -> bool:
    return bool(getattr(hook, "_from_public_api", False))


def _load_state_dict_pre(target: Any) -> Iterator[InstalledHook]:
    table = getattr(target, "_load_state_dict_pre_hooks", None) or {}
    for identity, wrapped in list(table.items()):
        flags = {"with_module": True} if getattr(wrapped, "with_module", False) else {}
        yield InstalledHook(identity, getattr(wrapped, "hook", wrapped), flags)


def _register_load_state_dict_pre(target: Any, hook: Any, flags: Flags) -> Any:
    with_module = bool(flags.get("with_module"))
    return torch.nn.Module._register_load_state_dict_pre_hook(target, hook, with_module)  # type: ignore[no-untyped-call]


def _is_plain(target: Any, hook: object) -> bool:
    return multi_grad_part(hook) is None and not isinstance(hook, NodeKeeper)


def _accumulator(moment: str) -> HookKind:
    """Return a kind for the node that accumulates a leaf's gradients, before or after it runs."""

    def find(target: Any) -> Iterator[InstalledHook]:
        yield from (InstalledHook(i, hook, {}) for i, hook in leaf_hooks(target, moment))

    def register(target: Any, hook: Any, flags: Flags) -> Any:
        with _differentiable([target]):
            return register_on_node(target, moment, hook)

    return HookKind(moment, "accumulator", find, register, (moment,))


class _Member:
    """A tensor of a group, without the overrides of its class."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def view_as(self, other: object) -> torch.Tensor:
        return torch.Tensor.view_as(self._tensor, self._tensor)

    def register_hook(self, hook: Any) -> Any:
        return torch.Tensor.register_hook(self._tensor, hook)  # type: ignore[no-untyped-call]


def _register_multi_grad(target: Any, hook: Any, flags: Flags) -> Any:
    members: list[Any] = list(map(_Member, target))
    mode = str(flags.get("mode", "all"))
    with _differentiable(target):
        return torch.autograd.graph.register_multi_grad_hook(members, hook, mode=mode)  # type: ignore[arg-type]


def _find_none(target: Any) -> Iterator[InstalledHook]:
    """Yield nothing: these hooks are in no table of the target."""
    yield from ()


def _call_kinds(
    scope: str, owner: Any, before_name: str = "", before_method: str = "", before_table: str = ""
) -> Iterator[HookKind]:
    """Yield the kinds of hooks that run in a module's call and its backward pass.

    Args:
        scope: The kind of target.
        owner: As for :func:`_kind`.
        before_name: What precedes the kind in the names in specs.
        before_method: What precedes it in the names of methods.
        before_table: What precedes it in the names of tables.
    """
    for name, held, is_kind, flags in (
        # torch has no process-wide table for this flag: such a hook never has it.
        ("forward_pre", "forward_pre", None, ("with_kwargs",)),
        ("forward", "forward", None, ("with_kwargs", "always_call")),
        ("full_backward_pre", "backward_pre", None, ()),
        ("full_backward", "backward", _is_full, ()),
        ("backward", "backward", lambda target, hook: not _is_full(target, hook), ()),
    ):
        method, table = f"register_{before_method}{name}_hook", f"_{before_table}{held}_hooks"
        yield _kind(scope, owner, before_name + name, method, table, is_kind, flags)


_module = partial(_kind, "module", torch.nn.Module)
_tensor = partial(_kind, "tensor", torch.Tensor)

_ROWS = (
    *_call_kinds("module", torch.nn.Module),
    _module("state_dict_pre", "register_state_dict_pre_hook", "_state_dict_pre_hooks"),
    _module("state_dict_post", "register_state_dict_post_hook", "_state_dict_hooks", _is_public),
    _module(
        "state_dict_post_private",
        "_register_state_dict_hook",
        "_state_dict_hooks",
        lambda target, hook: not _is_public(target, hook),
    ),
    HookKind(
        "load_state_dict_pre",
        "module",
        _load_state_dict_pre,
        _register_load_state_dict_pre,
        ("_load_state_dict_pre_hooks",),
    ),
    _module(
        "load_state_dict_post",
        "register_load_state_dict_post_hook",
        "_load_state_dict_post_hooks",
    ),
    _tensor("tensor", "register_hook", "_backward_hooks", _is_plain),
    _tensor(
        "post_accumulate_grad",
        "register_post_accumulate_grad_hook",
        "_post_accumulate_grad_hooks",
    ),
    _accumulator(BEFORE),
    _accumulator(AFTER),
    HookKind(MULTI_GRAD, "group", _find_none, _register_multi_grad, ("_backward_hooks",)),
    *(
        _kind(
            "optimizer",
            torch.optim.Optimizer,
            f"optimizer.{event}_{moment}",
            f"register_{event}_{moment}_hook",
            f"_optimizer_{event}_{moment}_hooks",
        )
        for event in ("step", "state_dict", "load_state_dict")
        for moment in ("pre", "post")
    ),
    *_call_kinds("global", module_globals, "global.", "module_", "global_"),
    *(
        _kind(
            "global",
            module_globals,
            f"global.{part}_registration",
            f"register_module_{part}_registration_hook",
            f"_global_{part}_registration_hooks",
        )
        for part in ("buffer", "module", "parameter")
    ),
    *(
        _kind(
            "global",
            optimizer_globals,
            f"global.optimizer_step_{moment}",
            f"register_optimizer_step_{moment}_hook",
            f"_global_optimizer_{moment}_hooks",
        )
        for moment in ("pre", "post")
    ),
    # attachments, and comm hooks that wait for a wrapper
    *(
        HookKind(s.kind, "graph", _find_none, lambda target, spec, _: attach(target, spec))
        for s in PARTS
    ),
    HookKind(
        "ddp.comm", "wrapper", _find_none, lambda target, hook, _: keep_comm_hook(target, hook)
    ),
)
KINDS: dict[str, HookKind] = {kind.name: kind for kind in _ROWS}
"""All kinds, by name."""


@cache
def kinds_of(scope: str) -> tuple[HookKind, ...]:
    """Return the rows for one scope."""
    return tuple(kind for kind in KINDS.values() if kind.scope == scope)
