"""Saving and loading with each tool. Imports happen before the measurement."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Save = Callable[[Any, str], object]
Load = Callable[[str], Any]


def importer_of(package: str) -> Any:
    """Return the PackageImporter of modpack or torch.package."""
    return _imported(package, "PackageImporter")


def exporter_of(package: str) -> Any:
    """Return the PackageExporter of modpack or torch.package."""
    if package == "torch.package":
        sys.setrecursionlimit(100_000)  # sympy exceeds the default
    return _imported(package, "PackageExporter")


def _package_saver(package: str) -> Save:
    exporting = exporter_of(package)

    def save(obj: object, file: str) -> None:
        with exporting(file) as exporter:
            exporter.intern("benched")
            exporter.save_pickle("model", "model.pkl", obj)

    return save


def _package_loader(package: str) -> Load:
    importing = importer_of(package)
    return lambda file: importing(file).load_pickle("model", "model.pkl")


def _modpack_save() -> Save:
    save = _imported("modpack", "save")
    # no other tool loads what it saved
    return lambda obj, file: save(obj, file, intern=["benched"], self_test=False)


def _torch_saver(is_synced: bool) -> Save:
    import torch

    def save(obj: object, file: str) -> None:
        torch.save(obj, file)
        with Path(file).open("rb") as written:
            os.fsync(written.fileno())

    return save if is_synced else torch.save


def _torch_loader(mmap: bool) -> Load:
    import benched  # noqa: F401
    import torch

    return lambda file: torch.load(file, weights_only=False, mmap=mmap)


def _safetensors_saver() -> Save:
    from safetensors.torch import save_file

    return lambda model, file: save_file(model.state_dict(), file)


def _safetensors_loader() -> Load:
    import benched
    import torch
    from safetensors.torch import load_file

    def load(file: str) -> object:
        found = load_file(file)
        with torch.device("meta"):
            model = benched.Weights(torch.empty(tensor.shape) for tensor in found.values())
        model.load_state_dict(found, assign=True)
        return model

    return load


def _cloudpickle_saver() -> Save:
    import cloudpickle

    def save(obj: object, file: str) -> None:
        with Path(file).open("wb") as opened:
            cloudpickle.dump(obj, opened)

    return save


def _cloudpickle_loader() -> Load:
    import pickle

    import benched  # noqa: F401
    import cloudpickle  # noqa: F401

    def load(file: str) -> object:
        with Path(file).open("rb") as opened:
            return pickle.load(opened)

    return load


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


SAVERS: dict[str, Callable[[], Save]] = {
    "modpack": lambda: _package_saver("modpack"),
    "modpack.save": _modpack_save,
    "torch.package": lambda: _package_saver("torch.package"),
    "torch.save": lambda: _torch_saver(is_synced=False),
    "torch.save and fsync": lambda: _torch_saver(is_synced=True),
    "safetensors": _safetensors_saver,
    "cloudpickle": _cloudpickle_saver,
}

LOADERS: dict[str, Callable[[], Load]] = {
    "modpack": lambda: _package_loader("modpack"),
    "modpack.load": lambda: _imported("modpack", "load"),
    "torch.package": lambda: _package_loader("torch.package"),
    "torch.load": lambda: _torch_loader(mmap=False),
    "torch.load(mmap=True)": lambda: _torch_loader(mmap=True),
    "safetensors": _safetensors_loader,
    "cloudpickle": _cloudpickle_loader,
}

FILES = {
    "modpack": "model.modpack",
    "torch.package": "model.torch-package",
    "torch.load": "model.pt",
    "torch.load(mmap=True)": "model.pt",
    "safetensors": "model.safetensors",
    "cloudpickle": "model.pickle",
}
"""File of each loader."""
