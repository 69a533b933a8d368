"""Multi-grad hooks: one function behind hooks on several tensors, found again as one.

torch keeps no list of them; each tensor has an ordinary hook with a closure that knows the
group (:func:`torch.autograd.graph.register_multi_grad_hook`).

The table of hook kinds: one row each, for everything that PyTorch lets one register.

A row knows how to list the hooks of its kind on a target, how to register one again through
torch's public API, and how to take all of them off. A new kind is a new row.

Hooks that torch's own utilities put on modules: part of the module, left where they are.

weight_norm, spectral_norm, pruning and lazy modules keep what they need in hooks whose
handles they hold themselves. They travel with the module's state; registering them again
would run them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import MethodType
from typing import Any, Final

import torch
from torch.nn.modules import module as module_globals
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod
from torch.optim import optimizer as optimizer_globals

from modpack.hooks.ddp import keep_comm_hook
from modpack.hooks.graph_nodes import AFTER, BEFORE, NodeKeeper, hooks_of_leaf, register_on_node
from modpack.hooks.graph_parts import PARTS, attach


@dataclass(frozen=True)
class MultiGrad:
    """What is behind one tensor's part of a multi-grad hook.

    Attributes:
        key: the same for all tensors of a group.
        function: what the user registered.
        mode: ``all`` or ``any``.
        nodes: for ``all``, the graph's nodes of all tensors, in the order in which the function
            gets their gradients.
    """

    key: int
    function: Any
    mode: str
    nodes: Sequence[Any] = ()


def multi_grad_parts(hook: Any) -> MultiGrad | None:
    """Read the group back from the closure that torch hangs on each of its tensors."""
    code, closure = getattr(hook, "__code__", None), getattr(hook, "__closure__", None)
    if code is None or not closure or code.co_filename != torch.autograd.graph.__file__:
        return None
    cells = dict(zip(code.co_freevars, closure, strict=True))
    if code.co_name == "inner_hook" and {"fn", "buffer", "grad_fns"} <= set(cells):
        buffer, nodes = cells["buffer"].cell_contents, cells["grad_fns"].cell_contents
        return MultiGrad(id(buffer), cells["fn"].cell_contents, "all", nodes)
    if code.co_name == "wrapped_fn" and {"fn", "ran_hook"} <= set(cells):
        return MultiGrad(id(cells["ran_hook"].cell_contents), cells["fn"].cell_contents, "any")
    return None


@dataclass
class Group:
    """A multi-grad hook and its tensors.

    Attributes:
        hook: what was registered.
        members: its tensors, in the order in which they were given.
        on_graph: whether some of its tensors are intermediate ones, which die with their graph.
    """

    hook: MultiGrad
    members: list[torch.Tensor] = field(default_factory=list)
    on_graph: bool = False
    _known: set[int] = field(default_factory=set)

    def is_new(self, member: torch.Tensor) -> bool:
        """Whether a tensor was not asked for before."""
        known = id(member) in self._known
        self._known.add(id(member))
        return not known

    def settle(self) -> None:
        """Bring the members into the order in which they were given, whichever was met first."""
        if self.hook.mode == "any":
            places = dict(zip(map(id, self.members), self.identities, strict=True))
            self.members.sort(key=lambda member: places[id(member)])

    @property
    def identities(self) -> tuple[int, ...]:
        """The id of the hook on each member."""
        used: set[int] = set()
        return tuple(_identity(member, self.hook.key, used) for member in self.members)


class Groups:
    """The groups that were met, each one once, whichever of its tensors came first."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    @property
    def keys(self) -> Collection[int]:
        """The keys of all that were met."""
        return self._groups.keys()

    def note(self, tensor: torch.Tensor) -> Iterator[Group]:
        """Note a tensor's groups; gives those that are new."""
        for hook in list((tensor._backward_hooks or {}).values()):
            parts = multi_grad_parts(hook)
            if parts is None:
                continue
            group = self._groups.get(parts.key)
            if group is None:
                group = self._groups[parts.key] = _begun(parts)
                yield group
            if parts.mode == "any" and group.is_new(tensor):
                group.members.append(tensor)


def _begun(parts: MultiGrad) -> Group:
    variables = [getattr(node, "variable", None) for node in parts.nodes]
    members = [each for each in variables if each is not None]
    return Group(parts, members, len(members) < len(variables))


