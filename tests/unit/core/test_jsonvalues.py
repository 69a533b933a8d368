"""JSON of unknown origin: a value, or a reason, and never more memory than is allowed."""

import json

import pytest

from modpack.core.jsonvalues import parse_json


def test_a_document_is_what_json_says():
    document = {"a": [1, 2.5, "é", None, True], "b": {"c": {}}}
    assert parse_json(json.dumps(document).encode(), 10_000) == document
    assert parse_json(json.dumps(document, ensure_ascii=False).encode(), 10_000) == document


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[" * 500_000, "nested too deeply"),
        (b'{"a":NaN}', "NaN, which is no JSON"),
        (b"[-Infinity]", "-Infinity, which is no JSON"),
        (b'"\xff"', "can't decode"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ('{"a":1}'.encode("utf-16"), "can't decode"),
        (b"9" * 5000, "4300 digits"),
    ],
)
def test_what_is_none_is_told(content, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(content, 1 << 30)


@pytest.mark.parametrize("item", [b"[]", b"{}", b"[[]]", b'{"":1}', b'{"":{}}', b"1.5", b'"ab"'])
def test_what_would_take_too_much_memory_is_not_made(item):
    content = b"[" + b",".join([item] * 10_000) + b"]"
    assert len(parse_json(content, 4_000_000)) == 10_000
    with pytest.raises(ValueError, match="bytes of memory, and 200000 are allowed"):
        parse_json(content, 200_000)


def test_pairs_are_counted_where_somebody_looks_at_them():
    content = json.dumps({str(n): n for n in range(1000)}).encode()
    assert len(parse_json(content, 110_000)) == 1000
    with pytest.raises(ValueError, match="are allowed"):
        parse_json(content, 110_000, dict)
