"""Limits: programs that only read, parse, import, save, or load.

They have no archive, checks, or dependency analysis, and are of no practical use. Their times are
the minimum for a package that Python writes and reads on this machine.
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
"""Bytes to write at once, and minimum bytes of small tensors to hash in one task."""
_WORTH_SYNCING = 16 << 20
"""Bytes after which writing to the disk starts."""


def save_bare(model: Any, file: str) -> None:
    """Save the bytes of a model's tensors in sequence, and their sizes."""
    with Path(file).open("wb") as opened:
        for parameter in model.parameters():
            opened.write(_memory(parameter))
    sizes = [parameter.numel() for parameter in model.parameters()]
    Path(f"{file}.sizes").write_bytes(marshal.dumps(sizes))


def map_bare(file: str) -> Any:
    """Map a file, and return a hand-built model with a storage per tensor."""
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
    """Write the tensors' bytes while other threads compute SHA-256 and CRC-32."""
    with Path(file).open("wb", buffering=0) as opened:
        for _ in _written_while_hashing(model, opened.fileno()):
            pass


def save_synced(model: Any, file: str) -> None:
    """Do the same, start writing to the disk early, and sync the file."""
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
    """Save 1 MB atomically and durably."""
    temporary = Path(f"{file}.new")
    with temporary.open("wb", buffering=0) as opened:
        opened.write(bytes(1_000_000))
        os.fsync(opened.fileno())
    temporary.rename(file)
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def map_bytes(file: str) -> object:
    """Map a file."""
    import torch

    return torch.UntypedStorage.from_file(file, False, Path(file).stat().st_size)


def save_pickled(obj: object, file: str) -> None:
    """Save with the C pickler, without callbacks."""
    gc.disable()
    with Path(file).open("wb") as opened:
        pickle.dump(obj, opened)


def _written_while_hashing(model: Any, descriptor: int) -> Iterator[int]:
    """Yield the file size after each write. All checksums are computed at the end."""
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
    """Yield the tensors' bytes in lists that are large enough for a task."""
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
    """Read and hash the sources of an installed library."""
    files = files_below(below)[1]
    with clock() as seconds:
        for file in files:
            hashlib.sha256(file.read_bytes()).hexdigest()
    return {"per module": seconds() / len(files), "modules": len(files)}


def compile_library(below: str) -> Figures:
    """Read and parse the sources of an installed library."""
    files = files_below(below)[1]
    gc.disable()
    with clock() as seconds:
        for file in files:
            ast.parse(file.read_bytes())
    return {"per module": seconds() / len(files), "modules": len(files)}


def files_below(library: str) -> tuple[Path, list[Path]]:
    """Return site-packages and the sources of a library or subpackage, without importing it."""
    found = importlib.util.find_spec(library.partition(".")[0])
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    return site, sorted((site / library.replace(".", "/")).rglob("*.py"))


def write_code(folder: str) -> Figures:
    """Write all sources of a project to one file, and all bytecode to another."""
    files = sorted((Path(folder) / "app").glob("*.py"))
    named = {_module_of(file): file.read_bytes() for file in files}
    Path(f"{folder}.sources").write_bytes(marshal.dumps(named))
    compiled = {name: compile(source, name, "exec") for name, source in named.items()}
    Path(f"{folder}{_CODE}").write_bytes(marshal.dumps(compiled))
    return {}


def import_code(file: str) -> Figures:
    """Import a project from its file of sources or bytecode."""
    import torch  # noqa: F401 - as in the processes of other subjects

    gc.disable()
    is_compiled = file.endswith(_CODE)
    with clock() as seconds:
        code = marshal.loads(Path(file).read_bytes()) if is_compiled else _compiled(file)
        sys.meta_path.insert(0, _CodeFinder(code))
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


def _compiled(file: str) -> dict[str, CodeType]:
    """Compile a file of sources on all cores."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, get_context("fork")) as pool:
        shares = pool.map(_compiled_share, [file] * cores, range(cores), [cores] * cores)
        return {name: code for share in shares for name, code in marshal.loads(share).items()}


def _compiled_share(file: str, first: int, step: int) -> bytes:
    sources = list(marshal.loads(Path(file).read_bytes()).items())[first::step]
    return marshal.dumps({name: compile(source, name, "exec") for name, source in sources})


class _CodeFinder(importlib.abc.Loader):
    """A finder and loader of modules whose code is in memory."""

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
