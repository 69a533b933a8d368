"""Rows of .json, .jsonl, and .csv files, and several files as one source."""

from __future__ import annotations

import tracemalloc

import pytest

from modpack.core.call_signature import ContainerSpec, ValueSpec
from modpack.errors import DataError, ModpackWarning
from modpack.running.formats import open_source
from modpack.running.inputs import resolve_inputs


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def put(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return put


def test_json_list_has_a_row_for_each_object(calls, write):
    file = write("a.json", '[{"x": [1, 2, 3]}, {"x": [4, 5, 6.5]}]')
    assert calls.read(calls.layout(), file).batches == [{"x": [[1, 2, 3], [4, 5, 6.5]]}]


def test_json_list_of_values_belongs_to_the_only_input(calls, write):
    file = write("a.json", "[[1, 2, 3], [4, 5, 6]]")
    assert calls.read(calls.layout(), file).batches == [{"x": [[1, 2, 3], [4, 5, 6]]}]


def test_json_object_has_the_arguments_of_one_call(calls, write):
    layout = calls.layout(calls.spec("x"), calls.spec("scale", "float"))
    file = write("a.json", '{"x": [[1, 2, 3], [4, 5, 6]], "scale": 2}')
    assert calls.read(layout, file).batches == [{"x": [[1, 2, 3], [4, 5, 6]], "scale": 2.0}]


def test_json_object_may_nest_containers(calls, write):
    specs = [ValueSpec(f"state.{n}", ("state", n), "tensor", "float32", ("batch",)) for n in (0, 1)]
    layout = calls.layout(*specs, containers=(ContainerSpec(("state",), "tuple", (0, 1)),))
    file = write("a.jsonl", '{"state": [1, 2]}\n{"state.0": 3, "state.1": 4}\n')
    assert calls.read(layout, file).batches == [{"state.0": [1, 3], "state.1": [2, 4]}]


def test_jsonl_rows_form_batches_of_the_chosen_size(calls, write):
    lines = "".join(f'{{"x": [{n}, 0, 0]}}\n' for n in range(5))
    found = calls.read(calls.layout(size=2), write("a.jsonl", lines))
    assert [len(batch["x"]) for batch in found.batches] == [2, 2, 1]


def test_batch_ends_where_plain_values_differ(calls, write):
    layout = calls.layout(calls.spec("x", shape=("batch",)), calls.spec("k", "int"))
    text = '{"x": 1, "k": 1}\n{"x": 2, "k": 1}\n{"x": 3, "k": 2}\n'
    assert calls.read(layout, write("a.jsonl", text)).batches == [
        {"x": [1, 2], "k": 1},
        {"x": [3], "k": 2},
    ]


def test_batch_ends_where_lengths_differ(calls, write):
    layout = calls.layout(calls.spec("x", shape=("batch", "length")))
    found = calls.read(layout, write("a.jsonl", "[1]\n[2]\n[3, 4]\n"))
    assert [batch["x"] for batch in found.batches] == [[[1], [2]], [[3, 4]]]


def test_dependent_rows_form_one_batch(calls, write):
    layout = calls.layout(batching="dependent")
    found = calls.read(layout, write("a.jsonl", "[1, 2, 3]\n" * 40))
    assert [len(batch["x"]) for batch in found.batches] == [40]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"x": [1, 2]}', "input 'x': expected float32 (batch, 3), got float32 (1, 2)"),
        ('{"x": [1, "b", 3]}', 'input x[1]: expected numbers for float32, got "b"'),
        ('{"x": [1, [2], 3]}', "input x[1]: expected"),
        ('{"x": [1, NaN, 3]}', "the document is not valid JSON: NaN is not a JSON number"),
        ('{"y": [1, 2, 3]}', "input 'y': unknown name. The inputs are 'x'; input 'x': missing"),
        ('{"x": [1, 2, 3]', "the document is not valid JSON: "),
        ("[" * 100_000, "the document is not valid JSON: the values are nested"),
        ('{"x": [1, 2, 1e99]}', "input x[2]: 1e+99 is out of range for float32"),
    ],
)
def test_jsonl_reports_bad_row_with_line_and_continues(calls, write, line, reason):
    found = calls.read(calls.layout(), write("a.jsonl", f"[1, 2, 3]\n\n{line}\n[4, 5, 6]\n"))
    assert len(found.bad) == 1 and reason in found.bad[0]
    assert found.bad[0].startswith("a.jsonl:3: row 2: ")
    assert found.rows == [(1, 1), (3, 4)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_file_of_rows_is_not_kept_in_memory(calls, write, name):
    padding = "0" * 5000
    row = f"1.{padding},2,3\n"
    lines = [f"[{row.strip()}]\n" if name == "a.jsonl" else row] * 1000
    file = write(name, "".join(["" if name == "a.jsonl" else "a,b,c\n", *lines]))
    del lines
    chunks = open_source(resolve_inputs([file]), calls.layout()).chunks()
    tracemalloc.start()
    try:
        count = sum(len(chunk.places) for chunk in chunks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1000 and peak < 2_500_000  # the file has 5 MB


def test_json_file_with_nan_is_rejected(calls, write):
    with pytest.raises(DataError, match=r"a\.json: .*NaN is not a JSON number"):
        calls.read(calls.layout(), write("a.json", '{"x": [[NaN, 1, 2]]}'))


def test_json_file_reports_all_problems_on_one_line(calls, write):
    layout = calls.layout(calls.spec("x"), calls.spec("k", "int"))
    with pytest.raises(DataError) as failure:
        calls.read(layout, write("a.json", '{"x": [["a", 1, 2]], "k": 1.5}'))
    assert str(failure.value).count("input ") == 2 and "\n" not in str(failure.value)


def test_csv_column_has_name_of_input(calls, write):
    layout = calls.layout(
        calls.spec("x", shape=("batch",)), calls.spec("word", "str"), calls.spec("on", "bool")
    )
    file = write("a.csv", 'x,word,on\n1.5,"a, b",true\n2,"a, b",TRUE\n')
    assert calls.read(layout, file).batches == [{"x": [1.5, 2.0], "word": "a, b", "on": True}]


def test_csv_columns_are_elements_of_an_input(calls, write):
    found = calls.read(calls.layout(), write("a.csv", "x.1,x.0,x.2\n2,1,3\n5,4,6\n"))
    assert found.batches == [{"x": [[1, 2, 3], [4, 5, 6]]}]


def test_csv_columns_in_order_belong_to_the_only_input(calls, write):
    layout = calls.layout(calls.spec("x", "int64", ("batch", 2, 2)))
    found = calls.read(layout, write("a.csv", "a,b,c,d\n1,2,3,4\n"))
    assert found.batches == [{"x": [[[1, 2], [3, 4]]]}]


def test_csv_warns_about_ignored_columns(calls, write):
    layout = calls.layout(calls.spec("x", shape=("batch",)))
    with pytest.warns(ModpackWarning, match=r"a\.csv: ignored columns 'id', 'label'"):
        found = calls.read(layout, write("a.csv", "id,x,label\n7,1,dog\n"))
    assert found.batches == [{"x": [1]}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,two,3", "column 'x.1': expected a number for float32, got 'two'"),
        ("1,,3", "column 'x.1': expected a number for float32, got an empty cell"),
        ("1,2", "expected 3 columns as in the first line, got 2"),
        ("1,nan,3", "input x[1]: NaN is out of range for float32"),
    ],
)
def test_csv_reports_bad_row_with_line(calls, write, row, reason):
    text = f'x.0,x.1,x.2\n1,2,"3"\n\n{row}\n4,5,6\n'
    found = calls.read(calls.layout(), write("a.csv", text))
    assert found.bad == [f"a.csv:4: row 2: {reason}"]
    assert found.rows == [(1, 2), (3, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv:1: the file has no header line with column names"),
        ("x,x\n1,2\n", "a.csv: the column 'x' occurs twice"),
        ("a,b\n1,2\n", "a.csv: the input 'x' is float32 (batch, 3), which does not fit 2 columns"),
        ('x.0,x.1,x.2\n1,2,"3\n', "a.csv:2: the file is not valid CSV"),
        (b"x.0,x.1,x.2\n\xff,1,2\n", "a.csv: the file cannot be read: 'utf-8' codec"),
    ],
)
def test_csv_file_that_cannot_be_used_is_rejected(calls, write, text, message):
    with pytest.raises(DataError) as failure:
        calls.read(calls.layout(), write("a.csv", text))
    assert str(failure.value).startswith(message)


def test_csv_without_column_of_an_input_is_rejected(calls, write):
    layout = calls.layout(calls.spec("x", shape=("batch",)), calls.spec("y", shape=("batch",)))
    with pytest.raises(DataError, match=r"no column for the input 'y'; its columns are 'x', 'z'"):
        calls.read(layout, write("a.csv", "x,z\n1,2\n"))


def test_table_without_call_signature_is_rejected(calls, write):
    layout = calls.layout(calls.spec("x", "any"))
    with pytest.raises(DataError, match="the package has no call signature"):
        calls.read(layout, write("a.csv", "x\n1\n"))


def test_named_files_give_each_input_its_rows(calls, write):
    layout = calls.layout(
        calls.spec("x"), calls.spec("y", shape=("batch",)), calls.spec("k", "int")
    )
    write("x.csv", "a,b,c\n1,2,3\n4,5,6\n")
    write("y.jsonl", "7\n8\n")
    write("k.json", "9")
    assert calls.read(layout, "x=x.csv", "y=y.jsonl", "k=k.json").batches == [
        {"x": [[1, 2, 3], [4, 5, 6]], "y": [7, 8], "k": 9}
    ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            ["x=x.csv"],
            "x.csv: no file was given for the input 'y', which is float32 (batch,). Add y=FILE.",
        ),
        (["x=x.csv", "z=x.csv"], "x.csv: there is no input 'z'; the inputs are 'x', 'y'"),
        (["x=x.csv", "y=y.jsonl"], "the inputs have different numbers of rows: 2 in 'x', 1 in 'y'"),
        (["x=x.csv", "y=bad.jsonl"], "bad.jsonl:1: row 1: input y: expected"),
    ],
)
def test_named_files_that_do_not_fit_are_rejected(calls, write, inputs, message):
    layout = calls.layout(calls.spec("x"), calls.spec("y", shape=("batch",)))
    write("x.csv", "a,b,c\n1,2,3\n4,5,6\n")
    write("y.jsonl", "7\n")
    write("bad.jsonl", '"a"\n8\n')
    with pytest.raises(DataError) as failure:
        calls.read(layout, *inputs)
    assert message in str(failure.value)


def test_rows_of_several_files_are_joined(calls, write):
    files = [write("a.jsonl", "[1, 2, 3]\n"), write("b.jsonl", "[4, 5, 6]\n")]
    assert calls.read(calls.layout(), *files).batches == [{"x": [[1, 2, 3], [4, 5, 6]]}]


def test_call_without_batch_dimension_has_one_row_per_call(calls, write):
    layout = calls.layout(calls.spec("x", shape=(3,)))
    found = calls.read(layout, write("a.jsonl", "[1, 2, 3]\n[4, 5, 6]\n"))
    assert found.batches == [{"x": [1, 2, 3]}, {"x": [4, 5, 6]}]
