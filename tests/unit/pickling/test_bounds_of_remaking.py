"""Rebuild functions reject arguments that would do more than rebuild an object."""

from __future__ import annotations

import sys
import types

import pytest

from modpack.pickling.classes import fill_class
from modpack.pickling.remade import registered_handler, standard_stream
from modpack.pickling.scripts import set_in_script


@pytest.mark.parametrize("name", ["modules", "exit", "_getframe", "path"])
def test_standard_stream_rejects_other_attributes_of_sys(name):
    with pytest.raises(ValueError, match="is not a standard stream"):
        standard_stream(name, False)


def test_registered_handler_rejects_other_classes():
    with pytest.raises(TypeError, match="is not a logging handler"):
        registered_handler(types.SimpleNamespace)


def test_set_in_script_rejects_other_modules():
    with pytest.raises(ValueError, match="is not a module of a package"):
        set_in_script(sys.modules[__name__], ("sys",), None)
    assert sys.modules[__name__].sys is sys


def test_fill_class_rejects_invalid_field_names():
    name = "a:(print('ran'))):\n  pass\n#"
    state = {
        "attributes": {"__annotations__": {name: "int"}},
        "dataclass": {"fields": {}, "options": {}},
    }
    with pytest.raises(ValueError, match="is not a valid field name"):
        fill_class(type("Own", (), {}), state)
