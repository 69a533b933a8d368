"""Search for modules in loaded objects, and ids of their hooks."""

from __future__ import annotations

import collections
import functools
import types
import weakref

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modpack.core.process import find_instances
from modpack.hooks.kinds import kinds_of
from modpack.loading.objects import _reserve_ids

MODULES = (nn.Module,)


class Slotted:
    __slots__ = ("held", "never_set")

    def __init__(self, held):
        self.held = held


class Attributed:
    def __init__(self, held):
        self.held = held

    def method(self):
        return self.held


def closing_over(held):
    return lambda: held


def with_defaults(held):
    def function(a=held, *, b=None):
        return a

    return function


def local_class(held):
    class Local:
        part = held

    return Local


def with_attribute(held):
    def function():
        return None

    function.held = held
    return function


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        lambda m: {"a": [(m,)]},
        lambda m: {m},
        lambda m: collections.deque([m]),
        Slotted,
        Attributed,
        lambda m: Attributed(m).method,
        lambda m: functools.partial(print, m),
        lambda m: types.MappingProxyType({"m": m}),
        nn.Sequential,
        closing_over,
        with_defaults,
        with_attribute,
        local_class,
        lambda m: local_class(m)(),
    ],
)
def test_instances_in_finds_modules_in_any_container(wrap):
    module = nn.Linear(1, 1)
    assert any(found is module for found in find_instances(wrap(module), MODULES))


def test_instances_in_yields_each_module_once():
    part = nn.Linear(1, 1)
    whole = nn.Sequential(part, part)
    whole.itself = [whole]
    assert sorted(map(id, find_instances([whole, part, whole], MODULES))) == sorted(
        [id(whole), id(part)]
    )


def test_instances_in_ignores_modules_classes_and_globals():
    globals()["REACHED_BY_GLOBALS"] = nn.Linear(1, 1)
    try:
        holders = [closing_over, Attributed(1), types, pytest, Attributed, weakref.ref(Attributed)]
        assert list(find_instances(holders, MODULES)) == []
    finally:
        del globals()["REACHED_BY_GLOBALS"]


def test_instances_in_ignores_weak_proxies():
    module = nn.Linear(1, 1)
    assert list(find_instances([weakref.proxy(module)], MODULES)) == []


def test_loaded_hook_ids_are_not_reused(monkeypatch):
    monkeypatch.setattr(RemovableHandle, "next_id", 3)
    module = nn.Sequential(nn.Linear(1, 1))
    module[0]._forward_hooks[41] = print
    _reserve_ids({"model": module})
    assert module.register_forward_hook(print).id == 42
    assert torch.is_tensor(module[0].weight)


def test_ids_in_every_hook_table_are_reserved(monkeypatch):
    for kind in kinds_of("module"):
        monkeypatch.setattr(RemovableHandle, "next_id", 3)
        module = nn.Linear(1, 1)
        getattr(module, kind.tables[0])[70] = print
        _reserve_ids(module)
        assert RemovableHandle.next_id == 71, kind.name
