"""``modpack run``, driven as a user drives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

import modpack
from modpack import PackageExporter
from modpack.cli import cli
from modpack.predicting.predictor import Predictor
from modpack.running import isolated

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/json/run.schema.json").read_text())
SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        if (x == 999).any():
            raise SystemExit(0)
        print("called")
        return {"double": x * self.factor, "sum": x.sum(1)}
"""
ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
DOUBLES = [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0], [14.0, 16.0, 18.0]]
SUMS = [6.0, 15.0, 24.0]
FORMATS = ("csv", "json", "jsonl", "npy", "npz", "parquet", "pt", "safetensors")


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("run")
    (folder / "doubling.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        from doubling import Net

        modpack.save(Net().eval(), folder / "net.modpack", example_inputs=(torch.ones(2, 3),))
        del sys.modules["doubling"]
    return str(folder / "net.modpack")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, stdin=None):
    return CliRunner().invoke(cli, ["run", *map(str, arguments)], input=stdin)


def write(name, rows=ROWS):
    suffix = name.rpartition(".")[2]
    array = np.array(rows, dtype=None if suffix == "csv" else "float32")
    if suffix == "csv":
        Path(name).write_text("a,b,c\n" + "".join(f"{','.join(map(str, r))}\n" for r in rows))
    elif suffix == "jsonl":
        Path(name).write_text("".join(f"{json.dumps({'x': row})}\n" for row in rows))
    elif suffix == "json":
        Path(name).write_text(json.dumps({"x": rows}))
    elif suffix == "npy":
        np.save(name, array)
    elif suffix == "npz":
        np.savez(name, x=array)
    elif suffix == "parquet":
        pq.write_table(pa.table({"x": rows}), name)
    elif suffix == "pt":
        torch.save({"x": torch.from_numpy(array)}, name)
    else:
        safetensors.torch.save_file({"x": torch.from_numpy(array)}, name)
    return name


@pytest.mark.parametrize("suffix", FORMATS)
def test_run_reads_every_format(package, suffix):
    result = run(package, write(f"in.{suffix}"), "-o", "out.json", "--batch-size", 2)
    assert (result.exit_code, result.stdout) == (0, "Wrote out.json: 3 rows of double, sum\n")
    assert json.loads(Path("out.json").read_text()) == {"double": DOUBLES, "sum": SUMS}


@pytest.mark.parametrize("suffix", [each for each in FORMATS if each not in ("npy", "csv")])
def test_run_reads_its_own_outputs_by_format(package, suffix):
    assert run(package, write("in.npy"), "-o", f"out.{suffix}").exit_code == 0
    found = {
        "json": lambda file: json.loads(file.read_text()),
        "jsonl": lambda file: [json.loads(line) for line in file.read_text().splitlines()],
        "npz": np.load,
        "parquet": lambda file: pq.read_table(file).to_pydict(),
        "pt": torch.load,
        "safetensors": safetensors.torch.load_file,
    }[suffix](Path(f"out.{suffix}"))
    doubles = [each["double"] for each in found] if suffix == "jsonl" else found["double"]
    assert [[float(x) for x in row] for row in doubles] == DOUBLES


def test_run_without_output_prints_summary(package):
    result = run(package, write("in.npy"))
    assert result.stdout == (
        "3 rows\n"
        "double: float32 (3, 3)\n  [2, 4, 6]\n  [8, 10, 12]\n  [14, 16, 18]\n"
        "sum: float32 (3,)\n  6\n  15\n  24\n"
    )
    assert "called" in result.stderr  # output of the package's code


def test_run_reads_json_from_stdin(package):
    result = run(package, "-", stdin=json.dumps({"x": ROWS}))
    assert result.exit_code == 0 and result.stdout.startswith("3 rows\n")
    result = run(package, "-", stdin='{"x": [[1, NaN, 3]]}')
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: <stdin>: the document is not valid JSON: NaN is not a JSON number. "
        "Pass such numbers in a .npy or .parquet file.\n"
    )


