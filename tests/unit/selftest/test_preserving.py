"""Restoring the live model's tensors of all kinds after a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modpack.examples.conditions import tensor_versions
from modpack.selftest.preservation import preserve_model


class Holder(nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.register_buffer("held", tensor)


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} is refused")


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen = self.seen + x
        return x


EYE = torch.eye(4)
TENSORS = {
    "coo": EYE.to_sparse(),
    "csr": EYE.to_sparse_csr(),
    "csc": EYE.to_sparse_csc(),
    "bsr": EYE.to_sparse_bsr((2, 2)),
    "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "jagged": torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": torch.ones(3, device="meta"),
    "refusing": torch.ones(3).as_subclass(Refusing),
    "uninitialized": nn.UninitializedBuffer(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_all_kinds_are_restored(kind):
    model = Holder(TENSORS[kind])
    with preserve_model(model, lambda: None):
        model.held = torch.zeros(1)
        tensor_versions(model)
    assert model._buffers["held"] is TENSORS[kind]
    tensor_versions(model)


def test_replaced_sparse_values_are_restored():
    model = Holder(torch.eye(2).to_sparse())
    with preserve_model(model, lambda: None):
        model.held.add_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).to_sparse())
    assert model.held.to_dense().tolist() == [[1, 0], [0, 1]]


def test_buffers_replaced_by_script_module_are_restored():
    model = nn.Sequential(torch.jit.script(Counting()), nn.LazyLinear(2))
    before = model[0].seen
    with preserve_model(model, lambda: None):
        model[0](torch.ones(2))
        assert model[0].seen.tolist() == [1, 1]
    assert model[0].seen is before
    assert tensor_versions(model) == [0]
