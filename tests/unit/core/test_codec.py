"""Records to JSON and back."""

from enum import Enum
from typing import NamedTuple

import pytest

from modpack.core.codec import MismatchError, from_json, json_keys, to_json


class Color(str, Enum):
    RED = "red"
    BLUE = "blue"


@json_keys({"is_thick": "thick"}, optional=("color",), omitted=("age",))
class Line(NamedTuple):
    """A line."""

    width: int
    is_thick: bool
    color: Color = Color.RED
    age: float = 0.0


def test_record_has_renamed_keys_and_no_omitted_ones():
    assert to_json(Line(3, True, age=2.0)) == {"width": 3, "thick": True, "color": "red"}
    assert to_json(Line(3, True, age=2.0), as_row=True) == [3, True, "red"]


def test_from_json_reads_optional_and_omitted_fields():
    read = from_json(Line, {"width": 3, "thick": True, "color": "blue", "age": 1}, "line")
    assert read == Line(3, True, Color.BLUE, 1.0)
    assert from_json(Line, {"width": 4, "more": 3, "thick": False}, "line") == Line(4, False)


def test_record_has_derived_keys_which_are_not_read():
    @json_keys({"half": "middle"}, derived=("half",))
    class Length(NamedTuple):
        whole: int

        @property
        def half(self) -> int:
            return self.whole // 2

    assert to_json(Length(6)) == {"whole": 6, "middle": 3}
    assert from_json(Length, {"whole": 6, "middle": 9}, "length") == Length(6)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"thick": True}, "line has no 'width'"),
        ({"width": -1, "thick": True}, "'width' of line must be an integer from 0, not -1"),
        ({"width": 1, "thick": 1}, "'thick' of line must be true or false, not 1"),
        ({"width": 1, "thick": True, "color": "pink"}, "'color' of line must be one of red, blue"),
        ([], "line must be an object"),
    ],
)
def test_from_json_rejects_missing_and_mistyped_values(value, message):
    with pytest.raises(MismatchError) as raised:
        from_json(Line, value, "line")
    assert str(raised.value).startswith(message)