def test_run_joins_files_and_named_inputs(package):
    write("b.npy", ROWS[1:])
    assert run(package, write("a.npy", ROWS[:1]), "b.npy", "-o", "out.npz").exit_code == 0
    assert np.load("out.npz")["sum"].tolist() == SUMS
    assert run(package, "x=b.npy").stdout.startswith("2 rows\n")


def test_run_prints_json(package):
    result = run(package, write("in.npy"), "-o", "out.npz", "--json")
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    assert (found["rows"], found["skipped"], found["output_path"]) == (3, [], "out.npz")
    assert found["outputs"][0] == {"name": "double", "type": "float32", "shape": [3, 3]}


@pytest.mark.parametrize("line", ['{"x": [1, "two", 3]}', '{"x": [1, -2, 3]}', "{", '{"y": 1}'])
def test_run_stops_at_bad_row_and_keeps_earlier_output(package, line):
    write("in.jsonl")
    with Path("in.jsonl").open("a") as file:
        file.write(line)
    Path("out.jsonl").write_text("earlier")
    result = run(package, "in.jsonl", "-o", "out.jsonl")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: in.jsonl:4: row 4: ")
    assert Path("out.jsonl").read_text() == "earlier"
    assert sorted(each.name for each in Path().iterdir()) == ["in.jsonl", "out.jsonl"]


def test_run_skips_and_lists_bad_rows(package):
    write("in.csv", [*ROWS, [1, -1, 1], [1, "x", 1], [1, 999, 1]])
    result = run(package, "in.csv", "-o", "out.csv", "--on-error", "skip")
    assert result.exit_code == 1
    assert result.stdout == "Wrote out.csv: 3 rows of double, sum\n"
    assert result.stderr.splitlines()[-4:] == [
        "Warning: skipped 3 rows:",
        "  in.csv:5: row 4: the model raised ValueError: negative (doubling, line 11)",
        "  in.csv:6: row 5: column 'b': expected a number for float32, got 'x'",
        "  in.csv:7: row 6: the model raised RuntimeError: it called sys.exit(0) "
        "(doubling, line 13)",
    ]
    found = json.loads(run(package, "in.csv", "--on-error", "skip", "--json").stdout)
    jsonschema.validate(found, SCHEMA)
    assert sorted((row["row"], row["line"]) for row in found["skipped"]) == [(4, 5), (5, 6), (6, 7)]


