"""Examples: accepted inputs, and calls of a model."""

from __future__ import annotations

import threading

import pytest
import torch

from modpack.selftest.reference import as_example

ONE = torch.ones(1)


def model(*args, **kwargs):
    return args, kwargs


@pytest.mark.parametrize(
    ("inputs", "kwargs", "called"),
    [
        ((1, 2), None, ((1, 2), {})),
        ((1,), {"b": 2}, ((1,), {"b": 2})),
        ({"a": 1}, None, ((), {"a": 1})),
        (({"a": 1},), None, (({"a": 1},), {})),
        ({"a": 1}, {"b": 2}, (({"a": 1},), {"b": 2})),
        ({1: 2}, None, (({1: 2},), {})),
        (None, {"b": 2}, ((), {"b": 2})),
        (ONE, None, ((ONE,), {})),
        ("text", None, (("text",), {})),
        ((), None, ((), {})),
    ],
)
def test_arguments_are_given_as_they_are_called(inputs, kwargs, called):
    example = as_example(model, inputs, kwargs)
    assert example is not None and example.call(model) == called


def test_example_without_inputs_is_none():
    assert as_example(object(), None) is None


def test_model_may_modify_its_copied_inputs():
    batch = {"x": torch.zeros(1)}

    def greedy(given):
        given.pop("x").add_(1)

    example = as_example(greedy, (batch,))
    assert example is not None
    example.call(greedy)
    example.call(greedy)
    assert batch["x"].item() == 0


def test_uncopyable_input_is_used_directly():
    part = torch.ones(1, requires_grad=True) * 2
    lock = threading.Lock()
    example = as_example(model, (part, [lock]))
    assert example is not None
    (tensor, locks), _ = example.call(model)
    assert tensor is not part and torch.equal(tensor, part) and locks[0] is lock
