"""Rows that are run in batches."""

from __future__ import annotations

import pytest
import torch

from modpack.errors import DataError, ModpackWarning
from modpack.predicting.rows import BadRow, Chunk, Outputs, Place, run_rows


def chunk(*numbers, first=1):
    places = [Place("a.npy", first + index) for index in range(len(numbers))]
    return Chunk({"x": torch.tensor(numbers, dtype=torch.float32)}, places)


@pytest.fixture
def layout(calls):
    return calls.layout(calls.spec("x", shape=("batch",)))


class Model:
    """Doubles its input, refuses negative numbers, and remembers the sizes of its batches."""

    def __init__(self):
        self.sizes = []

    def __call__(self, values):
        self.sizes.append(len(values["x"]))
        if (values["x"] < 0).any():
            raise ValueError("negative\nnumber")
        return {"output": values["x"] * 2}


def run(model, items, layout, on_error="stop"):
    written: list[Outputs] = []
    skipped = run_rows(model, items, layout, written.append, on_error)
    return [row for each in written for row in each.rows["output"].tolist()], skipped


def test_rows_keep_their_order(layout):
    model = Model()
    rows, skipped = run(model, [chunk(1, 2), chunk(3)], layout)
    assert (rows, skipped, model.sizes) == ([2, 4, 6], [], [2, 1])


def test_failing_batch_stops_at_its_bad_row(layout):
    with pytest.raises(DataError) as failure:
        run(Model(), [chunk(1, 2), chunk(3, -4, 5, first=3)], layout)
    assert str(failure.value) == "a.npy: row 4: the model raised ValueError: negative number"


def test_failing_batch_skips_only_its_bad_rows(layout):
    rows, skipped = run(Model(), [chunk(1, -2, 3), chunk(-4, first=4)], layout, "skip")
    assert rows == [2, 6]
    assert [bad.place.row for bad in skipped] == [2, 4]


def test_batch_that_fails_only_as_a_whole_runs_row_by_row(layout):
    def limited(values):
        if len(values["x"]) > 1:
            raise RuntimeError("out of memory")
        return {"output": values["x"]}

    with pytest.warns(ModpackWarning) as caught:
        assert run(limited, [chunk(1, 2), chunk(3, 4, first=3)], layout) == ([1, 2, 3, 4], [])
    assert [str(each.message) for each in caught] == [
        "a.npy: the batch of 2 rows from row 1 failed: the model raised RuntimeError: out of "
        "memory (and 1 more). Its rows were run one by one, without this exception."
    ]


def test_exception_of_a_batch_is_reported_if_its_rows_raise_others(layout):
    def limited(values):
        if len(values["x"]) > 1:
            raise MemoryError("too large")
        if (values["x"] < 0).any():
            raise ValueError("negative")
        return {"output": values["x"]}

    with pytest.warns(ModpackWarning, match="from row 1 failed: the model raised MemoryError: too"):
        rows, skipped = run(limited, [chunk(1, -2)], layout, "skip")
    assert (rows, len(skipped)) == ([1], 1)


@pytest.mark.filterwarnings("error")
def test_exception_of_a_batch_that_a_row_raises_is_reported_once(layout):
    assert run(Model(), [chunk(1, -2)], layout, "skip")[0] == [2]


def test_dependent_rows_are_skipped_together(calls):
    layout = calls.layout(calls.spec("x", shape=("batch",)), batching="dependent")
    rows, skipped = run(Model(), [chunk(1, -2)], layout, "skip")
    assert (rows, len(skipped)) == ([], 2)


def test_bad_row_of_input_stops_or_is_skipped(layout):
    bad = BadRow(Place("a.csv", 2, 3), "no number")
    with pytest.raises(DataError, match=r"^a\.csv:3: row 2: no number$"):
        run(Model(), [bad], layout)
    assert run(Model(), [bad, chunk(1)], layout, "skip") == ([2], [bad])


def test_output_that_does_not_belong_to_rows_is_whole(layout):
    def model(values):
        return {"output": values["x"], "loss": values["x"].sum(), "word": "a"}

    written: list[Outputs] = []
    run_rows(model, [chunk(1, 2)], layout, written.append, "stop")
    assert list(written[0].rows) == ["output"]
    assert list(written[0].whole) == ["loss", "word"]


@pytest.fixture
def described(calls):
    outputs = [calls.spec("output", shape=("batch",))]
    return calls.layout(calls.spec("x", shape=("batch",)), outputs=outputs)


def test_batch_whose_output_has_other_rows_runs_row_by_row(described):
    with pytest.warns(ModpackWarning) as caught:
        found = run(lambda values: {"output": values["x"][:1]}, [chunk(1, 2)], described)
    assert found == ([1, 2], [])
    assert [str(each.message) for each in caught] == [
        "a.npy: the batch of 2 rows from row 1 failed: the output 'output' is float32 (1,), "
        "although the call has 2 rows. Its rows were run one by one, without this exception."
    ]


def test_row_whose_output_has_other_rows_is_bad(described):
    with pytest.raises(DataError) as failure:
        run(lambda values: {"output": values["x"].repeat(2)}, [chunk(1)], described)
    assert str(failure.value) == (
        "a.npy: row 1: the output 'output' is float32 (2,), although the call has 1 row"
    )
