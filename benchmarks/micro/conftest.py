"""Generated inputs of the micro benchmarks, each of which takes milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modpack import PackageExporter

COUNT = 1000


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a new cache folder for this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tensors() -> dict[str, torch.Tensor]:
    """Many small tensors with their own storages."""
    return {f"layer.{number}": torch.full((16,), float(number)) for number in range(COUNT)}


@pytest.fixture(scope="session")
def entries() -> dict[str, object]:
    """Small containers and plain values, as in a checkpoint."""
    return {
        f"layer.{number}": {"step": number, "score": number / 2, "shape": (number, 3)}
        for number in range(10 * COUNT)
    }


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, tensors: object) -> Path:
    """A package with many records."""
    file = tmp_path_factory.mktemp("package") / "many.modpack"
    with PackageExporter(file) as exporter:
        exporter.save_pickle("model", "model.pkl", tensors)
    return file


@pytest.fixture(scope="session")
def source() -> bytes:
    """A module of typical length."""
    functions = "".join(_FUNCTION.format(number=number) for number in range(40))
    return f'"""Generated."""\n\nimport os\nfrom . import other\n{functions}'.encode()


_FUNCTION = '''

def step_{number}(values, weight={number}, *, scale=1.0):
    """Return a weighted sum. Never called."""
    import math

    total = 0.0
    for position, value in enumerate(values):
        if position % (weight + 1):
            total += value * weight
        else:
            total -= other.step(value, scale) + math.sqrt(weight)
    return total * scale
'''
