"""Inputs from .parquet files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modpack.errors import DataError


@pytest.fixture
def save(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def put(**columns):
        pq.write_table(pa.table(columns), "a.parquet")
        return "a.parquet"

    return put


def test_list_column_is_an_input(calls, save):
    file = save(x=pa.array([[1.0, 2, 3], [4, 5, 6]], pa.list_(pa.float32())))
    assert calls.read(calls.layout(), file).batches == [{"x": [[1, 2, 3], [4, 5, 6]]}]


def test_nested_lists_are_dimensions(calls, save):
    layout = calls.layout(calls.spec("x", "int64", ("batch", 2, 2)))
    file = save(x=[[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert calls.read(layout, file).batches == [{"x": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}]


def test_numbers_are_converted_to_the_dtype(calls, save):
    layout = calls.layout(
        calls.spec("x", "float32", ("batch",)), calls.spec("k", "uint8", ("batch",))
    )
    file = save(x=pa.array([1.5, 2.0]), k=pa.array([7, 255]))
    assert calls.read(layout, file).batches == [{"x": [1.5, 2], "k": [7, 255]}]


def test_columns_in_order_belong_to_the_only_input(calls, save):
    file = save(a=[1.0, 4.0], b=[2, 5], c=[3.0, 6.0])
    assert calls.read(calls.layout(), file).batches == [{"x": [[1, 2, 3], [4, 5, 6]]}]


def test_columns_are_elements_by_number(calls, save):
    file = save(**{"x.2": [3.0], "x.1": [2.0], "x.0": [1.0]})
    assert calls.read(calls.layout(), file).batches == [{"x": [[1, 2, 3]]}]


def test_plain_values_come_from_columns(calls, save):
    layout = calls.layout(calls.spec("x", shape=("batch",)), calls.spec("word", "str"))
    file = save(x=[1.0, 2.0, 3.0], word=["a", "a", "b"])
    assert calls.read(layout, file).batches == [
        {"x": [1, 2], "word": "a"},
        {"x": [3], "word": "b"},
    ]


def test_file_is_read_in_batches(calls, save):
    found = calls.read(calls.layout(size=4), save(x=[[float(n), 0, 0] for n in range(10)]))
    assert [len(batch["x"]) for batch in found.batches] == [4, 4, 2]
    assert found.rows[-1] == (10, None)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "input x: expected numbers for float32, got null"),
        ([1.0, 2], "input 'x': expected float32 (batch, 3), got float32 (1, 2)"),
        ([1.0, None, 3], "input x[1]: expected numbers for float32, got null"),
    ],
)
def test_bad_row_is_reported_with_its_number(calls, save, bad, reason):
    found = calls.read(calls.layout(), save(x=[[1.0, 2, 3], bad, [float("nan"), 5, 6]]))
    assert len(found.bad) == 1 and reason in found.bad[0]
    assert found.bad[0].startswith("a.parquet: row 2: input ")
    assert [row for row, _ in found.rows] == [1, 3]


def test_floats_do_not_become_integers(calls, save):
    layout = calls.layout(calls.spec("k", "int64", ("batch",)))
    found = calls.read(layout, save(k=[1.5]))
    assert found.bad == ["a.parquet: row 1: input k: expected integers for int64, got 1.5"]


def test_number_out_of_range_is_reported(calls, save):
    layout = calls.layout(calls.spec("k", "uint8", ("batch",)))
    found = calls.read(layout, save(k=[1, 300]))
    assert found.bad == ["a.parquet: row 2: input k: 300 is out of range for uint8"]


def test_damaged_file_is_one_line(calls, tmp_path, save):
    (tmp_path / save(x=[1.0])).write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"^a\.parquet: the file cannot be read: ") as failure:
        calls.read(calls.layout(), "a.parquet")
    assert "\n" not in str(failure.value)


def test_unsigned_number_that_is_out_of_range_is_a_bad_row(calls, save):
    layout = calls.layout(calls.spec("x", "int8", ("batch",)))
    found = calls.read(layout, save(x=pa.array([1, 200], pa.uint8())))
    assert (found.batches, len(found.bad)) == ([{"x": [1]}], 1)
