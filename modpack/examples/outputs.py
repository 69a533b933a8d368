"""Model outputs flattened into leaves, which can be stored and compared without their classes.

A model may return tensors, or containers of tensors: tuples, dicts, dataclasses, and objects of
classes that are part of the package. Their contents are compared.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.nn.parameter import is_lazy

from modpack.core.names import strip_namespaces
from modpack.core.selftest import Difference
from modpack.environment.importers import module_dict

_MAX_DEPTH = 100
TEXTUAL: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range)
_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_NUMBERS = (bool, int, float, complex)
_PLAIN = (type(None), *_NUMBERS, str, bytes, enum.Enum, *TEXTUAL, *_NAMED)
"""Classes whose objects are one leaf, with their text as its value."""
_ELEMENTS = {
    "?": torch.bool,
    "b": torch.int8,
    "B": torch.uint8,
    "h": torch.int16,
    "i": torch.int32,
    "l": torch.int64 if struct.calcsize("l") == 8 else torch.int32,
    "q": torch.int64,
    "e": torch.float16,
    "f": torch.float32,
    "d": torch.float64,
}
"""The torch dtypes of :mod:`struct` element types. Other types are compared as bytes."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")


class PytreeLeaf(NamedTuple):
    """One leaf of an output.

    Attributes:
        path: Its path, such as ``output[0].logits``.
        structure: The part that must always match: the type, a tensor's dtype and shape, a
            container's length.
        value: The part that must match if the model is deterministic, as text, or None.
        tensor: The same for tensors: dense, contiguous, detached, and on the CPU.
        device: The kind of device of a tensor, which must match unless another one was chosen.
    """

    path: str
    structure: str
    value: str | None = None
    tensor: torch.Tensor | None = None
    device: str | None = None


def flatten_output(output: object) -> list[PytreeLeaf]:
    """Flatten an output.

    Text that differs from process to process is removed: the private namespace of a package in
    module names, and memory addresses.

    Args:
        output: The return value of a model.

    >>> for leaf in flatten_output({"scores": torch.zeros(2), "rank": 3}):
    ...     print(leaf.path, leaf.structure, leaf.value)
    output dict of 2 None
    output['scores'] Tensor torch.float32 [2] None
    output['rank'] int 3
    """
    # Tensor subclasses may reject these operations. Their inner tensors are compared instead.
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        return list(_OutputFlattener().flatten(output, "output", 0))


class _OutputFlattener:
    """Flattens one output and keeps track of visited objects."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, object]] = {}

    def flatten(self, value: object, path: str, depth: int) -> list[PytreeLeaf]:
        try:
            return list(self._flatten(value, path, depth))
        except Exception as failure:  # properties of user-defined classes may raise
            return [PytreeLeaf(path, f"{_type_name(value)}, which raises {type(failure).__name__}")]

    def _flatten(self, value: object, path: str, depth: int) -> Iterator[PytreeLeaf]:
        # Before containers, because torch.Size is a tuple.
        if isinstance(value, _PLAIN):
            yield PytreeLeaf(path, _type_name(value), _normalize_text(_value_text(value)))
        elif isinstance(value, torch.Tensor):
            yield from self._flatten_tensor(value, path, depth)
        # Equal tuples may be one object by chance, as constants of one function are.
        elif id(value) in self._seen and not isinstance(value, tuple):
            yield PytreeLeaf(path, f"the same as {self._seen[id(value)][0]}")
        elif depth > _MAX_DEPTH:
            yield PytreeLeaf(path, f"{_type_name(value)}, too deep")
        else:
            # The value is kept alive: another object could get its id.
            self._seen[id(value)] = (path, value)
            yield from self._flatten_container(value, path, depth)

    def _flatten_container(self, value: object, path: str, depth: int) -> Iterator[PytreeLeaf]:
        # Buffers first: the attributes of an array do not contain its elements.
        array = _flatten_buffer(value, path)
        if array is not None:
            yield array
            return
        parts = _iter_parts(value, lambda part: self._sort_key(part, depth))
        if parts is None:
            yield PytreeLeaf(path, _type_name(value))
            return
        listed = list(parts)
        yield PytreeLeaf(path, f"{_type_name(value)} of {len(listed)}")
        for step, part in listed:
            yield from self.flatten(part, path + step, depth + 1)

    def _sort_key(self, part: object, depth: int) -> list[tuple[str, str]]:
        """Return the sort key of a set's member, because sets have no order."""
        taken = _OutputFlattener().flatten(part, "", depth + 1)
        return [(leaf.structure, leaf.value or "") for leaf in taken]

    def _flatten_tensor(self, tensor: torch.Tensor, path: str, depth: int) -> Iterator[PytreeLeaf]:
        device = tensor.device.type
        structure = f"{_type_name(tensor)} {tensor.dtype}"
        if is_lazy(tensor):
            yield PytreeLeaf(path, structure, device=device)
            return
        structure += " nested" if tensor.is_nested else f" {list(tensor.shape)}"
        inner = _inner_tensors(tensor)
        if inner is not None:
            yield PytreeLeaf(path, f"{structure} {tensor.layout}", device=device)
            for name, part in inner:
                yield from self.flatten(part, f"{path}.{name}", depth + 1)
        elif device == "meta" or is_fake(tensor):
            yield PytreeLeaf(path, structure, device=device)
        else:
            yield PytreeLeaf(path, structure, None, _dense_copy(tensor), device)


