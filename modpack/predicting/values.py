"""Named values: checked against a call signature, and converted to arguments and from results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from modpack.core.call_signature import (
    PLAIN_TYPES,
    CallSignature,
    ValueSpec,
    build_arguments,
    flatten_values,
    format_tensor,
    name_values,
)
from modpack.core.names import did_you_mean
from modpack.core.text import dtype_name
from modpack.errors import InputMismatchError

_MAX_PROBLEMS = 20


def signature_of(model: Any, resource: tuple[str, str]) -> CallSignature:
    """Return a call signature that knows only the names of an object's arguments.

    Args:
        model: The object.
        resource: Its package and resource.
    """
    parameters = call_parameters(model)
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    inputs = (ValueSpec(p.name, (p.name,), "any", required=p.default is p.empty) for p in named)
    positional = sum(p.kind is not p.KEYWORD_ONLY for p in named)
    return CallSignature(resource, tuple(p.name for p in named), positional, tuple(inputs), ())


class CallForm:
    """A call signature that is prepared for many calls.

    Args:
        signature: The call signature.

    Attributes:
        signature: The call signature.
        specs: The specs of the inputs by name.
    """

    def __init__(self, signature: CallSignature) -> None:
        self.signature = signature
        self.specs = {spec.name: spec for spec in signature.inputs}
        self._dtypes = {name: getattr(torch, s.dtype or "", None) for name, s in self.specs.items()}
        self._outputs = {spec.path: spec.name for spec in signature.outputs}
        # The names in the order of the arguments, if each is passed by position.
        count = len(signature.parameters)
        is_simple = not signature.containers and signature.positional == count == len(self.specs)
        by_parameter = {spec.path[0]: spec.name for spec in signature.inputs}
        self._order = [by_parameter[name] for name in signature.parameters] if is_simple else []

    def check(self, values: Mapping[str, object]) -> None:
        """Check named values against the call signature.

        Args:
            values: The values by name: tensors and plain values.

        Raises:
            InputMismatchError: If a name is unknown or missing, or a type, dtype, or shape differs.
                The error lists all problems.
        """
        specs = self.specs
        unknown = () if values.keys() <= specs.keys() else [n for n in values if n not in specs]
        problems = [f"input {n!r:.100}: unknown name. {self._suggest(n)}" for n in unknown]
        # An optional argument may be omitted, but not a part of it.
        is_partial = bool(unknown) or len(values) < len(specs)
        started = {specs[n].path[0] for n in values if n in specs} if is_partial else set()
        sizes: dict[str, tuple[int, str]] = {}
        for name, spec in specs.items():
            if name not in values:
                if spec.required or spec.path[0] in started:
                    problems.append(f"input {name!r}: missing; expected {spec}")
            elif not self._fits(spec, values[name]):
                found = describe(values[name])
                problems.append(f"input {name!r}: expected {spec}, got {found}")
            elif spec.shape:
                problems += _size_problems(spec, cast(torch.Tensor, values[name]), sizes)
        if problems:
            more = len(problems) - _MAX_PROBLEMS
            problems[_MAX_PROBLEMS:] = [f"and {more} more problems"] if more > 0 else []
            raise InputMismatchError(tuple(problems))

    def _suggest(self, name: str) -> str:
        known = list(self.specs)
        inputs = f"The inputs are {', '.join(map(repr, known[:10]))}."
        return did_you_mean(name, known, inputs if known else "There are no inputs.")

    def _fits(self, spec: ValueSpec, value: object) -> bool:
        """Return whether a value fits, apart from dimensions that vary."""
        if spec.type == "tensor":
            shape = spec.shape or ()
            return (
                isinstance(value, torch.Tensor)
                and value.dtype is self._dtypes[spec.name]
                and value.dim() == len(shape)
                and all(
                    expected == size or type(expected) is str
                    for expected, size in zip(shape, value.shape, strict=True)
                )
            )
        if spec.type in ("any", "object"):
            return True
        # Exact types, because a bool is also an int.
        accepted = (int, float) if spec.type == "float" else (PLAIN_TYPES[spec.type],)
        return type(value) in accepted

    def arguments(
        self, values: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return positional and keyword arguments from checked values."""
        if self._order and len(values) == len(self._order):
            return tuple([values[name] for name in self._order]), {}
        return build_arguments(self.signature, values)

    def outputs(self, result: object) -> dict[str, object]:
        """Return the parts of a return value by name. Tensors are moved to the CPU.

        >>> form = CallForm(CallSignature(("", "net.pkl"), (), 0, (), ()))
        >>> list(form.outputs((torch.zeros(1), {"a": 1})))
        ['output.0', 'output.1.a']
        """
        if isinstance(result, torch.Tensor):
            return {self._outputs.get((), "output"): _to_cpu(result)}
        values = flatten_values(result, objects=True).values
        # The call signature describes the outputs of one call; another may return more.
        names = {path: self._outputs.get(path, name) for path, name in name_values(values).items()}
        return {names[path]: _to_cpu(value) for path, value in values.items()}


