"""The live model after a save with example inputs: as it was before."""

from __future__ import annotations

import random
from collections import OrderedDict, deque

import torch

import modpack

LIVE = """
import random
from collections import OrderedDict, deque
import torch

class Slotted:
    __slots__ = ("value", "empty")
    def __init__(self):
        self.value = 1

class Changing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(()))
        self.ready = False
        self.log, self.table, self.seen = [], OrderedDict(a=1, b=2), {1}
        self.recent, self.raw = deque([1, 2], 2), bytearray(b"ab")
        self.random, self.generator = random.Random(1), torch.Generator()
        self.slotted, self.plain = Slotted(), torch.zeros(2)
        self.inner = torch.nn.Linear(3, 3)
        self.inner.weight.register_hook(lambda grad: grad)
        self.handle = self.register_forward_pre_hook(self.once)
        count = 0
        def counting(module, args, output):
            nonlocal count
            count += 1
            module.collected.append(count)
        self.collected = []
        self.register_forward_hook(counting)
        self.count = lambda: count

    @staticmethod
    def once(module, args):
        module.handle.remove()

    def forward(self, x):
        if not self.ready:
            self.scale.data.copy_(x.std(0))
            self.ready = True
            self.extra = torch.ones(2)
            self.register_buffer("late", torch.ones(1))
            self.added = torch.nn.Linear(1, 1)
        self.steps += 1
        self.log.append(x)
        self.table.move_to_end("a")
        self.table["c"] = 3
        self.seen.add(2)
        self.recent.append(3)
        self.raw.extend(b"c")
        self.random.random()
        torch.rand(1, generator=self.generator)
        self.slotted.value, self.slotted.empty = 2, 3
        self.plain.add_(1)
        self.training = False
        (self.inner(x).sum() * 2).backward()
        return x * self.scale
"""


def test_save_with_example_leaves_live_model_as_it_was(project, tmp_path):
    project({"changing.py": LIVE})
    import changing

    model = changing.Changing()
    attributes = {**vars(model)}
    generator, numbers = model.generator.get_state(), model.random.getstate()
    hooks = [list(table) for table in (model._forward_hooks, model._forward_pre_hooks)]
    modpack.save(
        model, tmp_path / "net.modpack", example_inputs=(torch.randn(5, 3),), self_test=True
    )
    assert list(vars(model)) == list(attributes)
    assert all(vars(model)[name] is value for name, value in attributes.items())
    assert model.scale.tolist() == [1, 1, 1] and model.steps.item() == 0
    assert [list(table) for table in (model._forward_hooks, model._forward_pre_hooks)] == hooks
    assert list(model._buffers) == ["steps"] and list(model._modules) == ["inner"]
    assert (model.log, model.table, list(model.table)) == ([], OrderedDict(a=1, b=2), ["a", "b"])
    assert (model.seen, model.recent, model.raw) == ({1}, deque([1, 2]), b"ab")
    assert model.generator.get_state().equal(generator) and model.random.getstate() == numbers
    assert model.slotted.value == 1 and not hasattr(model.slotted, "empty")
    assert model.plain.tolist() == [0, 0] and model.training
    assert model.inner.weight.grad is None and len(model.inner.weight._backward_hooks) == 1
    assert model.count() == 0 and model.collected == []
    model.handle.remove()
    assert not model._forward_pre_hooks


def test_random_states_of_process_are_kept(tmp_path):
    before = torch.get_rng_state(), random.getstate()
    model = torch.nn.Dropout()
    modpack.save(model, tmp_path / "net.modpack", example_inputs=(torch.ones(9),), self_test=True)
    assert torch.get_rng_state().equal(before[0]) and random.getstate() == before[1]
