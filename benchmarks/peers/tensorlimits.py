"""What cannot be avoided: tensors and objects, by code that does nothing but save or load them.

Nobody could use these. They have no archive, check nothing, and find no dependencies; but what
they take is the least that a package written and read in Python can take on this machine.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import marshal
import os
import pickle
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = [
    "map_bare",
    "map_bytes",
    "replace_synced",
    "save_bare",
    "save_hashed",
    "save_pickled",
    "save_synced",
]

_PIECE = 8 << 20
"""Bytes that are written, and of small tensors hashed, at once."""
_WORTH_SYNCING = 16 << 20
"""Bytes after which the disk has something to do."""


def save_bare(model: Any, file: str) -> None:
    """A model's tensors as bytes one after another, and where each of them is."""
    with Path(file).open("wb") as opened:
        for parameter in model.parameters():
            opened.write(_memory(parameter))
    sizes = [parameter.numel() for parameter in model.parameters()]
    Path(f"{file}.sizes").write_bytes(marshal.dumps(sizes))


def map_bare(file: str) -> Any:
    """Tensors over one mapped file, a storage for each, in a model that is made by hand."""
    gc.disable()
    import torch
    from benched import Weights

    sizes = marshal.loads(Path(f"{file}.sizes").read_bytes())
    mapped = torch.UntypedStorage.from_file(file, False, Path(file).stat().st_size)
    model, weights = Weights.__new__(Weights), torch.nn.ParameterList()
    torch.nn.Module.__init__(model)
    model.weights, position = weights, 0
    for number, size in enumerate(sizes):
        storage = mapped[position : position + 4 * size]
        tensor = torch.empty(0).set_(storage, 0, (size,), (1,))
        weights._parameters[str(number)] = torch.nn.Parameter(tensor)
        position += 4 * size
    weights._size = len(sizes)
    return model


def save_hashed(model: Any, file: str) -> None:
    """Write the tensors' bytes while other threads compute a sha256 and a crc32 of each."""
    with Path(file).open("wb", buffering=0) as opened:
        for _ in _written_while_hashing(model, opened.fileno()):
            pass


def save_synced(model: Any, file: str) -> None:
    """The same, while the disk takes what was written before; it has all when this returns."""
    begin_writing = ctypes.CDLL(None).sync_file_range
    begin_writing.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    with Path(file).open("wb", buffering=0) as opened:
        descriptor, begun = opened.fileno(), 0
        for position in _written_while_hashing(model, descriptor):
            if position - begun >= _WORTH_SYNCING:
                begin_writing(descriptor, begun, position - begun, 2)
                begun = position
        os.fsync(descriptor)


def replace_synced(obj: object, file: str) -> None:
    """A MB that the disk has under its name: what an atomic and durable save waits for."""
    beside = Path(f"{file}.new")
    with beside.open("wb", buffering=0) as opened:
        opened.write(bytes(1_000_000))
        os.fsync(opened.fileno())
    beside.rename(file)
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def map_bytes(file: str) -> object:
    """What is mapped of it."""
    import torch

    return torch.UntypedStorage.from_file(file, False, Path(file).stat().st_size)


def save_pickled(obj: object, file: str) -> None:
    """The C pickler as it is: it asks nobody about anything."""
    gc.disable()
    with Path(file).open("wb") as opened:
        pickle.dump(obj, opened)


def _written_while_hashing(model: Any, descriptor: int) -> Iterator[int]:
    """Where the file ends by now; the checksums are there when it has ended."""
    position = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = []
        for batch in _batches(model.parameters()):
            pending += [pool.submit(_hash, batch), pool.submit(_check, batch)]
            for piece in batch:
                for start in range(0, len(piece), _PIECE):
                    part = piece[start : start + _PIECE]
                    _write_all(descriptor, part)
                    position += len(part)
                    yield position
        for each in pending:
            each.result()


def _batches(parameters: Iterable[Any]) -> Iterator[list[memoryview]]:
    """The tensors' bytes, in lists that are worth a thread's attention."""
    batch: list[memoryview] = []
    size = 0
    for parameter in parameters:
        batch.append(_memory(parameter))
        size += len(batch[-1])
        if size >= _PIECE:
            yield batch
            batch, size = [], 0
    yield batch


def _hash(batch: list[memoryview]) -> None:
    for piece in batch:
        hashlib.sha256(piece).hexdigest()


def _check(batch: list[memoryview]) -> None:
    for piece in batch:
        zlib.crc32(piece)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _memory(parameter: Any) -> memoryview:
    size = parameter.numel() * parameter.element_size()
    return memoryview((ctypes.c_char * size).from_address(parameter.data_ptr())).cast("B")
