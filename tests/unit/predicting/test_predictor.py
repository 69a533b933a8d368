"""A packaged object called with named values, alone and in batches."""

from __future__ import annotations

import warnings

import numpy
import pytest
import torch
from torch import nn

import modpack
from modpack.errors import InputMismatchError, ModpackError
from modpack.predicting.predictor import Predictor

SOURCE = """
import torch
from torch import nn

calls = []

class Net(nn.Module):
    def __init__(self, is_independent=True):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.is_independent = is_independent
    def forward(self, x, scale=1.0, *, shift=None):
        calls.append(len(x))
        if (x == 13).any():
            raise RuntimeError("13 is not allowed")
        if (x == 14).any() and len(x) > 2:
            raise MemoryError(f"{len(x)} rows")
        if (x == 15).any():
            x = x[-1:]
        y = self.layer(x) * scale
        y = y if shift is None else y + shift
        return {"y": y, "kind": "net"} if self.is_independent else y - y.mean(0)

class Optional(nn.Module):
    def forward(self, x=None):
        return torch.zeros(1) if x is None else x.sum(1)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictor")
    (folder / "predicted.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        from predicted import Net, Optional

        torch.manual_seed(0)
        x = torch.randn(2, 4)
        inputs = {"example_inputs": (x,), "example_kwargs": {"scale": 2.0}}
        path = folder / "net.modpack"
        with modpack.PackageExporter(path) as exporter:
            exporter.use_preset("pinned")
            exporter.save_model("net", "first.pkl", Net().eval(), **inputs)
            exporter.save_model("net", "dependent.pkl", Net(False).eval(), **inputs)
            exporter.save_model("net", "optional.pkl", Optional(), example_inputs=(x,))
            exporter.save_model("net", "unknown.pkl", Net().eval())
            exporter.save_model("net", "data.pkl", {"a": 1})
    return path


@pytest.fixture
def predictor(package):
    with Predictor(package, package="net", resource="first.pkl") as opened:
        sizes(opened).clear()
        yield opened


def sizes(predictor):
    """The number of rows of each call of the model."""
    return predictor.model.forward.__func__.__globals__["calls"]


def rows(*numbers):
    return {"x": torch.tensor([[float(n)] * 4 for n in numbers]), "scale": 2.0}


def test_predictor_returns_outputs_by_name(predictor):
    found = predictor.predict(rows(1, 2))
    assert torch.equal(found["y"], predictor.model.layer(rows(1, 2)["x"]) * 2)
    assert found["kind"] == "net"
    assert not found["y"].requires_grad
    assert predictor.signature.batching == "independent"
    assert predictor.device == "cpu"
    assert len(predictor.digest) == 64


def test_predictor_accepts_numpy_arrays_and_omitted_values(predictor):
    x = numpy.ones((3, 4), dtype=numpy.float32)
    assert predictor.predict({"x": x})["y"].shape == (3, 2)


def test_predictor_copies_arrays_that_cannot_be_written(predictor):
    x = numpy.ones((2, 4), dtype="float32")
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of tensors in such memory
        assert predictor.predict({"x": x})["y"].shape == (2, 2)


def test_predictor_rejects_values_before_the_call(predictor):
    with pytest.raises(InputMismatchError, match=r"expected float32 \(batch, 4\), got float64"):
        predictor.predict({"x": numpy.ones((3, 4))})
    assert not sizes(predictor)


def predict_many(predictor, calls):
    """The results, which no joint call that failed for a reason of its own has delayed."""
    problems = []
    found = predictor.predict_many(calls, problems.append)
    assert not problems
    return found


def test_predict_many_joins_and_splits_rows(predictor):
    calls = [rows(1), rows(2, 3), rows(4, 5, 6, 7), rows(8)]
    found = predict_many(predictor, calls)
    assert sizes(predictor) == [8]
    for call, result in zip(calls, found, strict=True):
        assert torch.allclose(result["y"], predictor.predict(call)["y"])
        assert result["kind"] == "net"


def test_predict_many_groups_calls_by_their_other_values(predictor):
    calls = [rows(1), {**rows(2), "scale": 3.0}, rows(3)]
    found = predict_many(predictor, calls)
    assert sizes(predictor) == [2, 1]
    assert torch.allclose(found[1]["y"], predictor.predict(calls[1])["y"])


def test_predict_many_returns_each_error_to_its_call(predictor):
    calls = [rows(1), rows(13), {"x": 3}, rows(2)]
    found = predict_many(predictor, calls)
    assert torch.allclose(found[0]["y"], predictor.predict(calls[0])["y"])
    assert isinstance(found[1], RuntimeError)
    assert isinstance(found[2], InputMismatchError)
    assert found[3]["y"].shape == (1, 2)


def test_predict_many_reports_an_error_that_only_the_joint_call_has(predictor):
    problems = []
    found = predictor.predict_many([rows(1), rows(14, 14)], problems.append)
    assert [len(each["y"]) for each in found] == [1, 2]
    assert problems == [
        "2 requests computed together failed: the model raised MemoryError: 3 rows (predicted, "
        "line 17)"
    ]


def test_predict_many_calls_alone_if_an_output_cannot_be_split(predictor):
    problems = []
    found = predictor.predict_many([rows(1), rows(15)], problems.append)
    assert [each["y"].shape for each in found] == [(1, 2), (1, 2)]
    assert problems == [
        "2 requests computed together failed: the output 'y' is float32 (1, 2), although the call "
        "has 2 rows"
    ]


def test_predict_many_accepts_calls_without_any_row(package):
    with Predictor(package, package="net", resource="optional.pkl") as predictor:
        found = predict_many(predictor, [{}, {"x": torch.ones(2, 4)}, {}])
        assert [each["output"].tolist() for each in found] == [[0], [4, 4], [0]]


def test_predict_many_keeps_dependent_calls_apart(package):
    with Predictor(package, package="net", resource="dependent.pkl") as predictor:
        sizes(predictor).clear()
        found = predict_many(predictor, [rows(1, 2), rows(3, 4)])
        assert sizes(predictor) == [2, 2]
        assert torch.allclose(found[0]["output"], predictor.predict(rows(1, 2))["output"])


def test_predictor_without_call_signature_knows_names(package):
    with Predictor(package, package="net", resource="unknown.pkl") as predictor:
        assert predictor.predict({"x": torch.ones(1, 4)})["y"].shape == (1, 2)
        with pytest.raises(InputMismatchError, match="'scales': unknown name"):
            predictor.predict({"x": torch.ones(1, 4), "scales": 1})


def test_predictor_rejects_objects_that_cannot_be_called(package):
    with pytest.raises(ModpackError, match="of the type dict, cannot be called"):
        Predictor(package, package="net", resource="data.pkl")


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_predictor_rejects_a_device_of_another_machine(package, device):
    with pytest.raises(ModpackError, match=f"device '{device}' cannot be used"):
        Predictor(package, device=device, package="net", resource="first.pkl")


def test_predictor_needs_package_and_resource_together(package):
    with pytest.raises(TypeError, match="together"):
        Predictor(package, package="net")


def test_predictor_accepts_an_object_of_torch_alone(tmp_path):
    modpack.save(nn.ReLU(), tmp_path / "relu.modpack")
    with Predictor(tmp_path / "relu.modpack") as predictor:
        assert predictor.predict({"input": torch.tensor([-1.0])})["output"].tolist() == [0.0]
