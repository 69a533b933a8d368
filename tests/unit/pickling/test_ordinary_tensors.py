"""Ordinary tensors are reduced as torch reduces them; torch reduces the others."""

from __future__ import annotations

import gc
import io
import pickle
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn

from modpack.capturing.collect import HookCollector
from modpack.capturing.observe import HookObserver
from modpack.errors import PicklingError
from modpack.saving import pickler
from modpack.saving.pickler import pickle_object
from modpack.saving.tensors import ordinary_reduction
from tests.tensor_kinds import KINDS, DispatchingMode, ForwardingMode
from tests.unit.pickling.test_saving import Notes

ORDINARY = [
    "needs grad",
    "computed",
    "parameter",
    "frozen parameter",
    "parameter of integers",
    "parameter with a gradient",
    "transposed",
    "expanded",
    "overlapping",
    "scalar",
    "zero size",
    "every third",
    "channels last",
    "in shared memory",
    "of a larger type",
    "torch.float32",
    "torch.bfloat16",
    "torch.bool",
    "torch.complex64",
]


def saved(obj, protocol=4):
    observer = HookObserver(obj, {}, HookCollector(lambda function: True))
    context = Notes()
    return pickle_object(
        obj, context=context, resource="x.pkl", protocol=protocol, observer=observer
    ).data


def pickle_or_error(obj, protocol):
    """Return the pickle, or the type of the exception with which it is rejected."""
    try:
        return saved(obj, protocol)
    except Exception as failure:  # torch raises various types
        return type(failure)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_ordinary_reduction_pickles_like_torch(protocol, monkeypatch):
    tensors = {name: make() for name, make in KINDS.items()}
    objects = {name: [each, each, {"again": each}] for name, each in tensors.items()}
    ours = {name: pickle_or_error(obj, protocol) for name, obj in objects.items()}
    monkeypatch.setattr(pickler, "ordinary_reduction", lambda tensor: None)
    theirs = {name: pickle_or_error(obj, protocol) for name, obj in objects.items()}
    assert [name for name in KINDS if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_tensors_are_not_reduced_by_torch(name, monkeypatch):
    tensor = KINDS[name]()

    def asked(*args):
        raise AssertionError("torch was asked")

    monkeypatch.setattr(torch.Tensor, "_reduce_ex_internal", asked)
    assert saved(tensor)


@pytest.mark.parametrize(
    "name",
    [
        "meta",
        "sparse, empty",
        "nested, strided",
        "nested, jagged",
        "quantized by channel",
        "torch.complex64 conjugated",
        "negated, without a base",
        "wrapper",
        "subclass",
        "parameter of a kind",
        "parameter of a subclass",
        "sparse parameter",
        "lazy parameter",
        "attributes",
        "masked",
        "torch.uint16",
    ],
)
def test_special_tensors_are_reduced_by_torch(name):
    assert ordinary_reduction(KINDS[name]()) is None


def test_transformed_tensors_are_reduced_by_torch():
    found = []
    torch.vmap(lambda each: found.append(ordinary_reduction(each)) or each)(torch.ones(2))
    assert found == [None]


@pytest.mark.parametrize("mode", [ForwardingMode, DispatchingMode])
def test_active_modes_receive_reduction_calls(mode):
    tensor = torch.ones(2)
    with mode():
        assert ordinary_reduction(tensor) is None
    assert ordinary_reduction(tensor) is not None


def test_tensor_with_hooks_is_reduced_by_torch_with_warning():
    tensor = torch.ones(2, requires_grad=True)
    handle = tensor.register_hook(lambda grad: grad)
    assert ordinary_reduction(tensor) is None
    handle.remove()
    assert ordinary_reduction(tensor) is not None


def test_tensors_with_shared_storage_name_same_key():
    base = torch.arange(10.0)
    views = [base[:5], nn.Parameter(base[5:]), base.untyped_storage(), base._typed_storage()]
    keys = []

    class Sharing(Notes):
        def add_storage(self, storage):
            keys.append(storage._cdata)
            return "0"

    pickle_object(views, context=Sharing(), resource="x.pkl", protocol=4)
    assert keys == [base.untyped_storage()._cdata] * 4


class Part:
    pass


class Whole:
    parts: ClassVar[list[weakref.ref[Part]]] = []

    def __reduce__(self):
        part = Part()
        Whole.parts.append(weakref.ref(part))
        return list, ([part],)


def test_pickling_leaves_no_reference_cycles():
    gc.disable()
    try:
        saved([Whole(), torch.ones(2)])
    finally:
        gc.enable()
    assert Whole.parts and not any(part() for part in Whole.parts)


def test_ordinary_reduction_loads_with_torch():
    tensor = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())

    class Reading(pickle.Unpickler):
        def persistent_load(self, saved_id):
            kind, storage_type, _, location, count = saved_id
            assert (kind, storage_type, location, count) == (
                "storage",
                torch.FloatStorage,
                "cpu",
                6,
            )
            return tensor.data._typed_storage()

    loaded = Reading(io.BytesIO(saved(tensor))).load()
    assert type(loaded) is nn.Parameter and torch.equal(loaded, tensor)
    assert loaded.stride() == tensor.stride()


@pytest.mark.parametrize(
    "make", [torch.arange, lambda n: nn.Parameter(torch.ones(n)), lambda n: torch.ones(n, n).T]
)
def test_tensor_beyond_its_storage_is_rejected_with_path(make):
    tensor = make(4)
    tensor.untyped_storage().resize_(3)
    with pytest.raises(PicklingError, match="its storage was reduced to 3 bytes") as caught:
        saved({"weight": tensor})
    assert caught.value.path == "obj['weight']"


def test_empty_tensor_needs_no_memory():
    tensor = torch.arange(4.0)[2:2]
    tensor.untyped_storage().resize_(1)
    assert saved(tensor)
