"""Records to JSON and back."""

from enum import Enum
from typing import ClassVar, NamedTuple

import pytest

from modpack.core.codec import MismatchError, from_json, json_keys, to_json
from modpack.core.graph import Edge
from modpack.core.hookspec import CallableSpec
from modpack.core.plan import FileKind, MockEvent, MockEventKind, MockUse, UseKind
from modpack.core.scan import ImportKind


class Color(str, Enum):
    RED = "red"
    BLUE = "blue"

    __json_aliases__: ClassVar[dict[str, str]] = {"azure": "blue"}


@json_keys({"is_thick": "thick"}, optional=("color",), omitted=("age",), old_names={"width": "w"})
class Line(NamedTuple):
    """A line."""

    width: int
    is_thick: bool
    color: Color = Color.RED
    age: float = 0.0


def test_record_has_renamed_keys_and_no_omitted_ones():
    assert to_json(Line(3, True, age=2.0)) == {"width": 3, "thick": True, "color": "red"}
    assert to_json(Line(3, True, age=2.0), as_row=True) == [3, True, "red"]


def test_from_json_reads_old_keys_old_values_and_omitted_fields():
    read = from_json(Line, {"w": 3, "thick": True, "color": "azure", "age": 1}, "line")
    assert read == Line(3, True, Color.BLUE, 1.0)
    assert from_json(Line, {"width": 4, "w": 3, "thick": False}, "line") == Line(4, False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"thick": True}, "line has no 'width'"),
        ({"width": -1, "thick": True}, "'width' of line must be an integer from 0, not -1"),
        ({"width": 1, "thick": 1}, "'thick' of line must be true or false, not 1"),
        ({"w": "1", "thick": True}, "'w' of line must be an integer from 0, not '1'"),
        ({"width": 1, "thick": True, "color": "pink"}, "'color' of line must be one of red, blue"),
        ([], "line must be an object"),
    ],
)
def test_from_json_rejects_missing_and_mistyped_values(value, message):
    with pytest.raises(MismatchError) as raised:
        from_json(Line, value, "line")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "old", "member"),
    [
        (ImportKind, "saved", ImportKind.EXPLICIT),
        (ImportKind, "loaded", ImportKind.LIVE_MODULE),
        (ImportKind, "trial", ImportKind.SELF_TEST),
        (UseKind, "value", UseKind.MODULE_LEVEL),
        (UseKind, "function", UseKind.FUNCTION_BODY),
        (UseKind, "check", UseKind.TYPE_CHECK),
        (FileKind, "compiled", FileKind.NATIVE),
    ],
)
def test_kinds_of_early_packages_are_read(kind, old, member):
    assert from_json(kind, old, "kind") is member
    assert from_json(kind, member.value, "kind") is member


def test_keys_of_early_packages_are_read():
    called = {"by": "source", "name": "f", "source": "f", "place": "net:3", "state": []}
    assert from_json(CallableSpec, called, "callable").location == "net:3"
    event = {"module": "m", "kind": "used", "name": "", "operation": "", "place": "net.py:3"}
    expected = MockEvent("m", MockEventKind.USED, location="net.py:3")
    assert from_json(MockEvent, event, "event") == expected


def test_rows_of_early_packages_are_read():
    row = ["a", "b", "saved", None, []]
    assert from_json(Edge, row, "edge", as_row=True) == Edge("a", "b", ImportKind.EXPLICIT)
    use = ["m", "n", "i", 1, "function", "f", True, [], False]
    assert from_json(MockUse, use, "use", as_row=True).kind is UseKind.FUNCTION_BODY
