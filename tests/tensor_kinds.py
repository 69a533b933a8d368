"""A tensor of every kind that torch has, and descriptions to compare them.

Tests save all of them and describe the loaded ones in other processes. The module is included in
the packages, for its classes and :func:`described`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.masked import masked_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
NARROW = re.compile(r"torch\.u?int[1-7]")
"""Element types of which torch cannot save tensors."""
BITS = re.compile(r"torch\.bits\w+")
"""Element types of which torch can only create empty tensors."""


class Tagged(torch.Tensor):
    """A subclass with torch's default behavior: results have its class."""


class Counting(torch.Tensor):
    """A subclass that counts function calls. Saving must not cause any."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        Counting.calls = getattr(Counting, "calls", 0) + 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Halves(torch.Tensor):
    """A wrapper subclass without storage, around two ordinary tensors."""

    low: torch.Tensor
    high: torch.Tensor

    @staticmethod
    def __new__(cls, low: torch.Tensor, high: torch.Tensor) -> Halves:
        size = (low.shape[0] + high.shape[0], *low.shape[1:])
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=low.dtype, device=low.device, requires_grad=low.requires_grad
        )
        made.low, made.high = low, high
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].low.detach(), args[0].high.detach())
        plain = [torch.cat([a.low, a.high]) if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


class WeightKind(nn.Parameter):
    """A class derived from Parameter."""


class StatedKind(nn.Parameter):
    """A parameter class with state methods and a slot."""

    __slots__ = ("scale",)

    def __getstate__(self) -> dict[str, float]:
        return {"factor": self.scale}

    def __setstate__(self, state: dict[str, float]) -> None:
        self.scale = state["factor"]
        self.note = f"scaled by {self.scale}"


class LazyKind(nn.UninitializedParameter):
    """A class derived from lazy parameters."""

    cls_to_become = WeightKind


class ForwardingMode(TorchFunctionMode):
    """Intercept every torch function without changing it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchingMode(TorchDispatchMode):
    """Intercept every operator without changing it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _plain(dtype: torch.dtype) -> torch.Tensor:
    if BITS.fullmatch(str(dtype)):
        return torch.empty(0, dtype=dtype)
    width = torch.empty((), dtype=dtype).element_size()
    raw = (torch.arange(6 * width) * 37 % 251).to(torch.uint8)
    return (raw % 2).bool() if dtype is torch.bool else raw.view(dtype).reshape(2, 3)


def _quantized(dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([[0.5, 1.0], [2.0, 0.0]]), 0.5, 1, dtype)


def _per_channel(scales: torch.Tensor, zero_points: torch.Tensor) -> torch.Tensor:
    values = torch.tensor([[0.5, 1.0], [2.0, 0.0]])
    return torch.quantize_per_channel(values, scales, zero_points, 1, torch.quint8)


def _float_parameters(dtype: torch.dtype) -> torch.Tensor:
    scales, zero_points = torch.tensor([0.5, 0.25]), torch.tensor([0.0, 1.0])
    values = torch.tensor([[0.5, 1.0, 0.0, 1.5], [2.0, 0.0, 0.5, 0.25]])
    return torch.quantize_per_channel(values, scales, zero_points, 0, dtype)


def _noted(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = "kept"  # type: ignore[attr-defined]
    return tensor.requires_grad_()


def _with_attributes() -> torch.Tensor:
    tensor = torch.arange(3.0)
    tensor.note, tensor.like = "kept", [torch.ones(2)]  # type: ignore[attr-defined]
    return tensor


def _of_kind(data: torch.Tensor, *, requires_grad: bool = True) -> WeightKind:
    parameter = WeightKind(data, requires_grad)
    parameter.note, parameter.like = "kept", [torch.ones(2)]  # type: ignore[attr-defined]
    return parameter


def _stated() -> StatedKind:
    parameter = StatedKind(torch.arange(2.0))
    parameter.scale, parameter.note = 0.5, "scaled by 0.5"
    return parameter


def _lazy() -> LazyKind:
    parameter: Any = LazyKind(dtype=torch.float64)
    parameter.note = "kept"
    return parameter  # type: ignore[no-any-return]


def _with_grad() -> nn.Parameter:
    parameter = nn.Parameter(torch.arange(2.0))
    parameter.grad = torch.ones(2)
    return parameter


def _computed() -> torch.Tensor:
    return torch.arange(3.0, requires_grad=True) * 2


def _nested(layout: torch.layout) -> torch.Tensor:
    parts = [torch.arange(2.0), torch.arange(3.0)]
    return torch.nested.nested_tensor(parts, layout=layout)


def _narrowed() -> torch.Tensor:
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 1])
    values = torch.arange(12.0).reshape(3, 4)
    return torch.nested.narrow(values, 1, starts, lengths, layout=torch.jagged)


def _eye(layout: torch.layout) -> torch.Tensor:
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return torch.eye(4).to_sparse(layout=layout, **blocks)


def _uncoalesced() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (4,))


_DTYPES = sorted(
    {v for v in vars(torch).values() if isinstance(v, torch.dtype)} - QUANTIZED, key=str
)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)

KINDS: dict[str, Callable[[], Any]] = {
    **{str(d): lambda d=d: _plain(d) for d in _DTYPES if not NARROW.fullmatch(str(d))},
    **{f"{d} conjugated": lambda d=d: _plain(d).conj() for d in _COMPLEX},
    **{f"{d} negated": lambda d=d: _plain(d).conj().imag for d in _COMPLEX},
    **{str(d): lambda d=d: _quantized(d) for d in (torch.quint8, torch.qint8, torch.qint32)},
    **{str(layout): lambda layout=layout: _eye(layout) for layout in _SPARSE},
    "sparse, not coalesced": _uncoalesced,
    "sparse, hybrid": lambda: torch.sparse_coo_tensor([[0, 2]], [[1.0, 2], [3, 4]], (3, 2)),
    "sparse, empty": lambda: torch.sparse_coo_tensor(size=(3, 2)),
    **{f"{form}, needs grad": lambda form=form: _eye(form).requires_grad_() for form in _SPARSE},
    "sparse, with attributes, needs grad": lambda: _noted(_eye(torch.sparse_coo)),
    "nested, strided, needs grad": lambda: _nested(torch.strided).requires_grad_(),
    "quantized by channel": lambda: _per_channel(torch.tensor([0.5, 0.25]), torch.tensor([0, 1])),
    "quantized, four bits": lambda: _float_parameters(torch.quint4x2),
    "quantized, two bits": lambda: _float_parameters(torch.quint2x4),
    "nested, strided": lambda: _nested(torch.strided),
    "nested, jagged": lambda: _nested(torch.jagged),
    "nested, with holes": _narrowed,
    "negated, without a base": lambda: torch._neg_view(torch.arange(3.0)),
    "masked": lambda: masked_tensor(torch.arange(3.0), torch.tensor([True, False, True])),
    "in shared memory": lambda: torch.arange(3.0).share_memory_(),
    "made in inference mode": lambda: torch.inference_mode()(torch.arange)(3.0),
    "zero size": lambda: torch.empty(0),
    "zero size in two dimensions": lambda: torch.empty(3, 0, 2),
    "zero size of something": lambda: torch.arange(4.0)[2:2],
    "scalar": lambda: torch.tensor(3.5),
    "scalar out of many": lambda: torch.arange(4.0)[2],
    "expanded": lambda: torch.tensor([1.0]).expand(5, 5),
    "overlapping": lambda: torch.arange(5.0).as_strided((3, 3), (1, 1)),
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "every third": lambda: torch.arange(12)[2::3],
    "channels last": lambda: (
        torch.arange(48.0).view(2, 3, 4, 2).to(memory_format=torch.channels_last)
    ),
    "channels last, three dimensions": lambda: torch.zeros(1, 2, 3, 4, 5).to(
        memory_format=torch.channels_last_3d
    ),
    "stride that does not matter": lambda: torch.arange(3.0).as_strided((1, 3), (77, 1)),
    "of a larger type": lambda: torch.arange(3.0).view(torch.int16),
    "needs grad": lambda: torch.arange(3.0, requires_grad=True),
    "computed": _computed,
    "parameter": lambda: nn.Parameter(torch.arange(2.0)),
    "frozen parameter": lambda: nn.Parameter(torch.arange(2.0), requires_grad=False),
    "parameter of integers": lambda: nn.Parameter(torch.arange(2), requires_grad=False),
    "sparse parameter": lambda: nn.Parameter(_eye(torch.sparse_coo)),
    "nested parameter": lambda: nn.Parameter(_nested(torch.strided)),
    "parameter of a kind": lambda: WeightKind(torch.arange(2.0)),
    "parameter of a kind, with attributes": lambda: _of_kind(torch.arange(2.0)),
    "parameter of a kind, frozen": lambda: _of_kind(torch.arange(2), requires_grad=False),
    "parameter of a kind, sparse": lambda: _of_kind(_eye(torch.sparse_coo)),
    "parameter of a kind, transposed": lambda: WeightKind(torch.arange(12.0).reshape(3, 4).t()),
    "parameter of a kind, with a say": _stated,
    "parameter of a subclass": lambda: nn.Parameter(torch.arange(3.0).as_subclass(Tagged)),
    "parameter with a gradient": _with_grad,
    "buffer": lambda: nn.Buffer(torch.arange(2.0), persistent=False),
    "lazy parameter": lambda: nn.UninitializedParameter(),
    "lazy parameter of a kind": _lazy,
    "lazy buffer": lambda: nn.UninitializedBuffer(persistent=False, dtype=torch.float16),
    "attributes": _with_attributes,
    "meta": lambda: torch.empty(3, 2, device="meta"),
    "meta, transposed": lambda: torch.empty(3, 2, device="meta", requires_grad=True).t().detach(),
    "subclass": lambda: torch.arange(3.0).as_subclass(Tagged),
    "subclass, needs grad": lambda: torch.arange(3.0).as_subclass(Tagged).requires_grad_(),
    "subclass that looks": lambda: torch.arange(3.0).as_subclass(Counting),
    "wrapper": lambda: Halves(torch.arange(2.0), torch.arange(3.0)),
    "untyped storage": lambda: torch.arange(3.0).untyped_storage(),
    "typed storage": lambda: torch.arange(3.0)._typed_storage(),
    "double storage": lambda: torch.DoubleStorage([1.0, 2.0]),
}
"""Factories of tensors and storages by name of their kind."""


def described(obj: Any) -> dict[str, Any]:
    """Return a description of a tensor, including values, memory, and attributes."""
    with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
        if isinstance(obj, torch.Tensor):
            return _of_tensor(obj)
        return _of_storage(obj) if torch.is_storage(obj) else {"value": repr(obj)}


def _of_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "type": type(tensor).__qualname__,
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
        "grad": None if not tensor.is_leaf else tensor.grad is not None,
        "attributes": {name: _told(value) for name, value in sorted(vars(tensor).items())},
    }
    if nn.parameter.is_lazy(tensor):
        return facts
    return {**facts, "layout": str(tensor.layout), **_elements(tensor)}


def _elements(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.is_nested:
        parts = () if tensor.is_meta else tensor.detach().unbind()
        return {"parts": [described(part) for part in parts]}
    shape = {"shape": tuple(tensor.shape)}
    if tensor.layout is not torch.strided:
        names = _PARTS[tensor.layout]
        coalesced = tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None
        inside = {part: described(getattr(tensor.detach(), part)()) for part in names}
        return {**shape, **inside, "is_coalesced": coalesced, "dense_dim": tensor.dense_dim()}
    place = {"stride": tensor.stride(), "offset": tensor.storage_offset()}
    if tensor.is_meta or _has_no_memory(tensor):
        return {**shape, **place}
    return {**shape, **place, **_quantizer(tensor), **_memory(tensor.untyped_storage())}


def _has_no_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a wrapper. A loaded one may have another class object."""
    return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python))


