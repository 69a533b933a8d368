"""The table of hook kinds: one row each, for everything that PyTorch lets one register.

A row knows how to list the hooks of its kind on a target, how to register one again through
torch's public API, and how to take all of them off. A new kind is a new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as module_globals
from torch.optim import optimizer as optimizer_globals

__all__ = ["KINDS", "Found", "Kind", "kinds_of"]

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
        scope: what it hangs on: ``module``, ``tensor``, ``optimizer`` or ``global``.
        find: lists the hooks of a target in the order in which they run.
        register: registers one again and returns torch's handle.
        tables: the dictionaries that hold them, by attribute of the target; the first one
            maps ids to hooks, the others hold flags by id.
    """

    name: str
    scope: str
    find: Callable[[Any], Iterator[Found]]
    register: Callable[[Any, Any, Flags], Any]
    tables: tuple[str, ...] = ()

    def clear(self, target: Any, keep: Callable[[Any], bool]) -> None:
        """Take the hooks of this kind off a target, except those to keep."""
        table = getattr(target, self.tables[0], None) if self.tables else None
        for identity, hook in list((table or {}).items()):
            if not keep(hook):
                for name in self.tables:
                    getattr(target, name).pop(identity, None)


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


def _calls(method: str, *names: str) -> Callable[[Any, Any, Flags], Any]:
    """Registers through a method of the target, with those flags that were set."""

    def register(target: Any, hook: Any, flags: Flags) -> Any:
        return getattr(target, method)(hook, **{n: flags[n] for n in names if n in flags})

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
    return target._register_load_state_dict_pre_hook(hook, with_module)


def _module_kinds() -> Iterator[Kind]:
    kwargs_pre = "_forward_pre_hooks_with_kwargs"
    kwargs, always = "_forward_hooks_with_kwargs", "_forward_hooks_always_called"
    yield Kind(
        "forward_pre",
        "module",
        _in_table("_forward_pre_hooks", with_kwargs=kwargs_pre),
        _calls("register_forward_pre_hook", "with_kwargs"),
        ("_forward_pre_hooks", kwargs_pre),
    )
    yield Kind(
        "forward",
        "module",
        _in_table("_forward_hooks", with_kwargs=kwargs, always_call=always),
        _calls("register_forward_hook", "with_kwargs", "always_call"),
        ("_forward_hooks", kwargs, always),
    )
    yield _simple("full_backward_pre", "module", "_backward_pre_hooks")
    for name, full in (("full_backward", True), ("backward", False)):
        register = _calls(f"register_{name}_hook")
        yield Kind(name, "module", _backward(full), register, ("_backward_hooks",))
    yield _simple("state_dict_pre", "module", "_state_dict_pre_hooks")
    public, private = _state_dict_post(True), _state_dict_post(False)
    table = ("_state_dict_hooks",)
    yield Kind(
        "state_dict_post", "module", public, _calls("register_state_dict_post_hook"), table
    )
    yield Kind(
        "state_dict_post_private", "module", private, _calls("_register_state_dict_hook"), table
    )
    yield Kind(
        "load_state_dict_pre",
        "module",
        _load_state_dict_pre,
        _register_load_state_dict_pre,
        ("_load_state_dict_pre_hooks",),
    )
    yield _simple("load_state_dict_post", "module", "_load_state_dict_post_hooks")


def _simple(name: str, scope: str, table: str, prefix: str = "") -> Kind:
    register = _calls(f"register_{name}_hook")
    return Kind(f"{prefix}{name}", scope, _in_table(table), register, (table,))


def _optimizer_kinds() -> Iterator[Kind]:
    for event in ("step", "state_dict", "load_state_dict"):
        for moment in ("pre", "post"):
            name = f"{event}_{moment}"
            yield _simple(name, "optimizer", f"_optimizer_{name}_hooks", "optimizer.")


# -- tensors ---------------------------------------------------------------------------------


def _tensor_hooks(target: Any) -> Iterator[Found]:
    for found in _in_table("_backward_hooks")(target):
        if multi_grad_parts(found.hook) is None:
            yield found


def _keeping_frozen(method: str) -> Callable[[Any, Any, Flags], Any]:
    """Registers on a tensor that may not require a gradient: torch refuses that otherwise."""

    def register(target: Any, hook: Any, flags: Flags) -> Any:
        frozen = not target.requires_grad
        if frozen:
            target.requires_grad_(True)
        try:
            return getattr(target, method)(hook)
        finally:
            if frozen:
                target.requires_grad_(False)

    return register


def _tensor_kinds() -> Iterator[Kind]:
    yield Kind(
        "tensor", "tensor", _tensor_hooks, _keeping_frozen("register_hook"), ("_backward_hooks",)
    )
    name = "register_post_accumulate_grad_hook"
    table = "_post_accumulate_grad_hooks"
    yield Kind(
        "post_accumulate_grad", "tensor", _in_table(table), _keeping_frozen(name), (table,)
    )


