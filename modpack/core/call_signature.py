"""Call signatures: the arguments and outputs of a saved object's call.

A call signature describes one call by named values. Containers are flattened: an argument ``state``
that is a tuple of two tensors has the values ``state.0`` and ``state.1``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import Json, as_list

ValueType: TypeAlias = Literal[
    "tensor", "bool", "int", "float", "str", "bytes", "none", "object", "any"
]
"""The type of a value. ``"object"`` cannot be written as data; ``"any"`` is not known."""

ContainerType: TypeAlias = Literal["tuple", "list", "dict", "object"]

Batching: TypeAlias = Literal["independent", "dependent", "untested"]
"""Whether the rows of a batch influence each other."""

Step: TypeAlias = str | int

PLAIN_TYPES: Final[Mapping[ValueType, type]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "none": type(None),
}
"""The Python type of each type of plain values."""

CALL_SIGNATURE_VERSION: Final = 1
"""Version of the record. Raise it if a reader of the old version would misread the new record."""

DEFAULT_ROWS: Final = 32
"""Rows of a batch unless the user chooses another number."""

_MAX_DEPTH = 20
_MAX_PARTS = 1000
"""Containers that are nested deeper or have more parts are values of type ``"object"``."""


class ValueSpec(NamedTuple):
    """One tensor or plain value of a call.

    Attributes:
        name: Steps of ``path``, joined by dots: ``"x"``, ``"state.0"``. Unique among the inputs,
            and among the outputs.
        path: An argument name (an input) or the steps into the return value (an output), then the
            keys and indexes of containers. Empty for an output that is the return value itself;
            its name is then ``"output"``, and those of a returned tuple's parts ``"output.0"``, ...
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

    def __str__(self) -> str:
        """Return the type: ``float32 (batch, 4)``, or ``int``."""
        if self.type == "tensor" and self.dtype is not None:
            return format_tensor(self.dtype, self.shape)
        return "None" if self.type == "none" else self.type


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
        parameters: Names of the arguments in order. An argument of ``*args`` is ``"args.0"``.
        positional: How many of them are passed by position; the others are passed by name.
        inputs: Values of the arguments.
        outputs: Values of the return value. Empty if the object was not called.
        containers: Containers of the arguments.
        output_containers: Containers of the return value.
        batch: Name of the batch dimension: the first dimension of every input tensor, if it may
            vary. None if there is no such dimension.
        batching: Whether the rows of a batch influence each other. If ``"independent"``, the
            batch dimension is also the first dimension of every output tensor, and other outputs
            do not depend on the rows. Otherwise, a batch cannot be split into its rows.
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

    def __repr__(self) -> str:
        return f"<CallSignature of {'/'.join(self.resource)}: {self}>"

    def __str__(self) -> str:
        """Return the call on one line.

        >>> x = ValueSpec("x", ("x",), "tensor", "float32", ("batch", 4))
        >>> y = ValueSpec("output", (), "tensor", "float32", ("batch",))
        >>> str(CallSignature(("net", "model.pkl"), ("x",), 1, (x,), (y,)))
        '(x: float32 (batch, 4)) -> output: float32 (batch,)'
        """
        inputs = ", ".join(_format_input(each) for each in self.inputs)
        outputs = ", ".join(f"{each.name}: {each}" for each in self.outputs)
        return f"({inputs}) -> {outputs}" if outputs else f"({inputs})"


def _format_input(spec: ValueSpec) -> str:
    return f"{spec.name}: {spec}" + ("" if spec.required else " = ...")


def format_tensor(dtype: str, shape: Sequence[int | str] | None) -> str:
    """Return a tensor's type as text.

    >>> (
    ...     format_tensor("float32", ("batch", 4)),
    ...     format_tensor("int64", ()),
    ...     format_tensor("bool", (3,)),
    ... )
    ('float32 (batch, 4)', 'int64 ()', 'bool (3,)')
    """
    if shape is None:
        return dtype
    sizes = ", ".join(map(str, shape))
    return f"{dtype} ({sizes}{',' if len(shape) == 1 else ''})"


class FlatValues(NamedTuple):
    """Nested values, flattened.

    Attributes:
        values: Each value that is not a container, by its path.
        containers: The containers.
    """

    values: dict[tuple[Step, ...], object]
    containers: tuple[ContainerSpec, ...]


def flatten_values(value: object, path: tuple[Step, ...] = (), *, objects: bool) -> FlatValues:
    """Flatten tuples, lists, and dicts.

    Args:
        value: The value.
        path: Its path.
        objects: Whether to flatten also named tuples, dataclasses, and subclasses of dict. They
            cannot be rebuilt without their class.

    >>> flatten_values({"a": 1, "b": (2, 3)}, objects=False).values
    {('a',): 1, ('b', 0): 2, ('b', 1): 3}
    """
    values: dict[tuple[Step, ...], object] = {}
    containers: list[ContainerSpec] = []

    def add(part: object, path: tuple[Step, ...], outer: tuple[int, ...]) -> None:
        # A container that contains itself, or nests too deeply, is a value.
        found = None if id(part) in outer or len(outer) > _MAX_DEPTH else _split(part, objects)
        if found is None:
            values[path] = part
            return
        kind, parts = found
        containers.append(ContainerSpec(path, kind, tuple(key for key, _ in parts)))
        for key, each in parts:
            add(each, (*path, key), (*outer, id(part)))

    add(value, path, ())
    return FlatValues(values, tuple(containers))