def _dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor's values, which later runs of the model cannot change."""
    plain = tensor.detach().as_subclass(torch.Tensor)
    # torch may keep conjugation and negation as flags, which the bytes do not show.
    return plain.resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's class implements operators itself, as for tensors inside it."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _inner_tensors(tensor: torch.Tensor) -> Iterable[tuple[str, object]] | None:
    """Return the dense tensors that a tensor is composed of, or None if it is dense itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        return [(name, getattr(tensor, name)) for name in flatten()[0]]
    if is_wrapper(tensor):
        held = [(n, part) for n, part in vars(tensor).items() if isinstance(part, torch.Tensor)]
        if held:  # the subclass may not implement the operators used below
            return held
    if tensor.is_nested:
        return [(f"[{i}]", part) for i, part in enumerate(tensor.unbind())]
    if tensor.is_quantized:
        return [("int_repr()", tensor.int_repr()), ("dequantize()", tensor.dequantize())]
    if tensor.layout is torch.sparse_coo:
        # Uncoalesced, equal tensors may have different parts.
        whole = tensor.coalesce()
        return [("indices()", whole.indices()), ("values()", whole.values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        names: tuple[str, ...] = ("crow_indices", "col_indices", "values")
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = ("ccol_indices", "row_indices", "values")
    elif tensor.layout is not torch.strided:
        return [("to_dense()", tensor.to_dense())]
    else:
        return None
    return [(f"{name}()", getattr(tensor, name)()) for name in names]


def _iter_parts(
    value: object, order: Callable[[object], list[tuple[str, str]]]
) -> Iterable[tuple[str, object]] | None:
    """Return the parts of a container with their path steps, or None if it exposes none."""
    if isinstance(value, Mapping):
        return [(f"[{_format_key(key, i)}]", part) for i, (key, part) in enumerate(value.items())]
    # Before other tuples, so that paths contain names.
    fields = getattr(type(value), "_fields", None)  # of a named tuple
    if isinstance(value, tuple) and fields is not None:
        return [(f".{name}", part) for name, part in zip(fields, value, strict=False)]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    if isinstance(value, Set):
        return [(f"{{{i}}}", part) for i, part in enumerate(sorted(value, key=order))]
    held = attributes_of(value)
    has_attributes = bool(held) or hasattr(value, "__dict__")
    return [(f".{name}", part) for name, part in held.items()] if has_attributes else None


def attributes_of(value: object) -> dict[str, object]:
    """Return an object's attributes without running code of its class."""
    held = module_dict(value)
    found: dict[str, object] = {}
    if type(held) is dict:
        found.update((n, part) for n, part in held.items() if isinstance(n, str))
    for base in type(value).__mro__:
        slots = vars(base).items() if "__slots__" in vars(base) else ()
        for name, member in slots:
            if type(member) is MemberDescriptorType:
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # the slot is empty
                    continue
    return found


