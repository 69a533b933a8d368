"""Where a trial's input, its output and its conditions lie in a package."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from modpack.archive.writer import ArchiveWriter
from modpack.core.planjson import Json
from modpack.core.trialrecord import CaseRecords
from modpack.trial.leaves import Leaf

__all__ = ["CaseRecords", "read_leaves", "write_leaves"]


def write_leaves(writer: ArchiveWriter, records: CaseRecords, leaves: Sequence[Leaf]) -> None:
    """Store an output: its structure as JSON, its tensors as bytes."""
    listed: list[Json] = []
    for index, leaf in enumerate(leaves):
        entry: dict[str, Json] = {
            "path": leaf.path,
            "structure": leaf.structure,
            "value": leaf.value,
        }
        if leaf.tensor is not None:
            entry["tensor"] = _tensor_entry(writer, records.tensor(index), leaf.tensor)
        listed.append(entry)
    document = json.dumps({"leaves": listed}, sort_keys=True, separators=(",", ":"))
    writer.write(records.output, document.encode("ascii"), compress=True)


def _tensor_entry(writer: ArchiveWriter, record: str, tensor: torch.Tensor) -> dict[str, Json]:
    writer.write_storage(record, memoryview(_bytes_of(tensor)))
    shape: list[Json] = list(tensor.shape)
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape, "record": record}


def read_leaves(read: Callable[[str], bytes], records: CaseRecords) -> list[Leaf]:
    """Read back what :func:`write_leaves` stored.

    Args:
        read: returns a record's content.
        records: where it lies.
    """
    document = json.loads(read(records.output))
    return [
        Leaf(
            entry["path"],
            entry["structure"],
            entry["value"],
            _tensor(read, entry["tensor"]) if "tensor" in entry else None,
        )
        for entry in document["leaves"]
    ]


def _tensor(read: Callable[[str], bytes], entry: dict[str, Any]) -> torch.Tensor:
    content, dtype = bytearray(read(entry["record"])), getattr(torch, entry["dtype"])
    if not content:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(entry["shape"])


def _bytes_of(tensor: torch.Tensor) -> bytes:
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""
