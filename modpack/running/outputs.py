"""Outputs in a file, in the format of its suffix."""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from modpack.core.text import dtype_name
from modpack.errors import DataError
from modpack.predicting.decoding import encode_value
from modpack.predicting.rows import Outputs
from modpack.running.inputs import FORMATS, code_of, require_library
from modpack.writing.target import Sink, open_sink

_HEADER_BYTES: Final = 128
"""Size of the header of a .npy file without its shape, aligned to 64 bytes as numpy's are."""


class Writer(ABC):
    """Writes outputs in one format.

    Args:
        path: The file.
        sink: Receives the contents.
    """

    def __init__(self, path: str, sink: Sink) -> None:
        self._path, self._sink = path, sink

    @abstractmethod
    def write(self, outputs: Outputs) -> None:
        """Add the outputs of the next rows."""

    def finish(self, is_single: bool) -> None:  # noqa: B027  # nothing remains of rows
        """Write what remains.

        Args:
            is_single: Whether the outputs are those of one call without a dimension of rows.
        """

    def publish(self, is_single: bool) -> None:
        """Complete the file and replace the target.

        Args:
            is_single: As for :meth:`finish`.

        Raises:
            TargetError: If the file cannot be written. An existing file is then unchanged.
        """
        self._sink.begin()
        self.finish(is_single)
        self._sink.publish()

    def discard(self) -> None:
        """Discard what was written, unless the file is complete."""
        self._sink.discard()


def open_writer(path: str, kind: str) -> Writer:
    """Return the writer of a format. Its file appears when it is complete.

    Args:
        path: The file.
        kind: Its format.

    Raises:
        TargetError: If the file cannot be written.
        ModpackError: If a library is missing.
    """
    sink = open_sink(path)
    writer: Writer = code_of(FORMATS[kind].writer)(path, sink)
    return writer


