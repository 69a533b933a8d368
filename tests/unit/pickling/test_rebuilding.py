"""Tensors are made again as torch makes them, with less ado."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from modpack.pickling.rebuilding import rebuilding


class Tagged(torch.Tensor):
    pass


def arguments(**changes):
    given = {"storage": torch.arange(6.0), "offset": 1, "shape": (2, 2), "strides": (2, 1)}
    given |= {"requires_grad": False, "hooks": OrderedDict()} | changes
    given["storage"] = given["storage"].storage()
    return tuple(given.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"requires_grad": True},
        {"shape": (), "strides": ()},
        {"shape": (0, 3), "strides": (3, 1)},
        {"shape": (4,), "strides": (0,)},
        {"metadata": {"neg": True}},
        {"storage": torch.tensor([1, 2, 3, 4, 5])},
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_tensor_is_what_torch_makes_of_it(changes):
    given = arguments(**changes)
    theirs = torch._utils._rebuild_tensor_v2(*given)
    ours = rebuilding(False)(torch._utils._rebuild_tensor_v2)(*given)
    for fact in ("dtype", "shape", "requires_grad", "is_leaf", "_backward_hooks", "device"):
        assert getattr(ours, fact) == getattr(theirs, fact)
    assert ours.stride() == theirs.stride() and ours.is_neg() == theirs.is_neg()
    assert ours.data_ptr() == theirs.data_ptr() and type(ours) is type(theirs)
    assert torch.equal(ours, theirs)
    assert ours._version == theirs._version


def test_with_fake_tensors_torch_decides():
    function = torch._utils._rebuild_tensor_v2
    assert rebuilding(True)(function) is function
    assert rebuilding(False)(function) is not function


def test_everything_else_is_called_as_named():
    for named in (dict, len, torch._utils._rebuild_parameter, [], None):
        assert rebuilding(False)(named) is named


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_leaf_of_a_class_stays_one(requires_grad):
    retyped = rebuilding(False)(torch._tensor._rebuild_from_type_v2)
    made = torch.arange(2.0, requires_grad=requires_grad)
    again = retyped(lambda: made, Tagged, (), {"note": "kept"})
    assert type(again) is Tagged and again.note == "kept"
    assert again.requires_grad is requires_grad and again.is_leaf
    assert again.data_ptr() == made.data_ptr()


@pytest.mark.parametrize("is_fake", [True, False])
def test_a_tensor_is_made_on_an_untyped_storage(is_fake):
    storage = torch.tensor([1, 2, 3], dtype=torch.uint16).untyped_storage()
    rebuild = rebuilding(is_fake)(torch._utils._rebuild_tensor_v3)
    made = rebuild(storage, 1, (2,), (1,), False, OrderedDict(), torch.uint16)
    assert made.tolist() == [2, 3] and made.dtype is torch.uint16


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_that_is_too_small_is_not_made_larger():
    with pytest.raises(RuntimeError, match="a tensor needs 20 bytes, but its storage has 4"):
        rebuilding(False)(torch._utils._rebuild_tensor_v2)(*arguments(storage=torch.ones(1)))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_that_was_freed_still_is():
    rebuild = rebuilding(False)(torch._utils._rebuild_tensor_v2)
    made = rebuild(*arguments(storage=torch.empty(0)))
    assert made.shape == (2, 2) and made.untyped_storage().nbytes() == 0


def test_an_untyped_storage_that_was_freed_still_is():
    storage = torch.empty(0, dtype=torch.uint16).untyped_storage()
    rebuild = rebuilding(False)(torch._utils._rebuild_tensor_v3)
    made = rebuild(storage, 0, (2,), (1,), False, OrderedDict(), torch.uint16)
    assert made.shape == (2,) and made.untyped_storage().nbytes() == 0
