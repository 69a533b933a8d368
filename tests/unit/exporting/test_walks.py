"""Saving walks through an object only if it may contain tensors or hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modpack import PackageExporter
from modpack.capturing import observe
from modpack.exporting import tensor_index
from modpack.exporting.tensor_index import named_tensors


class Entry:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.fixture
def no_names(monkeypatch):
    """Fail if anything computes names, which requires a walk through the object."""

    def refuse(*args: Any) -> Any:
        raise AssertionError("the saved object was walked through")

    monkeypatch.setattr(observe, "ObjectPaths", refuse)
    return refuse


def saved(obj: object) -> PackageExporter:
    exporter = PackageExporter(None)
    exporter.extern("**")
    exporter.save_pickle("model", "model.pkl", obj)
    return exporter


def test_plain_data_is_not_searched_for_tensors_nor_hooks(monkeypatch, no_names):
    monkeypatch.setattr(tensor_index._TensorWalk, "find", no_names)
    exporter = saved({"a": [1, {"b": (2, "c")}], "entries": [Entry(n) for n in range(9)]})
    assert exporter._objects.tensors == {"model/model.pkl": ()}


def test_model_without_hooks_is_not_searched_for_names(no_names):
    exporter = PackageExporter(None)
    exporter.save_model("model", "model.pkl", nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert len(exporter._objects.tensors["model/model.pkl"]) == 2


def test_tensor_among_plain_data_is_listed_by_its_path():
    obj = {"entries": [Entry(1), Entry([torch.ones(2)])], "": {"x": torch.ones(1)}}
    exporter = saved(obj)
    names = [each.name for each in exporter._objects.tensors["model/model.pkl"]]
    assert names == ["entries.1.value.0", "x"]


def test_optimizer_tensors_are_listed():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    names = [each.name for each in saved([optimizer])._objects.tensors["model/model.pkl"]]
    assert names == ["0.state.0.momentum_buffer", "0.state.1.momentum_buffer"]


def test_walk_skips_plain_values_in_containers():
    found = named_tensors([1, "x", {"y": (None, 2.5, True)}], {}, lambda storage: None)
    assert found == ()
