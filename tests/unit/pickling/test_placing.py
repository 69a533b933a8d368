"""The ``map_location`` of loaded tensors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from modpack.pickling.tensor_loading import (
    checked_functions,
    fake_storage,
    is_fake_mode,
    map_location_scope,
)


def current_location():
    return torch.serialization._serialization_tls.map_location


def test_map_location_scope_sets_and_restores_location():
    before = current_location()
    with map_location_scope("meta"):
        assert current_location() == "meta"
        with map_location_scope(None):
            assert current_location() is None
        assert current_location() == "meta"
    assert current_location() is before


def test_map_location_scope_restores_location_after_error():
    before = current_location()
    with pytest.raises(ValueError, match="no"), map_location_scope("meta"):
        raise ValueError("no")
    assert current_location() is before


def test_is_fake_mode_is_true_in_mode_only():
    assert not is_fake_mode()
    with FakeTensorMode():
        assert is_fake_mode()
    assert not is_fake_mode()


def test_fake_storage_has_size_and_location_only():
    storage = fake_storage(12, "cuda:3")
    assert (storage.nbytes(), storage.device.type) == (12, "meta")
    assert storage._fake_device == "cuda:3"


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensor_is_created_on_device_of_parts(layout):
    function, arguments = torch.eye(3).to_sparse(layout=layout).__reduce_ex__(2)
    with torch.device("meta"):
        again = checked_functions(True)(function)(*arguments)
        assert function(*arguments).device.type == "meta"
    assert again.layout is layout
    assert torch.equal(again.to_dense(), torch.eye(3))


def test_checked_functions_returns_other_functions():
    ours = checked_functions(True)
    assert ours(torch._utils._rebuild_parameter) is torch._utils._rebuild_parameter
    assert ours([]) == []
