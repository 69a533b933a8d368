"""Files of outputs."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from modpack.errors import DataError, TargetError
from modpack.predicting.rows import Outputs
from modpack.running.outputs import open_writer
from modpack.running.summary import OutputSummary

SCORE = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
LABEL = torch.tensor([0, 1, 0])


def write(path, *batches, is_single=False, whole=None):
    """Write the batches, each a dict of row values."""
    kind = "." + path.name.rpartition(".")[2]
    file = open_writer(str(path), kind)
    try:
        for batch in batches:
            file.write(Outputs(batch, whole or {}, len(next(iter(batch.values()), [0]))))
        file.publish(is_single)
    finally:
        file.discard()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def halves(**values):
    return [{n: v[:2] for n, v in values.items()}, {n: v[2:] for n, v in values.items()}]


def read(path):
    suffix = path.suffix
    if suffix == ".npz":
        return {name: array.tolist() for name, array in np.load(path).items()}
    if suffix == ".pt":
        return {name: value.tolist() for name, value in torch.load(path).items()}
    if suffix == ".safetensors":
        return {name: value.tolist() for name, value in safetensors.torch.load_file(path).items()}
    if suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    return json.loads(path.read_text())


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors", ".parquet", ".json"])
def test_batches_are_joined(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(path, *halves(score=SCORE, label=LABEL))
    assert read(path) == {"score": SCORE.tolist(), "label": LABEL.tolist()}


def test_jsonl_has_an_object_for_each_row(tmp_path):
    write(tmp_path / "out.jsonl", *halves(score=SCORE, label=LABEL))
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert lines[2] == '{"score": [5.0, 6.0], "label": 0}'
    assert len(lines) == 3


def test_csv_has_a_column_for_each_element(tmp_path):
    write(tmp_path / "out.csv", *halves(score=SCORE, label=LABEL))
    assert (tmp_path / "out.csv").read_text() == ("score.0,score.1,label\n1,2,0\n3,4,1\n5,6,0\n")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float16])
def test_npy_file_is_written_as_rows_come(tmp_path, dtype):
    write(tmp_path / "out.npy", *halves(score=SCORE.to(dtype)))
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert (found == SCORE.to(dtype).numpy()).all() and found.shape == (3, 2)


def test_npy_file_has_room_for_a_long_shape(tmp_path):
    shape = (1,) * 40
    write(tmp_path / "out.npy", {"x": torch.ones(3, *shape)})
    assert np.load(tmp_path / "out.npy").shape == (3, *shape)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".json"])
def test_outputs_of_single_call_have_no_dimension_of_rows(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(path, {"score": SCORE[None]}, is_single=True)
    found = np.load(path).tolist() if suffix == ".npy" else read(path)["score"]
    assert found == SCORE.tolist()


def test_nested_tensors_become_nested_lists_in_parquet(tmp_path):
    cube = torch.arange(12).reshape(2, 3, 2)
    write(tmp_path / "out.parquet", {"x": cube})
    assert read(tmp_path / "out.parquet") == {"x": cube.tolist()}


@pytest.mark.parametrize("shape", [(2, 0), (2, 3, 0), (2, 0, 3)])
def test_tensors_without_elements_keep_their_rows_in_parquet(tmp_path, shape):
    empty = torch.zeros(shape)
    write(tmp_path / "out.parquet", {"x": empty, "label": LABEL[:2]})
    assert read(tmp_path / "out.parquet") == {"x": empty.tolist(), "label": [0, 1]}


def test_nan_is_null_in_json(tmp_path):
    write(tmp_path / "out.json", {"x": torch.tensor([1.0, float("nan")])})
    assert read(tmp_path / "out.json") == {"x": [1.0, None]}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_half_of_a_surrogate_pair_is_escaped(tmp_path, suffix):
    write(tmp_path / f"out{suffix}", {"word": ["\ud83d\u00e9"]})
    text = (tmp_path / f"out{suffix}").read_text(encoding="utf-8")
    assert "\\ud83d\u00e9" in text
    assert json.loads(text)["word"] in ("\ud83d\u00e9", ["\ud83d\u00e9"])


def test_plain_values_are_lists_of_rows(tmp_path):
    write(tmp_path / "out.json", {"word": ["a"]}, {"word": ["b"]})
    assert read(tmp_path / "out.json") == {"word": ["a", "b"]}


def test_ragged_rows_need_a_format_of_rows(tmp_path):
    ragged = ({"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)})
    write(tmp_path / "out.jsonl", *ragged)
    (tmp_path / "out.jsonl").unlink()
    write(tmp_path / "out.json", *ragged)
    (tmp_path / "out.json").unlink()
    for name in ("out.npy", "out.npz", "out.safetensors"):
        with pytest.raises(DataError, match="dimensions of the output 'x' differ between rows"):
            write(tmp_path / name, *ragged)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("o.npy", {"a": SCORE, "b": LABEL}, "contains one output with rows, not 'a', 'b'"),
        ("o.npy", {"a": SCORE.bfloat16()}, "NumPy has no dtype for the output 'a', which is bfloa"),
        ("o.npz", {"a": ["text"]}, "the output 'a' is str, not a tensor. Write .json."),
        ("o.csv", {"a": SCORE[None]}, "a cell cannot contain the output 'a' of (1, 3, 2)"),
    ],
)
def test_output_that_does_not_fit_the_format_leaves_no_file(tmp_path, name, values, message):
    with pytest.raises(DataError) as failure:
        write(tmp_path / name, values)
    assert message in str(failure.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv", "o.parquet"])
def test_output_without_rows_needs_a_whole_format(tmp_path, name):
    with pytest.raises(DataError, match="the output 'loss' does not have one value per row"):
        write(tmp_path / name, {"a": SCORE}, whole={"loss": torch.tensor(1.0)})


def test_interrupted_write_keeps_the_earlier_file(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("earlier")
    file = open_writer(str(path), ".jsonl")
    file.write(Outputs({"x": LABEL}, {}, 3))
    file.discard()
    assert path.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


def test_missing_folder_is_reported_first(tmp_path):
    with pytest.raises(TargetError, match="does not exist"):
        open_writer(str(tmp_path / "gone" / "out.npy"), ".npy")


def test_summary_shows_shapes_dtypes_and_first_values():
    summary = OutputSummary()
    for batch in halves(score=torch.cat([SCORE, SCORE]), label=torch.cat([LABEL, LABEL])):
        summary.add(Outputs(batch, {}, len(batch["label"])))
    assert summary.text(is_single=False) == (
        "score: float32 (6, 2)\n  [1, 2]\n  [3, 4]\n  [5, 6]\n  ...\n"
        "label: int64 (6,)\n  0\n  1\n  0\n  ...\n"
    )


def test_summary_rejects_whole_output_of_several_batches():
    summary = OutputSummary()
    outputs = Outputs({}, {"loss": torch.tensor(1.0)}, 2)
    summary.add(outputs)
    assert summary.text(is_single=False) == "loss: float32 ()\n  1\n"
    with pytest.raises(DataError, match="'loss': the output does not have one value per row"):
        summary.add(outputs)
