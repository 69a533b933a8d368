"""File names in the string constants of a source."""

from __future__ import annotations

import pytest

from modpack.discovery.import_scanner import scan_source


def names(code: str) -> list[str]:
    return [name.text for name in scan_source(code, "pkg.mod", False).file_names]


@pytest.mark.parametrize(
    "expression",
    [
        'Path(__file__).parent / "a" / "b.json"',
        'Path(__file__).with_name("a") / "b.json"',
        'os.path.join(os.path.dirname(__file__), "a", "b.json")',
        'f"{os.path.dirname(__file__)}/a" + "/b.json"',
        'pkgutil.get_data("a", "b.json")',
        'importlib.resources.files("a") / "b.json"',
        'pkg_resources.resource_string("a", "b.json")',
        '__path__[0] + "/a" + "/b.json"',
        'Path(__spec__.origin).with_name("a").joinpath("b.json")',
    ],
)
def test_find_file_names_returns_constants_in_order(expression):
    assert names(f"found = {expression}") == ["a", "b.json"]


def test_find_file_names_includes_constants_far_from_the_path():
    code = "HERE = __file__\n\ndef default():\n    return load('words.txt')\n\nload('words.txt')\n"
    [name] = scan_source(code, "pkg.mod", False).file_names
    assert (name.text, name.line) == ("words.txt", 4)


def test_find_file_names_separates_names_from_prose():
    code = (
        '"""See notes.txt."""\nopen(__file__)\n'
        'load("my words.txt", "a/b.json", "Hello, world.", "VERSION", "two words", "*")\n'
        'load("..", "/a.b", "*.json")'
    )
    assert names(code) == ["my words.txt", "a/b.json", "VERSION", "..", "a.b", "*.json"]


def test_find_file_names_needs_own_path():
    assert names('open("words.txt")') == []


def test_find_file_names_handles_long_expressions():
    assert names("table = __file__" + " + 'a'" * 300) == ["a"]
