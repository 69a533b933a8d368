"""Hooks that a class registers when it is loaded, beside those in the package."""

from __future__ import annotations

import importlib

import pytest
import torch

import modpack

NET = """
import functools
import torch

def scale(factor):
    return lambda grad: grad * factor

def outer(module, args, output):
    return output + 10

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.other = torch.nn.Parameter(torch.ones(2))
        self.log = []
        self.register()
    def __setstate__(self, state):
        super().__setstate__(state)
        self.register()
    def double(self, grad):
        return grad * 2
    def note(self, *args):
        self.log.append("noted")
    def register(self):
        BODY
    def forward(self, x):
        return self.weight * self.other * x
"""

BODIES = {
    "lambda": "self.handle = self.weight.register_hook(lambda grad: grad * 2)",
    "closure": "self.handle = self.weight.register_hook(scale(2))",
    "bound method": "self.handle = self.weight.register_hook(self.double)",
    "partial": "self.handle = self.weight.register_hook(functools.partial(torch.mul, other=2))",
    "post accumulate": "self.handle = self.weight.register_post_accumulate_grad_hook(self.note)",
    "multi grad": """self.handle = torch.autograd.graph.register_multi_grad_hook(
            [self.weight, self.other], self.note)""",
    "forward": """self._forward_hooks.clear()
        self.handle = self.register_forward_hook(lambda module, args, output: output * 3)""",
    "forward with kwargs": """self._forward_hooks.clear()
        self.handle = self.register_forward_hook(
            lambda module, args, kwargs, output: output * 3, with_kwargs=True)""",
    "state dict": """self._state_dict_pre_hooks.clear()
        self.handle = self.register_state_dict_pre_hook(self.note)""",
}


@pytest.fixture
def net(project):
    def build(body: str) -> torch.nn.Module:
        project({"again.py": NET.replace("BODY", body)})
        return importlib.import_module("again").Net()

    return build


def effects(model: torch.nn.Module) -> tuple[object, ...]:
    """What one step with the model shows."""
    model.log.clear()
    model.weight.grad = model.other.grad = None
    output = model(torch.ones(2))
    output.sum().backward()
    model.state_dict()
    return output.tolist(), model.weight.grad.tolist(), list(model.log)


@pytest.mark.parametrize("kind", BODIES)
def test_hook_registered_again_runs_once_and_its_handle_works(net, tmp_path, kind):
    model = net(BODIES[kind])
    expected = effects(model)
    modpack.save(model, tmp_path / "net.modpack")
    loaded = modpack.load(tmp_path / "net.modpack")
    assert effects(loaded) == expected
    modpack.save(loaded, tmp_path / "again.modpack", importer=modpack_importers(loaded))
    again = modpack.load(tmp_path / "again.modpack")
    assert effects(again) == expected
    model.handle.remove()
    without = effects(model)
    for each in (loaded, again):
        each.handle.remove()
        assert effects(each) == without != expected


def modpack_importers(loaded):
    return [modpack.importer_of(loaded), modpack.sys_importer]


@pytest.mark.parametrize("kind", ["lambda", "forward", "multi grad"])
def test_hooks_of_the_user_stay_beside_those_of_the_class(net, tmp_path, kind):
    model = net(BODIES[kind])
    module = importlib.import_module("again")
    model.register_forward_hook(module.outer)
    model.weight.register_hook(module.scale(5))
    expected = effects(model)
    modpack.save(model, tmp_path / "net.modpack")
    loaded = modpack.load(tmp_path / "net.modpack")
    assert effects(loaded) == expected
    loaded.handle.remove()
    model.handle.remove()
    assert effects(loaded) == effects(model)


def test_hook_that_only_loading_adds_is_kept_after_the_others(net, tmp_path):
    model = net("""
        if self.log is not None and getattr(self, "is_built", False):
            self.handle = self.register_forward_hook(lambda module, args, output: output * 3)
        self.is_built = True""")
    model.register_forward_hook(importlib.import_module("again").outer)
    modpack.save(model, tmp_path / "net.modpack", self_test=False)
    loaded = modpack.load(tmp_path / "net.modpack")
    assert loaded(torch.ones(2)).tolist() == [33.0, 33.0]  # (1 + 10) * 3, as with torch.save
    loaded.handle.remove()
    assert loaded(torch.ones(2)).tolist() == [11.0, 11.0]


def test_hooks_with_other_values_are_not_the_same(net, tmp_path):
    model = net("self.handle = self.weight.register_hook(scale(3))")
    model.handle.remove()
    model.weight.register_hook(importlib.import_module("again").scale(2))
    modpack.save(model, tmp_path / "net.modpack", self_test=False)
    loaded = modpack.load(tmp_path / "net.modpack")
    loaded(torch.ones(2)).sum().backward()
    assert loaded.weight.grad.tolist() == [6.0, 6.0]
