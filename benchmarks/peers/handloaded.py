"""Hand-written loading with the guarantees of a package, as a limit for modpack.

Before it returns a model, it checks that the zip is unambiguous, that all records except tensors
match the manifest, that the environment is the recorded one, and that tensors are at the offsets in
the directory. The package's code is compiled once and cached with a source file. It runs in its own
modules, which import those of the package.

Supports only the packages of the benchmark, without folders of code, hooks, devices, the process
namespace, and error messages.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import importlib.util
import io
import json
import marshal
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from handzip import (
    DIGEST,
    END_BYTES,
    MANIFEST,
    STORAGE,
    Record,
    content_of,
    directory_offset,
    local_header,
    records_in,
    require,
)

_TAIL = 8 << 10
"""Bytes at the end of a file that contain all of a small package except tensors."""
_ROOT = b"archive/"


def load_by_hand(file: str) -> Any:
    """Load the model of a package with all checks."""
    return _load(file, _read_contents)


def load_known(file: str) -> Any:
    """Load the model, with cached results of earlier checks, by a digest of the file's end."""
    return _load(file, _cached_contents)


def _load(file: str, read_contents: Callable[[_File], _Contents]) -> Any:
    gc.disable()
    with Path(file).open("rb", buffering=0) as opened:
        reader = _File(opened.fileno())
        return _Unpickler(_Package(file, reader, read_contents(reader))).load()


class _Contents(NamedTuple):
    """The contents of a package.

    Attributes:
        records: Records by name.
        pickled: Pickle of the model.
        code: Code of the interned modules by name.
        externs: Names of extern modules.
        environment: Versions of Python and torch, and the platform.
        digest: Digest of the package.
    """

    records: dict[str, Record]
    pickled: bytes
    code: dict[str, CodeType]
    externs: list[str]
    environment: tuple[str, str, str]
    digest: str


class _File:
    """An open file. Its end, with nearly everything except tensors, is read at once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.tail_at = max(self.size - _TAIL, 0)
        self.tail = os.pread(descriptor, _TAIL, self.tail_at)

    def between(self, first: int, last: int) -> bytes:
        if first < self.tail_at:
            return os.pread(self.descriptor, last - first, first)
        return self.tail[first - self.tail_at : last - self.tail_at]


def _read_contents(file: _File) -> _Contents:
    """Read the contents, and compare them with the manifest."""
    start = directory_offset(file.between(file.size - END_BYTES, file.size))
    found = records_in(file.between(start, file.size), start)
    require(all(record.name.startswith(_ROOT) for record in found))
    records = {record.name[len(_ROOT) :].decode(): record for record in found}

    def read(name: str, deflated: str = "") -> bytes:
        record = records[name]
        end = record.offset + len(local_header(record)) + record.compressed
        return content_of(record, file.between(record.offset, end), deflated)

    manifest = read(MANIFEST)
    digest = hashlib.sha256(manifest).hexdigest()
    require(read(DIGEST) == digest.encode())
    rows = json.loads(manifest)["records"]
    listed = {name: digests for name, _, *digests in rows}
    sizes = [(name, record.size) for name, record in records.items()]
    require(sizes[:-2] == [(name, size) for name, size, *_ in rows])
    require([name for name, _ in sizes[-2:]] == [MANIFEST, DIGEST])
    require(len(listed) == len(rows) == len(found) - 2)
    content = {n: read(n, *listed[n][1:]) for n in listed if not n.endswith(STORAGE)}
    for name, each in content.items():
        require(hashlib.sha256(each).hexdigest() == listed[name][0])
    environment = json.loads(content[".data/modpack/environment.json"])
    return _Contents(
        records,
        content["model/model.pkl"],
        {name[:-3]: _code_of(each) for name, each in content.items() if name.endswith(".py")},
        content[".data/extern_modules"].decode().split(),
        (environment["python"], environment["torch"], environment["platform"]),
        digest,
    )


def _cached_contents(file: _File) -> _Contents:
    """Return cached contents of a file with the same size and end, or read them."""
    cache_file = _cache_path(b"%d %b" % (file.size, file.tail), "tail")
    cached = _read_cache(cache_file)
    if cached is not None:
        records, *others = cached
        return _Contents({n: Record._make(each) for n, each in records.items()}, *others)
    found = _read_contents(file)
    records = found.records
    if all(n.endswith(STORAGE) or each.offset >= file.tail_at for n, each in records.items()):
        _write_cache(cache_file, ({n: tuple(each) for n, each in records.items()}, *found[1:]))
    return found


class _Package:
    """An open package."""

    def __init__(self, path: str, file: _File, contents: _Contents) -> None:
        self.path, self.file = path, file
        self.contents = contents
        self._builtins = {**vars(builtins), "__import__": self._import}

    def storage_range(self, key: str) -> tuple[int, int]:
        """Return the offsets of a storage's start and end."""
        record = self.contents.records[f".data/{key}{STORAGE}"]
        header = local_header(record)
        require(os.pread(self.file.descriptor, len(header), record.offset) == header)
        first = record.offset + len(header)
        return first, first + record.size

    def module(self, name: str) -> ModuleType:
        """Import an interned or extern module."""
        code = self.contents.code.get(name)
        if code is None:
            return sys.modules.get(name) or importlib.import_module(name)
        private_name = f"by_hand_{self.contents.digest[:12]}.{name}"
        module = sys.modules.get(private_name)
        if module is None:
            module = sys.modules[private_name] = ModuleType(private_name)
            vars(module).update(__builtins__=self._builtins, __file__=code.co_filename)
            exec(code, vars(module))
        return module

    def _import(self, name: str, *arguments: Any) -> Any:
        is_interned = name in self.contents.code
        return self.module(name) if is_interned else __import__(name, *arguments)


