"""The tensors of a saved object that a package records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modpack import PackageExporter
from modpack.archive.reader import open_archive
from modpack.core.tensors import TensorFacts, TensorKind, tensors_from_json

KIND = TensorKind


def _refuse(*args: Any) -> None:
    raise AssertionError("code of the model ran")


class Recorded:
    """Return the tensors that a package records for one object."""

    def __init__(self, file: Path, record: str) -> None:
        with open_archive(file) as archive:
            document = json.loads(archive.read(".data/modpack/tensors.json"))
            self.sizes = {name: archive.size(name) for name in archive.names()}
        self.listed = tensors_from_json(document)[record]
        self.names = [each.name for each in self.listed]

    def __getitem__(self, name: str) -> TensorFacts:
        (found,) = [each for each in self.listed if each.name == name]
        return found


@pytest.fixture
def recorded(tmp_path):
    """Save an object and return the record of its tensors."""

    def save(obj: Any, optimizer: Any = None) -> Recorded:
        file = tmp_path / "model.modpack"
        with PackageExporter(file) as exporter:
            exporter.extern("**")
            if isinstance(obj, nn.Module):
                exporter.save_model("model", "model.pkl", obj, optimizer=optimizer)
            else:
                exporter.save_pickle("model", "model.pkl", obj)
        return Recorded(file, "model/model.pkl")

    return save


def test_tensors_are_recorded_in_state_dict_order(recorded):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    found = recorded(model)
    assert found.names == list(model.state_dict())
    weight = found["0.weight"]
    assert (weight.kind, weight.dtype, weight.shape) == (KIND.PARAMETER, "float32", (4, 3))
    assert (weight.requires_grad, weight.offset, weight.stride) == (True, 0, (3, 1))
    assert found.sizes[f".data/{weight.storage}.storage"] == 48
    count = found["1.num_batches_tracked"]
    assert (count.kind, count.dtype, count.shape, count.stride) == (KIND.BUFFER, "int64", (), ())


def test_tied_parameter_has_two_names_and_one_storage(recorded):
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    model["decoder"].weight = model["encoder"].weight
    model["again"] = model["encoder"]
    found = recorded(model)
    storages = {found[f"{name}.weight"].storage for name in ("encoder", "decoder", "again")}
    assert len(storages) == 1
    assert None not in storages
    assert found["decoder.bias"].storage != found["encoder.bias"].storage


def test_view_is_recorded_with_its_storage_offset(recorded):
    whole = torch.arange(12.0).reshape(3, 4)
    found = recorded({"column": whole[:, 1], "turned": whole.t()})
    assert (found["column"].offset, found["column"].stride) == (1, (4,))
    assert (found["turned"].shape, found["turned"].stride) == ((4, 3), (1, 4))
    assert found["column"].storage == found["turned"].storage


def test_buffers_outside_the_state_dict_are_marked(recorded):
    model = nn.Linear(2, 2)
    model.register_buffer("cache", torch.zeros(5), persistent=False)
    found = recorded(model)
    assert not found["cache"].is_persistent
    assert found["weight"].is_persistent


def test_optimizer_state_is_numbered_as_in_state_dict(recorded):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = recorded(model, optimizer)
    numbers = optimizer.state_dict()["state"]
    expected = {f"optimizer.state.{n}.{key}" for n, state in numbers.items() for key in state}
    assert {each.name for each in found.listed if each.kind is KIND.STATE} == expected
    assert found["optimizer.state.0.exp_avg"].shape == (2, 2)


def test_modules_in_containers_are_searched(recorded):
    saved = {"net": nn.Linear(2, 1), "state": {"w": torch.ones(3)}, "list": [1, torch.ones(2)]}
    found = recorded(saved)
    kinds = {each.name: each.kind for each in found.listed}
    assert kinds == {
        "net.weight": KIND.PARAMETER,
        "net.bias": KIND.PARAMETER,
        "state.w": KIND.VALUE,
        "list.1": KIND.VALUE,
    }


def test_cyclic_container_is_searched_once(recorded):
    saved: dict[str, Any] = {"w": torch.ones(3)}
    saved["self"] = saved
    assert recorded(saved).names == ["w"]


def test_special_tensors_have_no_storage(recorded):
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("meta", torch.empty(4, device="meta"))
    model.lazy = nn.LazyLinear(2)
    found = recorded(model)
    told = {name: (found[name].storage, found[name].form) for name in found.names}
    assert told["sparse"] == (None, "sparse")
    assert told["meta"] == (None, "meta")
    assert told["lazy.weight"] == (None, "lazy")
    assert found["lazy.weight"].shape is None
    assert found["sparse"].shape == (3, 3)


def test_conjugated_tensors_are_marked(recorded):
    found = recorded({"z": torch.ones(2, dtype=torch.complex64).conj()})
    assert found["z"].form == "conjugated"
    assert found["z"].storage is not None


def test_script_module_tensors_have_no_storages(recorded):
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.Linear(2, 2))
    found = recorded(model)
    assert found["0.weight"].storage is None
    assert found["1.weight"].storage is not None


def test_recording_runs_no_code_of_the_model(recorded):
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(_refuse)
    assert recorded(model).names == ["weight", "bias"]


def test_tensor_changed_between_objects_has_two_storages(tmp_path):
    weight, file = torch.zeros(3), tmp_path / "two.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_pickle("a", "w.pkl", {"w": weight})
        weight.add_(1)
        exporter.save_pickle("b", "w.pkl", {"w": weight})
    assert Recorded(file, "a/w.pkl")["w"].storage != Recorded(file, "b/w.pkl")["w"].storage


def test_package_of_texts_records_no_tensors(tmp_path):
    file = tmp_path / "text.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_text("a", "b.txt", "c")
    with open_archive(file) as archive:
        assert not archive.has(".data/modpack/tensors.json")


def test_example_inputs_are_not_tensors_of_the_package(tmp_path):
    file = tmp_path / "net.modpack"
    with PackageExporter(file, self_test=True) as exporter:
        exporter.extern("**")
        exporter.save_model("model", "m.pkl", nn.Linear(2, 2), example_inputs=torch.ones(1, 2))
    with open_archive(file) as archive:
        document = json.loads(archive.read(".data/modpack/tensors.json"))
    assert list(document["resources"]) == ["model/m.pkl"]
