"""Inputs from .npy, .npz, .pt, and .safetensors files."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from modpack.errors import DataError, ModpackWarning

ROWS = np.arange(15, dtype="float32").reshape(5, 3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(name, **values):
    single = next(iter(values.values()))
    if name.endswith(".npy"):
        np.save(name, single)
    elif name.endswith(".npz"):
        np.savez(name, **values)
    else:
        tensors = {key: torch.as_tensor(value) for key, value in values.items()}
        if name.endswith(".pt"):
            torch.save(tensors, name)
        else:
            safetensors.torch.save_file(tensors, name)
    return name


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
def test_array_is_cut_into_batches(calls, suffix):
    found = calls.read(calls.layout(size=2), save(f"a{suffix}", x=ROWS))
    assert [len(batch["x"]) for batch in found.batches] == [2, 2, 1]
    assert [row for batch in found.batches for row in batch["x"]] == ROWS.tolist()
    assert found.rows[-1] == (5, None)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_arrays_belong_to_inputs_by_name(calls, suffix):
    layout = calls.layout(calls.spec("x"), calls.spec("w", "int64", (2,)), size=4)
    found = calls.read(layout, save(f"a{suffix}", w=np.array([7, 8]), x=ROWS))
    assert [(len(batch["x"]), batch["w"]) for batch in found.batches] == [(4, [7, 8]), (1, [7, 8])]


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_single_array_of_another_name_is_the_only_input(calls, suffix):
    found = calls.read(calls.layout(), save(f"a{suffix}", arr_0=ROWS))
    assert found.batches == [{"x": ROWS.tolist()}]


def test_pt_file_may_be_a_tensor(calls):
    torch.save(torch.from_numpy(ROWS), "a.pt")
    assert calls.read(calls.layout(), "a.pt").batches == [{"x": ROWS.tolist()}]


def test_pt_file_with_other_objects_is_rejected(calls):
    torch.save({"x": torch.nn.Linear(1, 1)}, "a.pt")
    with pytest.raises(DataError) as failure:
        calls.read(calls.layout(), "a.pt")
    assert str(failure.value) == (
        "a.pt: the file contains objects other than tensors and plain values, which can run code"
    )


def test_npy_file_with_objects_is_rejected(calls):
    np.save("a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy: the file cannot be read: "):
        calls.read(calls.layout(), "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_file_of_another_kind_is_one_line(calls, tmp_path, name):
    (tmp_path / name).write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=f"^{name}: the file is not a"):
        calls.read(calls.layout(), name)


def test_large_npy_file_is_mapped(calls, monkeypatch):
    save("a.npy", x=ROWS)
    modes = []
    load = np.load
    monkeypatch.setattr(np, "load", lambda *a, **k: modes.append(k["mmap_mode"]) or load(*a, **k))
    calls.read(calls.layout(), "a.npy")
    assert modes == ["c"]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
@pytest.mark.parametrize(
    ("array", "got"),
    [
        (ROWS.astype("bool"), "bool (5, 3)"),
        (ROWS.astype("complex64"), "complex64 (5, 3)"),
        (ROWS[:, :2].copy(), "float32 (5, 2)"),
        (ROWS[0].copy(), "float32 (3,)"),
    ],
)
def test_wrong_dtype_or_shape_is_one_line(calls, suffix, array, got):
    with pytest.raises(DataError) as failure:
        calls.read(calls.layout(), save(f"a{suffix}", x=array))
    expected = f"a{suffix}: input 'x': expected float32 (batch, 3), got {got}"
    assert str(failure.value).startswith(expected)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float64", "float32"),
        ("float32", "float16"),
        ("float16", "float64"),
        ("int64", "float32"),
        ("uint8", "bfloat16"),
        ("int64", "int8"),
        ("int32", "uint8"),
        ("int64", "complex64"),
    ],
)
def test_array_of_another_dtype_is_converted_with_a_note(calls, suffix, source, target):
    layout = calls.layout(calls.spec("x", target), size=2)
    with pytest.warns(ModpackWarning, match=f": converted 'x' from {source} to {target}$"):
        found = calls.read(layout, save(f"a{suffix}", x=ROWS.astype(source)))
    assert [row for batch in found.batches for row in batch["x"]] == ROWS.tolist()


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (np.array([1.0, 1e39, 2.0]), "float32"),
        (np.array([1, 2**24 + 1, 2]), "float32"),
        (np.array([1, 2**63 - 1, 2]), "float32"),
        (np.array([1, 70000, 2]), "float16"),
        (np.array([1, 2**53 + 1, 2]), "complex128"),
        (np.array([1, 2**63, 2], "uint64"), "float32"),
        (np.array([1, 2**63, 2], "uint64"), "int64"),
        (np.array([1, 200, 2], "uint8"), "int8"),
        (np.array([1, -1, 2]), "uint8"),
        (np.array([1, -1, 2]), "uint64"),
        (np.array([1, 1e39, 2], "complex128"), "complex64"),
    ],
)
@pytest.mark.filterwarnings("ignore::modpack.errors.ModpackWarning")
def test_number_that_would_change_is_a_bad_row(calls, values, target):
    layout = calls.layout(calls.spec("x", target, ("batch",)))
    found = calls.read(layout, save("a.npy", x=values))
    text = f"a.npy: row 2: input 'x': {values[1].item()} is not exact or out of range in {target}"
    assert (found.bad, [row for row, _ in found.rows]) == ([text], [1, 3])
    with pytest.raises(DataError, match="is not exact or out of range"):
        calls.read(calls.layout(calls.spec("x", target, (3,))), "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
@pytest.mark.parametrize("array", [ROWS.astype("float64"), np.full((5, 3), np.nan)])
def test_floating_point_numbers_do_not_become_integers(calls, suffix, array):
    layout = calls.layout(calls.spec("x", "int64"))
    with pytest.raises(DataError, match="expected int64"):
        calls.read(layout, save(f"a{suffix}", x=array))


@pytest.mark.filterwarnings("ignore::modpack.errors.ModpackWarning")
def test_infinities_and_nan_stay(calls):
    values = np.array([np.inf, np.nan, 0.1])
    layout = calls.layout(calls.spec("x", shape=("batch",)))
    ((batch,),) = [calls.read(layout, save("a.npy", x=values)).batches]
    np.testing.assert_array_equal(batch["x"], values.astype("float32"))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
def test_truncated_file_is_one_line(calls, suffix, tmp_path):
    file = tmp_path / save(f"a{suffix}", x=ROWS)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError) as failure:
        calls.read(calls.layout(), f"a{suffix}")
    assert str(failure.value).startswith(f"a{suffix}: the file cannot be read: ")
    assert "\n" not in str(failure.value)


def test_one_array_for_several_inputs_is_rejected(calls):
    layout = calls.layout(calls.spec("x"), calls.spec("y"))
    with pytest.raises(DataError, match=r"contains one value, float32 \(5, 3\); .*NAME=FILE"):
        calls.read(layout, save("a.npy", x=ROWS))


def test_different_numbers_of_rows_are_rejected(calls):
    layout = calls.layout(calls.spec("x"), calls.spec("y"))
    with pytest.raises(DataError, match=r"'y': expected batch = 5"):
        calls.read(layout, save("a.npz", x=ROWS, y=ROWS[:4]))


def test_call_without_batch_dimension_takes_the_whole_array(calls):
    layout = calls.layout(calls.spec("x", shape=(5, 3)))
    assert calls.read(layout, save("a.npy", x=ROWS)).batches == [{"x": ROWS.tolist()}]


def test_call_without_batch_dimension_runs_for_each_entry(calls):
    layout = calls.layout(calls.spec("x", shape=(3,)))
    found = calls.read(layout, save("a.npy", x=ROWS))
    assert [batch["x"] for batch in found.batches] == ROWS.tolist()


def test_unknown_call_takes_the_whole_array_or_batches(calls):
    save("a.npy", x=ROWS)
    spec = calls.spec("x", "any")
    assert len(calls.read(calls.layout(spec), "a.npy").batches) == 1
    found = calls.read(calls.layout(spec, size=2), "a.npy")
    assert [len(batch["x"]) for batch in found.batches] == [2, 2, 1]


def test_named_arrays_form_one_call(calls):
    layout = calls.layout(calls.spec("x"), calls.spec("w", shape=(2,)), size=3)
    save("x.npy", x=ROWS)
    save("w.npy", w=np.ones(2, "float32"))
    found = calls.read(layout, "x=x.npy", "w=w.npy")
    assert [(len(batch["x"]), batch["w"]) for batch in found.batches] == [(3, [1, 1]), (2, [1, 1])]


@pytest.mark.skipif(sys.platform != "linux", reason="lists open files in /proc")
@pytest.mark.parametrize("array", [ROWS, np.array([{"a": 1}])])
def test_npz_file_is_closed_after_reading_and_after_a_failure(calls, array):
    np.savez("a.npz", x=array)
    with contextlib.suppress(DataError):
        calls.read(calls.layout(), "a.npz")
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert os.path.realpath("a.npz") not in opened