class _SinkStream(io.RawIOBase):
    """A sink as a binary file that libraries write to."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._size = sink, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size


class NpyWriter(Writer):
    """Rows of one output, as they come; the header is written last."""

    def __init__(self, path: str, sink: Sink) -> None:
        super().__init__(path, sink)
        require_library("numpy", ".npy files")
        self._dtype, self._shape, self._rows = "", (0,), 0
        self._header_bytes = 0

    def write(self, outputs: Outputs) -> None:
        name, tensor = _only_tensor(self._path, outputs)
        array = to_numpy(self._path, name, tensor)
        kind, shape = array.dtype.newbyteorder("<").str, tuple(array.shape[1:])
        if not self._rows:
            self._dtype, self._shape = kind, shape
            # The header is written last, because it has the number of rows.
            self._header_bytes = (_HEADER_BYTES + len(str(shape)) + 63) // 64 * 64
            self._sink.write(bytes(self._header_bytes))
        # The format has one dtype and one shape for the whole file.
        elif (kind, shape) != (self._dtype, self._shape):
            raise _differing_shapes(self._path, name)
        self._sink.write(array.astype(kind, copy=False).tobytes())
        self._rows += len(array)

    def finish(self, is_single: bool) -> None:
        if not self._rows:
            raise DataError(self._path, "there are no outputs to write")
        shape = self._shape if is_single else (self._rows, *self._shape)
        # Version 1.0 of the format: two bytes for the length of the header, which ends with a line
        # feed.
        text = repr({"descr": self._dtype, "fortran_order": False, "shape": shape})
        header = f"{text.ljust(self._header_bytes - 11)}\n".encode("latin-1")
        size = len(header).to_bytes(2, "little")
        self._sink.patch(0, b"\x93NUMPY\x01\x00" + size + header)


class _WholeWriter(Writer):
    """All outputs in one document, kept in memory until the end."""

    def __init__(self, path: str, sink: Sink) -> None:
        super().__init__(path, sink)
        self._parts: dict[str, list[torch.Tensor | list[object]]] = {}
        self._whole: dict[str, object] = {}

    def write(self, outputs: Outputs) -> None:
        for name, value in outputs.rows.items():
            self._parts.setdefault(name, []).append(value)
        self._whole.update(outputs.whole)

    def finish(self, is_single: bool) -> None:
        values = {name: self._joined(name, parts) for name, parts in self._parts.items()}
        # A call without a dimension of rows has arrived as one row.
        if is_single:
            values = {name: value[0] for name, value in values.items()}  # type: ignore[index]
        self.write_values({**values, **self._whole})

    def _joined(self, name: str, parts: Sequence[torch.Tensor | list[object]]) -> object:
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(tensors) < len(parts):
            return [each for part in parts for each in part]
        if len({part.shape[1:] for part in tensors}) > 1:
            return self.join_ragged(name, tensors)
        return torch.cat(tensors)

    def join_ragged(self, name: str, parts: Sequence[torch.Tensor]) -> object:
        """Return the values of rows whose other dimensions differ.

        Raises:
            DataError: If the format has no such values.
        """
        raise _differing_shapes(self._path, name)

    @abstractmethod
    def write_values(self, values: Mapping[str, object]) -> None:
        """Write all outputs."""


class JsonWriter(_WholeWriter):
    """A JSON object with all outputs."""

    def join_ragged(self, name: str, parts: Sequence[torch.Tensor]) -> object:
        return [row for part in parts for row in part]

    def write_values(self, values: Mapping[str, object]) -> None:
        document = {name: _encode(value) for name, value in values.items()}
        self._sink.write(_to_json(document))


class PtWriter(_WholeWriter):
    """A dictionary of outputs for ``torch.load``."""

    def join_ragged(self, name: str, parts: Sequence[torch.Tensor]) -> object:
        return [row.clone() for part in parts for row in part]

    def write_values(self, values: Mapping[str, object]) -> None:
        # torch.load reads other types with weights_only=False only, which can execute code.
        plain = (torch.Tensor, bool, int, float, str, bytes, type(None), list)
        for name, value in values.items():
            if not isinstance(value, plain):
                raise _no_tensor(self._path, name, value)
        torch.save(dict(values), _SinkStream(self._sink))  # type: ignore[arg-type]


class NpzWriter(_WholeWriter):
    """An archive of arrays."""

    def write_values(self, values: Mapping[str, object]) -> None:
        numpy = require_library("numpy", ".npz files")
        arrays = {name: to_numpy(self._path, name, value) for name, value in values.items()}
        numpy.savez(_SinkStream(self._sink), **arrays)


class SafetensorsWriter(_WholeWriter):
    """Tensors without code."""

    def write_values(self, values: Mapping[str, object]) -> None:
        library = require_library("safetensors.torch", ".safetensors files")
        # The library rejects tensors that share memory or are not contiguous.
        tensors = {
            name: _require_tensor(self._path, name, value).clone(
                memory_format=torch.contiguous_format
            )
            for name, value in values.items()
        }
        self._sink.write(library.save(tensors))


class JsonlWriter(Writer):
    """A JSON object for each row."""

    def write(self, outputs: Outputs) -> None:
        _refuse_whole(self._path, outputs)
        columns = [_encode(value) for value in outputs.rows.values()]
        for row in zip(*columns, strict=True):
            document = dict(zip(outputs.rows, row, strict=True))
            self._sink.write(_to_json(document))


class CsvWriter(Writer):
    """A line for each row. Elements of a vector have columns of their own."""

    def __init__(self, path: str, sink: Sink) -> None:
        super().__init__(path, sink)
        self._header: list[str] = []

    def write(self, outputs: Outputs) -> None:
        _refuse_whole(self._path, outputs)
        header: list[str] = []
        columns: list[Sequence[object]] = []
        for name, value in outputs.rows.items():
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                header += [f"{name}.{number}" for number in range(value.shape[1])]
                columns += [_cells(column) for column in value.unbind(1)]
            elif isinstance(value, torch.Tensor) and value.dim() > 2:
                raise DataError(
                    self._path,
                    f"a cell cannot contain the output {name!r} of {tuple(value.shape)}",
                    hint="Write .jsonl, .parquet, or .npy.",
                )
            else:
                header.append(name)
                columns.append(_cells(value))
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        if not self._header:
            self._header = header
            lines.writerow(header)
        # The file has the columns of its first batch.
        if header != self._header:
            raise DataError(
                self._path, "the outputs of different rows have different numbers of values"
            )
        lines.writerows(zip(*columns, strict=True))
        self._sink.write(text.getvalue().encode())


class ParquetWriter(Writer):
    """A row group for each batch. Dimensions of a tensor become nested lists."""

    def __init__(self, path: str, sink: Sink) -> None:
        super().__init__(path, sink)
        self._arrow = require_library("pyarrow", ".parquet files")
        self._library = require_library("pyarrow.parquet", ".parquet files")
        self._stream = _SinkStream(sink)
        self._opened: Any = None

    def write(self, outputs: Outputs) -> None:
        _refuse_whole(self._path, outputs)
        try:
            columns = {name: self._column(name, value) for name, value in outputs.rows.items()}
            table = self._arrow.table(columns)
            if self._opened is None:
                self._opened = self._library.ParquetWriter(self._stream, table.schema)
            # The first batch decides the types of the file.
            self._opened.write_table(table.cast(self._opened.schema))
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError, ValueError) as failure:
            reason = " ".join(str(failure).split())
            raise DataError(
                self._path, f"the file cannot contain the outputs: {reason:.200}"
            ) from failure

    def _column(self, name: str, value: torch.Tensor | list[object]) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._arrow.array(value)
        column = self._arrow.array(to_numpy(self._path, name, value).reshape(-1))
        # From the innermost dimension: each step makes lists of equal length from consecutive
        # elements.
        for axis in range(value.dim() - 1, 0, -1):
            size, count = value.shape[axis], math.prod(value.shape[:axis])
            offsets = [index * size for index in range(count + 1)]
            column = self._arrow.ListArray.from_arrays(
                self._arrow.array(offsets, self._arrow.int32()), column
            )
        return column

    def finish(self, is_single: bool) -> None:
        if self._opened is None:
            raise DataError(self._path, "there are no outputs to write")
        self._opened.close()


def _to_json(document: object) -> bytes:
    """Return a line of JSON. A surrogate without its pair becomes its JSON escape."""
    text = json.dumps(document, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _encode(value: object) -> object:
    return [_encode(each) for each in value] if isinstance(value, list) else encode_value(value)


def _cells(value: torch.Tensor | list[object]) -> Sequence[object]:
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return [f"{each:.9g}" for each in value.tolist()]  # the digits that float32 has
    return list(value.tolist())


def _refuse_whole(path: str, outputs: Outputs) -> None:
    for name in outputs.whole:
        raise DataError(
            path, f"the output {name!r} does not have one value per row", hint="Write .json or .pt."
        )


def _only_tensor(path: str, outputs: Outputs) -> tuple[str, torch.Tensor]:
    values: dict[str, object] = {**outputs.rows, **outputs.whole}
    if len(values) != 1 or outputs.whole:
        names = ", ".join(map(repr, values))
        raise DataError(
            path, f"a .npy file contains one output with rows, not {names}", hint="Write .npz."
        )
    ((name, value),) = values.items()
    return name, _require_tensor(path, name, value)


def _require_tensor(path: str, name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise _no_tensor(path, name, value)
    return value


def _no_tensor(path: str, name: str, value: object) -> DataError:
    kind = type(value[0] if isinstance(value, list) and value else value).__name__
    return DataError(path, f"the output {name!r} is {kind}, not a tensor", hint="Write .json.")


def to_numpy(path: str, name: str, value: object, hint: str = "Write .pt or .safetensors.") -> Any:
    """Return a tensor as a NumPy array.

    Args:
        path: The file, for messages.
        name: The output.
        value: Its value.
        hint: The fix if NumPy lacks the dtype.

    Raises:
        DataError: If it is not a tensor, or NumPy has no such dtype.
    """
    tensor = _require_tensor(path, name, value).resolve_conj().resolve_neg()
    try:
        return tensor.numpy(force=True)
    except TypeError as failure:
        raise DataError(
            path,
            f"NumPy has no dtype for the output {name!r}, which is {dtype_name(tensor.dtype)}",
            hint=hint,
        ) from failure


def _differing_shapes(path: str, name: str) -> DataError:
    return DataError(
        path,
        f"the dimensions of the output {name!r} differ between rows",
        hint="Write .jsonl or .pt.",
    )
