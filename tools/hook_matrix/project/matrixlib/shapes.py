"""Hooks of every form: two of each, one for each step."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from matrixlib.effects import apply
from matrixlib.net import Net

Hook = Callable[..., Any]
Pair = tuple[Hook, Hook]


def double(*args: Any, **kwargs: Any) -> Any:
    """A function of a module."""
    return apply("double", 0.0, args, kwargs)


def shift(*args: Any, **kwargs: Any) -> Any:
    """A function of a module."""
    return apply("shift", 0.0, args, kwargs)


@torch.no_grad()
def double_without_grad(*args: Any, **kwargs: Any) -> Any:
    """A decorated function of a module."""
    return apply("double", 0.0, args, kwargs)


@torch.no_grad()
def shift_without_grad(*args: Any, **kwargs: Any) -> Any:
    """A decorated function of a module."""
    return apply("shift", 0.0, args, kwargs)


def lambdas(net: Net) -> Pair:
    """Return two lambdas on one line."""
    return lambda *a, **k: apply("double", 0.0, a, k), lambda *a, **k: apply("shift", 0.0, a, k)


def over_collector(net: Net) -> Pair:
    """Return two closures that append to the same list. Its length is the amount."""
    seen: list[str] = []

    def closure_double(*args: Any, **kwargs: Any) -> Any:
        seen.append("double")
        return apply("double", 0.01 * len(seen), args, kwargs)

    def closure_shift(*args: Any, **kwargs: Any) -> Any:
        seen.append("shift")
        return apply("shift", 0.01 * len(seen), args, kwargs)

    return closure_double, closure_shift


def over_parameter(net: Net) -> Pair:
    """Return two closures over a parameter of the model, which training changes."""
    bias = net.first.bias

    def closure_double(*args: Any, **kwargs: Any) -> Any:
        return apply("double", float(bias.sum()), args, kwargs)

    def closure_shift(*args: Any, **kwargs: Any) -> Any:
        return apply("shift", float(bias.sum()), args, kwargs)

    return closure_double, closure_shift


def nested(net: Net) -> Pair:
    """Return two nested functions without closure variables."""

    def nested_double(*args: Any, **kwargs: Any) -> Any:
        return apply("double", 0.0, args, kwargs)

    def nested_shift(*args: Any, **kwargs: Any) -> Any:
        return apply("shift", 0.0, args, kwargs)

    return nested_double, nested_shift


def _with_step(step: str, amount: float, *args: Any, **kwargs: Any) -> Any:
    return apply(step, amount, args, kwargs)


def partials(net: Net) -> Pair:
    """Return two partials of one function."""
    double, shift = (functools.partial(_with_step, step, 0.5) for step in ("double", "shift"))
    return double, shift


class Counter:
    """An object outside of the model that counts the calls of its hooks."""

    def __init__(self) -> None:
        self.calls = 0

    def _applied(self, step: str, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        return apply(step, 0.01 * self.calls, args, kwargs)

    def double(self, *args: Any, **kwargs: Any) -> Any:
        """A hook."""
        return self._applied("double", args, kwargs)

    def shift(self, *args: Any, **kwargs: Any) -> Any:
        """A hook."""
        return self._applied("shift", args, kwargs)


def methods_of_another(net: Net) -> Pair:
    """Return two methods of one object."""
    counter = Counter()
    return counter.double, counter.shift


def methods_of_the_model(net: Net) -> Pair:
    """Return two methods of the model."""
    return net.double, net.shift


class Step:
    """A callable object."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A hook."""
        self.calls += 1
        return apply(self.step, 0.01 * self.calls, args, kwargs)


def instances(net: Net) -> Pair:
    """Return two callable objects."""
    return Step("double"), Step("shift")


def decorated_nested(net: Net) -> Pair:
    """Return two decorated nested functions."""

    @torch.no_grad()
    def nested_double(*args: Any, **kwargs: Any) -> Any:
        return apply("double", 0.0, args, kwargs)

    @torch.no_grad()
    def nested_shift(*args: Any, **kwargs: Any) -> Any:
        return apply("shift", 0.0, args, kwargs)

    return nested_double, nested_shift


SHAPES: dict[str, Callable[[Net], Pair]] = {
    "function": lambda net: (double, shift),
    "lambda": lambdas,
    "closure over a collector": over_collector,
    "closure over a parameter": over_parameter,
    "nested function": nested,
    "partial": partials,
    "method of an object": methods_of_another,
    "method of the model": methods_of_the_model,
    "callable object": instances,
    "`no_grad` function": lambda net: (double_without_grad, shift_without_grad),
    "`no_grad` nested function": decorated_nested,
}
"""Forms of callables by name, except functions of a script."""
