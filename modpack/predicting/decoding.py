"""Values from JSON and to JSON."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch

from modpack.core.call_signature import PLAIN_TYPES, CallSignature, ValueSpec
from modpack.core.json_values import Json, parse_json
from modpack.core.text import dtype_name
from modpack.errors import InputMismatchError

_NAMES: Final = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_NAMES_OF_ELEMENTS: Final = {bool: "true and false", int: "integers", float: "numbers"}
_CODES: Final = {
    **{torch.float32: "f", torch.float64: "d", torch.uint8: "B", torch.uint16: "H"},
    **{torch.int8: "b", torch.int16: "h", torch.int32: "i", torch.int64: "q"},
    **{torch.uint32: "I", torch.uint64: "Q"},
}
"""The codes of arrays of Python that have the numbers of a dtype."""
_MAX_NESTING = 64
"""More dimensions than torch supports."""


def parse_document(data: bytes, max_depth: int = 100) -> Json:
    """Parse a JSON document of values; see :func:`modpack.core.json_values.parse_json`.

    Raises:
        InputMismatchError: If the document is not valid JSON, or is nested too deeply.
    """
    try:
        return parse_json(data, max_depth=max_depth)
    except ValueError as failure:
        form = "UTF-8" if isinstance(failure, UnicodeDecodeError) else "JSON"
        raise InputMismatchError((f"the document is not valid {form}: {failure}",)) from None


def decode_value(spec: ValueSpec, data: object) -> object:
    """Convert a JSON value to the value that a spec describes.

    Tensors are nested lists of numbers; bytes are in base64. A value of unknown type
    (``"any"``) becomes a tensor if it is a list of numbers: of dtype int64 if all are integers,
    bool if all are true or false, otherwise torch's default dtype.

    Args:
        spec: The spec. Its shape is not compared; :meth:`.CallForm.check` does that.
        data: The parsed JSON.

    Raises:
        InputMismatchError: If the value does not fit. The error names its position: ``x[3][1]``.

    >>> decode_value(ValueSpec("x", ("x",), "tensor", "float32", (2,)), [1, 2.5])
    tensor([1.0000, 2.5000])
    """
    if spec.type == "tensor":
        return decode_tensor(spec.name, data, dtype_of(spec.name, spec.dtype))
    if spec.type == "any":
        return _decode_any(spec.name, data)
    if spec.type == "object":
        raise _wrong(spec.name, "expected an object of a Python class, which JSON cannot describe")
    if spec.type == "none":
        if data is not None:
            raise _wrong(spec.name, f"expected null, got {_show(data)}")
        return None
    if spec.type == "bytes":
        # Without validate, characters that are not base64 would be skipped.
        with suppress(ValueError):
            if isinstance(data, str):
                return base64.b64decode(data, validate=True)
        raise _wrong(spec.name, f"expected bytes in base64, got {_show(data)}")
    kind = PLAIN_TYPES[spec.type]
    # Many writers of JSON leave out the fraction of whole numbers.
    if type(data) is int and kind is float:
        data = _to_float(spec.name, data)
    if type(data) is not kind:
        raise _wrong(spec.name, f"expected {_NAMES[kind]}, got {_show(data)}")
    if isinstance(data, float) and not math.isfinite(data):
        raise _wrong(spec.name, "the number is too large for float64")
    return data


def decode_named(
    signature: CallSignature, specs: Mapping[str, ValueSpec], data: object
) -> dict[str, object]:
    """Return the values of parsed JSON by name. Unknown names keep their JSON.

    Args:
        signature: The call signature.
        specs: The specs of the inputs by name, with or without the dimension of rows.
        data: The parsed JSON.

    Raises:
        InputMismatchError: If a value cannot be converted. The error lists all such values.
    """
    values: dict[str, object] = {}
    problems: list[str] = []
    for name, item in name_json(signature, data).items():
        try:
            values[name] = decode_value(specs[name], item) if name in specs else item
        except InputMismatchError as failure:
            problems += failure.problems
    if problems:
        raise InputMismatchError(tuple(problems))
    return values


def name_json(signature: CallSignature, data: object) -> dict[str, object]:
    """Return parsed JSON by the names of inputs.

    An object has the inputs, or the containers of several, by name. Another value is that of the
    only input.
    """
    single = only_input(signature)
    if not isinstance(data, dict):
        return {single or "": data}
    known = {spec.name for spec in signature.inputs}
    if single is not None and single not in data and signature.inputs[0].type == "any":
        return data
    return flatten_named(signature, data) if not known.issuperset(data) else data


def flatten_named(signature: CallSignature, data: Mapping[str, object]) -> dict[str, object]:
    """Return values by name, with the parts of containers as values of their own."""
    containers = {".".join(map(str, each.path)) for each in signature.containers}
    known = {spec.name for spec in signature.inputs} - containers
    found: dict[str, object] = {}

    def add(name: str, value: object) -> None:
        if name in containers and name not in known and isinstance(value, (dict, list, tuple)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in parts:
                add(f"{name}.{key}", part)
        else:
            found[name] = value

    for name, value in data.items():
        add(str(name), value)
    return found


def only_input(signature: CallSignature) -> str | None:
    """Return the name of the only input, or of the only required one. None if there are several."""
    required = [spec.name for spec in signature.inputs if spec.required]
    if len(signature.inputs) == 1:
        return signature.inputs[0].name
    return required[0] if len(required) == 1 else None


def dtype_of(name: str, dtype: str | None) -> torch.dtype:
    """Return the dtype that the spec of an input names.

    Raises:
        InputMismatchError: If this version of torch has no such dtype.
    """
    found = getattr(torch, dtype or "", None)
    if not isinstance(found, torch.dtype):
        raise _wrong(name, f"torch has no dtype {dtype!r:.60}")
    return found


def _wrong(position: str, problem: str) -> InputMismatchError:
    return InputMismatchError((f"input {position}: {problem}",))


def _show(data: object) -> str:
    """Return a JSON value for an error, shortened."""
    if isinstance(data, (list, dict)):
        return "a list" if isinstance(data, list) else "an object"
    try:
        text = json.dumps(data)
    except ValueError:  # an integer with thousands of digits
        text = "a very large integer"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _to_float(position: str, number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise _wrong(position, "the number is too large for float64") from None


def _position(name: str, index: int, shape: list[int]) -> str:
    """Return the position of an element, from its index among all elements at its depth."""
    steps: list[int] = []
    for size in reversed(shape):
        index, step = divmod(index, size)
        steps.insert(0, step)
    return name + "".join(f"[{step}]" for step in steps)


def _flatten(name: str, data: object) -> tuple[list[int], list[object]]:
    """Return the shape of nested lists, and all elements."""
    shape: list[int] = []
    level: list[object] = [data]
    while level and isinstance(level[0], list):
        # The first list sets the length of all lists at its depth.
        size = len(level[0])
        below: list[object] = []
        for index, each in enumerate(level):
            if not isinstance(each, list):
                found = _show(each)
                raise _wrong(
                    _position(name, index, shape), f"expected a list of {size}, got {found}"
                )
            if len(each) != size:
                text = (
                    f"expected a list of {size}, like the previous one, got a list of {len(each)}"
                )
                raise _wrong(_position(name, index, shape), text)
            below += each
        shape.append(size)
        if len(shape) > _MAX_NESTING:
            raise _wrong(name, f"the lists are nested more than {_MAX_NESTING} levels deep")
        level = below
    return shape, level


def decode_tensor(name: str, data: object, dtype: torch.dtype) -> torch.Tensor:
    """Convert nested lists to a tensor.

    Args:
        name: Name of the input, for errors.
        data: The parsed JSON.
        dtype: The dtype of the tensor.

    Raises:
        InputMismatchError: If a list is ragged, or an element is no such number.
    """
    shape, elements = _flatten(name, data)
    if dtype.is_complex:
        raise _wrong(name, f"JSON has no {dtype_name(dtype)} numbers")
    kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    # Exact types are compared below: for isinstance, true is an integer.
    accepted = {int, float} if kind is float else {kind}
    if not accepted.issuperset(map(type, elements)):
        index = next(i for i, each in enumerate(elements) if type(each) not in accepted)
        text = f"expected {_NAMES_OF_ELEMENTS[kind]} for {dtype_name(dtype)}"
        raise _wrong(_position(name, index, shape), f"{text}, got {_show(elements[index])}")
    tensor = _to_tensor(elements, dtype)
    if tensor is None:
        index = next(i for i, each in enumerate(elements) if _to_tensor([each], dtype) is None)
        text = f"{_show(elements[index])} is out of range for {dtype_name(dtype)}"
        raise _wrong(_position(name, index, shape), text)
    return tensor.view(shape)


def _to_tensor(elements: list[Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor of numbers, or None if one is out of range."""
    code = _CODES.get(dtype)
    try:
        if code is None or not elements:
            tensor = torch.tensor(elements, dtype=dtype)
            is_finite = not dtype.is_floating_point or bool(tensor.double().isfinite().all())
            return tensor if is_finite else None
        # Takes a third of the time of torch.tensor (benchmark serving, 16 clients).
        numbers = array(code, elements)
    except (OverflowError, RuntimeError, ValueError):
        return None
    # The sum decides in one pass in C, unless it overflows itself.
    if code in "fd" and not math.isfinite(sum(numbers)) and not all(map(math.isfinite, numbers)):
        return None
    return torch.frombuffer(numbers, dtype=dtype)


