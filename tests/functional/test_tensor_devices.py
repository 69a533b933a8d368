"""Devices of GPU tensors, with and without a GPU."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import modpack

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


def loaded(buffer, **options):
    buffer.seek(0)
    with modpack.PackageImporter(buffer) as importer:
        return importer.load_pickle("m", "o.pkl", **options)


def saved(obj):
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.save_pickle("m", "o.pkl", obj)
    return buffer


@pytest.fixture
def from_a_gpu(monkeypatch):
    """A package with tensors of the second GPU of another machine."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
    package = saved({"a": torch.arange(3.0), "half": torch.ones(2).half()})
    monkeypatch.undo()
    return package


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpu_tensors_without_gpu_are_rejected_like_torch_load(from_a_gpu):
    with pytest.raises(RuntimeError, match=r"map_location=torch\.device\('cpu'\)"):
        loaded(from_a_gpu)
    with pytest.raises(modpack.errors.DeviceNotFoundError, match=r"m/o\.pkl.*'cuda:1'"):
        loaded(from_a_gpu)
    with pytest.raises(RuntimeError, match="CUDA"):
        loaded(saved(torch.ones(1)), map_location="cuda")


@pytest.mark.parametrize(
    "map_location", ["cpu", torch.device("cpu"), {"cuda:1": "cpu"}, lambda storage, where: storage]
)
def test_map_location_moves_gpu_tensors(from_a_gpu, map_location):
    tensors = loaded(from_a_gpu, map_location=map_location)
    assert tensors["a"].tolist() == [0, 1, 2] and tensors["a"].device.type == "cpu"
    assert tensors["half"].dtype is torch.float16


def test_map_location_function_gets_device_of_each_storage(from_a_gpu):
    asked = []
    loaded(from_a_gpu, map_location=lambda storage, where: asked.append(where) or storage)
    assert asked == ["cuda:1", "cuda:1"]


@needs_cuda
def test_gpu_tensors_return_to_gpu_and_share_storage():
    base = torch.arange(6.0, device="cuda")
    model = nn.Linear(2, 2).cuda()
    package = saved({"base": base, "row": base[2:4], "model": model, "cpu": torch.ones(1)})
    again = loaded(package)
    assert again["base"].is_cuda and again["cpu"].device.type == "cpu"
    again["base"][2] = 9.0
    assert again["row"].tolist() == [9.0, 3.0]
    assert torch.equal(again["model"].weight, model.weight)
    assert loaded(package, map_location="cpu")["row"].tolist() == [2.0, 3.0]


@needs_cuda
@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda", 0)], ids=str)
def test_map_location_moves_cpu_tensors_to_gpu(place):
    again = loaded(saved({"a": torch.arange(3.0), "b": torch.ones(1)}), map_location=place)
    assert {tensor.device for tensor in again.values()} == {torch.device("cuda", 0)}
    assert again["a"].tolist() == [0, 1, 2]


@needs_cuda
def test_pinned_tensor_loads_as_ordinary_tensor():
    pinned = torch.arange(3.0).pin_memory()
    again = loaded(saved(pinned))
    assert again.tolist() == [0, 1, 2] and not again.is_pinned()


@needs_cuda
def test_gpu_device_context_moves_nothing():
    package = saved([torch.ones(2), torch.eye(2).to_sparse()])
    with torch.device("cuda"):
        dense, sparse = loaded(package)
    assert (dense.device.type, sparse.device.type) == ("cpu", "cpu")
