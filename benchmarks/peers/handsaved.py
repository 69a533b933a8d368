"""Hand-written saving with the guarantees of a package, as a limit for modpack.

Saves the model's code, imports, tensors, decisions, and environment. Each record has a CRC-32 and
a SHA-256 in a manifest with its own digest. The target is replaced atomically, and is on the disk
when saving returns. modpack can load the packages.

Supports only the models of the benchmark, without hooks, secret scans, metadata of distributions,
and checks for mistakes.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import gc
import hashlib
import io
import json
import os
import pickle
import platform
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from handzip import (
    DEFLATED,
    DIGEST,
    MANIFEST,
    ROOT,
    STORAGE,
    STORED,
    Record,
    central_directory,
    local_header,
)

_INTERNED = "benched"
_OBJECT = ["model", "model.pkl"]
_PICKLE = "/".join(_OBJECT)
_NAMED = (type, FunctionType, BuiltinFunctionType)
_DEFLATED = (f"{_INTERNED}.py", ".data/modpack/graph.json", ".data/modpack/tensors.json")
_text = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def save_by_hand(model: Any, file: str) -> None:
    """Save a model as a package that modpack can load."""
    gc.disable()
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(model)
    _replace(file, list(_zipped(_records(model, pickler, stream.getvalue()))))


class _Storage:
    """A placeholder for a storage."""

    __slots__ = ("dtype", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage, self.dtype = tensor.untyped_storage(), tensor.dtype


class _Pickler(pickle.Pickler):
    """The C pickler, without storages. Records the modules of classes and functions."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, 3)
        self.storages: dict[int, tuple[str, Any]] = {}
        self.named: set[tuple[str, str]] = set()
        self._kinds = torch.storage._dtype_to_storage_type_map()
        self.persistent_id = lambda obj: self._persistent_id(obj) if type(obj) is _Storage else None

    def _persistent_id(self, ref: _Storage) -> Any:
        storage = ref.storage
        key, _ = self.storages.setdefault(storage._cdata, (str(len(self.storages)), storage))
        kind = getattr(torch, self._kinds[ref.dtype])
        return "storage", kind, key, "cpu", storage.nbytes() // ref.dtype.itemsize

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.nn.Parameter:
            arguments = (obj.data, obj.requires_grad, OrderedDict())
            return torch._utils._rebuild_parameter, arguments
        if type(obj) is torch.Tensor:
            layout = obj.storage_offset(), tuple(obj.shape), obj.stride()
            arguments = (_Storage(obj), *layout, obj.requires_grad, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments
        if isinstance(obj, _NAMED):
            self.named.add((obj.__module__, obj.__name__))
        return NotImplemented


def _records(model: Any, pickler: _Pickler, pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Yield names and contents of all records except the manifest."""
    for key, storage in pickler.storages.values():
        yield f".data/{key}{STORAGE}", _memory(storage)
    source = Path(sys.modules[_INTERNED].__file__ or "").read_bytes()
    imports = _imports(source)
    needed = {module for module, _ in pickler.named} | {module for module, _ in imports}
    externs = sorted(needed - {_INTERNED})
    yield _PICKLE, pickled
    yield f"{_INTERNED}.py", source
    yield ".data/extern_modules", "".join(f"{name}\n" for name in externs).encode()
    yield ".data/python_version", platform.python_version().encode()
    yield ".data/version", b"6\n"
    yield "byteorder", sys.byteorder.encode()
    yield ".data/modpack/graph.json", _text(_graph(externs, pickler.named, imports)).encode()
    yield ".data/modpack/environment.json", _environment()
    yield ".data/modpack/entry.json", _text({"main": None, "pickles": [_OBJECT]}).encode()
    yield ".data/modpack/tensors.json", _text(_tensors(model, pickler)).encode()


@functools.cache
def _imports(source: bytes) -> list[tuple[str, int]]:
    """Return the imports of a module with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node.lineno))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
    return found


def _graph(externs: Iterable[str], named: Any, imports: Any) -> object:
    """Return the graph of decisions and imports."""
    decision = {"origin": "user", "code": "source", "package": False}
    interned = {**decision, "action": "intern", "rule": f"intern({_INTERNED!r})"}
    extern = {**decision, "action": "extern", "rule": "extern('**')"}
    root = f"<{_PICKLE}>"
    edges = [[root, module, "pickle", None, [name]] for module, name in sorted(named)]
    edges += [[_INTERNED, module, "required", line, []] for module, line in imports]
    modules = {_INTERNED: interned, **dict.fromkeys(externs, extern)}
    empty = {"notes": [], "files": {}, "distributions": [], "uses": []}
    return {"version": 1, "modules": modules, "roots": [root], "edges": edges, **empty}


@functools.cache
def _environment() -> bytes:
    environment = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "platform": sys.platform,
        "torch": torch.__version__,
        "modpack": "",
    }
    empty = ("distributions", "installed", "providers")
    return _text({**environment, **{name: {} for name in empty}}).encode()


def _tensors(model: Any, pickler: _Pickler) -> object:
    """Return the list of named tensors with their storages."""
    listed = [
        {
            "name": name,
            "kind": "parameter" if type(tensor) is torch.nn.Parameter else "buffer",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": tuple(tensor.shape),
            "requires_grad": tensor.requires_grad,
            "storage": pickler.storages[tensor.untyped_storage()._cdata][0],
            "offset": tensor.storage_offset(),
            "stride": tensor.stride(),
        }
        for name, tensor in model.state_dict(keep_vars=True).items()
    ]
    return {"resources": {_PICKLE: listed}, "version": 1}


def _zipped(records: Iterable[tuple[str, Any]]) -> Iterator[Any]:
    """Yield the pieces of a zip with all records and the manifest."""
    listed: list[list[object]] = []
    written: list[Record] = []
    for name, content in records:
        header, data = _add_record(name, content, written)
        hashed = [content, data] if written[-1].kind == DEFLATED else [content]
        digests = [hashlib.sha256(each).hexdigest() for each in hashed]
        listed.append([name, len(content), *digests])
        yield header
        yield data
    fields = {"digest": "sha256", "format": 2, "writer": "modpack by hand", "records": listed}
    manifest = _text(fields).encode()
    yield from _add_record(MANIFEST, manifest, written)
    yield from _add_record(DIGEST, hashlib.sha256(manifest).hexdigest().encode(), written)
    yield central_directory(written, _end(written))


def _add_record(name: str, content: Any, written: list[Record]) -> tuple[bytes, Any]:
    """Append a record, and return its header and data."""
    data, kind = content, STORED
    if name in _DEFLATED:
        data, kind = _deflated(content), DEFLATED
    sizes = len(data), len(content)
    record = Record(f"{ROOT}/{name}".encode(), kind, zlib.crc32(content), *sizes, _end(written))
    written.append(record)
    return local_header(record), data


def _end(written: list[Record]) -> int:
    if not written:
        return 0
    return written[-1].offset + len(local_header(written[-1])) + written[-1].compressed


@functools.lru_cache(maxsize=16)
def _deflated(content: bytes) -> bytes:
    """Compress content, with a cache, because most of it is the same in all packages."""
    deflating = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflating.compress(content) + deflating.flush()


def _replace(file: str, pieces: list[Any]) -> None:
    """Replace a file atomically and durably."""
    target = Path(file)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with temporary.open("xb", buffering=0) as opened:
        if os.writev(opened.fileno(), pieces) != sum(map(len, pieces)):
            raise OSError("short write")
        os.fsync(opened.fileno())
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _memory(storage: Any) -> memoryview:
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
