"""torch.package with two guarantees of modpack: digests and atomic, durable files.

Each record has a SHA-256, which another thread computes. Records other than tensors are compared
when they are read. A package is written to a temporary file, synced, and renamed. The difference to
torch.package is the cost of these two guarantees.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.package import PackageExporter, PackageImporter

_DIGESTS = ".data/digests.json"


def save_durably(obj: object, file: str) -> None:
    """Save with digests, and replace the target atomically and durably."""
    temporary = Path(f"{file}.new")
    with _Exporter(str(temporary)) as exporter:
        exporter.intern("benched")
        exporter.save_pickle("model", "model.pkl", obj)
    _sync(temporary)
    temporary.rename(file)
    _sync(Path(file).parent)


def load_compared(file: str) -> object:
    """Load a package of :func:`save_durably`."""
    return PackageImporter(_Comparing(file)).load_pickle("model", "model.pkl")


class _Exporter(PackageExporter):
    """A PackageExporter that writes a list of digests at the end."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.zip_file: Any = _Hashing(self.zip_file)

    def _finalize_zip(self) -> None:
        self.zip_file.write_digests()
        super()._finalize_zip()


class _Hashing:
    """A record writer that computes digests."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1)
        self._pending: dict[str, Future[str]] = {}

    def write_record(self, name: str, content: Any, size: int) -> None:
        self._pending[name] = self._pool.submit(_digest_of, content)
        self._writer.write_record(name, content, size)

    def write_digests(self) -> None:
        digests = {name: digest.result() for name, digest in self._pending.items()}
        self._pool.shutdown()
        content = json.dumps(digests).encode()
        self._writer.write_record(_DIGESTS, content, len(content))


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _digest_of(content: bytes | torch.UntypedStorage) -> str:
    if isinstance(content, torch.UntypedStorage):
        content = torch.empty(0, dtype=torch.uint8).set_(content).numpy().data
    return hashlib.sha256(content).hexdigest()


class _Comparing(torch._C.PyTorchFileReader):
    """A record reader that compares digests."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._digests: dict[str, str] = json.loads(super().get_record(_DIGESTS))

    def get_record(self, name: str) -> bytes:
        content: bytes = super().get_record(name)
        assert _digest_of(content) == self._digests[name], name
        return content
