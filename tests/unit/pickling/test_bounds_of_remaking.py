"""What pickles call to make objects again does nothing else, whatever it is given."""

from __future__ import annotations

import sys
import types

import pytest

from modpack.pickling.base import set_in_script
from modpack.pickling.classes import fill_class
from modpack.pickling.remade import registered_handler, standard_stream


@pytest.mark.parametrize("name", ["modules", "exit", "_getframe", "path"])
def test_nothing_of_sys_is_given_but_its_streams(name):
    with pytest.raises(ValueError, match="is not a standard stream"):
        standard_stream(name, False)


def test_only_handlers_are_registered_as_handlers():
    with pytest.raises(TypeError, match="is not a logging handler"):
        registered_handler(types.SimpleNamespace)


def test_values_are_set_in_modules_of_definitions_only():
    with pytest.raises(ValueError, match="is not a module of script definitions"):
        set_in_script(sys.modules[__name__], ("sys",), None)
    assert sys.modules[__name__].sys is sys


def test_a_field_of_a_dataclass_is_no_code():
    name = "a:(print('ran'))):\n  pass\n#"
    state = {
        "attributes": {"__annotations__": {name: "int"}},
        "dataclass": {"fields": {}, "options": {}},
    }
    with pytest.raises(ValueError, match="is not a valid field name"):
        fill_class(type("Own", (), {}), state)
