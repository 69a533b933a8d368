"""Packages in Ray: called with batches of a dataset, and shared between the nodes of a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch

from modpack.archive.layout import DETACHED_SIGNATURE
from modpack.archive.manifest import package_digest
from modpack.archive.reader import open_archive
from modpack.core.names import url_of
from modpack.core.text import counted
from modpack.errors import ArchiveError, DataError, ModpackError, ModpackWarning
from modpack.loading.cache import keep_file, link_kept
from modpack.predicting import predictor
from modpack.predicting.decoding import dtype_of
from modpack.predicting.rows import OnError, Outputs, layout_of, merge, run_rows
from modpack.running.inputs import require_library
from modpack.running.outputs import to_numpy
from modpack.running.tables import BatchSource

_BATCH: Final = "batch"
"""The name of a batch in messages."""
_PART_BYTES: Final = 16 << 20


def require_ray() -> ModuleType:
    """Import Ray.

    Raises:
        ModpackError: If it is not installed.
    """
    return require_library("ray", "Ray clusters", "ray")


class _SharedFile(NamedTuple):
    name: str
    size: int
    sha256: str
    parts: list[Any]
    """References to the parts in the object store."""


class SharedPackage:
    """A package file in Ray's object store, which nodes that lack the file fetch once.

    Nodes fetch the parts of the file in different orders, and each node that has a part is a source
    of it for others. Shards and a signature next to the package are included.

    Args:
        path: The package file.

    Raises:
        ArchiveError: If the file is not a package.
        ModpackError: If the package is a folder, or Ray is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(path).absolute()
        if file.is_dir():
            raise ModpackError(f"{path}: a folder cannot be shared", hint="Pass a package file.")
        with open_archive(path) as archive:
            self._digest = package_digest(archive)
            shards = [file.with_name(shard.name) for shard in archive.shards()]
        signature = file.with_name(file.name + DETACHED_SIGNATURE)
        files = [file, *shards, *([signature] if signature.exists() else [])]
        self._path, self._files = file, [_put(each) for each in files]

    def local_path(self) -> str:
        """Return the path of the package on this node, which is fetched if the node lacks it.

        Raises:
            CacheError: If the cache cannot be used.
        """
        if self._is_here():
            return str(self._path)
        package, *others = self._files
        path = _keep(package)
        for each in others:
            is_signature = each.name.endswith(DETACHED_SIGNATURE)
            name = path.name + DETACHED_SIGNATURE if is_signature else each.name
            link_kept(_keep(each), path.with_name(name))
        return str(path)

    def _is_here(self) -> bool:
        places = [(self._path.with_name(each.name), each.size) for each in self._files]
        if not all(file.is_file() and file.stat().st_size == size for file, size in places):
            return False
        with contextlib.suppress(ArchiveError), open_archive(self._path) as archive:
            return package_digest(archive) == self._digest
        return False


def _put(file: Path) -> _SharedFile:
    # Mapped, so that the only copy is the one in the object store.
    content = _mapped(file)
    digest, size = hashlib.sha256(content).hexdigest(), len(content)
    starts = range(0, size, _PART_BYTES)
    parts = [require_ray().put(content[start : start + _PART_BYTES]) for start in starts]
    return _SharedFile(file.name, size, digest, parts)


def _mapped(file: Path) -> Any:
    numpy = require_library("numpy", "Ray clusters", "ray")
    return numpy.asarray(numpy.memmap(file, mode="r"))


def _keep(shared: _SharedFile) -> Path:
    """Return the path of a file in this node's cache."""

    def fill(file: Path) -> None:
        # In one order, all nodes would fetch each part from the node that has the file.
        order = random.sample(range(len(shared.parts)), len(shared.parts))
        with file.open("wb") as stream:
            for index in order:
                stream.seek(index * _PART_BYTES)
                stream.write(require_ray().get(shared.parts[index]))

    def check(file: Path) -> None:
        if hashlib.sha256(_mapped(file)).hexdigest() != shared.sha256:
            raise ArchiveError(shared.name, "the file from Ray's object store is damaged")

    return keep_file(shared.sha256, shared.name, shared.size, fill, check)