def test_run_writes_no_file_if_all_rows_are_skipped(package):
    result = run(package, write("in.npy", [[-1, 0, 0]]), "-o", "out.npy", "--on-error", "skip")
    assert result.exit_code == 1
    assert result.stdout == "No file was written: modpack skipped all rows.\n"
    assert not Path("out.npy").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_leaves_no_half_output(package, monkeypatch, number, status):
    predict, calls = Predictor.predict, []

    def interrupted(self, values):
        calls.append(values)
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return predict(self, values)

    monkeypatch.setattr(Predictor, "predict", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        result = run(package, write("in.npy"), "-o", "out.jsonl", "--batch-size", 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, len(calls)) == (status, 2)
    assert [each.name for each in Path().iterdir()] == ["in.npy"]


def test_run_reads_a_large_file_in_batches(package, monkeypatch):
    sizes = []
    predict = Predictor.predict
    monkeypatch.setattr(
        Predictor, "predict", lambda self, v: sizes.append(len(v["x"])) or predict(self, v)
    )
    assert run(package, write("in.npy", ROWS * 30), "-o", "out.npy").exit_code == 2
    assert run(package, "in.npy", "-o", "out.npz").exit_code == 0
    assert sizes[-3:] == [32, 32, 26]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.modpack", "in.npy"], "gone.modpack: "),
        (["in.npy", "in.npy"], "in.npy: this is a NumPy array, not a package."),
        (["PACKAGE", "gone.npy"], "gone.npy: the file does not exist"),
        (["PACKAGE", "in.txt"], "in.txt: the suffix '.txt' is not a known format of inputs."),
        (["PACKAGE", "in.npy", "-o", "out.txt"], "out.txt: the suffix '.txt' is not a known"),
        (["PACKAGE", "in.npy", "-o", "in.npy"], "in.npy: the output is one of the inputs."),
        (["PACKAGE", "in.npy", "-o", "PACKAGE"], "the suffix '.modpack' is not a known format of"),
        (["PACKAGE", "in.npy", "-o", "no/out.npy"], "cannot write no/out.npy: the folder "),
        (["PACKAGE", "y=in.npy"], "in.npy: there is no input 'y'; the inputs are 'x'"),
        (["PACKAGE", "wide.npy"], "wide.npy: input 'x': expected float32 (batch, 3), got float32 "),
        (["PACKAGE", "truth.npy"], "truth.npy: input 'x': expected float32 (batch, 3), got bool "),
        (["PACKAGE", "ragged.json"], "ragged.json: input x[1]: expected a list of 3"),
        (["PACKAGE", "empty.jsonl"], "empty.jsonl: there are no rows"),
        (["PACKAGE", "in.npy", "--device", "cuad"], "device 'cuad' cannot be used: "),
        (["PACKAGE", "in.npy", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["PACKAGE", "in.npy", "--package", "model"], "--package and --resource must be given tog"),
        (["PACKAGE", "in.npy", "--policy", "gone.toml"], "gone.toml: "),
        (["PACKAGE", "in.npy", "--key", "gone.pub"], "gone.pub: "),
        (["PACKAGE"], "Missing argument 'INPUT...'"),
    ],
)
def test_run_reports_bad_arguments_in_one_line(package, arguments, message):
    write("in.npy")
    write("wide.npy", [[1, 2, 3, 4]])
    np.save("truth.npy", np.ones((2, 3), bool))
    Path("in.txt").write_text("")
    Path("empty.jsonl").write_text("\n")
    Path("ragged.json").write_text('{"x": [[1, 2, 3], [4, 5]]}')
    result = run(*(package if each == "PACKAGE" else each for each in arguments))
    assert result.exit_code == 2
    (line,) = (each for each in result.stderr.splitlines() if each.startswith("Error: "))
    assert message in line
    assert result.stderr.rstrip().endswith(line)


def test_run_converts_numbers_of_numpy_s_default_dtype_with_a_note(package):
    np.save("double.npy", np.array(ROWS))
    result = run(package, "double.npy", "-o", "out.json")
    assert result.exit_code == 0
    assert "Warning: double.npy: converted 'x' from float64 to float32\n" in result.stderr
    assert json.loads(Path("out.json").read_text()) == {"double": DOUBLES, "sum": SUMS}


