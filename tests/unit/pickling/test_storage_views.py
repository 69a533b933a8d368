"""Views of large storages in reductions of tensors."""

from __future__ import annotations

import pytest
import torch

from modpack.core.tensors import LARGE, StorageView
from modpack.saving.tensors import find_large_view

MANY = LARGE // 4


def view(tensor):
    found = find_large_view(tensor.__reduce_ex__(2))
    assert found is None or found[0].data_ptr() == tensor.untyped_storage().data_ptr()
    return found and found[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.uint32, torch.complex64])
def test_find_large_view_returns_elements_of_tensor(dtype):
    rows = torch.zeros(MANY // 10, 40, dtype=dtype)[3:5, ::2]
    assert view(rows) == StorageView(120, (2, 20), (40, 2), rows.element_size())


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
def test_find_large_view_handles_quantized_and_subclasses():
    whole = torch.zeros(4 * MANY)
    quantized = torch.quantize_per_tensor(whole, 1.0, 0, torch.quint8)
    assert view(quantized[7:9]) == StorageView(7, (2,), (1,), 1)
    of_a_class = whole[7:9].as_subclass(type("Own", (torch.Tensor,), {}))
    assert view(of_a_class) == StorageView(7, (2,), (1,), 4)


def test_find_large_view_returns_none_for_small_storages():
    assert view(torch.zeros(MANY)) is not None
    assert view(torch.zeros(MANY - 1)) is None
    for tensor in (
        torch.nn.Parameter(torch.zeros(MANY)),
        torch.zeros(MANY, device="meta"),
        torch.sparse_coo_tensor([[0]], [1.0], (MANY,)),
    ):
        assert find_large_view(tensor.__reduce_ex__(2)) is None