def _identity(member: torch.Tensor, key: int, used: set[int]) -> int:
    """The id of a group's hook on a tensor; a tensor that was given twice has two."""
    for identity, hook in list((member._backward_hooks or {}).items()):
        parts = multi_grad_parts(hook)
        if parts is not None and parts.key == key and identity not in used:
            used.add(identity)
            return int(identity)
    return -1


MULTI_GRAD: Final = "multi_grad"
Flags = Mapping[str, "bool | str"]


@dataclass(frozen=True)
class Found:
    """A hook as it hangs on its target.

    Attributes:
        identity: torch's id of the hook: tells the order across tensors.
        hook: what was registered.
        flags: what it was registered with.
    """

    identity: int
    hook: Any
    flags: Flags


@dataclass(frozen=True)
class Kind:
    """One row: how a kind of hook is listed, registered, and cleared.

    Attributes:
        name: as specs call it.
        scope: what it hangs on: ``module``, ``tensor``, ``accumulator`` (a tensor's node),
            ``group`` (of tensors), ``optimizer`` or ``global``.
        find: lists the hooks of a target in the order in which they run.
        register: registers one again and returns torch's handle.
        tables: the dictionaries that hold them, by attribute of the target; the first one
            maps ids to hooks, the others hold flags by id.
        home: the module that has the tables of a process-wide kind.
    """

    name: str
    scope: str
    find: Callable[[Any], Iterator[Found]]
    register: Callable[[Any, Any, Flags], Any]
    tables: tuple[str, ...]
    home: Any = None

    def clear(self, target: Any, keep: Callable[[Any], bool]) -> None:
        """Take the hooks of this kind off a module or optimizer, except those to keep."""
        for identity, hook in list(getattr(target, self.tables[0], {}).items()):
            if not keep(hook):
                for name in self.tables:
                    getattr(target, name).pop(identity, None)
        if "_backward_hooks" in self.tables and not target._backward_hooks:
            target._is_full_backward_hook = None  # or it would refuse the other kind


def _in_table(table: str, **flag_tables: str) -> Callable[[Any], Iterator[Found]]:
    def find(target: Any) -> Iterator[Found]:
        for identity, hook in list((getattr(target, table, None) or {}).items()):
            flags = {
                flag: True
                for flag, holder in flag_tables.items()
                if identity in getattr(target, holder, {})
            }
            yield Found(identity, hook, flags)

    return find


def _calls(home: type, method: str, *names: str) -> Callable[[Any, Any, Flags], Any]:
    """Registers through torch's own method, with those flags that were set.

    A class that overrides the method may wrap hooks. What torch stores of those is the wrapper:
    the override would wrap it once more on each load.
    """

    def register(target: Any, hook: Any, flags: Flags) -> Any:
        kept = {name: flags[name] for name in names if name in flags}
        return getattr(home, method)(target, hook, **kept)

    return register


def _backward(full: bool) -> Callable[[Any], Iterator[Found]]:
    def find(target: Any) -> Iterator[Found]:
        if bool(getattr(target, "_is_full_backward_hook", None)) is full:
            yield from _in_table("_backward_hooks")(target)

    return find


def _state_dict_post(public: bool) -> Callable[[Any], Iterator[Found]]:
    def find(target: Any) -> Iterator[Found]:
        for found in _in_table("_state_dict_hooks")(target):
            if bool(getattr(found.hook, "_from_public_api", False)) is public:
                yield found

    return find


def _load_state_dict_pre(target: Any) -> Iterator[Found]:
    for found in _in_table("_load_state_dict_pre_hooks")(target):
        wrapped = found.hook
        flags = {"with_module": True} if getattr(wrapped, "with_module", False) else {}
        yield Found(found.identity, getattr(wrapped, "hook", wrapped), flags)


def _register_load_state_dict_pre(target: Any, hook: Any, flags: Flags) -> Any:
    with_module = bool(flags.get("with_module"))
    register = _calls(torch.nn.Module, "_register_load_state_dict_pre_hook", "with_module")
    return register(target, hook, {"with_module": with_module})