class Predictor:
    """A package's object that is called with batches of a Ray dataset, for ``map_batches``.

    ``dataset.map_batches(Predictor, fn_constructor_args=["net.modpack"], concurrency=4)`` loads the
    package in four workers. A batch is a mapping of names to NumPy arrays, a pandas DataFrame, or
    an Arrow table, whose columns belong to inputs by the rules of ``modpack run``. All rows are one
    call, if the call signature has a dimension of rows. If the call fails, each row is a call.

    Args:
        package: A package file that the worker's node has, a URL, or a :class:`SharedPackage`.
        columns: Columns by input. Other inputs find theirs by name.
        keep: Columns that the output contains.
        on_error: Whether a bad row stops the dataset, or is skipped with a warning.
        device: Device of the tensors. None uses the GPU that Ray gave to the worker
            (``num_gpus=1``), and without one keeps the devices on which the tensors were saved.
        options: Other options of :class:`modpack.Predictor`, such as ``policy``.

    Raises:
        ModpackError: If the package cannot be loaded.
    """

    def __init__(
        self,
        package: str | os.PathLike[str] | SharedPackage,
        *,
        columns: Mapping[str, Sequence[str]] | None = None,
        keep: Sequence[str] = (),
        on_error: OnError = "stop",
        device: str | None = None,
        **options: Any,
    ) -> None:
        self._predictor = load_predictor(package, device, options)
        layout = layout_of(self._predictor.signature, None)
        chosen = {name: tuple(listed) for name, listed in (columns or {}).items()}
        self._layout = layout._replace(size=None, columns=chosen, keep=tuple(keep))
        self._on_error: OnError = on_error

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Return the outputs of a batch: a NumPy array for each tensor, and a list for others.

        Raises:
            DataError: If a row is bad, the columns do not fit the call signature, or an output does
                not have one value per row.
        """
        source = BatchSource(_BATCH, self._layout, batch)
        items, written = merge(source.chunks(), self._layout), list[Outputs]()
        predict = self._predictor.predict
        skipped = run_rows(predict, items, self._layout, written.append, self._on_error)
        if skipped:
            first = skipped[0].place.error(skipped[0].reason)
            text = f"skipped {counted(len(skipped), 'row')}, the first one: {first}"
            warnings.warn(text, ModpackWarning, stacklevel=2)
        return _join(written or [self._without_rows()])

    def _without_rows(self) -> Outputs:
        rows: dict[str, torch.Tensor | list[object]] = {name: [] for name in self._layout.keep}
        for spec in self._predictor.signature.outputs:
            sizes = [size if isinstance(size, int) else 0 for size in (spec.shape or ())[1:]]
            is_tensor = spec.type == "tensor"
            dtype = dtype_of(spec.name, spec.dtype) if is_tensor else None
            rows[spec.name] = torch.empty((0, *sizes), dtype=dtype) if is_tensor else []
        return Outputs(rows, {}, 0)


def load_predictor(
    package: str | os.PathLike[str] | SharedPackage, device: str | None, options: Mapping[str, Any]
) -> predictor.Predictor:
    """Load a package in a worker.

    Args:
        package: See :class:`Predictor`.
        device: See :class:`Predictor`.
        options: Other options of :class:`modpack.Predictor`.

    Raises:
        ModpackError: If the package cannot be loaded.
    """
    if isinstance(package, SharedPackage):
        path = package.local_path()
    else:
        path = os.fspath(package)
        if url_of(path) is None and not os.path.exists(path):  # noqa: PTH110 - as given
            raise ModpackError(
                f"{path}: the file does not exist on the node {os.uname().nodename}, where the "
                f"current folder is {Path.cwd()}",
                hint="Pass modpack.integrations.ray.SharedPackage(path), a URL, or an absolute "
                "path that all nodes have.",
            )
    return predictor.Predictor(path, device=device or _assigned_device(), **options)


def _assigned_device() -> str | None:
    """Return the device that Ray gave to this worker, if it is a GPU."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    return "cuda" if ray.get_runtime_context().get_accelerator_ids().get("GPU") else None


def _join(written: Sequence[Outputs]) -> dict[str, Any]:
    """Return the outputs of consecutive rows.

    Raises:
        DataError: If they cannot be joined.
    """
    names = list(written[0].rows)
    for each in written:
        if each.whole or list(each.rows) != names:
            name = next(iter(each.whole), None)
            reason = (
                "the outputs of later rows have other names"
                if name is None
                else f"the output {name!r} does not have one value per row"
            )
            raise DataError(_BATCH, reason, hint="Return tensors with a first dimension of rows.")
    return {name: _join_output(name, [each.rows[name] for each in written]) for name in names}


def _join_output(name: str, parts: Sequence[torch.Tensor | list[object]]) -> Any:
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if len(tensors) < len(parts):
        return [each for part in parts for each in part]
    hint = "Return float32 from the model."
    if len({(part.shape[1:], part.dtype) for part in tensors}) > 1:
        # Ray accepts a list of arrays as a column of tensors of different shapes.
        return [to_numpy(_BATCH, name, row, hint) for part in tensors for row in part]
    return to_numpy(_BATCH, name, torch.cat(tensors), hint)
