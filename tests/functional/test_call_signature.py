"""Call signatures of packages: recorded by exports, read without torch."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from torch import nn

import modpack
from modpack.archive import layout
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, UnsupportedVersionError
from modpack.report.verify import verify_package
from modpack.writing.writer import ArchiveWriter
from tests.warm_python import run_python

SOURCE = """
import os
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, end=None):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.norm = nn.BatchNorm2d(1)
        self.end = end
        self.calls = 0
    def forward(self, x, state, *, scale=1.0, mask=None):
        self.calls += 1
        if self.end is not None and self.calls > 1:
            if self.end == "exit":
                os._exit(3)
            if self.end == "hang":
                time.sleep(60)
            raise SystemExit(3)
        y = self.layer(x) * scale + state["bias"][0]
        y = self.norm(y[:, None, None])[:, 0, 0]
        return {"y": y, "extra": (state["bias"][0].sum(1), "text")}

def example():
    bias = torch.linspace(0, 1, 6).reshape(3, 2)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return {"x": x, "state": {"bias": [bias]}, "scale": 0.5}
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A module with a model and an example."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "described.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import described

        yield described
    del sys.modules["described"]


@pytest.fixture(scope="module")
def package(net, tmp_path_factory):
    """A package with an object in evaluation mode, one in training mode, and one without call."""
    path = tmp_path_factory.mktemp("package") / "net.modpack"
    model = net.Net().eval()
    with modpack.PackageExporter(path) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("net", "eval.pkl", model, example_inputs=net.example())
        inputs = {
            "example_inputs": net.example(),
            "dynamic": {"x": {0: "rows"}, "state": {0: "rows"}},
        }
        exporter.save_model("net", "train.pkl", net.Net().train(), **inputs)
        exporter.save_model("net", "data.pkl", [1])
    assert model.calls == 0  # the run of the live model left no trace
    return path


def changed(package, path, content):
    """The package with another record of call signatures, or without it."""
    with open_archive(package) as archive, ArchiveWriter(path) as writer:
        for name in archive.names():
            if not name.startswith((layout.MANIFEST, layout.MANIFEST_DIGEST)):
                data = content if name == layout.CALL_SIGNATURE else archive.read(name)
                if data is not None:
                    writer.write(name, data)
        writer.commit()
    return path


def call_of(path, resource):
    with modpack.PackageImporter(path) as importer:
        return importer.call_signature("net", resource)


def test_export_records_the_call(package):
    call = call_of(package, "eval.pkl")
    assert str(call) == (
        "(x: float32 (batch, 4), state.bias.0: float32 (batch, 2), scale: float = ...) -> "
        "y: float32 (batch, 2), extra.0: float32 (batch,), extra.1: str"
    )
    assert (call.batch, call.batching) == ("batch", "independent")
    assert (call.parameters, call.positional) == (("x", "state", "scale"), 0)


def test_training_mode_makes_rows_dependent(package):
    call = call_of(package, "train.pkl")
    assert call.batching == "dependent"
    assert [spec.shape for spec in call.inputs[:2]] == [("rows", 4), ("rows", 2)]


def test_object_without_example_has_no_call(package):
    assert call_of(package, "data.pkl") is None


def test_call_signature_of_missing_resource_is_an_error(package):
    with pytest.raises(modpack.errors.RecordNotFoundError):
        call_of(package, "other.pkl")


def test_call_signature_of_loaded_model_is_that_of_its_resource(package):
    with modpack.PackageImporter(package) as importer:
        for resource in ("eval.pkl", "train.pkl"):
            model = importer.load_model("net", resource)
            assert modpack.call_signature(model) == importer.call_signature("net", resource)
    assert modpack.call_signature(model) is None
    assert modpack.call_signature(nn.Linear(1, 1)) is None


