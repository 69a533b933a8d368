"""Attributes of tensors, including references back to the tensor."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import modpack
from modpack.saving.tensors import move_state_last, reduce_tensor
from tests.tensor_kinds import Halves, StatedKind, Tagged, WeightKind


class Loading(nn.Linear):
    """A module whose weight refers to one of its methods."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        weight: Any = self.weight
        weight.loader = self.load

    def load(self, values: torch.Tensor) -> None:
        self.weight.data.copy_(values)


class Slotted(torch.Tensor):
    __slots__ = ("owner",)


def again(obj: Any) -> Any:
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.intern("tests.**")
        exporter.extern("**")
        exporter.save_pickle("pkg", "obj.pkl", obj)
    buffer.seek(0)
    return modpack.PackageImporter(buffer).load_pickle("pkg", "obj.pkl")


def test_weight_with_reference_to_module_keeps_attributes():
    model = Loading()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaded = again({"optimizer": optimizer, "model": model})
    weight = loaded["model"].weight
    assert weight.loader.__self__ is loaded["model"]
    assert loaded["optimizer"].param_groups[0]["params"][0] is weight


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(2.0),
        nn.Parameter(torch.arange(2.0)),
        WeightKind(torch.arange(2.0)),
        torch.arange(2.0).as_subclass(Tagged),
        torch.arange(2.0).as_subclass(Slotted),
        torch.eye(2).to_sparse(),
        Halves(torch.arange(2.0), torch.arange(3.0)),
    ],
)
def test_tensor_attributes_may_refer_to_tensor(tensor):
    tensor.owner, tensor.note = {"of": [tensor]}, "kept"
    loaded = again([tensor])[0]
    assert loaded.owner["of"][0] is loaded and loaded.note == "kept"
    assert type(loaded).__name__ == type(tensor).__name__


def test_tensors_may_refer_to_each_other():
    one, other = torch.ones(1), torch.ones(2)
    one.peer, other.peer = other, one
    one, other = again((one, other))
    assert one.peer is other and other.peer is one


def test_move_state_last_keeps_plain_attributes():
    tensor = torch.ones(1)
    tensor.note, tensor.factor = "kept", 0.5
    reduced = reduce_tensor(tensor, 4)
    assert move_state_last(reduced) is reduced


def test_tensor_class_with_setstate_keeps_torchs_reduction():
    tensor = StatedKind(torch.arange(2.0))
    tensor.scale = torch.ones(1)
    reduced = reduce_tensor(tensor, 4)
    assert move_state_last(reduced) is reduced