class _Unpickler(pickle.Unpickler):
    """Creates objects of packaged classes, and tensors over the mapped file."""

    def __init__(self, package: _Package) -> None:
        super().__init__(io.BytesIO(package.contents.pickled))
        import torch

        _compare_environment(package.contents)
        self._package = package
        self._mapped = torch.UntypedStorage.from_file(package.path, False, package.file.size)
        self._storages: dict[str, tuple[Any, Any]] = {}
        empty, subclass = torch.empty, torch.Tensor._make_subclass
        self._dtype_of = torch.storage._get_dtype_from_pickle_storage_type

        def tensor(storage: Any, offset: int, shape: Any, strides: Any, grad: bool, _: Any) -> Any:
            rebuilt = empty(0, dtype=storage[1]).set_(storage[0], offset, shape, strides)
            if grad:
                rebuilt.requires_grad = True
            return rebuilt

        def parameter(data: Any, grad: bool, _: Any) -> Any:
            return subclass(torch.nn.Parameter, data, grad)

        self._rebuilding = {"_rebuild_tensor_v2": tensor, "_rebuild_parameter": parameter}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils":
            return self._rebuilding[name]  # faster than torch's functions
        return getattr(self._package.module(module), name)

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, size = pid
        found = self._storages.get(key)
        if found is None:
            first, last = self._package.storage_range(key)
            dtype = self._dtype_of(kind.__name__)
            require(size * dtype.itemsize <= last - first)
            found = self._storages[key] = self._mapped[first:last], dtype
        return found


def _compare_environment(contents: _Contents) -> None:
    """Warn about a different environment or missing extern modules."""
    import torch

    missing = [name for name in contents.externs if not _is_importable(name)]
    current = sys.version.partition(" ")[0], torch.__version__, sys.platform
    if missing or contents.environment != current:
        warnings.warn(f"exported with {contents.environment}; missing: {missing}", stacklevel=2)


def _is_importable(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _code_of(source: bytes) -> CodeType:
    """Compile a source, with a cache."""
    cache_file = _cache_path(source, "code")
    code = _read_cache(cache_file)
    if code is None:
        file = Path(f"{cache_file}.py")  # for tracebacks and inspect
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
        code = compile(source, file, "exec", dont_inherit=True)
        _write_cache(cache_file, code)
    return code


def _cache_path(content: bytes, kind: str) -> str:
    """Return the cache file for a result of this Python version, by a digest of the input."""
    name = f"{hashlib.sha256(content).hexdigest()}.{sys.implementation.cache_tag}-{kind}"
    return f"{os.environ['XDG_CACHE_HOME']}/{name}"


def _read_cache(file: str) -> Any:
    """Return the value of a cache file, or None if the file is missing or was changed."""
    try:
        with Path(file).open("rb", buffering=0) as opened:
            data = opened.read()
    except FileNotFoundError:
        return None
    return marshal.loads(data[32:]) if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write_cache(file: str, value: object) -> None:
    data = marshal.dumps(value)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_bytes(hashlib.sha256(data).digest() + data)
