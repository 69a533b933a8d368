"""Integrations where their library is not installed."""

from __future__ import annotations

import sys

import pytest
import torch

from modpack.errors import ModpackError
from modpack.integrations import mlflow as packages


def test_mlflow_integration_names_its_extra_if_mlflow_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for call in (
        lambda: packages.log_model(torch.nn.Linear(1, 1), example_inputs=torch.ones(1, 1)),
        lambda: packages.save_model(tmp_path / "net.modpack", tmp_path / "logged"),
        lambda: packages.load_model("models:/net/1"),
    ):
        with pytest.raises(ModpackError, match=r"require MLflow.*\n?.*modpack\[mlflow\]"):
            call()