_COMPRESSED = ("crow_indices", "col_indices", "values")
_BY_COLUMN = ("ccol_indices", "row_indices", "values")
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED,
    torch.sparse_bsr: _COMPRESSED,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}


def _quantizer(tensor: torch.Tensor) -> dict[str, Any]:
    if not tensor.is_quantized:
        return {}
    if tensor.qscheme() is torch.per_tensor_affine:
        return {"quantizer": [tensor.q_scale(), tensor.q_zero_point()]}
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return {"quantizer": [scales.tolist(), zeros.tolist(), tensor.q_per_channel_axis()]}


def _of_storage(storage: Any) -> dict[str, Any]:
    if isinstance(storage, torch.UntypedStorage):
        return {"dtype": None, **_memory(storage)}
    return {"dtype": str(storage.dtype), **_memory(storage._untyped_storage)}


def _memory(storage: torch.UntypedStorage) -> dict[str, Any]:
    size, device = storage.nbytes(), storage.device.type
    content = hashlib.sha256(bytes(storage.tolist())).hexdigest() if device == "cpu" else None
    return {"bytes": size, "content": content}


def _told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return described(value)
    if isinstance(value, (list, tuple)):
        return [_told(each) for each in value]
    return (
        repr(value)
        if isinstance(value, (str, int, float, bool, type(None)))
        else type(value).__name__
    )
