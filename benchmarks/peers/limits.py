"""What cannot be avoided: the same work by code that does nothing but that.

Nobody could use these. They have no archive, check nothing, and find no dependencies; but what
they take is the least that a package written and read in Python can take on this machine.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import hashlib
import importlib.abc
import importlib.util
import marshal
import os
import pickle
import sys
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import Any

import project
from clocks import clock

__all__ = [
    "compile_library",
    "files_below",
    "import_code",
    "map_bare",
    "map_bytes",
    "read_library",
    "replace_synced",
    "save_bare",
    "save_hashed",
    "save_pickled",
    "save_synced",
    "write_code",
]

Figures = dict[str, float]

_PIECE = 1 << 22
"""Bytes that a thread hashes at once."""


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
        _write_hashed(model, opened.fileno())


def save_synced(model: Any, file: str) -> None:
    """The same, and wait until the disk has it."""
    with Path(file).open("wb", buffering=0) as opened:
        _write_hashed(model, opened.fileno())
        os.fsync(opened.fileno())


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


def read_library(below: str) -> Figures:
    """Read the sources of an installed library, and hash each."""
    files = files_below(below)[1]
    with clock() as seconds:
        for file in files:
            hashlib.sha256(file.read_bytes()).hexdigest()
    return {"per module": seconds() / len(files), "modules": len(files)}


def compile_library(below: str) -> Figures:
    """Read the sources of an installed library, and make a syntax tree of each."""
    files = files_below(below)[1]
    gc.disable()
    with clock() as seconds:
        for file in files:
            ast.parse(file.read_bytes())
    return {"per module": seconds() / len(files), "modules": len(files)}


def files_below(library: str) -> tuple[Path, list[Path]]:
    """Where an installed library is, and the sources of a part of it; none is imported."""
    found = importlib.util.find_spec(library.partition(".")[0])
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    return site, sorted((site / library.replace(".", "/")).rglob("*.py"))


def write_code(folder: str) -> Figures:
    """All code of a project as one file: its sources, and what they compile to."""
    files = sorted((Path(folder) / "app").glob("*.py"))
    named = {_module_of(file): file.read_bytes() for file in files}
    Path(f"{folder}.sources").write_bytes(marshal.dumps(named))
    compiled = {name: compile(source, name, "exec") for name, source in named.items()}
    Path(f"{folder}.code").write_bytes(marshal.dumps(compiled))
    return {}


def import_code(file: str) -> Figures:
    """Import a project from one file of sources, or of what they compile to."""
    import torch  # noqa: F401 - what else runs in this process is the same for all

    finder = _CodeFinder()
    sys.meta_path.insert(0, finder)
    with clock() as seconds:
        finder.code = marshal.loads(Path(file).read_bytes())
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


class _CodeFinder(importlib.abc.Loader):
    """Imports what it has the code of."""

    def __init__(self) -> None:
        self.code: dict[str, bytes | CodeType] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name in self.code:
            return importlib.util.spec_from_loader(name, self, is_package=name == "app")
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        code = self.code[module.__name__]
        if isinstance(code, bytes):
            code = compile(code, module.__name__, "exec")
        exec(code, module.__dict__)


def _module_of(file: Path) -> str:
    return "app" if file.stem == "__init__" else f"app.{file.stem}"


def _write_hashed(model: Any, descriptor: int) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = []
        for batch in _batches(model.parameters()):
            pending += [pool.submit(_hash, batch), pool.submit(_check, batch)]
            for piece in batch:
                _write_all(descriptor, piece)
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
