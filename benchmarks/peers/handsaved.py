"""What cannot be avoided by who keeps the promises of a package: one is saved by hand.

The model's code is found and taken along; what it imports is written down, with tensors, decisions
and the environment. Each record has its crc32 and its sha256, and the manifest that lists these has
a digest of its own. At each moment the target is what it was, or the whole package; when this
returns, the disk has it. modpack reads what is written.

It knows the models of the benchmark and no others: it looks neither for hooks nor for secrets,
metadata of distributions and mistakes.
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
    """A package of a model, with all that modpack would load it from."""
    gc.disable()
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(model)
    _replace(file, list(_zipped(_records(model, pickler, stream.getvalue()))))


class _Place:
    """Stands for a storage."""

    __slots__ = ("dtype", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage, self.dtype = tensor.untyped_storage(), tensor.dtype


class _Pickler(pickle.Pickler):
    """The C pickler; it leaves storages out, and notes in which modules classes are."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, 3)
        self.storages: dict[int, tuple[str, Any]] = {}
        self.named: set[tuple[str, str]] = set()
        self._kinds = torch.storage._dtype_to_storage_type_map()
        self.persistent_id = lambda obj: self._place(obj) if type(obj) is _Place else None

    def _place(self, place: _Place) -> Any:
        storage = place.storage
        key, _ = self.storages.setdefault(storage._cdata, (str(len(self.storages)), storage))
        kind = getattr(torch, self._kinds[place.dtype])
        return "storage", kind, key, "cpu", storage.nbytes() // place.dtype.itemsize

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.nn.Parameter:
            arguments = (obj.data, obj.requires_grad, OrderedDict())
            return torch._utils._rebuild_parameter, arguments
        if type(obj) is torch.Tensor:
            where = obj.storage_offset(), tuple(obj.shape), obj.stride()
            arguments = (_Place(obj), *where, obj.requires_grad, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments
        if isinstance(obj, _NAMED):
            self.named.add((obj.__module__, obj.__name__))
        return NotImplemented


def _records(model: Any, pickler: _Pickler, pickled: bytes) -> Iterator[tuple[str, Any]]:
    """The records and what they hold, but for the manifest."""
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
    """What a module imports, and in which line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found.append((node.module or "", node.lineno))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
    return found


def _graph(externs: Iterable[str], named: Any, imports: Any) -> object:
    """What was decided, and why."""
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
    here = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "platform": sys.platform,
        "torch": torch.__version__,
        "modpack": "",
    }
    nothing = ("distributions", "externs", "installed", "providers")
    return _text({**here, **{name: {} for name in nothing}}).encode()


def _tensors(model: Any, pickler: _Pickler) -> object:
    """What tensors there are, and where."""
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
    """The pieces of a zip of the records, and of their manifest."""
    listed: list[list[object]] = []
    written: list[Record] = []
    for name, content in records:
        laid = _laid(name, content, written)
        digests = [content, laid[1]] if written[-1].kind == DEFLATED else [content]
        shown = [hashlib.sha256(each).hexdigest() for each in digests]
        listed.append([name, len(content), *shown])
        yield from laid
    about = {"digest": "sha256", "format": 2, "writer": "modpack by hand", "records": listed}
    manifest = _text(about).encode()
    yield from _laid(MANIFEST, manifest, written)
    yield from _laid(DIGEST, hashlib.sha256(manifest).hexdigest().encode(), written)
    yield central_directory(written, _end(written))


def _laid(name: str, content: Any, written: list[Record]) -> tuple[bytes, Any]:
    """A record's header and data, behind those that were written."""
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
    """Most of what is deflated is the same in one package after the other."""
    deflating = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflating.compress(content) + deflating.flush()


def _replace(file: str, pieces: list[Any]) -> None:
    """Put a file in the place of another, all at once, and see that the disk has it."""
    target = Path(file)
    making = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with making.open("xb", buffering=0) as opened:
        if os.writev(opened.fileno(), pieces) != sum(map(len, pieces)):
            raise OSError("the disk does not take all")
        os.fsync(opened.fileno())
    making.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _memory(storage: Any) -> memoryview:
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
