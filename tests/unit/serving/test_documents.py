"""JSON of requests and answers: the decoder in C agrees with the exact one."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from modpack.errors import InputMismatchError
from modpack.predicting.decoding import parse_document
from modpack.serving.documents import MAX_DEPTH, encode_values, parse_body

SIGNS = st.sampled_from([*'{}[]",:\\ \n\t0123456789.-+eEtruefalsn', "\\u", "d8", "\ud800", "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def outcome(parse, content: bytes) -> tuple[object, ...]:
    """Return the value, with types and signs of zeros, or the error."""
    try:
        return ("value", repr(parse(content)))
    except InputMismatchError as failure:
        return ("error", failure.problems)


@given(VALUES.map(json.dumps) | st.lists(SIGNS, max_size=12).map("".join))
@example("1e999")
@example("-1e999")
@example('"\\ud800"')
@example("1" * 5000)
@example("9" * 40)
@example("-0")
@example("-0.0")
@example("[1e-999, 5e-324, 0.1e1, 1E5, 9007199254740993, 18446744073709551616]")
@example('{"a": 1, "a": [2]}')
@example("\ufeff1")
@example("[" * MAX_DEPTH + "]" * MAX_DEPTH)
@example("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
@example('["[[", ' * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
@example('["]", ' * (MAX_DEPTH + 1) + '"[[["' + "]" * (MAX_DEPTH + 1))
@example('{"a":' * 100_000)
@example('{"a": [' * (MAX_DEPTH // 2) + "{}" + "]}" * (MAX_DEPTH // 2))
@example('{"a": [' * (MAX_DEPTH // 2) + "]}" * (MAX_DEPTH // 2))
@example("[" * 100_000 + "]" * 100_000)
def test_parse_body_agrees_with_parse_document(text):
    content = text.encode("utf-8", "surrogatepass")
    expected = outcome(lambda data: parse_document(data, MAX_DEPTH), content)
    assert outcome(lambda data: parse_body(memoryview(data)), content) == expected


def test_parse_body_rejects_bytes_that_are_not_utf8():
    with pytest.raises(InputMismatchError, match="not valid UTF-8"):
        parse_body(memoryview(b'"\xff"'))


@pytest.mark.parametrize("text", ["net", "é", "\ud800"])
def test_encode_values_returns_a_json_object_without_nan(text):
    values = {"a": torch.tensor([1.5, float("nan")]), "b": torch.tensor([3e38, 3e38]), "c": text}
    content = encode_values(values)
    assert json.loads(content) == {
        "a": [1.5, None],
        "b": torch.tensor([3e38, 3e38]).tolist(),
        "c": text,
    }
