"""Dimensions that may vary, found by calls with other sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modpack.core.call_signature import build_arguments, name_arguments
from modpack.examples.recorded import Example
from modpack.selftest.call_description import describe_call, describe_outputs
from modpack.selftest.variations import find_varying_dimensions

RESOURCE = ("net", "model.pkl")


def vary(model, *args, dynamic=None, has_failures=False, **kwargs):
    example = Example(args, kwargs)
    call = describe_call(RESOURCE, model, example, dynamic)
    call = describe_outputs(call, example.call(model))
    values = name_arguments(call, args, kwargs)

    def run(values):
        return Example(*build_arguments(call, values)).call(model)

    varied, failures = find_varying_dimensions(call, values, run)
    return varied if not failures or has_failures else pytest.fail(str(failures))


def shapes(specs):
    return [spec.shape for spec in specs]


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("make", [torch.zeros, torch.ones, torch.randn])
def test_batch_dimension_of_independent_rows_is_found(make, rows):
    call = vary(nn.Linear(4, 2), make(rows, 4))
    assert shapes(call.inputs) == [("batch", 4)]
    assert shapes(call.outputs) == [("batch", 2)]
    assert (call.batch, call.batching) == ("batch", "independent")


def test_batch_dimension_of_integers_is_found():
    call = vary(nn.Embedding(10, 3), torch.tensor([[1, 2, 3]]))
    assert shapes(call.outputs) == [("batch", 3, 3)]
    assert call.batching == "independent"


def test_integers_without_differences_leave_batching_untested():
    call = vary(nn.Embedding(10, 3), torch.ones(1, 2, dtype=torch.int64))
    assert (call.batch, call.batching) == ("batch", "untested")


def test_batch_dimension_of_all_tensors_is_found():
    def add(x, state, scale):
        return {"sum": x + state[0], "state": (x * scale, None)}

    x = torch.randn(2, 3)
    call = vary(add, x, (x,), 2.0)
    assert shapes(call.inputs) == [("batch", 3), ("batch", 3), None]
    assert shapes(call.outputs) == [("batch", 3), ("batch", 3), None]
    assert call.batching == "independent"


def test_fixed_first_dimension_stays():
    call = vary(nn.Linear(4, 2), torch.randn(4))
    assert shapes(call.inputs) == [(4,)]
    assert shapes(call.outputs) == [(2,)]
    assert call.batch is None


def test_tensors_with_different_first_dimensions_stay():
    call = vary(torch.matmul, torch.randn(2, 3), torch.randn(3, 4))
    assert shapes(call.inputs) == [(2, 3), (3, 4)]
    assert (call.batch, call.batching) == (None, "untested")


def centered(x):
    return x - x.mean(0)


@pytest.mark.parametrize("make", [torch.zeros, torch.randn])
@pytest.mark.parametrize("model", [centered, nn.Sequential(nn.BatchNorm2d(2)).train()])
def test_rows_that_influence_each_other_are_dependent(model, make):
    call = vary(model, make(1, 2, 2, 2))
    assert (call.batch, call.batching) == ("batch", "dependent")


def test_batch_norm_that_rejects_single_rows_is_dependent():
    call = vary(nn.BatchNorm1d(4).train(), torch.randn(8, 4))
    assert (call.batch, call.batching) == (None, "dependent")
    assert shapes(call.outputs) == [(8, 4)]


def test_random_rows_are_dependent():
    assert vary(nn.Dropout().train(), torch.ones(2, 50)).batching == "dependent"


def test_output_without_rows_makes_the_batch_dependent():
    call = vary(lambda x: (x, x.sum()), torch.randn(2, 3))
    assert (call.batch, call.batching) == ("batch", "dependent")
    assert shapes(call.outputs) == [("batch", 3), ()]


def test_plain_output_that_differs_makes_the_batch_dependent():
    assert vary(lambda x: (x, len(x)), torch.randn(2, 3)).batching == "dependent"


def test_output_with_varying_structure_keeps_the_batch_fixed():
    call = vary(lambda x: list(x), torch.randn(2, 3))
    assert shapes(call.inputs) == [(2, 3)]
    assert call.batch is None


def test_other_output_dimensions_that_vary_get_their_own_name():
    def trim(x):
        return x[:, : len(x)], x.nonzero()

    call = vary(trim, torch.arange(1, 11.0).reshape(2, 5))
    assert shapes(call.outputs) == [("batch", "batch"), ("output.1_0", 2)]


def test_stated_dimension_is_followed_by_outputs():
    def forward(x, mask):
        return x.sum(1), x * mask[:, None], torch.cat([x, x])

    x, mask = torch.randn(5, 3), torch.ones(5)
    call = vary(forward, x, mask, dynamic={"x": {1: "width"}})
    assert shapes(call.inputs) == [("batch", "width"), ("batch",)]
    assert shapes(call.outputs) == [("batch",), ("batch", "width"), ("output.2_0", "width")]


def test_stated_batch_keeps_its_name():
    call = vary(nn.Linear(4, 2), torch.randn(2, 4), dynamic={"input": {0: "n"}})
    assert (call.batch, call.batching) == ("n", "independent")
    assert shapes(call.outputs) == [("n", 2)]


def test_stated_dimension_that_the_model_rejects_stays_stated():
    dynamic = {"input": {1: "width"}}
    call = vary(nn.Linear(4, 2), torch.randn(2, 4), dynamic=dynamic, has_failures=True)
    assert shapes(call.inputs) == [("batch", "width")]
    assert shapes(call.outputs) == [("batch", 2)]


def test_example_with_gradients_and_in_place_changes_is_varied():
    def forward(x):
        y = x.detach()
        y += 1
        return y

    x = torch.zeros(2, 3, requires_grad=True)
    assert vary(forward, x).batching == "independent"
    assert torch.equal(x, torch.zeros(2, 3))
