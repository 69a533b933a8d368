"""On which lines words stand, and what is left out because no word stands there."""

from __future__ import annotations

import ast

import pytest

from modpack.discovery.import_scanner import scan_source
from modpack.discovery.syntax import lines_at, places_of, spans_any


def test_lines_come_in_order_whatever_the_places_do():
    text = "b\na\nab\n"
    assert lines_at([*places_of("b", text), *places_of("a", text)], text) == [1, 2, 3, 3]


def test_examples_of_docstrings_are_left_out_and_what_only_begins_like_one_is_not():
    text = '"""\n  >>> import a\n"""\nx = 1 >> 2; import b\n">>>"; import c\n'
    assert lines_at(places_of("import", text), text) == [4, 5]


def test_a_decorator_belongs_to_its_function():
    function = ast.parse("x = 1\n@mark\n\ndef f():\n    pass\n").body[1]
    assert [line for line in range(1, 8) if spans_any(function, [line])] == [2, 3, 4, 5]
    assert not spans_any(function, [])
    assert spans_any(function, [1, 5, 9])


@pytest.mark.parametrize(
    "code",
    [
        "__import__('a.b')",
        "import_module('a.b')",
        "x = [import_module('a.b')]; y = 1",
        "def f():\n    return importlib.import_module('a.b')",
        "(load := __import__)\ndef f(): load('a.b')",
    ],
)
def test_importers_are_found_where_the_word_import_is(code):
    assert [item.module for item in scan_source(code, "pkg.mod", False).imports] == ["a.b"]
