"""What cannot be avoided, by code that does nothing but read, parse, import, save or load.

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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Any

import project
from clocks import clock

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


Figures = dict[str, float]

_CODE = ".code"


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
    Path(f"{folder}{_CODE}").write_bytes(marshal.dumps(compiled))
    return {}


def import_code(file: str) -> Figures:
    """Import a project from all sources in one file, or of what they compile to."""
    import torch  # noqa: F401 - what else runs in this process is the same for all

    gc.disable()
    is_compiled = file.endswith(_CODE)
    with clock() as seconds:
        code = marshal.loads(Path(file).read_bytes()) if is_compiled else _compiled(file)
        sys.meta_path.insert(0, _CodeFinder(code))
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


def _compiled(file: str) -> dict[str, CodeType]:
    """What a file of sources compiles to; each core does its share."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, get_context("fork")) as pool:
        shares = pool.map(_compiled_share, [file] * cores, range(cores), [cores] * cores)
        return {name: code for share in shares for name, code in marshal.loads(share).items()}


def _compiled_share(file: str, first: int, step: int) -> bytes:
    sources = list(marshal.loads(Path(file).read_bytes()).items())[first::step]
    return marshal.dumps({name: compile(source, name, "exec") for name, source in sources})


class _CodeFinder(importlib.abc.Loader):
    """Imports what it has the code of."""

    def __init__(self, code: Mapping[str, CodeType]) -> None:
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name in self._code:
            return importlib.util.spec_from_loader(name, self, is_package=name == "app")
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code[module.__name__], module.__dict__)


def _module_of(file: Path) -> str:
    return "app" if file.stem == "__init__" else f"app.{file.stem}"
