"""How each peer saves and loads. What it needs is imported before the clock starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handloaded
import tensorlimits

__all__ = ["EXPORTERS", "FILES", "LOADERS", "SAVERS"]

Save = Callable[[Any, str], object]
Load = Callable[[str], Any]


def _modpack_saver() -> Save:
    from modpack import PackageExporter

    return lambda obj, file: _exported(PackageExporter, obj, file)


def _torch_package_saver() -> Save:
    from torch.package import PackageExporter

    return lambda obj, file: _exported(PackageExporter, obj, file)


def _exported(exporter_of: Any, obj: object, file: str) -> None:
    with exporter_of(file) as exporter:
        exporter.intern("benched")
        exporter.save_pickle("model", "model.pkl", obj)


def _modpack_save() -> Save:
    from modpack import save

    return lambda obj, file: save(obj, file, intern=["benched"])


def _torch_saver() -> Save:
    import torch

    return torch.save


def _synced_torch_saver() -> Save:
    import torch

    def save(obj: object, file: str) -> None:
        torch.save(obj, file)
        with Path(file).open("rb") as written:
            os.fsync(written.fileno())

    return save


def _safetensors_saver() -> Save:
    from safetensors.torch import save_file

    return lambda model, file: save_file(model.state_dict(), file)


def _cloudpickle_saver() -> Save:
    import cloudpickle

    def save(obj: object, file: str) -> None:
        with Path(file).open("wb") as opened:
            cloudpickle.dump(obj, opened)

    return save


def _modpack_loader() -> Load:
    from modpack import PackageImporter

    return lambda file: PackageImporter(file).load_pickle("model", "model.pkl")


def _modpack_load() -> Load:
    from modpack import load

    return load


def _torch_package_loader() -> Load:
    from torch.package import PackageImporter

    return lambda file: PackageImporter(file).load_pickle("model", "model.pkl")


def _durable_saver() -> Save:
    from durable import save_durably

    return save_durably


def _durable_loader() -> Load:
    from durable import load_compared

    return load_compared


def _torch_loader(mmap: bool) -> Load:
    import benched  # noqa: F401
    import torch

    return lambda file: torch.load(file, weights_only=False, mmap=mmap)


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


def _cloudpickle_loader() -> Load:
    import pickle

    import benched  # noqa: F401
    import cloudpickle  # noqa: F401

    def load(file: str) -> object:
        with Path(file).open("rb") as opened:
            return pickle.load(opened)

    return load


def _saver_by_hand() -> Save:
    from handsaved import save_by_hand

    return save_by_hand


def _knowing_saver() -> Save:
    from knowing import know_what_is_saved

    know_what_is_saved()
    return _modpack_saver()


def _knowing_loader() -> Load:
    from knowing import know_what_is_loaded

    know_what_is_loaded()
    return _modpack_loader()


def _modpack_exporter() -> Any:
    from modpack import PackageExporter

    return PackageExporter


def _torch_package_exporter() -> Any:
    import sys

    from torch.package import PackageExporter

    sys.setrecursionlimit(100_000)  # with the usual one it cannot take sympy along
    return PackageExporter


EXPORTERS: dict[str, Callable[[], Any]] = {
    "modpack": _modpack_exporter,
    "torch.package": _torch_package_exporter,
}

SAVERS: dict[str, Callable[[], Save]] = {
    "modpack": _modpack_saver,
    "modpack.save": _modpack_save,
    "torch.package": _torch_package_saver,
    "torch.save": _torch_saver,
    "torch.save and fsync": _synced_torch_saver,
    "safetensors": _safetensors_saver,
    "cloudpickle": _cloudpickle_saver,
    "limit: mapped, made by hand": lambda: tensorlimits.save_bare,
    "limit: hashed and written": lambda: tensorlimits.save_hashed,
    "limit: hashed, written and synced": lambda: tensorlimits.save_synced,
    "limit: the C pickler": lambda: tensorlimits.save_pickled,
    "limit: 1 MB written, synced, mapped": lambda: tensorlimits.replace_synced,
    "limit: the same promises, by hand": _saver_by_hand,
    "limit: modpack, looking for nothing": _knowing_saver,
    "limit: torch.package, compared and synced": _durable_saver,
}

LOADERS: dict[str, Callable[[], Load]] = {
    "modpack": _modpack_loader,
    "modpack.load": _modpack_load,
    "torch.package": _torch_package_loader,
    "torch.load": lambda: _torch_loader(mmap=False),
    "torch.load(mmap=True)": lambda: _torch_loader(mmap=True),
    "safetensors": _safetensors_loader,
    "cloudpickle": _cloudpickle_loader,
    "limit: mapped, made by hand": lambda: tensorlimits.map_bare,
    "limit: 1 MB written, synced, mapped": lambda: tensorlimits.map_bytes,
    "limit: the same promises, by hand": lambda: handloaded.load_by_hand,
    "limit: by hand, the file's end known": lambda: handloaded.load_known,
    "limit: modpack, looking for nothing": _knowing_loader,
    "limit: torch.package, compared and synced": _durable_loader,
}

FILES = {
    "modpack": "model.modpack",
    "torch.package": "model.torch-package",
    "torch.load": "model.pt",
    "torch.load(mmap=True)": "model.pt",
    "safetensors": "model.safetensors",
    "cloudpickle": "model.pickle",
    "limit: mapped, made by hand": "model.bare",
    "limit: the same promises, by hand": "model.modpack",
    "limit: by hand, the file's end known": "model.modpack",
    "limit: modpack, looking for nothing": "model.modpack",
}
"""Where the file is that a loader loads."""
