"""ScriptModules inside a package: stored as torch.jit.save stores them."""

from __future__ import annotations

import io
from typing import Any

import torch

from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.torcharchives import portable_script

__all__ = ["load_script_module", "script_bytes"]


def script_bytes(module: torch.jit.ScriptModule) -> bytes:
    """What torch.jit.save writes for a module, the same in every process."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return portable_script(buffer.getvalue())


@named_in_packages
def load_script_module(importer: Any, record: str) -> torch.jit.ScriptModule:
    """Load a ScriptModule from a record of a package.

    Args:
        importer: the loading side: has ``zip_reader`` and ``last_map_location``.
        record: the record that holds what torch.jit.save wrote.
    """
    buffer = io.BytesIO(importer.zip_reader.get_record(record))
    loaded = torch.jit.load(buffer, map_location=importer.last_map_location)  # type: ignore[no-untyped-call]
    return loaded  # type: ignore[no-any-return]
