"""Call signatures described from a live call."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn

from modpack.core.call_signature import CallSignature
from modpack.examples.recorded import Example
from modpack.selftest.call_description import describe_call, describe_outputs

X = torch.zeros(2, 4)


def described(model, *args, dynamic=None, **kwargs):
    return describe_call(("net", "model.pkl"), model, Example(args, kwargs), dynamic)


class Net(nn.Module):
    def forward(self, x, state=None, *rest, scale, mask=None, **more):
        return x


class Point(NamedTuple):
    x: int


def test_describe_call_names_arguments_of_every_kind():
    call = described(Net(), X, (X[0], {"h": 1}), X, True, scale=2.5, extra="a", mask=None)
    assert call.parameters == ("x", "state", "rest.0", "rest.1", "scale", "mask", "extra")
    assert call.positional == 4
    assert [(spec.name, str(spec), spec.required) for spec in call.inputs] == [
        ("x", "float32 (2, 4)", True),
        ("state.0", "float32 (4,)", False),
        ("state.1.h", "int", False),
        ("rest.0", "float32 (2, 4)", True),
        ("rest.1", "bool", True),
        ("scale", "float", True),
        ("mask", "None", False),
        ("extra", "str", True),
    ]
    assert [each.path for each in call.containers] == [("state",), ("state", 1)]


@pytest.mark.parametrize(
    "value", [Point(1), torch.eye(2).to_sparse(), object(), {1.5: X}, torch.float32]
)
def test_describe_call_of_other_types_knows_an_object(value):
    assert str(described(Net(), value).inputs[0]) == "object"


@pytest.mark.parametrize(
    "model, names",
    [
        (lambda first, second: first, ("first", "second")),
        (torch.add, ("args.0", "args.1")),
        (torch.jit.script(torch.nn.CosineSimilarity()), ("x1", "x2")),
    ],
)
def test_describe_call_of_other_callables(model, names):
    assert described(model, X, X).parameters == names


def test_describe_call_of_replaced_call_method():
    class Renamed(nn.Module):
        def __call__(self, image):
            return image

    assert described(Renamed(), X).parameters == ("image",)


def test_dynamic_names_dimensions_of_arguments_and_parts():
    dynamic = {"x": {0: "batch", -1: "width"}, "state.0": {0: "width"}}
    call = described(Net(), X, (X[0], 1), dynamic=dynamic)
    assert [spec.shape for spec in call.inputs[:2]] == [("batch", "width"), ("width",)]
    assert call.batch is None


def test_dynamic_first_dimension_of_all_tensors_is_the_batch():
    call = described(Net(), X, [X, X], dynamic={"x": {0: "rows"}, "state": {0: "rows"}})
    assert call.batch == "rows"


def test_dynamic_dimension_that_occurs_twice_is_not_the_batch():
    call = described(Net(), torch.eye(3), dynamic={"x": {0: "nodes", 1: "nodes"}})
    assert call.batch is None


@pytest.mark.parametrize(
    "dynamic, problem",
    [
        ({"xs": {0: "batch"}}, "'xs' is not an input of the example. Did you mean 'x'?"),
        ({"x": {2: "batch"}}, "'x' has no dimension 2; it is float32 (2, 4)"),
        ({"x": {-3: "batch"}}, "'x' has no dimension -3"),
        ({"scale": {0: "batch"}}, "the input 'scale' is not a tensor, but float"),
        ({"x": {0: "n", 1: "n"}}, "the dimension 'n' has size 2 in 'x' and size 4 in 'x'"),
    ],
)
def test_dynamic_that_does_not_fit_is_an_error(dynamic, problem):
    with pytest.raises(ValueError) as raised:
        described(Net(), X, scale=1.0, dynamic=dynamic)
    assert problem in str(raised.value)


@dataclasses.dataclass
class Scored:
    scores: torch.Tensor
    label: str


class Broken(dict):
    def items(self):
        raise RuntimeError


def outputs(value):
    call = describe_outputs(CallSignature(("", "f"), (), 0, (), ()), value)
    return [(spec.name, str(spec)) for spec in call.outputs]


def test_describe_outputs_of_classes_names_their_fields():
    value = (Scored(X, "cat"), Point(1), {"n": None})
    assert outputs(value) == [
        ("output.0.scores", "float32 (2, 4)"),
        ("output.0.label", "str"),
        ("output.1.x", "int"),
        ("output.2.n", "None"),
    ]


def test_describe_outputs_survives_classes_that_raise():
    assert outputs(Broken(a=1)) == [("output", "object")]