@dataclass(frozen=True)
class MultiGrad:
    """What is behind one tensor's part of a multi-grad hook.

    Attributes:
        key: the same for all tensors of a group.
        function: what the user registered.
        mode: ``all`` or ``any``.
    """

    key: int
    function: Any
    mode: str


def multi_grad_parts(hook: Any) -> MultiGrad | None:
    """Read the group back from the closure that torch hangs on each of its tensors.

    torch keeps no list of them (:func:`torch.autograd.graph.register_multi_grad_hook`).
    """
    code, closure = getattr(hook, "__code__", None), getattr(hook, "__closure__", None)
    if code is None or not closure or not code.co_filename.endswith(_GRAPH_FILE):
        return None
    cells = dict(zip(code.co_freevars, closure, strict=True))
    if code.co_name == "inner_hook" and {"fn", "buffer"} <= set(cells):
        return MultiGrad(id(cells["buffer"].cell_contents), cells["fn"].cell_contents, "all")
    if code.co_name == "wrapped_fn" and {"fn", "ran_hook"} <= set(cells):
        return MultiGrad(id(cells["ran_hook"].cell_contents), cells["fn"].cell_contents, "any")
    return None


_GRAPH_FILE = torch.autograd.graph.__file__.rpartition("site-packages")[2]


def _register_multi_grad(target: Any, hook: Any, flags: Flags) -> Any:
    frozen = [tensor for tensor in target if not tensor.requires_grad]
    for tensor in frozen:
        tensor.requires_grad_(True)
    try:
        mode = str(flags.get("mode", "all"))
        return torch.autograd.graph.register_multi_grad_hook(target, hook, mode=mode)  # type: ignore[arg-type]
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)


def _nothing(target: Any) -> Iterator[Found]:
    yield from ()


# -- process-wide ----------------------------------------------------------------------------


def _global_table(holder: Any, table: str, **flag_tables: str) -> Callable[[Any], Iterator[Found]]:
    find = _in_table(table, **flag_tables)
    return lambda target: find(holder)


def _global_backward(full: bool) -> Callable[[Any], Iterator[Found]]:
    def find(target: Any) -> Iterator[Found]:
        if bool(module_globals._global_is_full_backward_hook) is full:
            yield from _in_table("_global_backward_hooks")(module_globals)

    return find


def _registers(function: Callable[..., Any], *names: str) -> Callable[[Any, Any, Flags], Any]:
    def register(target: Any, hook: Any, flags: Flags) -> Any:
        return function(hook, **{name: flags[name] for name in names if name in flags})

    return register


def _global_kinds() -> Iterator[Kind]:
    m = module_globals

    def row(name: str, find: Callable[[Any], Iterator[Found]], register: Any) -> Kind:
        return Kind(f"global.{name}", "global", find, register)

    kwargs, always = "_global_forward_hooks_with_kwargs", "_global_forward_hooks_always_called"
    forward = _global_table(m, "_global_forward_hooks", with_kwargs=kwargs, always_call=always)
    yield row(
        "forward_pre",
        _global_table(m, "_global_forward_pre_hooks"),
        _registers(m.register_module_forward_pre_hook),
    )
    register_forward = _registers(m.register_module_forward_hook, "with_kwargs", "always_call")
    yield row("forward", forward, register_forward)
    yield row(
        "full_backward_pre",
        _global_table(m, "_global_backward_pre_hooks"),
        _registers(m.register_module_full_backward_pre_hook),
    )
    yield row(
        "full_backward", _global_backward(True), _registers(m.register_module_full_backward_hook)
    )
    yield row("backward", _global_backward(False), _registers(m.register_module_backward_hook))
    for part in ("buffer", "module", "parameter"):
        register = _registers(getattr(m, f"register_module_{part}_registration_hook"))
        yield row(
            f"{part}_registration",
            _global_table(m, f"_global_{part}_registration_hooks"),
            register,
        )
    o = optimizer_globals
    for moment in ("pre", "post"):
        register = _registers(getattr(o, f"register_optimizer_step_{moment}_hook"))
        table = _global_table(o, f"_global_optimizer_{moment}_hooks")
        yield row(f"optimizer_step_{moment}", table, register)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *_module_kinds(),
        *_tensor_kinds(),
        Kind("multi_grad", "group", _nothing, _register_multi_grad),
        *_optimizer_kinds(),
        *_global_kinds(),
    )
}
"""All kinds, by name."""


def kinds_of(scope: str) -> tuple[Kind, ...]:
    """The rows for one kind of target."""
    return tuple(kind for kind in KINDS.values() if kind.scope == scope)
