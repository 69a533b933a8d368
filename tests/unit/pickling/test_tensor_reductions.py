"""Reductions of tensors, including properties that torch would lose."""

from __future__ import annotations

import copyreg
import pickle

import pytest
import torch
from torch import nn

from modpack.saving.base import RefusedError
from modpack.saving.tensors import reduce_tensor


class Weight(nn.Parameter):
    pass


class Exact(nn.Parameter):
    def __reduce_ex__(self, protocol):
        return Exact, (self.data, False)


class Reduced(nn.Parameter):
    def __reduce__(self):
        return Reduced, (self.data, False)


class Tagged(torch.Tensor):
    pass


def made(reduced):
    function, arguments, *state = reduced
    tensor = function(*arguments)
    if state:
        tensor.__setstate__(*state)
    return tensor


def noted(tensor):
    tensor.note = "kept"
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2),
        torch.ones(2, requires_grad=True),
        nn.Parameter(torch.ones(2)),
        noted(nn.Parameter(torch.ones(2), requires_grad=False)),
        noted(torch.ones(2)),
        torch.ones(2).as_subclass(Tagged),
        torch.eye(2).to_sparse(),
        nn.Buffer(torch.ones(2)),
    ],
)
def test_reduce_tensor_equals_torchs_for_plain_tensors(tensor):
    ours, theirs = reduce_tensor(tensor, 4), tensor.__reduce_ex__(4)
    assert ours[0] is theirs[0]
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameter_subclass_is_rebuilt_without_calling_class(requires_grad):
    weight = noted(Weight(torch.arange(2.0), requires_grad))
    loaded = made(reduce_tensor(weight, 4))
    assert type(loaded) is Weight and loaded.requires_grad is requires_grad and loaded.is_leaf
    assert loaded.note == "kept" and torch.equal(loaded, weight) and not loaded._is_view()
    assert loaded.data_ptr() == weight.data_ptr()


def test_reduce_tensor_omits_hooks():
    weight = Weight(torch.arange(2.0))
    weight.register_hook(lambda grad: grad)
    assert made(reduce_tensor(weight, 4))._backward_hooks is None


@pytest.mark.parametrize("kind", [Exact, Reduced])
def test_reduce_tensor_uses_own_reduction_of_class(kind):
    function, arguments = reduce_tensor(kind(torch.ones(2)), 4)
    assert function is kind and len(arguments) == 2


def test_copyreg_reducer_of_tensor_class_is_used(monkeypatch):
    from tests.unit.pickling.test_saving import Notes, pickle_object

    monkeypatch.setitem(copyreg.dispatch_table, Weight, lambda weight: (str, ("registered",)))
    saved = pickle_object(Weight(torch.ones(2)), context=Notes(), resource="w.pkl", protocol=4)
    assert pickle.loads(saved.data) == "registered"


@pytest.mark.parametrize("kind", [nn.UninitializedParameter, nn.UninitializedBuffer])
def test_lazy_parameter_keeps_class_and_dtype(kind):
    lazy = noted(kind(dtype=torch.float64, device="meta"))
    loaded = made(reduce_tensor(lazy, 4))
    assert type(loaded) is kind and loaded.note == "kept"
    loaded.materialize((2, 3))
    assert (loaded.dtype, loaded.device.type) == (torch.float64, "meta")
    assert loaded.requires_grad is (kind is nn.UninitializedParameter)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        noted(torch.eye(2).to_sparse()),
        torch.nested.nested_tensor([torch.arange(2.0)]),
    ],
)
def test_sparse_and_nested_tensors_keep_requires_grad(tensor):
    loaded = made(reduce_tensor(tensor.requires_grad_(), 4))
    assert loaded.requires_grad and loaded.is_leaf and type(loaded) is torch.Tensor
    assert vars(loaded) == vars(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(4.0).as_subclass(Tagged),
        Weight(torch.arange(4.0)),
        torch.arange(4).to(torch.uint16),
        torch.arange(4).to(torch.complex64).conj(),
        torch.quantize_per_tensor(torch.ones(4), 0.5, 1, torch.quint8),
        noted(torch.arange(40.0)[::10]),
    ],
)
def test_reduce_tensor_rejects_tensor_beyond_storage(tensor):
    tensor.untyped_storage().resize_(3)
    with pytest.raises(RefusedError, match="its storage was reduced to 3 bytes"):
        reduce_tensor(tensor, 4)


@pytest.mark.parametrize("kind", [Tagged, Weight])
def test_freed_tensor_keeps_class_and_stays_freed(kind):
    tensor = torch.arange(4.0).as_subclass(kind) if kind is Tagged else kind(torch.arange(4.0))
    tensor.untyped_storage().resize_(0)
    again = made(reduce_tensor(tensor, 4))
    assert type(again) is kind and again.shape == (4,)
    assert again.untyped_storage().nbytes() == 0
