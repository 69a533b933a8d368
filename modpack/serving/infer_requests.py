"""Infer requests of the Open Inference Protocol, read into values, and their answers."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch

from modpack.core.call_signature import ValueSpec
from modpack.core.text import dtype_name
from modpack.predicting.decoding import decode_tensor, dtype_of, encode_value
from modpack.predicting.values import CallForm
from modpack.serving.documents import encode_document, parse_body
from modpack.serving.open_inference import (
    ALL_DATATYPES,
    BINARY,
    DATATYPES,
    DTYPES,
    PLAIN_DATATYPES,
    version_of,
)
from modpack.serving.settings import JSON, Answer, RequestError

_MAX_DIMENSIONS: Final = 64
_MAX_ELEMENTS: Final = 1 << 59
"""Product of a shape's sizes at most, zeros left out: strides and bytes stay within int64."""
_EXTRA_NAMES: Final = 64
"""Names of a request beyond those that the signature knows, which errors name one by one."""
_SIZE: Final = struct.Struct("<I")

_Elements: TypeAlias = torch.Tensor | list[Any]
"""A tensor, or the texts or bytes of a BYTES tensor."""


class InferRequest(NamedTuple):
    """A request that is read. Only ``values`` applies to those in plain JSON and to images.

    Attributes:
        values: The inputs by name.
        id: The client's name of the request, or None.
        outputs: Whether each requested output is binary, by name; None requests all.
        is_binary: Whether outputs that ``outputs`` does not name are binary.
    """

    values: dict[str, object]
    id: str | None = None
    outputs: dict[str, bool] | None = None
    is_binary: bool = False


def read_infer_request(body: memoryview, json_length: int | None, form: CallForm) -> InferRequest:
    """Read an infer request.

    Args:
        body: The body of the HTTP request.
        json_length: Length of the JSON before binary tensors, or None if there are none.
        form: The call signature of the model.

    Raises:
        RequestError: If the request is invalid.
        InputMismatchError: If the JSON or the data of a tensor is invalid.
    """
    if json_length is not None and not 0 <= json_length <= len(body):
        raise RequestError(
            f"the header length is {json_length}, but the body has {len(body)} bytes"
        )
    # Binary tensors follow the JSON, in the order of the inputs.
    end = len(body) if json_length is None else json_length
    document = parse_body(body[:end])
    if not isinstance(document, dict):
        raise RequestError("the body must be a JSON object with the key 'inputs'")
    identifier = document.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise RequestError("'id' must be a string")
    is_binary = _flag(_parameters(document, "the request"), "binary_data_output", False)
    outputs = None
    if document.get("outputs") is not None:
        named = _named(document, "outputs", len(form.signature.outputs))
        outputs = {
            name: _flag(_parameters(each, f"output {name!r}"), "binary_data", is_binary)
            for name, each in named
        }
    values = dict(_read_inputs(_named(document, "inputs", len(form.specs)), body[end:], form.specs))
    return InferRequest(values, identifier, outputs, is_binary)


def require_few(count: int, known: int, what: str) -> None:
    """Refuse a request by the number of its names, before work that grows with them.

    Raises:
        RequestError: If there are far more names than the model has.
    """
    if count > known + _EXTRA_NAMES:
        raise RequestError(f"the request has {count} {what}, and the model has {known}")


def _parameters(holder: dict[str, Any], owner: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"'parameters' of {owner} must be an object")
    return parameters


