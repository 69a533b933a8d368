"""Values from JSON and to JSON."""

from __future__ import annotations

import json

import pytest
import torch

from modpack.core.call_signature import ValueSpec
from modpack.errors import InputMismatchError
from modpack.predicting.decoding import decode_value, encode_value, parse_document


def tensor(dtype, shape=(2,)):
    return ValueSpec("x", ("x",), "tensor", dtype, shape)


def plain(kind):
    return ValueSpec("x", ("x",), kind)


@pytest.mark.parametrize(
    "dtype, data",
    [
        ("float32", [[1, 2.5], [3, 4]]),
        ("bfloat16", [1.0]),
        ("int8", [-128, 127]),
        ("uint8", [0, 255]),
        ("int64", [2**63 - 1, -(2**63)]),
        ("bool", [[True], [False]]),
        ("float64", 1e300),
        ("int32", []),
        ("float32", [[], []]),
    ],
)
def test_decode_value_reads_tensors(dtype, data):
    decoded = decode_value(tensor(dtype), data)
    assert torch.equal(decoded, torch.tensor(data, dtype=getattr(torch, dtype)))
    assert decoded.dtype is getattr(torch, dtype)


@pytest.mark.parametrize(
    "dtype, data, problem",
    [
        (
            "float32",
            [[1, 2], [3]],
            "x[1]: expected a list of 2, like the previous one, got a list of 1",
        ),
        ("float32", [[1, 2], 3], "x[1]: expected a list of 2, got 3"),
        ("float32", [1, [2]], "x[1]: expected numbers for float32, got a list"),
        ("float32", [[0] * 3, [0, "a", 0]], 'x[1][1]: expected numbers for float32, got "a"'),
        ("float32", [True], "x[0]: expected numbers for float32, got true"),
        ("float32", [None], "x[0]: expected numbers for float32, got null"),
        ("float32", {"a": 1}, "x: expected numbers for float32, got an object"),
        ("float32", "text", 'x: expected numbers for float32, got "text"'),
        ("float32", [1.0, 1e39], "x[1]: 1e+39 is out of range for float32"),
        ("float16", [1.0, 1e5], "x[1]: 100000.0 is out of range for float16"),
        ("float32", [0, 10**400], f"x[1]: 1{'0' * 56}... is out of range for float32"),
        ("float64", [float("inf")], "x[0]: Infinity is out of range for float64"),
        ("int64", [1, 2.0], "x[1]: expected integers for int64, got 2.0"),
        ("int64", [1, 2**63], "x[1]: 9223372036854775808 is out of range for int64"),
        ("int8", [[1], [128]], "x[1][0]: 128 is out of range for int8"),
        ("uint8", [-1], "x[0]: -1 is out of range for uint8"),
        ("int32", [2**40], "x[0]: 1099511627776 is out of range for int32"),
        ("bool", [1], "x[0]: expected true and false for bool, got 1"),
        ("complex64", [1], "x: JSON has no complex64 numbers"),
        ("load", [1], "x: torch has no dtype 'load'"),
    ],
)
def test_decode_value_names_the_position_of_a_problem(dtype, data, problem):
    with pytest.raises(InputMismatchError) as raised:
        decode_value(tensor(dtype), data)
    assert raised.value.problems == (f"input {problem}",)


def test_decode_value_rejects_deep_nesting():
    data = 1.0
    for _ in range(100):
        data = [data]
    with pytest.raises(InputMismatchError, match="nested more than 64 levels"):
        decode_value(tensor("float32"), data)


@pytest.mark.parametrize(
    "kind, data, value",
    [
        ("bool", True, True),
        ("int", 3, 3),
        ("float", 3, 3.0),
        ("float", 2.5, 2.5),
        ("str", "a", "a"),
        ("bytes", "AAE=", b"\0\1"),
        ("none", None, None),
    ],
)
def test_decode_value_reads_plain_values(kind, data, value):
    decoded = decode_value(plain(kind), data)
    assert decoded == value and type(decoded) is type(value)


@pytest.mark.parametrize(
    "kind, data, problem",
    [
        ("bool", 1, "expected true or false, got 1"),
        ("int", True, "expected an integer, got true"),
        ("int", 1.0, "expected an integer, got 1.0"),
        ("float", "1", 'expected a number, got "1"'),
        ("float", 10**400, "the number is too large for float64"),
        ("float", float("inf"), "the number is too large for float64"),
        ("str", 1, "expected text, got 1"),
        ("bytes", "?", 'expected bytes in base64, got "?"'),
        ("bytes", 1, "expected bytes in base64, got 1"),
        ("none", [], "expected null, got a list"),
        ("object", 1, "expected an object of a Python class, which JSON cannot describe"),
    ],
)
def test_decode_value_rejects_plain_values_of_other_types(kind, data, problem):
    with pytest.raises(InputMismatchError) as raised:
        decode_value(plain(kind), data)
    assert raised.value.problems == (f"input x: {problem}",)


@pytest.mark.parametrize(
    "data, dtype",
    [([[1, 2]], torch.int64), ([1, 2.5], torch.float32), ([True, False], torch.bool)],
)
def test_decode_value_of_unknown_type_makes_tensors_of_numbers(data, dtype):
    decoded = decode_value(plain("any"), data)
    assert decoded.dtype is dtype and decoded.tolist() == data


@pytest.mark.parametrize("data", [1, "a", None, [], ["a"], [1, "a"], {"a": [1]}])
def test_decode_value_of_unknown_type_keeps_other_values(data):
    assert decode_value(plain("any"), data) == data


@pytest.mark.parametrize(
    "text, problem",
    [
        (b"[NaN]", "JSON: NaN is not a JSON number"),
        (b"[-Infinity]", "JSON: -Infinity is not a JSON number"),
        (b'{"x": [1, 2', "JSON: "),
        (b"", "JSON: "),
        (b"\xff", "UTF-8: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "JSON: the values are nested more than 100 levels deep"),
        (b"[" * 101 + b"]" * 101, "JSON: the values are nested more than 100 levels deep"),
        (b"1" * 5000, "JSON: "),
    ],
)
def test_parse_document_rejects_invalid_json_in_one_line(text, problem):
    with pytest.raises(InputMismatchError) as raised:
        parse_document(text)
    assert str(raised.value).startswith(f"the document is not valid {problem}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("document", [[[1]] * 1000, [[[[]] * 60]] * 2])
def test_parse_document_accepts_many_short_lists(document):
    assert parse_document(json.dumps(document).encode()) == document


def test_parse_document_accepts_nesting_up_to_its_limit():
    assert parse_document(b"[" * 100 + b"]" * 100)


@pytest.mark.parametrize(
    "value, data",
    [
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor([1.5, float("inf")]), [1.5, None]),
        (torch.tensor(float("nan")), None),
        (torch.tensor([1 + 2j]), [[1.0, 2.0]]),
        (torch.tensor([0.5], dtype=torch.bfloat16), [0.5]),
        (float("nan"), None),
        (b"\0\1", "AAE="),
        (True, True),
        ("a", "a"),
        (None, None),
        (object(), "<object>"),
    ],
)
def test_encode_value_returns_json(value, data):
    assert encode_value(value) == data
    json.dumps(encode_value(value), allow_nan=False)
