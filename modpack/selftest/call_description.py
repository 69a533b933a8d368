"""Call signatures of live objects: described from one call, with the dimensions that may vary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from modpack.core.call_signature import (
    PLAIN_TYPES,
    CallSignature,
    ContainerSpec,
    FlatValues,
    Step,
    ValueSpec,
    ValueType,
    flatten_values,
    name_values,
)
from modpack.core.names import did_you_mean
from modpack.core.text import dtype_name
from modpack.predicting.values import call_parameters

if TYPE_CHECKING:
    from modpack.examples.recorded import Example

Dynamic = Mapping[str, Mapping[int, str]]

_TYPES: Final[Mapping[type, ValueType]] = {kind: name for name, kind in PLAIN_TYPES.items()}


def describe_call(
    resource: tuple[str, str], model: Any, example: Example, dynamic: Dynamic | None = None
) -> CallSignature:
    """Return the call signature of an example's arguments, without outputs.

    Args:
        resource: Package and resource of the model.
        model: The live model.
        example: The arguments.
        dynamic: Names of dimensions that may vary, by input and dimension.

    Raises:
        ValueError: If ``dynamic`` does not fit the arguments.
    """
    from modpack.hooks.ddp import unwrap  # imports torch.distributed

    parameters = call_parameters(unwrap(model))  # the wrapped module is saved
    count = len(example.args)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds][:count]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    names += [f"{rest}.{index}" for index in range(count - len(names))]
    is_required = {p.name: p.default is p.empty for p in parameters}
    named = [name for name in is_required if name in example.kwargs]
    named += [name for name in example.kwargs if name not in is_required]  # of **kwargs
    names += named
    values: dict[tuple[Step, ...], object] = {}
    containers: list[ContainerSpec] = []
    for name, value in zip(names, (*example.args, *map(example.kwargs.get, named)), strict=True):
        # Other containers are one value: data cannot rebuild them without the package's code.
        flat = flatten_values(value, (name,), objects=False)
        values.update(flat.values)
        containers += flat.containers
    inputs = tuple(
        spec._replace(required=is_required.get(str(spec.path[0]), True)) for spec in _specs(values)
    )
    signature = CallSignature(resource, tuple(names), count, inputs, (), tuple(containers))
    return signature if dynamic is None else _name_dimensions(signature, dynamic)


def describe_outputs(signature: CallSignature, output: object) -> CallSignature:
    """Return a call signature with the outputs of a return value.

    Args:
        signature: The call signature.
        output: The return value of the call.
    """
    try:
        flat = flatten_values(output, objects=True)
    except Exception:  # properties and mappings of user-defined classes may raise
        flat = FlatValues({(): output}, ())
    return signature._replace(outputs=tuple(_specs(flat.values)), output_containers=flat.containers)


def _specs(values: Mapping[tuple[Step, ...], object]) -> Iterator[ValueSpec]:
    for path, name in name_values(values).items():
        value = values[path]
        if isinstance(value, torch.Tensor) and _is_dense(value):
            dtype = dtype_name(value.dtype)
            yield ValueSpec(name, path, "tensor", dtype, tuple(value.shape))
        else:
            yield ValueSpec(name, path, _TYPES.get(type(value), "object"))


def _is_dense(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():  # subclasses may reject these operations
        return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)


def _name_dimensions(signature: CallSignature, dynamic: Dynamic) -> CallSignature:
    shapes: dict[str, list[int | str]] = {
        spec.name: list(spec.shape) for spec in signature.inputs if spec.shape is not None
    }
    sizes: dict[str, tuple[int | str, str]] = {}
    for name, dimensions in dynamic.items():
        chosen = [s for s in signature.inputs if s.name == name or s.path[0] == name]
        if not chosen:
            known = [spec.name for spec in signature.inputs]
            hint = did_you_mean(name, known, f"Inputs: {', '.join(known)}.")
            raise ValueError(f"dynamic: {name!r} is not an input of the example. {hint}")
        tensors = [(spec, spec.shape) for spec in chosen if spec.shape is not None]
        if not tensors:
            raise ValueError(f"dynamic: the input {name!r} is not a tensor, but {chosen[0]}")
        for spec, shape in tensors:
            for dimension, label in dimensions.items():
                if not -len(shape) <= dimension < len(shape):
                    raise ValueError(
                        f"dynamic: {spec.name!r} has no dimension {dimension}; it is {spec}"
                    )
                size, first = sizes.setdefault(label, (shape[dimension], spec.name))
                if size != shape[dimension]:
                    raise ValueError(
                        f"dynamic: the dimension {label!r} has size {size} in {first!r} and size "
                        f"{shape[dimension]} in {spec.name!r}"
                    )
                shapes[spec.name][dimension] = label
    inputs = tuple(
        spec._replace(shape=tuple(shapes[spec.name])) if spec.name in shapes else spec
        for spec in signature.inputs
    )
    return signature._replace(inputs=inputs, batch=shared_batch(inputs))


def shared_batch(inputs: Sequence[ValueSpec]) -> str | None:
    """Return the name of the first dimension that all input tensors have in common, or None."""
    shapes = [spec.shape for spec in inputs if spec.shape is not None]
    labels = {shape[0] if shape else None for shape in shapes}
    label = labels.pop() if len(labels) == 1 else None
    is_first_only = isinstance(label, str) and all(label not in shape[1:] for shape in shapes)
    return label if isinstance(label, str) and is_first_only else None