def _module_kinds() -> Iterator[Kind]:
    kwargs_pre = "_forward_pre_hooks_with_kwargs"
    kwargs, always = "_forward_hooks_with_kwargs", "_forward_hooks_always_called"
    yield Kind(
        "forward_pre",
        "module",
        _in_table("_forward_pre_hooks", with_kwargs=kwargs_pre),
        _calls(torch.nn.Module, "register_forward_pre_hook", "with_kwargs"),
        ("_forward_pre_hooks", kwargs_pre),
    )
    yield Kind(
        "forward",
        "module",
        _in_table("_forward_hooks", with_kwargs=kwargs, always_call=always),
        _calls(torch.nn.Module, "register_forward_hook", "with_kwargs", "always_call"),
        ("_forward_hooks", kwargs, always),
    )
    yield _simple("full_backward_pre", "module", "_backward_pre_hooks")
    for name, full in (("full_backward", True), ("backward", False)):
        register = _calls(torch.nn.Module, f"register_{name}_hook")
        yield Kind(name, "module", _backward(full), register, ("_backward_hooks",))
    yield _simple("state_dict_pre", "module", "_state_dict_pre_hooks")
    table = ("_state_dict_hooks",)
    for name, public in (("state_dict_post", True), ("state_dict_post_private", False)):
        method = "register_state_dict_post_hook" if public else "_register_state_dict_hook"
        register = _calls(torch.nn.Module, method)
        yield Kind(name, "module", _state_dict_post(public), register, table)
    yield Kind(
        "load_state_dict_pre",
        "module",
        _load_state_dict_pre,
        _register_load_state_dict_pre,
        ("_load_state_dict_pre_hooks",),
    )
    yield _simple("load_state_dict_post", "module", "_load_state_dict_post_hooks")


def _simple(name: str, scope: str, table: str, prefix: str = "") -> Kind:
    home = torch.optim.Optimizer if scope == "optimizer" else torch.nn.Module
    register = _calls(home, f"register_{name}_hook")
    return Kind(f"{prefix}{name}", scope, _in_table(table), register, (table,))


def _optimizer_kinds() -> Iterator[Kind]:
    for event in ("step", "state_dict", "load_state_dict"):
        for moment in ("pre", "post"):
            name = f"{event}_{moment}"
            yield _simple(name, "optimizer", f"_optimizer_{name}_hooks", "optimizer.")


# -- tensors ---------------------------------------------------------------------------------


def _tensor_hooks(target: Any) -> Iterator[Found]:
    for found in _in_table("_backward_hooks")(target):
        if multi_grad_parts(found.hook) is None and not isinstance(found.hook, NodeKeeper):
            yield found