def view_buffer(value: Any) -> memoryview | None:
    """Return the buffer of an array of any library (PEP 3118), or None for other objects."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    # Addresses are meaningless in another process.
    return None if set(view.format) & {"O", "P"} else view


def _flatten_buffer(value: object, path: str) -> PytreeLeaf | None:
    """Return the leaf of an object with a buffer, or None."""
    view = view_buffer(value)
    if view is None:
        return None
    structure = f"{_type_name(value)} {view.format} {list(view.shape or ())}"
    if not view.nbytes:
        return PytreeLeaf(path, structure)
    # Native byte order only: other elements are compared as bytes.
    dtype = _ELEMENTS.get(view.format.lstrip("@="), torch.uint8)
    # A copy, because torch warns about memory that is read-only.
    data = torch.frombuffer(bytearray(view.tobytes()), dtype=dtype)
    shaped = data.view(view.shape or ()) if dtype.itemsize == view.itemsize else data
    return PytreeLeaf(path, structure, None, shaped)


def _format_key(key: object, position: int) -> str:
    if isinstance(key, (str, int, float, bytes, tuple, enum.Enum)) or key is None:
        return _normalize_text(repr(key))
    return f"{_type_name(key)} #{position}"


def _normalize_text(text: str) -> str:
    """Return a text without the parts that differ from process to process."""
    return _ADDRESS.sub("0x...", strip_namespaces(text))


def _type_name(value: object) -> str:
    return type(value).__qualname__


def _value_text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    for kind in _NUMBERS:  # bypasses a subclass's own __repr__
        if isinstance(value, kind):
            return kind.__repr__(value)
    if isinstance(value, _NAMED):
        return str(getattr(value, "__qualname__", value))
    return str(value) if isinstance(value, (str, *TEXTUAL)) else repr(value)


_MAX_TEXT = 80


def compare(
    expected: Sequence[PytreeLeaf], found: Sequence[PytreeLeaf], any_device: bool = False
) -> list[Difference]:
    """Return every difference between two outputs. Numbers are compared bit by bit.

    Args:
        expected: The expected output.
        found: The actual output.
        any_device: Whether tensors may be on another kind of device. Their numbers are then
            compared with the tolerances of :func:`torch.testing.assert_close`.

    >>> from modpack.examples.outputs import flatten_output
    >>> [str(each) for each in compare(flatten_output([1, 2]), flatten_output([1, 3]))]
    ['output[1]: expected 2, found 3']
    """
    differences: list[Difference] = []
    by_path = {leaf.path: leaf for leaf in found}
    known = {leaf.path for leaf in expected}
    for leaf in expected:
        other = by_path.get(leaf.path)
        is_elsewhere = other is not None and other.device != leaf.device
        if other is None or other.structure != leaf.structure:
            shown = "nothing" if other is None else other.structure
            text = f"expected {leaf.structure}, found {shown}"
            differences.append(Difference(leaf.path, text, True))
        elif is_elsewhere and not any_device:
            text = f"expected a tensor on {leaf.device}, found one on {other.device}"
            differences.append(Difference(leaf.path, text, True))
        # Not structural from here on: randomness of the live model may explain it.
        elif other.value != leaf.value:
            text = f"expected {_shorten(leaf.value)}, found {_shorten(other.value)}"
            differences.append(Difference(leaf.path, text, False))
        elif leaf.tensor is not None and other.tensor is not None:
            if not (is_elsewhere and _is_close(leaf.tensor, other.tensor)):
                differences += _tensor_differences(leaf.path, leaf.tensor, other.tensor)
    for leaf in found:
        if leaf.path not in known:
            text = f"expected nothing, found {leaf.structure}"
            differences.append(Difference(leaf.path, text, True))
    return differences


def _is_close(expected: torch.Tensor, found: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError:
        return False
    return True


def _tensor_differences(
    path: str, expected: torch.Tensor, found: torch.Tensor
) -> Iterator[Difference]:
    # As bytes, because NaN differs from itself, and -0.0 equals 0.0.
    if torch.equal(_bits(expected), _bits(found)):
        return
    size = expected.element_size()
    differing = (_bits(expected) != _bits(found)).view(-1, size).any(dim=1)
    places = differing.nonzero()[:, 0]
    flat = expected.reshape(-1), found.reshape(-1)
    values = [tensor[places[0]].item() for tensor in flat]
    index = list(map(int, torch.unravel_index(places[0], expected.shape)))
    text = (
        f"{len(places)} of {expected.numel()} elements differ, the first at {index}: "
        f"expected {values[0]!r}, found {values[1]!r}"
    )
    yield Difference(path, text + _describe_largest(flat[0][places], flat[1][places]), False)


def _describe_largest(expected: torch.Tensor, found: torch.Tensor) -> str:
    if expected.dtype is torch.bool:
        return ""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    # Unsigned integers would wrap around, and float16 would overflow.
    distance = (expected.to(wide) - found.to(wide)).abs()
    finite = distance[torch.isfinite(distance)]
    return f"; the largest difference is {finite.max().item():.3g}" if len(finite) else ""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _shorten(text: str | None) -> str:
    shown = str(text)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}... ({len(shown)} characters)"
