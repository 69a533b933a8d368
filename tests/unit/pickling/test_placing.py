"""Where loaded tensors go: what is told to torch, and what is kept from it."""

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


def told():
    return torch.serialization._serialization_tls.map_location


def test_torch_is_told_where_tensors_go_as_long_as_they_are_loaded():
    before = told()
    with map_location_scope("meta"):
        assert told() == "meta"
        with map_location_scope(None):
            assert told() is None
        assert told() == "meta"
    assert told() is before


def test_torch_forgets_it_when_loading_fails():
    before = told()
    with pytest.raises(ValueError, match="no"), map_location_scope("meta"):
        raise ValueError("no")
    assert told() is before


def test_fakes_are_wanted_in_their_mode_only():
    assert not is_fake_mode()
    with FakeTensorMode():
        assert is_fake_mode()
    assert not is_fake_mode()


def test_a_fake_storage_has_a_size_and_a_place_and_no_content():
    storage = fake_storage(12, "cuda:3")
    assert (storage.nbytes(), storage.device.type) == (12, "meta")
    assert storage._fake_device == "cuda:3"


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_is_made_where_its_parts_are(layout):
    function, arguments = torch.eye(3).to_sparse(layout=layout).__reduce_ex__(2)
    with torch.device("meta"):
        again = checked_functions(True)(function)(*arguments)
        assert function(*arguments).device.type == "meta"
    assert again.layout is layout
    assert torch.equal(again.to_dense(), torch.eye(3))


def test_other_functions_stay_what_they_are():
    ours = checked_functions(True)
    assert ours(torch._utils._rebuild_parameter) is torch._utils._rebuild_parameter
    assert ours([]) == []