def _decode_any(name: str, data: object) -> object:
    if not isinstance(data, list):
        return data
    kinds = set(map(type, _elements(data)))
    if not kinds or (not kinds <= {int, float} and kinds != {bool}):
        return data
    dtype = torch.bool if kinds == {bool} else torch.get_default_dtype()
    return decode_tensor(name, data, torch.int64 if kinds == {int} else dtype)


def _elements(data: list[object]) -> list[object]:
    """Return the elements of nested lists, ragged or not."""
    level = data
    while any(isinstance(each, list) for each in level):
        level = [x for each in level for x in (each if isinstance(each, list) else [each])]
    return level


def encode_value(value: object, *, is_finite: bool = False) -> object:
    """Convert an output to JSON. Numbers that are not finite become null, as in JavaScript.

    Bytes become strings in base64. An object becomes the name of its type, in angle brackets.

    Args:
        value: The output.
        is_finite: Whether to convert a tensor without looking for numbers that are not finite.

    >>> encode_value(torch.tensor([[1.5], [float("nan")]]))
    [[1.5], [None]]
    """
    if isinstance(value, torch.Tensor):
        tensor = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        items = tensor.tolist()
        if is_finite or not tensor.is_floating_point() or tensor.double().isfinite().all():
            return items
        return _without_infinities(items)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return f"<{type(value).__qualname__}>"


def _without_infinities(items: object) -> object:
    if isinstance(items, list):
        return [_without_infinities(each) for each in items]
    return items if math.isfinite(items) else None  # type: ignore[arg-type]