def _flag(parameters: dict[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise RequestError(f"{key!r} must be true or false")
    return value


def _named(document: dict[str, Any], key: str, known: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a list, with their names."""
    listed = document.get(key)
    if not isinstance(listed, list):
        raise RequestError(f"{key!r} must be a list of objects with names")
    require_few(len(listed), known, key)
    named: list[tuple[str, dict[str, Any]]] = []
    for each in listed:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise RequestError(f"{key!r} must be a list of objects with names")
        named.append((each["name"], each))
    if len({name for name, _ in named}) < len(named):
        raise RequestError(f"two of the {key} have the same name")
    return named


def _read_inputs(
    inputs: list[tuple[str, dict[str, Any]]], binary: memoryview, specs: Mapping[str, ValueSpec]
) -> Iterator[tuple[str, object]]:
    for name, given in inputs:
        size = _parameters(given, f"input {name!r}").get("binary_data_size")
        shape, datatype = _shape_of(name, given), given.get("datatype")
        if not isinstance(datatype, str) or datatype not in ALL_DATATYPES:
            known = ", ".join(ALL_DATATYPES)
            raise RequestError(f"input {name!r}: unknown datatype {datatype!r:.40}; known: {known}")
        if size is None:
            elements = _elements(name, given.get("data"), shape, datatype)
        else:
            if type(size) is not int or not 0 <= size <= len(binary):
                left = f"{len(binary)} bytes are left in the body"
                raise RequestError(f"input {name!r}: binary_data_size is {size!r:.40}, but {left}")
            elements = _binary_elements(name, binary[:size], shape, datatype)
            binary = binary[size:]
        yield name, _plain_value(specs.get(name), name, elements)
    if binary:
        raise RequestError(f"{len(binary)} bytes follow the binary data of the last input")


def _shape_of(name: str, given: dict[str, Any]) -> list[int]:
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise RequestError(f"input {name!r}: 'shape' must be a list of integers from 0")
    if len(shape) > _MAX_DIMENSIONS:
        count = f"{len(shape)} dimensions; at most {_MAX_DIMENSIONS} are possible"
        raise RequestError(f"input {name!r}: the shape has {count}")
    # The size of each number is checked before the product, whose time is quadratic in the digits.
    is_large = max(shape, default=0) > _MAX_ELEMENTS
    if is_large or math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise RequestError(f"input {name!r}: the shape has too many elements")
    return shape


def _elements(name: str, data: object, shape: list[int], datatype: str) -> _Elements:
    """Return a tensor from JSON, or the texts of a BYTES tensor."""
    if not isinstance(data, list):
        raise RequestError(
            f"input {name!r}: 'data' must be a list, or binary_data_size must be given"
        )
    if datatype == "BYTES":
        texts = data
        while len(texts) == 1 and isinstance(texts[0], list):
            texts = texts[0]
        if not all(isinstance(text, str) for text in texts):
            raise RequestError(f"input {name!r}: elements of datatype BYTES must be strings")
        _require_count(name, len(texts), shape)
        return texts
    tensor = decode_tensor(name, data, dtype_of(name, DTYPES[datatype]))
    _require_count(name, tensor.numel(), shape)
    # A flat list has the elements of any shape. Nested ones have a shape themselves.
    if tensor.dim() > 1 and list(tensor.shape) != shape:
        found = list(tensor.shape)
        raise RequestError(f"input {name!r}: the shape is {shape}, but the lists have {found}")
    return tensor.reshape(shape)


def _binary_elements(name: str, data: memoryview, shape: list[int], datatype: str) -> _Elements:
    if datatype == "BYTES":
        parts = list(_split_bytes(name, data))
        _require_count(name, len(parts), shape)
        return parts
    dtype = dtype_of(name, DTYPES[datatype])
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(data):
        raise RequestError(
            f"input {name!r}: shape {shape} of {datatype} has {needed} bytes, got {len(data)}"
        )
    if not data:
        return torch.empty(shape, dtype=dtype)
    # A copy: the data need not be aligned, and frombuffer shares a buffer that all inputs use.
    tensor = torch.frombuffer(bytearray(data), dtype=dtype)
    return tensor.reshape(shape)


def _require_count(name: str, count: int, shape: list[int]) -> None:
    expected = math.prod(shape)
    if count != expected:
        raise RequestError(f"input {name!r}: shape {shape} has {expected} elements, got {count}")


def _split_bytes(name: str, data: memoryview) -> Iterator[bytes]:
    while data:
        # Each element follows its length, four bytes in little-endian order.
        size = _SIZE.unpack_from(data)[0] if len(data) >= _SIZE.size else len(data)
        if _SIZE.size + size > len(data):
            raise RequestError(f"input {name!r}: the binary data is cut off")
        yield bytes(data[_SIZE.size : _SIZE.size + size])
        data = data[_SIZE.size + size :]


def _plain_value(spec: ValueSpec | None, name: str, elements: _Elements) -> object:
    """Convert a tensor of one element to the plain value that a spec describes."""
    if spec is None or spec.type == "any":
        is_single = isinstance(elements, list) and len(elements) == 1
        return elements[0] if is_single else elements
    if spec.type not in PLAIN_DATATYPES:
        return elements
    parts = elements.reshape(-1) if isinstance(elements, torch.Tensor) else elements
    if len(parts) != 1:
        raise RequestError(f"input {name!r}: expected one element of {spec}, got {len(parts)}")
    value = parts.item() if isinstance(parts, torch.Tensor) else parts[0]
    if spec.type == "str" and isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as failure:
            raise RequestError(f"input {name!r}: the data is not valid UTF-8") from failure
    if spec.type == "bytes" and isinstance(value, str):
        return value.encode("utf-8")
    return value


def write_infer_answer(
    request: InferRequest, result: Mapping[str, object], name: str, digest: str
) -> Answer:
    """Return the answer to an infer request.

    Raises:
        RequestError: If the model has no such output, or it cannot be written.
    """
    wanted = request.outputs
    if wanted is None:
        wanted = dict.fromkeys(result, request.is_binary)
    outputs, parts = [], []
    for output, is_binary in wanted.items():
        if output not in result:
            listed = ", ".join(map(repr, result))
            raise RequestError(
                f"the model has no output {output!r:.100}. Its outputs are {listed}."
            )
        # The protocol has no datatype for None.
        if result[output] is None:
            continue
        described, content = _write_output(output, result[output], is_binary)
        outputs.append(described)
        if content is not None:
            parts.append(content)
    document = {"model_name": name, "model_version": version_of(digest), "outputs": outputs}
    if request.id is not None:
        document["id"] = request.id
    head = encode_document(document)
    if not parts:
        return Answer(200, JSON, head)
    return Answer(200, BINARY, b"".join([head, *parts]), len(head))


def _write_output(name: str, value: object, is_binary: bool) -> tuple[dict[str, Any], bytes | None]:
    """Return the JSON of an output, and its data if it is binary."""
    if isinstance(value, torch.Tensor):
        datatype = DATATYPES.get(dtype_name(value.dtype))
        shape, tensor = list(value.shape), value
    else:
        datatype = PLAIN_DATATYPES.get(type(value).__name__)
        shape, tensor = [1], None
    if datatype is None:
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise RequestError(f"output {name!r} is {kind}, which the protocol cannot describe", 501)
    described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if not is_binary:
        # The protocol sends elements flat, in row-major order.
        described["data"] = (
            [encode_value(value)]
            if tensor is None
            else encode_value(tensor.reshape(-1), is_finite=True)
        )
        return described, None
    if datatype == "BYTES":
        content = value.encode() if isinstance(value, str) else cast(bytes, value)
        data = _SIZE.pack(len(content)) + content
    else:
        if tensor is None:
            tensor = torch.tensor([value], dtype=getattr(torch, DTYPES[datatype]))
        data = _bytes_of(tensor)
    described["parameters"] = {"binary_data_size": len(data)}
    return described, data


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the content of a tensor. Tensor.numpy() would require numpy."""
    if sys.byteorder != "little":
        raise RequestError("binary tensors require a little-endian machine", 501)
    # string_at copies memory as it is, without a negation that torch has postponed.
    tensor = tensor.resolve_neg().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""