def test_call_signature_of_path_needs_no_torch(net, tmp_path):
    path = tmp_path / "net.modpack"
    modpack.save(net.Net().eval(), path, example_inputs=net.example(), self_test=False)
    code = (
        "import sys, modpack\n"
        f"print(modpack.call_signature({str(path)!r}).inputs[0])\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["float32 (3, 4)", "False"], done.stderr


def test_export_without_self_test_records_stated_dimensions(net):
    buffer = io.BytesIO()
    dynamic = {"x": {0: "n"}, "state": {0: "n"}}
    model = net.Net()
    given = {"example_inputs": net.example(), "dynamic": dynamic, "self_test": False}
    modpack.save(model, buffer, **given)
    buffer.seek(0)
    call = modpack.call_signature(modpack.load(buffer))
    assert [spec.shape for spec in call.inputs] == [("n", 4), ("n", 2), None]
    assert (call.batch, call.batching, call.outputs) == ("n", "untested", ())
    assert model.calls == 0


@pytest.mark.parametrize("end", ["exit", "raise", "hang"])
def test_model_that_fails_in_other_calls_is_packaged(net, tmp_path, monkeypatch, end):
    monkeypatch.setattr(
        "modpack.selftest.process.VARIATION_SECONDS", 1.0 if end == "hang" else 60.0
    )
    path = tmp_path / "net.modpack"
    modpack.save(net.Net(end).eval(), path, example_inputs=net.example())
    call = modpack.call_signature(path)
    assert [spec.shape for spec in call.inputs] == [(3, 4), (3, 2), None]
    assert [spec.shape for spec in call.outputs] == [(3, 2), (3,), None]


def test_other_calls_request_no_missing_resources(project, tmp_path):
    source = (
        "import importlib\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        if len(x) != 5:\n"
        "            importlib.import_module('lately_' + str(len(x)))\n"
        "        return x\n"
    )
    project({"varied.py": source, "lately_1.py": "", "lately_2.py": "", "lately_3.py": ""})
    from varied import Net

    path = tmp_path / "net.modpack"
    plan = modpack.save(Net(), path, example_inputs=torch.randn(5, 2))
    assert plan.modules(modpack.Action.INTERN) == ["varied"]
    assert modpack.call_signature(path).inputs[0].shape == (5, 2)


def test_stated_dimension_that_the_model_rejects_is_a_warning(tmp_path):
    dynamic = {"input": {0: "n", 1: "width"}}
    with pytest.warns(modpack.ModpackWarning, match="'width' with size 3: RuntimeError") as caught:
        modpack.save(
            nn.Linear(4, 2),
            tmp_path / "a.modpack",
            example_inputs=torch.ones(2, 4),
            dynamic=dynamic,
        )
    assert len(caught) == 1
    assert "'n'" not in str(caught[0].message)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"dynamic": {"x": {0: "n"}}}, ValueError, "dynamic requires example_inputs"),
        ({"dynamic": {"z": {0: "n"}}}, ValueError, "'z' is not an input of the example"),
        ({"dynamic": {"x": {5: "n"}}}, ValueError, "'x' has no dimension 5"),
        ({"dynamic": {"x": {0: "1st"}}}, ValueError, r"dynamic\['x'\]\[0\] is not a name: '1st'"),
        ({"dynamic": ["x"]}, TypeError, "dynamic must be a mapping such as"),
        ({"dynamic": {"x": 0}}, TypeError, r"dynamic\['x'\] must be a mapping"),
        ({"dynamic": {"x": {"0": "n"}}}, TypeError, "must be a dimension"),
        ({"dynamic": {"x": {0: 1}}}, TypeError, r"dynamic\['x'\]\[0\] must be a name"),
    ],
)
def test_export_rejects_wrong_dimensions(net, tmp_path, options, error, text):
    example = {} if "requires" in text else {"example_inputs": net.example()}
    with pytest.raises(error, match=text):
        modpack.save(net.Net(), tmp_path / "net.modpack", **example, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_command_prints_the_call(package, tmp_path, command):
    done = run_python("-m", "modpack", command, package, "--json", folder=tmp_path)
    calls = json.loads(done.stdout)["package"]["call_signatures"]
    assert [(each["resource"][1], each["batching"]) for each in calls] == [
        ("eval.pkl", "independent"),
        ("train.pkl", "dependent"),
    ]


def test_inspect_shows_the_call_of_each_object(package, tmp_path):
    shown = " ".join(
        run_python("-m", "modpack", "inspect", package, folder=tmp_path).stdout.split()
    )
    assert "call net/eval.pkl(x: float32 (batch, 4), state.bias.0" in shown
    assert "extra.1: str; rows are independent" in shown


def test_diff_lists_a_changed_call(net, tmp_path):
    files = [tmp_path / "a.modpack", tmp_path / "b.modpack"]
    for file, rows in zip(files, (1, 2), strict=True):
        modpack.save(nn.ReLU(), file, example_inputs=torch.zeros(rows), self_test=False)
    done = run_python("-m", "modpack", "diff", *files, folder=tmp_path)
    assert "call: (input: float32 (1,)) -> (input: float32 (2,))" in done.stdout
    assert "other records" not in done.stdout


def test_verify_checks_the_record(package):
    assert verify_package(package).passed


def test_export_command_names_dimensions(net, tmp_path):
    (tmp_path / "described.py").write_text(SOURCE, encoding="utf-8")
    target = ["described:Net", "-o", "net.modpack", "--no-self-test"]
    given = ["--example-inputs", "described:example", "--dynamic", "x:0=n", "--dynamic", "x:-1=w"]
    done = run_python("-m", "modpack", "export", *target, *given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert modpack.call_signature(tmp_path / "net.modpack").inputs[0].shape == ("n", "w")


@pytest.mark.parametrize(
    "options, text",
    [
        (["--dynamic", "x:0=n"], "--dynamic requires --example-inputs."),
        (["--dynamic", "x=n"], "'x=n' is not INPUT:DIM=NAME"),
    ],
)
def test_export_command_rejects_wrong_dimensions(tmp_path, options, text):
    done = run_python("-m", "modpack", "export", "a:b", "--dry-run", *options, folder=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.parametrize(
    "content, error, text",
    [
        (b"{", ArchiveError, "not in the form that modpack writes"),
        (b"{}", ArchiveError, "'version' is missing"),
        (b'{"version":1,"calls":[{}]}', ArchiveError, "has no 'resource'"),
        (b'{"version":2,"calls":[]}', UnsupportedVersionError, "supports versions up to 1"),
    ],
)
def test_damaged_record_is_an_error(package, tmp_path, content, error, text):
    path = changed(package, tmp_path / "net.modpack", content)
    with pytest.raises(error, match=text):
        call_of(path, "eval.pkl")
    findings = verify_package(path).findings
    assert layout.CALL_SIGNATURE in [each.subject for each in findings]


def test_package_without_the_record_loads(package, tmp_path):
    path = changed(package, tmp_path / "net.modpack", None)
    with modpack.PackageImporter(path) as importer:
        assert importer.call_signature("net", "eval.pkl") is None
        assert callable(importer.load_model("net", "eval.pkl"))
    assert verify_package(path).passed


def test_report_page_shows_the_call_of_each_object(package, tmp_path):
    page = tmp_path / "net.html"
    run_python("-m", "modpack", "report", package, "-o", page, folder=tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "<code>net/eval.pkl(x: float32 (batch, 4), state.bias.0: float32 (batch, 2)" in text
    assert "<code>net/train.pkl(x: float32 (rows, 4)" in text


def test_example_inputs_are_read_by_name_without_code(net, tmp_path):
    path = tmp_path / "net.modpack"
    modpack.save(net.Net().eval(), path, example_inputs=net.example())
    found = modpack.example_inputs(path)
    expected = net.example()
    assert list(found) == ["x", "state.bias.0", "scale"]
    assert torch.equal(found["x"], expected["x"]) and found["scale"] == 0.5
    assert torch.equal(found["state.bias.0"], expected["state"]["bias"][0])


def test_example_inputs_without_example_are_none(tmp_path):
    modpack.save(nn.Linear(1, 1), tmp_path / "net.modpack")
    assert modpack.example_inputs(tmp_path / "net.modpack") is None


def test_example_inputs_reject_objects_of_other_classes(tmp_path):
    path = tmp_path / "net.modpack"
    modpack.save(nn.Identity(), path, example_inputs=(Fraction(1, 2),))
    with pytest.raises(modpack.UnpicklingError, match="not plain data"):
        modpack.example_inputs(path)
