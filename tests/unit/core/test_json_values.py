"""JSON of unknown origin: a value or an error, within a memory limit."""

import json

import pytest

from modpack.core.codec import ModulePath, from_json
from modpack.core.json_values import parse_json


def test_parse_json_accepts_valid_documents():
    document = {"a": [1, 2.5, "é", None, True], "b": {"c": {}}}
    assert parse_json(json.dumps(document).encode(), 10_000) == document
    assert parse_json(json.dumps(document, ensure_ascii=False).encode(), 10_000) == document


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[" * 500_000, "nested too deeply"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'"\xff"', "can't decode"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ('{"a":1}'.encode("utf-16"), "can't decode"),
        (b"9" * 5000, "4300"),
    ],
)
def test_parse_json_rejects_invalid_documents(content, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(content, 1 << 30)


@pytest.mark.parametrize("item", [b"[]", b"{}", b"[[]]", b'{"":1}', b'{"":{}}', b"1.5", b'"ab"'])
def test_parse_json_limits_memory(item):
    content = b"[" + b",".join([item] * 10_000) + b"]"
    assert len(parse_json(content, 4_000_000)) == 10_000
    with pytest.raises(ValueError, match="bytes of memory, and the limit is 200000"):
        parse_json(content, 200_000)


def test_unique_keys_cost_more_memory():
    content = json.dumps({str(n): n for n in range(1000)}).encode()
    assert len(parse_json(content, 110_000)) == 1000
    with pytest.raises(ValueError, match="the limit is"):
        parse_json(content, 110_000, unique_keys=True)


TWICE = [
    '{"a":1,"a":1}',
    '{"a":{"b":1,"c":2,"b":3}}',
    '[[{"a":[{"b":1,"b":1}]}]]',
    '{"a":{},"b":{},"a":{}}',
    '{"a:b":":","c":{"d":1,"d":2}}',
    r'{"a":1,"\u0061":2}',
]


@pytest.mark.parametrize("content", TWICE)
def test_unique_keys_rejects_duplicate_key(content):
    assert parse_json(content.encode(), 10_000)
    with pytest.raises(ValueError, match="a key occurs twice"):
        parse_json(content.encode(), 10_000, unique_keys=True)


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        1,
        {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}, []]},
        {"a:b": ":::", "c": [":", {"d": "e:f"}]},
        [[[{"a": None}]], {"a": False}],
    ],
)
def test_unique_keys_accepts_same_key_in_several_objects(document):
    assert parse_json(json.dumps(document).encode(), 10_000, unique_keys=True) == document


def test_module_path_has_a_limit():
    kind = tuple[ModulePath, ...]
    assert from_json(kind, ["a.b"], "the modules") == ("a.b",)
    with pytest.raises(TypeError, match="item 0 of the modules must be a string"):
        from_json(kind, [3], "the modules")
    with pytest.raises(TypeError, match=r"cannot be 'a\.a\..*: it has 65 components"):
        from_json(kind, ["a" + ".a" * 64], "the modules")
