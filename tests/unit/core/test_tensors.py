"""Tensors as a package records them."""

from __future__ import annotations

import pytest
import torch

from modpack.core.tensors import (
    DTYPE_ALIASES,
    ITEM_BYTES,
    PACKED_DTYPES,
    QUANTIZED_DTYPES,
    TensorFacts,
    TensorKind,
    tensors_from_json,
    tensors_to_json,
)

DTYPES = {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}

PLAIN = TensorFacts("w", TensorKind.PARAMETER, "float32", (2, 3), True, storage="0", stride=(3, 1))
SPECIAL = TensorFacts(
    *("b", TensorKind.BUFFER, "qint8", None, False, False, "cuda:0"), form="quantized"
)


def test_tensor_records_round_trip():
    written = tensors_to_json({"m/m.pkl": [PLAIN, SPECIAL], "n/n.pkl": []})
    assert tensors_from_json(written) == {"m/m.pkl": (PLAIN, SPECIAL), "n/n.pkl": ()}


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 1, 3), (3, 7, 1), True),
        ((), (), True),
    ],
)
def test_tensor_record_knows_whether_it_is_contiguous(shape, stride, expected):
    tensor = TensorFacts("w", TensorKind.VALUE, "float16", shape, storage="0", stride=stride)
    assert tensor.is_contiguous is expected


@pytest.mark.parametrize(
    ("shape", "stride", "count", "span"),
    [((2, 3), (3, 1), 6, 6), ((), (), 1, 1), ((0, 3), (3, 1), 0, 0), ((2, 2), (10, 1), 4, 12)],
)
def test_tensor_record_has_span_of_storage(shape, stride, count, span):
    tensor = TensorFacts("w", TensorKind.VALUE, "float16", shape, storage="0", stride=stride)
    assert (tensor.numel, tensor.span, tensor.size_bytes) == (count, span, 2 * count)


def test_element_sizes_equal_those_of_torch():
    own = {str(each).removeprefix("torch."): each.itemsize for each in DTYPES.values()}
    assert {name: ITEM_BYTES.get(name, 1) for name in own} == own
    assert own.keys() - ITEM_BYTES.keys() <= PACKED_DTYPES.keys()


def test_second_names_of_types_and_quantized_types_are_known_as_such():
    second = {name for name, each in DTYPES.items() if str(each) != f"torch.{name}"}
    assert second <= DTYPE_ALIASES
    assert not DTYPE_ALIASES & (ITEM_BYTES.keys() | PACKED_DTYPES.keys())
    quantized = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    assert {DTYPES[name] for name in QUANTIZED_DTYPES} == quantized


def test_element_size_of_unknown_type_is_none():
    assert TensorFacts("w", TensorKind.VALUE, "float7", (2,)).size_bytes is None


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 3},
        {"kind": "weight"},
        {"shape": [-1, 3]},
        {"shape": [True, 3]},
        {"shape": "23"},
        {"shape": [2]},
        {"shape": [2**40, 2**40]},
        {"shape": [1] * 65, "stride": [1] * 65},
        {"stride": [2**62, 2**62]},
        {"offset": "0"},
        {"offset": 2**70},
        {"storage": 0},
        {"requires_grad": 1},
        {"form": None},
    ],
    ids=str,
)
def test_anything_else_is_refused(changes):
    written = tensors_to_json({"m/m.pkl": [PLAIN]})
    written["resources"]["m/m.pkl"][0].update(changes)
    with pytest.raises((TypeError, ValueError)):
        tensors_from_json(written)


@pytest.mark.parametrize("resources", [[], {"m": {}}, {"m": [3]}, None])
def test_other_structures_are_refused(resources):
    with pytest.raises(TypeError):
        tensors_from_json({"version": 1, "resources": resources})