def test_run_reports_missing_library_with_its_extra(package, monkeypatch):
    write("in.parquet")
    for name in [each for each in sys.modules if each.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(package, "in.parquet")
    assert result.exit_code == 2
    assert "Error: .parquet files require pyarrow, which is not installed. Run: pip install " in (
        result.stderr
    )


def test_run_chooses_among_several_objects():
    with PackageExporter("two.modpack") as exporter:
        for name in ("a", "b"):
            exporter.save_pickle("models", f"{name}.pkl", torch.nn.Identity())
    result = run("two.modpack", write("in.npy"))
    assert result.exit_code == 2 and "several saved objects" in result.stderr
    result = run("two.modpack", "in.npy", "--package", "models", "--resource", "b.pkl")
    assert result.stdout.startswith("1 row\noutput: float32 (3, 3)\n")


def test_run_without_call_signature_takes_arrays_and_no_tables():
    modpack.save(torch.nn.Identity(), "plain.modpack")
    assert run("plain.modpack", write("in.npy"), "-o", "out.npy").exit_code == 0
    assert np.load("out.npy").tolist() == ROWS
    assert run("plain.modpack", "in.npy", "--batch-size", 2).stdout.startswith("3 rows\n")
    result = run("plain.modpack", write("in.csv"))
    assert result.exit_code == 2
    assert "in.csv: the package has no call signature" in result.stderr


def test_run_requires_signature_of_key(package):
    assert CliRunner().invoke(cli, ["keygen", "team"]).exit_code == 0
    signed = Path("signed.modpack")
    signed.write_bytes(Path(package).read_bytes())
    key = ["--key", "team.pub"]
    refused = run(signed, write("in.npy"), *key)
    assert refused.exit_code == 2 and "signature" in refused.stderr
    assert CliRunner().invoke(cli, ["sign", str(signed), "--key", "team"]).exit_code == 0
    assert run(signed, "in.npy", *key).exit_code == 0


def test_run_obeys_trust_policy(package):
    Path("trust.toml").write_text("[trust]\nallow_code = false\n")
    result = run(package, write("in.npy"), "--policy", "trust.toml")
    assert result.exit_code == 2 and "called" not in result.stderr


@pytest.mark.parametrize("command", ["run", "self-test"])
def test_warning_about_trust_policy_is_one_line(package, command):
    Path("trust.toml").write_text("[trust]\nallow_code = true\n")
    inputs = [write("in.npy")] if command == "run" else []
    result = CliRunner().invoke(cli, [command, package, *inputs, "--policy", "trust.toml"])
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: the trust policy allows code without a signature: ")


def test_isolated_commands_repeat_their_arguments_in_the_environment(package, monkeypatch):
    seen = []
    monkeypatch.setattr(isolated, "isolated_python", lambda package, found: Path("python"))
    monkeypatch.setattr(isolated, "run_isolated", lambda python, given: seen.append(given) or 7)
    result = run(package, write("in.npy"), "--isolated", "-o", "out.csv", "--on-error", "skip")
    assert result.exit_code == 7
    expected = ["--output", "out.csv", "--on-error", "skip", "--on-mismatch", "warn"]
    assert seen[0] == ["run", *expected, "--verify", "code", "--", package, "in.npy"]
    assert CliRunner().invoke(cli, ["self-test", package, "--isolated", "--json"]).exit_code == 7
    assert seen[1][0] == "self-test" and seen[1][-3:] == ["--json", "--", package]


def test_isolated_run_works_in_a_fresh_environment(package, monkeypatch, tmp_path, capfd):
    """The installer makes the distributions of this environment importable instead."""
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    install = (
        "import sys, pathlib; (site,) = pathlib.Path(sys.argv[1]).glob('lib/*/site-packages'); "
        "(site / 'all.pth').write_text(sys.argv[2])"
    )
    monkeypatch.setattr(
        isolated,
        "install_commands",
        lambda target, requirements: [
            [sys.executable, "-I", "-m", "venv", "--without-pip", str(target)],
            [sys.executable, "-I", "-c", install, str(target), libraries],
        ],
    )
    result = run(package, write("in.npy"), "--isolated", "-o", "out.json")
    assert result.exit_code == 0, capfd.readouterr()
    assert json.loads(Path("out.json").read_text())["sum"] == SUMS


def test_untrusted_package_installs_no_requirements(package, monkeypatch):
    monkeypatch.setattr(isolated, "isolated_python", lambda package, found: pytest.fail("called"))
    Path("trust.toml").write_text("[trust]\nallow_code = false\n")
    write("in.npy")
    for command in (["run", package, "in.npy"], ["self-test", package]):
        given = [*command, "--isolated", "--policy", "trust.toml"]
        result = CliRunner().invoke(cli, given)
        assert result.exit_code == 2 and "allow_code" in result.stderr


def test_failed_installation_is_one_message(package, monkeypatch, tmp_path):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    failing = [sys.executable, "-I", "-c", "raise SystemExit('No matching distribution')"]
    monkeypatch.setattr(isolated, "install_commands", lambda target, requirements: [failing])
    result = run(package, write("in.npy"), "--isolated")
    assert result.exit_code == 2
    assert "the isolated environment cannot be created" in result.stderr
    assert "  No matching distribution\n" in result.stderr


def test_run_imports_no_torch_before_arguments_are_checked(package, folder):
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom modpack.cli import cli\n"
        f"result = CliRunner().invoke(cli, ['run', {package!r}, 'gone.npy'])\n"
        "print(result.exit_code, 'torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False False\n"


TABLE = "id,a,b,c,label\n007,1,2,3,cat\n008,4,5,6,dog\n"


def save_table(suffix):
    if suffix == "csv":
        Path("t.csv").write_text(TABLE)
    else:
        columns = {"id": ["007", "008"], "a": [1, 4], "b": [2, 5], "c": [3, 6]}
        pq.write_table(pa.table({**columns, "label": ["cat", "dog"]}), "t.parquet")
    return f"t.{suffix}"


@pytest.mark.parametrize("output", ["csv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_chosen_and_kept(package, suffix, output):
    options = ["--columns", "x=c,b,a", "--keep", "id", "--keep", "label", "--batch-size", 1]
    result = run(package, save_table(suffix), *options, "-o", f"o.{output}")
    assert (result.exit_code, result.stderr.count("Warning")) == (0, 0)
    assert result.stdout == f"Wrote o.{output}: 2 rows of id, label, double, sum\n"
    path = Path(f"o.{output}")
    if output == "csv":
        assert path.read_text() == (
            "id,label,double.0,double.1,double.2,sum\n007,cat,6,4,2,6\n008,dog,12,10,8,15\n"
        )
        return
    if output == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = {name: [row[name] for row in rows] for name in rows[0]}
    else:
        found = json.loads(path.read_text()) if output == "json" else None
        found = found or pq.read_table(path).to_pydict()
    assert found == {
        "id": ["007", "008"],
        "label": ["cat", "dog"],
        "double": [[6, 4, 2], [12, 10, 8]],
        "sum": [6, 15],
    }


def test_kept_columns_are_no_elements_of_the_only_input(package):
    result = run(package, save_table("csv"), "--keep", "id", "--keep", "label", "-o", "o.csv")
    assert (result.exit_code, result.stderr.count("Warning")) == (0, 0)
    assert Path("o.csv").read_text().splitlines()[1] == "007,cat,2,4,6,6"


def test_kept_columns_follow_skipped_rows(package):
    Path("t.csv").write_text("id,a,b,c\np,1,2,3\nq,-1,2,3\nr,1\ns,7,8,9\n")
    result = run(package, "t.csv", "--keep", "id", "--on-error", "skip", "-o", "o.jsonl")
    assert result.exit_code == 1
    rows = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [(row["id"], row["sum"]) for row in rows] == [("p", 6), ("s", 24)]


def test_kept_dates_become_text(package):
    days = pa.array([1, 2], pa.date32())
    pq.write_table(pa.table({"x": ROWS[:2], "day": days}), "t.parquet")
    assert run(package, "t.parquet", "--keep", "day", "-o", "o.json").exit_code == 0
    assert json.loads(Path("o.json").read_text())["day"] == ["1970-01-02", "1970-01-03"]


def test_kept_columns_come_from_the_first_of_several_files(package):
    result = run(package, f"x={save_table('csv')}", "--columns", "x=a,b,c", "--keep", "id")
    assert (result.exit_code, "id: str" in result.stdout) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "t.csv: the input 'x' is float32 (batch, 3), which does not fit 5 columns. Choose the "
         "columns with --columns x=COLUMN,..., and carry others to the output with --keep COLUMN."),
        (["--keep", "ids"], "t.csv: there is no column 'ids'. Did you mean 'id'?"),
        (["--columns", "x=a,b,d"], "t.csv: there is no column 'd'. "),
        (["--columns", "y=a"], "--columns: there is no input 'y'; the inputs are 'x'"),
        (["--columns", "x"], "--columns x: not INPUT=COLUMN,..."),
        (["--columns", "x=a", "--columns", "x=b"], "--columns x=b: the input 'x' occurs twice."),
        (["--columns", "x=a,b"], "does not fit 2 columns"),
    ],
)  # fmt: skip
def test_wrong_columns_are_one_line(package, options, message):
    result = run(package, save_table("csv"), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_columns_require_a_table(package):
    result = run(package, write("in.npy"), "--keep", "id")
    assert "in.npy: --columns and --keep require a .csv or .parquet file" in result.stderr


def test_kept_column_with_the_name_of_an_output_is_refused(package):
    Path("t.csv").write_text("sum,a,b,c\n1,1,2,3\n")
    result = run(package, "t.csv", "--keep", "sum")
    assert "t.csv: the column 'sum' cannot be kept, because an output has this" in result.stderr
