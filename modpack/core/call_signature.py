"""Call signatures: the arguments and outputs of a saved object's call.

A call signature describes one call by named values. Containers are flattened: an argument ``state``
that is a tuple of two tensors has the values ``state.0`` and ``state.1``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

ValueType: TypeAlias = Literal[
    "tensor", "bool", "int", "float", "str", "bytes", "none", "object", "any"
]
"""The type of a value. ``"object"`` cannot be written as data; ``"any"`` is not known."""

ContainerType: TypeAlias = Literal["tuple", "list", "dict", "object"]

Batching: TypeAlias = Literal["independent", "dependent", "untested"]
"""Whether the rows of a batch influence each other."""

Step: TypeAlias = str | int


class ValueSpec(NamedTuple):
    """One tensor or plain value of a call.

    Attributes:
        name: Steps of ``path``, joined by dots: ``"x"``, ``"state.0"``. Unique among the inputs,
            and among the outputs.
        path: An argument name (an input) or the steps into the return value (an output), then the
            keys and indexes of containers. Empty for an output that is the return value itself;
            its name is then ``"output"``.
        type: The type of the value.
        dtype: A tensor's dtype without ``torch.``: ``"float32"``. None for other values.
        shape: A tensor's dimensions. A string is the name of a dimension that may vary; dimensions
            with the same name have the same size. None for other values.
        required: Whether the call needs the value. Always True for outputs.
    """

    name: str
    path: tuple[Step, ...]
    type: ValueType
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    required: bool = True


class ContainerSpec(NamedTuple):
    """A container that values were flattened from.

    Attributes:
        path: The path of the container, as in :class:`ValueSpec`.
        type: The type of the container.
        keys: Keys, field names, or indexes of its parts, in order.
    """

    path: tuple[Step, ...]
    type: ContainerType
    keys: tuple[Step, ...]


class CallSignature(NamedTuple):
    """The arguments and outputs of a saved object's call.

    Attributes:
        resource: Package and resource of the object.
        parameters: Names of the arguments in order.
        positional: How many of them are passed by position; the others are passed by name.
        inputs: Values of the arguments.
        outputs: Values of the return value.
        containers: Containers of the arguments.
        output_containers: Containers of the return value.
        batch: Name of the batch dimension: the first dimension of every input tensor and output
            tensor, if it may vary. None if there is no such dimension.
        batching: Whether the rows of a batch influence each other.
    """

    resource: tuple[str, str]
    parameters: tuple[str, ...]
    positional: int
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    containers: tuple[ContainerSpec, ...] = ()
    output_containers: tuple[ContainerSpec, ...] = ()
    batch: str | None = None
    batching: Batching = "untested"
