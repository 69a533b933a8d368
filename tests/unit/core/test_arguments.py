from __future__ import annotations

import pytest

from modpack.core.json_values import require_type


def test_argument_of_right_type_passes():
    require_type("a", str, "text", "a str")
    require_type(b"a", (bytes, bytearray), "data", "bytes")
    require_type(True, bool, "flag", "a bool")


@pytest.mark.parametrize(
    ("value", "kinds"), [(3, str), (None, (str, bytes)), ("a", int), (True, int), (1, bool)]
)
def test_another_type_is_refused_by_the_arguments_name(value, kinds):
    with pytest.raises(TypeError, match=f"^speed must be a speed, not {type(value).__name__}$"):
        require_type(value, kinds, "speed", "a speed")
