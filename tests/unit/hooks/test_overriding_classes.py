"""Classes that override torch's registration methods."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from modpack import hooks
from modpack.hooks.kinds import kinds_of


def _wrapping(base: type, method: str):
    """Return a method that registers a wrapper around the hook, and counts its calls."""

    def register(self, hook, *args, **options):
        REGISTERED.append(method)
        return getattr(base, method)(self, _Wrapper(hook), *args, **options)

    return register


class _Wrapper:
    """Doubles the result of the wrapped hook if it is a tensor."""

    def __init__(self, inside):
        self.inside = inside

    def __call__(self, *args, **kwargs):
        made = self.inside(*args, **kwargs)
        return made * 2 if isinstance(made, torch.Tensor) else made


REGISTERED: list[str] = []


def _overriding(base: type) -> dict[str, object]:
    methods = [name for name in dir(base) if name.lstrip("_").startswith("register_")]
    wanted = [name for name in methods if name.endswith("_hook")]
    return {name: _wrapping(base, name) for name in wanted}


class Layer(nn.Linear):
    """A module whose hooks are wrapped."""


class Weight(nn.Parameter):
    """A parameter whose hooks are wrapped."""


class Wrapped(torch.optim.SGD):
    """An optimizer whose hooks are wrapped."""


for _cls, _base in ((Layer, nn.Module), (Weight, torch.Tensor), (Wrapped, torch.optim.Optimizer)):
    for _name, _method in _overriding(_base).items():
        setattr(_cls, _name, _method)


def hook(*args):
    """A hook of any kind."""


def tripled(module, args, output):
    return output * 3


def scaled(grad):
    return grad * 5


def wrapped_everywhere() -> tuple[Layer, Wrapped]:
    """Hooks of all kinds, registered through the methods of the classes."""
    torch.manual_seed(0)
    layer = Layer(2, 2)
    layer.weight = Weight(torch.ones(2, 2))
    optimizer = Wrapped(layer.parameters(), lr=0.1)
    for scope, target in (("module", layer), ("optimizer", optimizer)):
        for kind in kinds_of(scope):
            name = f"register_{kind.name.rpartition('.')[2]}_hook"
            if kind.name == "state_dict_post_private":
                name = "_register_state_dict_hook"
            if kind.name != "backward":
                getattr(target, name)(functools.partial(hook))
    layer.register_forward_hook(tripled)
    layer.weight.register_hook(scaled)
    layer.weight.register_post_accumulate_grad_hook(hook)
    return layer, optimizer


def stored(layer: Layer, optimizer: Wrapped) -> dict[str, list[int]]:
    """Return the depth of wrappers around each hook, by kind."""
    targets = {"module": layer, "tensor": layer.weight, "optimizer": optimizer}
    return {
        kind.name: [_depth(found.hook) for found in kind.find(target)]
        for scope, target in targets.items()
        for kind in kinds_of(scope)
    }


def _depth(stored_hook) -> int:
    return 1 + _depth(stored_hook.inside) if isinstance(stored_hook, _Wrapper) else 0


def trained(layer: Layer) -> list[list[float]]:
    layer.zero_grad()
    output = layer(torch.ones(1, 2))
    output.sum().backward()
    return [output.tolist(), layer.weight.grad.tolist()]


def test_overriding_class_wraps_hooks_once_after_round_trips(package):
    model, optimizer = wrapped_everywhere()
    expected = stored(model, optimizer), trained(model)
    assert all(depth >= 1 for depths in expected[0].values() for depth in depths)
    REGISTERED.clear()
    for _ in range(3):
        model, optimizer = package(model, optimizer=optimizer).model(with_optimizer=True)
        assert (stored(model, optimizer), trained(model)) == expected
    assert REGISTERED == []


def test_handles_kept_by_an_overriding_method_remove_their_hooks(package):
    model = Keeping()
    model.register_forward_hook(tripled)
    for _ in range(3):
        model = package(model).model()
    assert len(model.handles) == len(model._forward_hooks) == 1
    model.handles[0].remove()
    assert not model._forward_hooks


class Keeping(nn.Identity):
    """A module that keeps the handle of each hook."""

    def __init__(self):
        super().__init__()
        self.handles = []

    def register_forward_hook(self, hook, **options):
        self.handles.append(super().register_forward_hook(hook, **options))
        return self.handles[-1]


class Counted(nn.Parameter):
    """A module that counts the hooks registered through its method."""

    registered = 0

    def register_hook(self, hook):
        Counted.registered += 1
        return super().register_hook(hook)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_multi_grad_hooks_bypass_the_methods_of_parameters(package, mode, monkeypatch):
    model = nn.ParameterList([Counted(torch.ones(2)), Counted(torch.ones(2))])
    seen = []
    model.seen = seen
    torch.autograd.graph.register_multi_grad_hook(
        list(model), lambda given: seen.append(len(given)), mode=mode
    )
    monkeypatch.setattr(Counted, "registered", 0)
    for _ in range(3):
        model = package(model).model()
        (model[0] * model[1]).sum().backward()
    assert model.seen == [2, 2, 2] and Counted.registered == 0


def test_attached_hooks_of_overriding_classes_keep_their_kind(package):
    model = nn.Sequential(Layer(2, 2))
    grads = []
    model.grads = grads
    hooks.attach(model, hooks.OutputGrad("0", lambda grad: grads.append(grad)))
    saved = package(model)
    assert saved.names == ["0/graph.output_grad/0"]
    loaded = saved.model()
    loaded(torch.ones(1, 2)).sum().backward()
    assert len(loaded.grads) == 1