@contextmanager
def _differentiable(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Tensors that may be frozen, as torch wants them, and without what their classes do."""
    with torch._C.DisableTorchFunctionSubclass():
        frozen = [tensor for tensor in tensors if not tensor.requires_grad]
        for tensor in frozen:
            torch.Tensor.requires_grad_(tensor, True)
        try:
            yield
        finally:
            for tensor in frozen:
                torch.Tensor.requires_grad_(tensor, False)


def _on_tensor(method: str) -> Callable[[Any, Any, Flags], Any]:
    """Registers through torch's own method, as :func:`_calls` does."""

    def register(target: Any, hook: Any, flags: Flags) -> Any:
        with _differentiable([target]):
            return getattr(torch.Tensor, method)(target, hook)

    return register


def _tensor_kinds() -> Iterator[Kind]:
    register = _on_tensor("register_hook")
    yield Kind("tensor", "tensor", _tensor_hooks, register, ("_backward_hooks",))
    register = _on_tensor("register_post_accumulate_grad_hook")
    table = "_post_accumulate_grad_hooks"
    yield Kind("post_accumulate_grad", "tensor", _in_table(table), register, (table,))


def _accumulator_kinds() -> Iterator[Kind]:
    """What hangs on the node that accumulates a leaf's gradients, before and after it does."""

    def of(moment: str) -> Kind:
        def find(target: Any) -> Iterator[Found]:
            yield from (Found(i, hook, {}) for i, hook in hooks_of_leaf(target, moment))

        def register(target: Any, hook: Any, flags: Flags) -> Any:
            with _differentiable([target]):
                return register_on_node(target, moment, hook)

        return Kind(moment, "accumulator", find, register, (moment,))

    yield from map(of, (BEFORE, AFTER))


class _Member:
    """A tensor of a group as it would be without the methods of its class."""

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


# -- process-wide ----------------------------------------------------------------------------


def _global_backward(full: bool) -> Callable[[Any], Iterator[Found]]:
    def find(target: Any) -> Iterator[Found]:
        if bool(module_globals._global_is_full_backward_hook) is full:
            yield from _in_table("_global_backward_hooks")(target)

    return find


def _registers(function: Callable[..., Any], *names: str) -> Callable[[Any, Any, Flags], Any]:
    def register(target: Any, hook: Any, flags: Flags) -> Any:
        return function(hook, **{name: flags[name] for name in names if name in flags})

    return register


def _global(name: str, home: Any, register: Any, table: str, find: Any = None) -> Kind:
    found = find or _in_table(table)
    return Kind(f"global.{name}", "global", found, register, (table,), home)


def _global_kinds() -> Iterator[Kind]:
    m, o = module_globals, optimizer_globals
    flags = {
        "with_kwargs": "_global_forward_hooks_with_kwargs",
        "always_call": "_global_forward_hooks_always_called",
    }
    register = _registers(m.register_module_forward_pre_hook)
    yield _global("forward_pre", m, register, "_global_forward_pre_hooks")
    yield Kind(
        "global.forward",
        "global",
        _in_table("_global_forward_hooks", **flags),
        _registers(m.register_module_forward_hook, *flags),
        ("_global_forward_hooks", *flags.values()),
        m,
    )
    register = _registers(m.register_module_full_backward_pre_hook)
    yield _global("full_backward_pre", m, register, "_global_backward_pre_hooks")
    for name, full in (("full_backward", True), ("backward", False)):
        register = _registers(getattr(m, f"register_module_{name}_hook"))
        yield _global(name, m, register, "_global_backward_hooks", _global_backward(full))
    for part in ("buffer", "module", "parameter"):
        register = _registers(getattr(m, f"register_module_{part}_registration_hook"))
        table = f"_global_{part}_registration_hooks"
        yield _global(f"{part}_registration", m, register, table)
    for moment in ("pre", "post"):
        register = _registers(getattr(o, f"register_optimizer_step_{moment}_hook"))
        table = f"_global_optimizer_{moment}_hooks"
        yield _global(f"optimizer_step_{moment}", o, register, table)


# -- what hangs in no table ------------------------------------------------------------------


def _declared_kinds() -> Iterator[Kind]:
    """What the user attaches as a spec, and what waits for a wrapper."""

    def nowhere(target: Any) -> Iterator[Found]:
        yield from ()

    def attached(target: Any, spec: Any, flags: Flags) -> Any:
        return attach(target, spec)

    def kept(target: Any, hook: Any, flags: Flags) -> Any:
        return keep_comm_hook(target, hook)

    for spec in PARTS:
        yield Kind(spec.kind, "graph", nowhere, attached, ())
    yield Kind("ddp.comm", "wrapper", nowhere, kept, ())


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *_module_kinds(),
        *_tensor_kinds(),
        *_accumulator_kinds(),
        Kind(MULTI_GRAD, "group", _in_table(""), _register_multi_grad, ("_backward_hooks",)),
        *_optimizer_kinds(),
        *_global_kinds(),
        *_declared_kinds(),
    )
}
"""All kinds, by name."""


@cache
def kinds_of(scope: str) -> tuple[Kind, ...]:
    """The rows for one kind of target."""
    return tuple(kind for kind in KINDS.values() if kind.scope == scope)


_UTILITIES = "torch.nn.utils."


def travels_natively(hook: object) -> bool:
    """Whether a hook belongs to one of torch's utilities, recognised by its type."""
    called = getattr(hook, "hook", hook) if _is_wrapper(hook) else hook
    if isinstance(called, (BasePruningMethod, torch.jit.ScriptFunction)):
        return True  # a ScriptModule's own hooks are compiled, and a part of it
    if isinstance(called, MethodType):
        own = called.__func__.__module__ == LazyModuleMixin.__module__
        return own and isinstance(called.__self__, LazyModuleMixin)
    return not callable_type_is_plain(called)


def callable_type_is_plain(called: object) -> bool:
    """Whether a callable is not an instance of a class of torch's utilities."""
    return not type(called).__module__.startswith(_UTILITIES)


def _is_wrapper(hook: object) -> bool:
    return type(hook).__module__ == torch.nn.Module.__module__
