"""Inputs as the user names them."""

from __future__ import annotations

import pytest

from modpack.errors import DataError, ModpackError
from modpack.running.inputs import (
    format_of,
    libraries_of,
    require_library,
    require_other_output,
    resolve_inputs,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("a.npy", "b.npy", "c.csv", "p/2.png", "p/1.JPG", "p/notes.txt", "empty/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_resolve_inputs_keeps_order_of_files(folder):
    found = resolve_inputs(["b.npy", "a.npy"])
    assert [(each.path, each.format, each.name) for each in found] == [
        ("b.npy", ".npy", None),
        ("a.npy", ".npy", None),
    ]


def test_resolve_inputs_lists_images_of_folder_in_order(folder):
    assert [each.path for each in resolve_inputs(["p"])] == ["p/1.JPG", "p/2.png"]


def test_resolve_inputs_expands_pattern(folder):
    assert [each.path for each in resolve_inputs(["*.npy"])] == ["a.npy", "b.npy"]


def test_resolve_inputs_splits_name_from_file(folder):
    found = resolve_inputs(["x=a.npy", "state.0=c.csv", "image=p"])
    assert [(each.name, each.path) for each in found] == [
        ("x", "a.npy"),
        ("state.0", "c.csv"),
        ("image", "p/1.JPG"),
        ("image", "p/2.png"),
    ]


def test_resolve_inputs_prefers_file_with_equals_sign(folder):
    (folder / "x=a.npy").write_bytes(b"")
    assert resolve_inputs(["x=a.npy"])[0].name is None


def test_resolve_inputs_reads_json_from_stdin():
    (found,) = resolve_inputs(["-"])
    assert (found.format, found.label) == (".json", "<stdin>")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["gone.npy"], "gone.npy: the file does not exist"),
        (["*.pt"], "*.pt: no file matches this pattern"),
        (["empty"], "empty: the folder contains no images"),
        (["p/notes.txt"], "p/notes.txt: the suffix '.txt' is not a known format of inputs"),
        (["a.npy", "c.csv"], "c.csv: files of different formats cannot be joined: a.npy is .npy"),
        (["x=a.npy", "b.npy"], "b.npy: inputs with and without a name cannot be combined"),
        (["x=a.npy", "x=b.npy"], "b.npy: the input 'x' already comes from a.npy"),
        (["-", "-"], "<stdin>: stdin can be read only once"),
    ],
)
def test_resolve_inputs_rejects_bad_arguments(folder, texts, message):
    with pytest.raises(DataError) as failure:
        resolve_inputs(texts)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


def test_format_of_accepts_pth_and_capital_letters():
    assert format_of("weights.PTH", "output") == ".pt"
    with pytest.raises(DataError, match=r"out: a name without a suffix is not a known format"):
        format_of("out", "output")
    with pytest.raises(DataError, match=r"'.png' is not a known format of outputs"):
        format_of("out.png", "output")


def test_require_other_output_rejects_input_and_package(folder):
    files = resolve_inputs(["a.npy"])
    require_other_output(files, "b.npy", "new.npy")
    with pytest.raises(DataError, match="the output is one of the inputs"):
        require_other_output(files, "b.npy", "../" + folder.name + "/a.npy")
    with pytest.raises(DataError, match="the output is the package"):
        require_other_output(files, "b.npy", "b.npy")


def test_require_library_names_extra_if_missing():
    with pytest.raises(ModpackError) as failure:
        require_library("no_such_library.io", ".zzz files")
    assert str(failure.value) == (
        ".zzz files require no_such_library, which is not installed. "
        "Run: pip install 'modpack[run]'"
    )


def test_libraries_of_formats():
    assert libraries_of([".csv", ".json", ".pt"]) == ()
    assert libraries_of([".npy", ".parquet", "image"]) == ("numpy", "pillow", "pyarrow")
