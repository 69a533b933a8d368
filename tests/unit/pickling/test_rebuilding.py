"""Rebuilding of tensors."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from modpack.pickling.tensor_loading import UnsoundTensorError, checked_functions, freed_tensor


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
def test_rebuilt_tensor_equals_torchs(changes):
    given = arguments(**changes)
    theirs = torch._utils._rebuild_tensor_v2(*given)
    ours = checked_functions(False)(torch._utils._rebuild_tensor_v2)(*given)
    for fact in ("dtype", "shape", "requires_grad", "is_leaf", "_backward_hooks", "device"):
        assert getattr(ours, fact) == getattr(theirs, fact)
    assert ours.stride() == theirs.stride() and ours.is_neg() == theirs.is_neg()
    assert ours.data_ptr() == theirs.data_ptr() and type(ours) is type(theirs)
    assert torch.equal(ours, theirs)
    assert ours._version == theirs._version


def test_fake_mode_uses_torchs_functions():
    function = torch._utils._rebuild_tensor_v2
    assert checked_functions(True)(function) is function
    assert checked_functions(False)(function) is not function


def test_checked_functions_leaves_other_names():
    for named in (dict, len, torch._utils._rebuild_parameter, [], None):
        assert checked_functions(False)(named) is named


@pytest.mark.parametrize("requires_grad", [True, False])
def test_rebuilt_subclass_tensor_stays_leaf(requires_grad):
    retyped = checked_functions(False)(torch._tensor._rebuild_from_type_v2)
    made = torch.arange(2.0, requires_grad=requires_grad)
    again = retyped(lambda: made, Tagged, (), {"note": "kept"})
    assert type(again) is Tagged and again.note == "kept"
    assert again.requires_grad is requires_grad and again.is_leaf
    assert again.data_ptr() == made.data_ptr()


@pytest.mark.parametrize("is_fake", [True, False])
def test_rebuild_accepts_untyped_storage(is_fake):
    storage = torch.tensor([1, 2, 3], dtype=torch.uint16).untyped_storage()
    rebuild = checked_functions(is_fake)(torch._utils._rebuild_tensor_v3)
    made = rebuild(storage, 1, (2,), (1,), False, OrderedDict(), torch.uint16)
    assert made.tolist() == [2, 3] and made.dtype is torch.uint16


TYPED = torch.storage.TypedStorage


def typed(data: bytes, dtype: torch.dtype = torch.float32, resizable: bool = True):
    """Return a typed storage with this content."""
    given = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    storage = given.untyped_storage()
    storage = storage.clone() if resizable else storage
    assert storage.resizable() is (resizable or not data)
    return TYPED(wrap_storage=storage, dtype=dtype, _internal=True)


QUANTIZED = (torch.per_tensor_affine, 1.0, 0)
MAKERS = {
    "_rebuild_tensor": lambda *place: ours("_rebuild_tensor", *place),
    "_rebuild_tensor_v2": lambda *place: ours("_rebuild_tensor_v2", *place, False, OrderedDict()),
    "_rebuild_tensor_v3": lambda storage, *place: ours(
        *("_rebuild_tensor_v3", storage._untyped_storage, *place),
        *(False, OrderedDict(), torch.float32),
    ),
    "_rebuild_qtensor": lambda *place: ours(
        "_rebuild_qtensor", *place, QUANTIZED, False, OrderedDict()
    ),
}


def ours(name: str, *arguments):
    return checked_functions(False)(getattr(torch._utils, name))(*arguments)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("size", [0, 4, 12])
@pytest.mark.parametrize("resizable", [True, False])
def test_rebuild_rejects_too_small_storage(make, size, resizable):
    is_quantized = make is MAKERS["_rebuild_qtensor"]
    dtype = torch.qint32 if is_quantized else torch.float32
    storage = typed(b"\1" * size, dtype, resizable)
    with pytest.raises(UnsoundTensorError, match=f"requires 16 bytes, but its storage has {size}"):
        make(storage, 0, (2, 2), (2, 1))
    assert storage._untyped_storage.nbytes() == size


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_rebuild_rejects_empty_storage_without_allocating(make):
    storage = typed(b"", torch.qint32 if make is MAKERS["_rebuild_qtensor"] else torch.float32)
    with pytest.raises(UnsoundTensorError, match=r"has 0\. If .* export again"):
        make(storage, 0, (2**60,), (1,))


@pytest.mark.parametrize(
    "place",
    [
        (-1, (2,), (1,)),
        (2**62, (2,), (1,)),
        (2**70, (2,), (1,)),
        (0, (-1,), (1,)),
        (0, (2,), (-1,)),
        (0, (2**31 + 1,), (2**31,)),
        (0, (2, 2), (1,)),
        (0, ("x\x1b",), (1,)),
        (None, (2,), (1,)),
    ],
)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_rebuild_rejects_invalid_arguments(make, place):
    storage = typed(
        bytes(16), torch.qint32 if make is MAKERS["_rebuild_qtensor"] else torch.float32
    )
    with pytest.raises(UnsoundTensorError) as caught:
        make(storage, *place)
    assert str(caught.value).isprintable()


def test_rebuild_rejects_other_objects_as_storage():
    with pytest.raises(UnsoundTensorError, match="AttributeError"):
        ours("_rebuild_tensor_v2", "storage", 0, (1,), (1,), False, OrderedDict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16, torch.float8_e5m2])
@pytest.mark.parametrize("is_untyped", [True, False])
def test_freed_tensor_has_no_memory(dtype, is_untyped):
    storage = typed(b"", dtype)
    given = storage._untyped_storage if is_untyped else storage
    made = freed_tensor(given, 3, (2, 2), (1, 2), False, OrderedDict(), dtype)
    assert (made.shape, made.stride(), made.storage_offset()) == ((2, 2), (1, 2), 3)
    assert made.dtype is dtype and made.untyped_storage().nbytes() == 0
    again = freed_tensor(given, 0, (9,), (1,), True, OrderedDict(), torch.float32)
    assert again.untyped_storage()._cdata == made.untyped_storage()._cdata
    assert again.requires_grad and again.is_leaf


def test_freed_tensor_rejects_storage_with_memory():
    with pytest.raises(UnsoundTensorError, match="no memory, but its storage has 4 bytes"):
        freed_tensor(typed(bytes(4)), 0, (1,), (1,), False, OrderedDict(), torch.float32)


def test_freed_tensor_rejects_huge_shape():
    with pytest.raises(UnsoundTensorError, match="torch cannot create"):
        freed_tensor(typed(b""), 0, (2**62,), (1,), False, OrderedDict(), torch.float32)


UNLISTED = {
    "coo": (torch.sparse_coo, (torch.tensor([[0, 2**40]]), torch.ones(2), (3,), True)),
    "coo, not coalesced": (torch.sparse_coo, (torch.tensor([[0, -1]]), torch.ones(2), (3,), False)),
    "csr": (
        torch.sparse_csr,
        (torch.tensor([0, 1, 2]), torch.tensor([0, 2**40]), torch.ones(2), (2, 3)),
    ),
    "csc": (
        torch.sparse_csc,
        (torch.tensor([0, 1, 2]), torch.tensor([0, 2**40]), torch.ones(2), (3, 2)),
    ),
    "bsr": (
        torch.sparse_bsr,
        (torch.tensor([0, 1]), torch.tensor([2**40]), torch.ones(1, 2, 2), (2, 4)),
    ),
    "bsc": (
        torch.sparse_bsc,
        (torch.tensor([0, 2**40]), torch.tensor([0]), torch.ones(1, 2, 2), (4, 2)),
    ),
}


@pytest.mark.parametrize(("layout", "data"), UNLISTED.values(), ids=UNLISTED)
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_sparse_tensor_with_invalid_indices_is_rejected(layout, data, is_asked_for):
    with (
        torch.sparse.check_sparse_tensor_invariants(is_asked_for),
        pytest.raises(UnsoundTensorError, match="torch cannot create a tensor"),
    ):
        ours("_rebuild_sparse_tensor", layout, data)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensor_is_rebuilt(layout):
    tensor = torch.eye(4).to_sparse(
        layout=getattr(torch, f"sparse_{layout}"),
        **({"blocksize": (2, 2)} if layout.startswith("b") else {}),
    )
    function, arguments = tensor.__reduce_ex__(4)
    again = checked_functions(False)(function)(*arguments)
    assert again.layout is tensor.layout and torch.equal(again.to_dense(), torch.eye(4))


def test_meta_sparse_tensor_is_rebuilt_without_validation():
    indices, values = torch.zeros(1, 2, dtype=torch.int64, device="meta"), torch.ones(2).to("meta")
    made = ours("_rebuild_sparse_tensor", torch.sparse_coo, (indices, values, (3,), True))
    assert made.is_meta and made.is_sparse
