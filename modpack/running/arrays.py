"""Inputs from files of arrays: .npy, .npz, .pt, and .safetensors; and whole arguments in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from modpack.errors import DataError, InputMismatchError, listed
from modpack.predicting.decoding import (
    decode_value,
    flatten_named,
    only_input,
    parse_document,
)
from modpack.predicting.row_sources import ArraySource
from modpack.predicting.rows import Layout
from modpack.predicting.values import describe, join_problems
from modpack.running.inputs import reading, require_library

_ONE_ARRAY: Final = "save one array with the name of each input, or pass NAME=FILE for each"


def open_npy(file: str, layout: Layout) -> ArraySource:
    """Open a .npy file, which stays on disk until its rows are read."""
    numpy = require_library("numpy", ".npy files")
    _require_magic(file, b"\x93NUMPY")
    with reading(file):
        # Copy-on-write: a model may change its inputs, and must not change the file.
        array = numpy.load(file, mmap_mode="c", allow_pickle=False)
    return _named(file, layout, {"": _numpy_tensor(file, array)})


def _require_magic(file: str, magic: bytes) -> None:
    """Check the first bytes of a file, which NumPy would otherwise take for a pickle."""
    with reading(file), Path(file).open("rb") as stream:
        found = stream.read(len(magic))
    if found != magic:
        kind = "a NumPy array" if magic == b"\x93NUMPY" else "an archive of NumPy arrays"
        raise DataError(file, f"the file is not {kind}")


def open_npz(file: str, layout: Layout) -> ArraySource:
    """Open an .npz file, whose arrays are read completely."""
    numpy = require_library("numpy", ".npz files")
    _require_magic(file, b"PK")
    # NumPy leaves a file that it has opened itself to the garbage collector if reading fails.
    with (
        reading(file),
        Path(file).open("rb") as stream,
        numpy.load(stream, allow_pickle=False) as archive,
    ):
        values: dict[str, object] = {name: archive[name] for name in archive.files}
    return _named(file, layout, {n: _numpy_tensor(file, a) for n, a in values.items()})


def open_pt(file: str, layout: Layout) -> ArraySource:
    """Open a file of ``torch.save``: a tensor, or a dict. Only tensors and plain values load."""
    with reading(file):
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as failure:
            if "Weights only load failed" not in str(failure):
                raise
            # torch's message continues with advice on how to run the code.
            reason = (
                "the file contains objects other than tensors and plain values, which can run code"
            )
            raise DataError(file, reason) from failure
    values = flatten_named(layout.signature, loaded) if isinstance(loaded, dict) else {"": loaded}
    return _named(file, layout, values)


def open_safetensors(file: str, layout: Layout) -> ArraySource:
    """Open a .safetensors file, which stays on disk until its rows are read."""
    library = require_library("safetensors", ".safetensors files")
    with reading(file):
        opened = library.safe_open(file, framework="pt")
        # The library maps the file. Tensors read their part of it when they are used.
        values = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return _named(file, layout, values)


def _numpy_tensor(file: str, array: Any) -> object:
    """Return an array as a tensor that shares its memory; a text as it is."""
    if array.dtype.kind in "SU" and not array.shape:
        return str(array)
    try:
        # Only an array with the other byte order is copied.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError as failure:
        raise DataError(file, f"torch has no dtype for NumPy's {array.dtype}") from failure


def read_plain(file: str, content: bytes, layout: Layout, name: str) -> object:
    """Return a plain value from the JSON document that contains it."""
    try:
        return decode_value(layout.specs[name], parse_document(content))
    except InputMismatchError as failure:
        raise DataError(file, join_problems(failure)) from failure


def _named(file: str, layout: Layout, values: Mapping[str, object]) -> ArraySource:
    """Return a source whose single, unnamed array is the only input."""
    known = {spec.name for spec in layout.signature.inputs}
    if len(values) == 1 and not known.issuperset(values):
        ((name, value),) = values.items()
        single = only_input(layout.signature)
        if single is not None and (not name or len(known) == 1):
            values = {single: value}
        elif not name:
            inputs = listed(map(repr, sorted(known)), 10)
            reason = f"the file contains one value, {describe(value)}; the inputs are {inputs}"
            raise DataError(file, reason, hint=f"To pass several, {_ONE_ARRAY}.")
    return ArraySource(file, layout, values)
