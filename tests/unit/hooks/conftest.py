"""Fixtures and helpers for tests of model hooks."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import modpack


class Reloaded:
    """A model that was saved in its own package.

    Attributes:
        report: what the exporter tells of the hooks.
        specs: the hooks, as the package describes them.
        data: the package's bytes.
    """

    def __init__(self, data: bytes, report: Any) -> None:
        self.data = data
        self.report = report
        self.importer = modpack.PackageImporter(io.BytesIO(data))
        self.specs = self.importer.hook_specs("net", "model.pkl")

    def model(self, **options: Any) -> Any:
        """Load the model."""
        return self.importer.load_model("net", "model.pkl", **options)

    @property
    def names(self) -> list[str]:
        """The names of the hooks."""
        return [spec.name for spec in self.specs]


@pytest.fixture
def package():
    """Package a model: ``package(model, hooks=...)``. The tests' own functions are importable."""

    def make(obj: Any, pickled: bool = False, **options: Any) -> Reloaded:
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.extern("**")
            save = exporter.save_pickle if pickled else exporter.save_model
            save("net", "model.pkl", obj, **options)
            report = exporter.hook_report()
        return Reloaded(buffer.getvalue(), report)

    return make


@pytest.fixture
def again(package):
    """Save and load a model."""
    return lambda obj, **options: package(obj, **options).model()


def net() -> torch.nn.Sequential:
    """Return a model with two layers and fixed weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


@pytest.fixture(name="net")
def _net():
    return net()


def trained(model: Any, optimizer: Any = None) -> list[torch.Tensor]:
    """Return output, gradients, and parameters of one step."""
    model.zero_grad()
    output = model(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
    (output**2).sum().backward()
    if optimizer is not None:
        optimizer.step()
    parameters = list(model.parameters())
    gradients = [torch.zeros(0) if p.grad is None else p.grad.clone() for p in parameters]
    return [output.detach(), *gradients, *(p.detach().clone() for p in parameters)]


@pytest.fixture(name="trained")
def _trained():
    return trained


@pytest.fixture
def same():
    """Return whether two models train identically."""

    def check(one: Any, other: Any) -> bool:
        pairs = zip(trained(one), trained(other), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    return check


@pytest.fixture(autouse=True)
def no_process_wide_hooks():
    """Check that no global hook stays registered."""
    from modpack.hooks.kinds import kinds_of

    yield
    for kind in kinds_of("global"):
        assert not list(kind.find(kind.global_module)), f"{kind.name} hooks were left behind"
    torch.nn.modules.module._global_is_full_backward_hook = None
