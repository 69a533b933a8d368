"""Hooks that are on their targets before hooks are restored: those of a ``__setstate__``.

torch recommends that a class registers hooks of tensors again when it is loaded, because torch.save
drops them. A package contains these hooks as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from modpack.hooks.kinds import (
    Flags,
    HookKind,
    InstalledHook,
    MultiGradPart,
    is_native,
    multi_grad_part,
)
from modpack.pickling.functions import closed_over


class PresentHooks:
    """The hooks on the targets of a load, apart from those that the load has registered.

    Args:
        restored: The ids of hooks that the load has registered.
    """

    def __init__(self, restored: Collection[int]) -> None:
        self._restored = restored
        # By the ID of the target, which the value keeps alive, so that no other object gets the ID.
        self._found: dict[tuple[str, int], tuple[Any, HookKind, list[InstalledHook]]] = {}
        self._seen_groups: set[int] = set()
        self._parts: dict[int, tuple[torch.Tensor, dict[int, tuple[int, MultiGradPart]]]] = {}

    def take(self, row: HookKind, target: Any, hook: Any, flags: Flags) -> Any:
        """Return the handle of a present hook with the same code, which is not taken twice."""
        if row.scope == "group":
            return self._take_group(row, target, hook, str(flags.get("mode", "all")))
        if row.scope not in ("module", "optimizer", "tensor"):
            return None
        key = row.name, id(target)
        if key not in self._found:
            present = [
                each
                for each in row.find(target)
                if not is_native(each.hook) and each.identity not in self._restored
            ]
            self._found[key] = target, row, present
        present = self._found[key][2]
        for index, each in enumerate(present):
            if is_same(each.hook, hook):
                # A class may register the same function twice, and each of the two is taken once.
                del present[index]
                return _handle_of(target, row.tables, each.identity)
        return None

    def sort(self, row: HookKind, target: Any, registered: Any) -> None:
        """Move a registered hook behind the hooks that were registered earlier."""
        if isinstance(registered, RemovableHandle) and (row.name, id(target)) in self._found:
            _move_last(getattr(target, row.tables[0]), registered.id)

    def sort_others(self) -> None:
        """Move the hooks that were not taken behind those that were."""
        for target, row, present in self._found.values():
            for each in present:
                _move_last(getattr(target, row.tables[0]), each.identity)
        for member, parts in self._parts.values():
            for key, (identity, _) in parts.items():
                if key not in self._seen_groups:
                    _move_last(member._backward_hooks, identity)

    def _take_group(self, row: HookKind, members: list[torch.Tensor], hook: Any, mode: str) -> Any:
        parts = [self._parts_of(member) for member in members]
        for key, (_, found) in parts[0].items():
            if key in self._seen_groups or found.mode != mode or not is_same(found.function, hook):
                continue
            # A group is present only if its hook has a part on each of its members.
            if all(key in own for own in parts):
                self._seen_groups.add(key)
                pairs = zip(members, parts, strict=True)
                handles = tuple(
                    _handle_of(member, row.tables, own[key][0]) for member, own in pairs
                )
                return torch.autograd.graph._MultiHandle(handles)
        return None

    def _parts_of(self, member: torch.Tensor) -> dict[int, tuple[int, MultiGradPart]]:
        """Return by key the parts that a tensor had before this load registered any on it."""
        if id(member) not in self._parts:
            hooks = (member._backward_hooks or {}).items()
            parts = [(i, multi_grad_part(h)) for i, h in hooks if i not in self._restored]
            self._parts[id(member)] = member, {p.key: (i, p) for i, p in parts if p is not None}
        return self._parts[id(member)][1]


def _handle_of(target: Any, tables: tuple[str, ...], identity: int) -> RemovableHandle:
    """Return a new handle of a registered hook."""
    # The constructor takes a new ID, which this handle does not keep.
    before = RemovableHandle.next_id
    handle = RemovableHandle(getattr(target, tables[0]))
    RemovableHandle.next_id = before
    handle.id = identity
    handle.extra_dict_ref = tuple(weakref.ref(getattr(target, name)) for name in tables[1:])
    return handle


def _move_last(table: Any, identity: int) -> None:
    # The order of the dict is the order of the calls.
    if identity in table:
        table[identity] = table.pop(identity)


def is_same(first: Any, second: Any) -> bool:
    """Return whether two callables run the same code on the same objects.

    Args:
        first: A callable that a class created when it was loaded.
        second: A callable that was saved with the object.
    """
    if first is second:
        return True
    if isinstance(first, MethodType) and isinstance(second, MethodType):
        return first.__self__ is second.__self__ and is_same(first.__func__, second.__func__)
    if isinstance(first, FunctionType) and isinstance(second, FunctionType):
        held = [[value for _, value in closed_over(each)] for each in (first, second)]
        return _code(first.__code__) == _code(second.__code__) and _agree(*held)
    if isinstance(first, partial) and isinstance(second, partial):
        return is_same(first.func, second.func) and _agree(first.args, second.args)
    # Instances of the same class run the same code. Their state may be new, as that of counters.
    is_code = isinstance(first, (type, FunctionType, MethodType))
    return not is_code and type(first) is type(second) and hasattr(first, "__dict__")


def _agree(first: Sequence[object], second: Sequence[object]) -> bool:
    """Return whether no plain values differ; others, such as counters, may be new objects."""
    plain = (bool, int, float, str, bytes, type(None))
    return len(first) == len(second) and all(
        type(one) not in plain or type(other) not in plain or one == other
        for one, other in zip(first, second, strict=True)
    )


def _code(code: CodeType) -> tuple[object, ...]:
    """Return what a function does, without its name and lines."""
    constants = tuple(_code(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
