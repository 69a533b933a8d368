"""Inputs from batches in memory: mappings of NumPy arrays, pandas, and Arrow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from modpack.errors import DataError
from modpack.predicting.rows import BadRow, merge
from modpack.running.tables import BatchSource

FORMATS: dict[str, Callable[[dict[str, object]], object]] = {
    "numpy": lambda columns: {name: np.array(cells) for name, cells in columns.items()},
    "pandas": pd.DataFrame,
    "pyarrow": pa.table,
}


def read(layout, batch):
    layout = layout._replace(size=None)
    return [
        f"row {item.place.row}: {item.reason}"
        if isinstance(item, BadRow)
        else {n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in item.values.items()}
        for item in merge(BatchSource("batch", layout, batch).chunks(), layout)
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_batch_of_any_format_is_mapped_as_a_table(calls, kind):
    make = FORMATS[kind]
    layout = calls.layout()
    assert read(layout, make({"x.1": [2, 5], "x.0": [1, 4], "x.2": [3.5, 6]})) == [
        {"x": [[1, 2, 3.5], [4, 5, 6]]}
    ]
    assert read(layout, make({"a": [1.0], "b": [2.0], "c": [3.0]})) == [{"x": [[1, 2, 3]]}]
    layout = calls.layout(calls.spec("x", shape=("batch",)), calls.spec("word", "str"))
    words = make({"x": [1.0, 2.0, 3.0], "word": ["a", "a", "b"]})
    assert read(layout, words) == [{"x": [1, 2], "word": "a"}, {"x": [3], "word": "b"}]


@pytest.mark.parametrize("kind", FORMATS)
def test_missing_and_wrong_cells_are_bad_rows(calls, kind):
    layout = calls.layout(calls.spec("x", shape=("batch",)), calls.spec("word", "str"))
    cells = np.array(["a", None, "b"], dtype=object)
    found = read(layout, FORMATS[kind]({"x": [1.0, 2.0, 3.0], "word": cells}))
    assert found[0] == "row 2: input word: expected text, got null"
    layout = calls.layout(calls.spec("x", "int64", ("batch",)))
    found = read(layout, FORMATS[kind]({"x": [1.5, 2.0]}))
    assert found[0].startswith("row 1: input x: expected integers for int64, got 1.5")


def test_nan_of_pandas_is_a_number(calls):
    layout = calls.layout(calls.spec("x", shape=("batch",)))
    (batch,) = read(layout, pd.DataFrame({"x": [1.0, float("nan")]}))
    assert batch["x"][0] == 1 and batch["x"][1] != batch["x"][1]


def test_arrays_with_dimensions_are_tensors_that_can_be_written(calls):
    layout = calls.layout(calls.spec("x", "uint8", ("batch", 2, 2)))
    array = np.arange(8, dtype="uint8").reshape(2, 2, 2)
    array.flags.writeable = False
    source = BatchSource("batch", layout, {"x": array})
    (chunk,) = source.chunks()
    chunk.values["x"].add_(1)
    assert chunk.values["x"].tolist() == (array + 1).tolist()
    assert array[0, 0, 0] == 0


def test_all_rows_of_a_batch_are_one_chunk(calls):
    (chunk,) = BatchSource("batch", calls.layout(), {"x": np.ones((3000, 3), "f4")}).chunks()
    assert len(chunk.places) == 3000


def test_kept_columns_follow_their_rows(calls):
    layout = calls.layout()._replace(keep=("id",), columns={"x": ("a", "b", "c")})
    columns = {"id": [7, 8], "a": [1.0, 2], "b": [1.0, 2], "c": [1.0, 2]}
    (chunk,) = BatchSource("batch", layout, pa.table(columns)).chunks()
    assert [place.kept for place in chunk.places] == [(7,), (8,)]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"y": np.ones((2, 2))}, "does not fit 1 columns"),
        ({"x": np.ones((2, 3)), "y": np.ones(3)}, "different numbers of rows: 2 in 'x', 3 in 'y'"),
        ({"x": np.array([object(), object()])}, "column 'x' cannot be read"),
        (pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), "the column 'x' occurs twice"),
    ],
)
def test_unusable_batches_are_explained(calls, batch, reason):
    with pytest.raises(DataError, match=rf"^batch: .*{reason}"):
        BatchSource("batch", calls.layout(), batch)


def test_batch_without_call_signature_is_refused(calls):
    with pytest.raises(DataError, match="no call signature"):
        BatchSource("batch", calls.layout(calls.spec("x", "any")), {"x": np.ones(2)})