def _split(value: object, objects: bool) -> tuple[ContainerType, list[tuple[Step, object]]] | None:
    """Return the type and the parts of a container, or None for another value."""
    kind: ContainerType
    parts: list[tuple[Step, object]]
    # Exact types, because an object of a derived class cannot be rebuilt without that class.
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        parts = list(enumerate(value))
    elif type(value) is dict or (objects and isinstance(value, Mapping)):
        kind, parts = "dict", list(value.items())
        if not all(type(key) is str or (type(key) is int and key >= 0) for key, _ in parts):
            return None
        if len({str(key) for key, _ in parts}) < len(parts):  # 1 and "1"
            return None
    elif objects and isinstance(value, tuple) and hasattr(type(value), "_fields"):
        names: Sequence[str] = getattr(type(value), "_fields")  # noqa: B009
        kind, parts = "object", list(zip(names, value, strict=False))
    elif objects and dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        kind, parts = "object", [(n, getattr(value, n)) for n in names if hasattr(value, n)]
    else:
        return None
    return (kind, parts) if len(parts) <= _MAX_PARTS else None


def name_values(paths: Iterable[tuple[Step, ...]]) -> dict[tuple[Step, ...], str]:
    """Return a unique name for each path of a value.

    >>> list(name_values([(), ("x",), ("state", 0), (1,), ("state.0",)]).values())
    ['output', 'x', 'state.0', 'output.1', 'state.0_2']
    """
    names: dict[tuple[Step, ...], str] = {}
    used: set[str] = set()
    for path in paths:
        steps = path if path and isinstance(path[0], str) else ("output", *path)
        name = base = ".".join(map(str, steps))
        number = 1
        # A key of a dict may contain dots, so that different paths give the same name.
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        names[path] = name
    return names


def build_arguments(
    signature: CallSignature, values: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return positional and keyword arguments from checked values.

    After an optional argument that is omitted, the arguments are passed by name.

    Args:
        signature: The call signature.
        values: The values by name, as :class:`modpack.predicting.values.CallForm` accepts them.
    """
    by_path = {spec.path: values[s] for spec in signature.inputs if (s := spec.name) in values}
    containers = {container.path: container for container in signature.containers}

    def build(path: tuple[Step, ...]) -> object:
        container = containers.get(path)
        if container is None:
            return by_path[path]
        parts = [build((*path, key)) for key in container.keys]
        if container.type == "dict":
            return dict(zip(container.keys, parts, strict=True))
        return tuple(parts) if container.type == "tuple" else parts

    # An argument that is an empty container has no values.
    given = {path[0] for path in by_path}
    described = {spec.path[0] for spec in signature.inputs}
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for number, name in enumerate(signature.parameters):
        if name in given or name not in described:
            if number < signature.positional and len(args) == number:
                args.append(build((name,)))
            else:
                kwargs[name] = build((name,))
    return tuple(args), kwargs


def name_arguments(
    signature: CallSignature, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the values of the example's arguments by name.

    Args:
        signature: The call signature that describes them.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    arguments = {**dict(zip(signature.parameters, args, strict=False)), **kwargs}
    by_path: dict[tuple[Step, ...], object] = {}
    for name, value in arguments.items():
        by_path.update(flatten_values(value, (name,), objects=False).values)
    return {spec.name: by_path[spec.path] for spec in signature.inputs}


def call_signatures_to_json(signatures: Iterable[CallSignature]) -> dict[str, Json]:
    """Return the record of a package; the archive format reference documents it."""
    calls: list[Json] = [record_to_json(each) for each in signatures]
    return {"version": CALL_SIGNATURE_VERSION, "calls": calls}


def call_signatures_from_json(record: Mapping[str, Json]) -> tuple[CallSignature, ...]:
    """Read a record that :func:`call_signatures_to_json` returned.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If values contradict each other.
    """
    calls = as_list(record.get("calls"), "'calls' of the record")
    read = tuple(from_json(CallSignature, each, f"call {n}") for n, each in enumerate(calls))
    for number, each in enumerate(read):
        for problem in _contradictions(each):
            raise ValueError(f"call {number}: {problem}")
    if len({each.resource for each in read}) < len(read):
        raise ValueError("an object is listed twice")
    return read


def _contradictions(call: CallSignature) -> Iterator[str]:
    if call.positional > len(call.parameters):
        yield "more positional arguments than arguments"
    for specs, containers in (
        (call.inputs, call.containers),
        (call.outputs, call.output_containers),
    ):
        if len({spec.name for spec in specs}) < len(specs):
            yield "two values have the same name"
        parts = {(*each.path, key) for each in containers for key in each.keys}
        roots = {()} if specs is call.outputs else {(name,) for name in call.parameters}
        described = [*(spec.path for spec in specs), *(each.path for each in containers)]
        for path in sorted({*parts, *roots}.difference(described), key=repr):
            if path:  # an object that was not called has no outputs
                yield f"{'.'.join(map(str, path))!r:.60} is not described"
        for path in described:
            if path not in parts and path not in roots:
                yield f"the path {'.'.join(map(str, path))!r:.60} is part of no container"
            # Arguments are rebuilt recursively, and the path comes from a package.
            if len(path) > _MAX_DEPTH + 2:
                yield "the values are nested too deeply"
    for spec in (*call.inputs, *call.outputs):
        if (spec.type == "tensor") != (spec.dtype is not None and spec.shape is not None):
            yield f"value {spec.name!r:.60} needs a dtype and a shape if it is a tensor, else none"
