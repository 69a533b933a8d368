"""Named values checked against call signatures, and flattened from results."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import nn

from modpack.core.call_signature import CallSignature, ContainerSpec, ValueSpec
from modpack.errors import InputMismatchError
from modpack.predicting.values import CallForm, signature_of

SIGNATURE = CallSignature(
    ("net", "model.pkl"),
    ("x", "weight", "scale", "state"),
    2,
    (
        ValueSpec("x", ("x",), "tensor", "float32", ("batch", 4)),
        ValueSpec("weight", ("weight",), "tensor", "float32", ("batch",)),
        ValueSpec("scale", ("scale",), "float", required=False),
        ValueSpec("state.0", ("state", 0), "bool", required=False),
        ValueSpec("state.1", ("state", 1), "none", required=False),
    ),
    (),
    (ContainerSpec(("state",), "tuple", (0, 1)),),
    batch="batch",
)
GOOD = {"x": torch.zeros(3, 4), "weight": torch.zeros(3)}


def problems(**values):
    with pytest.raises(InputMismatchError) as raised:
        CallForm(SIGNATURE).check({**GOOD, **values})
    return list(raised.value.problems)


@pytest.mark.parametrize(
    "more", [{}, {"scale": 1.5}, {"scale": 2}, {"state.0": True, "state.1": None}]
)
def test_check_accepts_values_that_fit(more):
    CallForm(SIGNATURE).check({**GOOD, **more})


@pytest.mark.parametrize(
    "values, problem",
    [
        (
            {"x": torch.zeros(3, 4, dtype=torch.float64)},
            "input 'x': expected float32 (batch, 4), got float64 (3, 4)",
        ),
        ({"x": torch.zeros(3, 5)}, "input 'x': expected float32 (batch, 4), got float32 (3, 5)"),
        ({"x": torch.zeros(3)}, "input 'x': expected float32 (batch, 4), got float32 (3,)"),
        ({"x": [1.0]}, "input 'x': expected float32 (batch, 4), got list"),
        (
            {"weight": torch.zeros(2)},
            "input 'weight': expected batch = 3 as in 'x', got float32 (2,)",
        ),
        ({"scale": "1"}, "input 'scale': expected float, got str"),
        ({"scale": True}, "input 'scale': expected float, got bool"),
        ({"state.0": 1, "state.1": None}, "input 'state.0': expected bool, got int"),
        ({"state.0": True, "state.1": 0}, "input 'state.1': expected None, got int"),
        ({"state.0": True}, "input 'state.1': missing; expected None"),
        ({"wieght": 1}, "input 'wieght': unknown name. Did you mean 'weight'?"),
        (
            {"qqq": 1},
            "input 'qqq': unknown name. The inputs are 'x', 'weight', 'scale', 'state.0', "
            "'state.1'.",
        ),
    ],
)
def test_check_names_the_value_expected_and_got(values, problem):
    assert problems(**values) == [problem]


def test_check_rejects_an_empty_batch():
    assert problems(x=torch.zeros(0, 4), weight=torch.zeros(0))[0] == (
        "input 'x': expected float32 (batch, 4) with batch from 1, got 0"
    )


def test_check_lists_all_problems_on_one_line_each():
    with pytest.raises(InputMismatchError) as raised:
        CallForm(SIGNATURE).check({"x": torch.zeros(3, 5), "y": 1})
    assert str(raised.value).splitlines() == [
        "input 'y': unknown name. The inputs are 'x', 'weight', 'scale', 'state.0', 'state.1'.",
        "input 'x': expected float32 (batch, 4), got float32 (3, 5)",
        "input 'weight': missing; expected float32 (batch,)",
    ]


def test_check_finds_a_missing_part_next_to_an_unknown_name():
    found = problems(**{"state.0": True, "a": 1, "b": 2})
    assert found[-1] == "input 'state.1': missing; expected None"


def test_check_limits_the_number_of_problems():
    found = problems(**{f"y{number}": 1 for number in range(1000)})
    assert len(found) == 21
    assert found[-1] == "and 980 more problems"


@dataclasses.dataclass
class Scored:
    scores: torch.Tensor
    label: str


@pytest.mark.parametrize(
    "result, names",
    [
        (torch.zeros(1), ["output"]),
        ((torch.zeros(1), [1, None]), ["output.0", "output.1.0", "output.1.1"]),
        (Scored(torch.zeros(1), "cat"), ["scores", "label"]),
        (OrderedDict(logits=torch.zeros(1), past=(1, 2)), ["logits", "past.0", "past.1"]),
    ],
)
def test_outputs_name_the_parts(result, names):
    assert list(CallForm(SIGNATURE).outputs(result)) == names


def test_outputs_are_detached():
    (output,) = CallForm(SIGNATURE).outputs(torch.ones(1, requires_grad=True) * 2).values()
    assert not output.requires_grad


def test_signature_of_model_knows_names_only():
    class Net(nn.Module):
        def forward(self, x, mask=None, *rest, scale=1.0, **more):
            return x

    signature = signature_of(Net(), ("net", "model.pkl"))
    assert [(s.name, s.type, s.required) for s in signature.inputs] == [
        ("x", "any", True),
        ("mask", "any", False),
        ("scale", "any", False),
    ]
    assert signature.positional == 2
    CallForm(signature).check({"x": [1], "scale": 3})
    with pytest.raises(InputMismatchError, match="unknown name"):
        CallForm(signature).check({"x": 1, "scales": 3})