def _size_problems(
    spec: ValueSpec, tensor: torch.Tensor, sizes: dict[str, tuple[int, str]]
) -> Iterator[str]:
    """Yield problems with the varying dimensions of a tensor, whose sizes are collected."""
    for dimension, size in zip(spec.shape or (), tensor.shape, strict=True):
        if isinstance(dimension, int):
            continue
        known, name = sizes.setdefault(dimension, (size, spec.name))
        if size != known:
            yield (
                f"input {spec.name!r}: expected {dimension} = {known} as in {name!r}, got "
                f"{describe(tensor)}"
            )
        elif size == 0:
            yield f"input {spec.name!r}: expected {spec} with {dimension} from 1, got 0"


def describe(value: object) -> str:
    """Return a value's type as error messages show it.

    >>> describe(torch.zeros(2, 3)), describe(3), describe(None)
    ('float32 (2, 3)', 'int', 'None')
    """
    if isinstance(value, torch.Tensor):
        return format_tensor(dtype_name(value.dtype), tuple(value.shape))
    return "None" if value is None else type(value).__name__


def _to_cpu(value: object) -> object:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def can_convert(source: torch.dtype, target: torch.dtype) -> bool:
    """Return whether numbers of a dtype can become those of another without loss of a part.

    Floating-point numbers do not become integers, and numbers do not become truth values.
    """
    ranks = [
        3 if each.is_complex else 2 if each.is_floating_point else each is not torch.bool
        for each in (source, target)
    ]
    return ranks[0] <= ranks[1] and bool(ranks[0]) == bool(ranks[1])


def convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Return numbers in another dtype, or None if a number does not fit.

    Floating-point numbers are rounded; integers must have the same value.
    """
    if tensor.dtype == dtype:
        return tensor
    if not can_convert(tensor.dtype, dtype):
        return None
    converted = tensor.to(dtype)
    if tensor.is_floating_point() or tensor.is_complex():
        return converted if torch.equal(_finite(converted), _finite(tensor)) else None
    if not tensor.numel():
        return converted
    integers = tensor.to(torch.int64)
    if tensor.dtype is torch.uint64 and integers.min() < 0:  # from 2**63
        return None
    if not (dtype.is_floating_point or dtype.is_complex):
        bounds = torch.iinfo(dtype)
        fits = bounds.min <= int(integers.min()) and int(integers.max()) <= bounds.max
        return converted if fits else None
    numbers = (converted.real if dtype.is_complex else converted).double()
    # Conversions to int64 are undefined beyond its range.
    is_exact = numbers.abs().max() < 2.0**63 and torch.equal(numbers.to(torch.int64), integers)
    return converted if is_exact else None


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    # float8 has no isfinite.
    return (tensor.float() if tensor.itemsize == 1 else tensor).isfinite()


def join_problems(failure: InputMismatchError) -> str:
    """Return all problems of values on one line."""
    return "; ".join(problem.rstrip(".") for problem in failure.problems)


def call_parameters(model: Any) -> list[inspect.Parameter]:
    """Return the parameters of a model's call, or none if they are not known."""
    called = model
    if isinstance(model, torch.nn.Module) and type(model).__call__ is torch.nn.Module.__call__:
        called = model.forward
    schema = getattr(called, "schema", None)  # of a TorchScript method
    if schema is not None and hasattr(schema, "arguments"):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own = [each for each in schema.arguments if each.name != "self"]
        empty = inspect.Parameter.empty
        return [
            inspect.Parameter(each.name, kind, default=None if each.has_default_value() else empty)
            for each in own
        ]
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a function in C
        return []
