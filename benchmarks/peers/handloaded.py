"""What cannot be avoided by who keeps the promises of a package: one is loaded by hand.

Before it gives out a model, it has seen that the zip has one reading, that each record but the
tensors is what the manifest says, that the environment is the recorded one, and that tensors lie
where the directory says. The model's code is the package's, compiled once and kept in the cache
beside a file with its source; it has modules of its own, and imports those of the package.

It knows the packages of the benchmark and no others: no folders of code, hooks, devices and
process-wide names, and it does not say what it refuses.
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
    directory_place,
    local_header,
    records_in,
    require,
)

_TAIL = 8 << 10
"""Bytes at the end of a file that hold all of a small package but its tensors."""
_ROOT = b"archive/"


def load_by_hand(file: str) -> Any:
    """The model in a package that modpack has written; all that is promised is looked at."""
    return _loaded(file, _compared)


def load_known(file: str) -> Any:
    """The same, but what was compared once is known by a digest of the end of the file."""
    return _loaded(file, _known)


def _loaded(file: str, look: Callable[[_File], _Contents]) -> Any:
    gc.disable()
    with Path(file).open("rb", buffering=0) as opened:
        read = _File(opened.fileno())
        return _Unpickler(_Package(file, read, look(read))).load()


class _Contents(NamedTuple):
    """What is in a package.

    Attributes:
        records: all, by their names.
        pickled: the model.
        code: of its modules, by their names.
        externs: the modules that it takes from here.
        made_with: versions of Python and torch, and the system.
        digest: of all of it.
    """

    records: dict[str, Record]
    pickled: bytes
    code: dict[str, CodeType]
    externs: list[str]
    made_with: tuple[str, str, str]
    digest: str


class _File:
    """An open file, of which the end is read in one go: nearly all but the tensors lies there."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.tail_at = max(self.size - _TAIL, 0)
        self.tail = os.pread(descriptor, _TAIL, self.tail_at)

    def between(self, first: int, last: int) -> bytes:
        if first < self.tail_at:
            return os.pread(self.descriptor, last - first, first)
        return self.tail[first - self.tail_at : last - self.tail_at]


def _compared(file: _File) -> _Contents:
    """The contents, compared with the manifest."""
    start = directory_place(file.between(file.size - END_BYTES, file.size))
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


def _known(file: _File) -> _Contents:
    """The contents, as they were found in a file of the same size and end."""
    kept_in = _kept_in(b"%d %b" % (file.size, file.tail), "tail")
    kept = _kept(kept_in)
    if kept is not None:
        records, *others = kept
        return _Contents({n: Record._make(each) for n, each in records.items()}, *others)
    found = _compared(file)
    records = found.records
    if all(n.endswith(STORAGE) or each.offset >= file.tail_at for n, each in records.items()):
        _keep(kept_in, ({n: tuple(each) for n, each in records.items()}, *found[1:]))
    return found


class _Package:
    """A package that is in use."""

    def __init__(self, path: str, file: _File, contents: _Contents) -> None:
        self.path, self.file = path, file
        self.contents = contents
        self._builtins = {**vars(builtins), "__import__": self._import}

    def place(self, key: str) -> tuple[int, int]:
        """From where to where a storage lies in the file."""
        record = self.contents.records[f".data/{key}{STORAGE}"]
        header = local_header(record)
        require(os.pread(self.file.descriptor, len(header), record.offset) == header)
        first = record.offset + len(header)
        return first, first + record.size

    def module(self, name: str) -> ModuleType:
        """A module, of the package or from outside."""
        code = self.contents.code.get(name)
        if code is None:
            return sys.modules.get(name) or importlib.import_module(name)
        own_name = f"by_hand_{self.contents.digest[:12]}.{name}"
        made = sys.modules.get(own_name)
        if made is None:
            made = sys.modules[own_name] = ModuleType(own_name)
            vars(made).update(__builtins__=self._builtins, __file__=code.co_filename)
            exec(code, vars(made))
        return made

    def _import(self, name: str, *where: Any) -> Any:
        return self.module(name) if name in self.contents.code else __import__(name, *where)


class _Unpickler(pickle.Unpickler):
    """Makes objects of the classes in a package, and tensors over the mapped file."""

    def __init__(self, package: _Package) -> None:
        super().__init__(io.BytesIO(package.contents.pickled))
        import torch

        _compare_environment(package.contents)
        self._package = package
        self._mapped = torch.UntypedStorage.from_file(package.path, False, package.file.size)
        self._storages: dict[str, tuple[Any, Any]] = {}
        empty, subclass = torch.empty, torch.Tensor._make_subclass
        self._dtype_of = torch.storage._get_dtype_from_pickle_storage_type

        def tensor(place: Any, offset: int, shape: Any, strides: Any, needs: bool, _: Any) -> Any:
            made = empty(0, dtype=place[1]).set_(place[0], offset, shape, strides)
            if needs:
                made.requires_grad = True
            return made

        def parameter(data: Any, needs: bool, _: Any) -> Any:
            return subclass(torch.nn.Parameter, data, needs)

        self._rebuilding = {"_rebuild_tensor_v2": tensor, "_rebuild_parameter": parameter}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils":
            return self._rebuilding[name]  # torch's own ask each tensor for more
        return getattr(self._package.module(module), name)

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, size = pid
        found = self._storages.get(key)
        if found is None:
            first, last = self._package.place(key)
            dtype = self._dtype_of(kind.__name__)
            require(size * dtype.itemsize <= last - first)
            found = self._storages[key] = self._mapped[first:last], dtype
        return found


def _compare_environment(contents: _Contents) -> None:
    """Warn where a package is from elsewhere, or needs what is not here."""
    import torch

    missing = [name for name in contents.externs if not _is_here(name)]
    here = sys.version.partition(" ")[0], torch.__version__, sys.platform
    if missing or contents.made_with != here:
        warnings.warn(f"made with {contents.made_with}; missing: {missing}", stacklevel=2)


def _is_here(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _code_of(source: bytes) -> CodeType:
    """What a source compiles to."""
    kept_in = _kept_in(source, "code")
    code = _kept(kept_in)
    if code is None:
        file = Path(f"{kept_in}.py")  # where tracebacks and inspect look
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
        code = compile(source, file, "exec", dont_inherit=True)
        _keep(kept_in, code)
    return code


def _kept_in(content: bytes, kind: str) -> str:
    """The file in the cache for what this Python has made of some content."""
    name = f"{hashlib.sha256(content).hexdigest()}.{sys.implementation.cache_tag}-{kind}"
    return f"{os.environ['XDG_CACHE_HOME']}/{name}"


def _kept(file: str) -> Any:
    """What was kept there; None if there is nothing, or something else by now."""
    try:
        with Path(file).open("rb", buffering=0) as opened:
            kept = opened.read()
    except FileNotFoundError:
        return None
    return marshal.loads(kept[32:]) if hashlib.sha256(kept[32:]).digest() == kept[:32] else None


def _keep(file: str, value: object) -> None:
    kept = marshal.dumps(value)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_bytes(hashlib.sha256(kept).digest() + kept)
