"""Devices of GPU tensors, on machines without a GPU; ``tests/gpu`` needs one."""

from __future__ import annotations

import io

import pytest
import torch

import modpack


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
