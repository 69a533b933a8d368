"""Unpickling with an importer for names and loaders for persistent ids."""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import pickle
import pickletools
import types

import pytest

from modpack.errors import ExternNotFoundError, UnpicklingError
from modpack.pickling.unpickler import unpickle_object


def load(data, *, import_module=importlib.import_module, package=None):
    return unpickle_object(
        data, resource="m/x.pkl", import_module=import_module, storages=None, package=package
    )


HUGE = {pickle.LONG_BINPUT[0], pickle.BYTEARRAY8[0]}
"""Opcodes for which Python's unpickler allocates gigabytes before further checks."""


class Pid(tuple):
    """An object that is written as a persistent id."""


class PidPickler(pickle.Pickler):
    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, Pid) else None


def with_pids(obj, protocol=3):
    buffer = io.BytesIO()
    PidPickler(buffer, protocol).dump(obj)
    return buffer.getvalue()


def make(package, *arguments):
    return (package, list(arguments))


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol_load(protocol):
    value = {"a": [1, 2.5, None, (True, b"x", "ü")], "d": collections.OrderedDict(x=1)}
    assert load(pickle.dumps(value, protocol)) == value


def test_unpickle_object_imports_modules_from_importer():
    asked = []

    def import_module(name):
        asked.append(name)
        return types.SimpleNamespace(Outer=types.SimpleNamespace(Inner=collections.Counter))

    data = b"\x80\x04\x8c\x08my.place\x8c\x0bOuter.Inner\x93."
    assert load(data, import_module=import_module) is collections.Counter
    assert asked == ["my.place"]


def test_names_of_python_2_are_mapped_to_python_3():
    assert load(b"\x80\x02c__builtin__\nset\nK\x01\x85\x85R.") == {1}
    assert load(b"\x80\x02ccollections\nUserDict\n.") is collections.UserDict
    with pytest.raises(UnpicklingError, match="__builtin__"):
        load(b"\x80\x03c__builtin__\nset\n.")


def test_reduce_package_objects_are_rebuilt_once():
    first = Pid(("reduce_package", 1, make, (5, 6)))
    second = Pid(("reduce_package", 2, make, (5, 6)))
    loaded = load(with_pids([first, first, second]), package="the package")
    assert loaded[0] == ("the package", [5, 6])
    assert loaded[0] is loaded[1] and loaded[1] is not loaded[2]


def test_reduce_package_ids_without_number_load():
    unnumbered = Pid(("reduce_package", make, (1,)))
    assert load(with_pids([unnumbered, unnumbered])) == [(None, [1]), (None, [1])]


def test_missing_extern_error_is_not_wrapped():
    def import_module(name):
        raise ExternNotFoundError("x.pt", name, "numpy==2")

    with pytest.raises(ExternNotFoundError, match="numpy==2"):
        load(b"cnumpy\nndarray\n.", import_module=import_module)


def test_errors_of_packaged_code_are_not_wrapped():
    def import_module(name):
        raise ValueError("the module says so")

    with pytest.raises(ValueError, match="the module says so"):
        load(b"cany\nThing\n.", import_module=import_module)


def test_truncated_pickle_raises_unpickling_error():
    value = {"numbers": list(range(5)), "text": "x" * 50, "c": collections.OrderedDict(a=1)}
    for protocol in (2, 3, 4):
        data = pickle.dumps(value, protocol)
        for end in range(len(data)):
            with pytest.raises(UnpicklingError, match=r"m/x\.pkl"):
                load(data[:end])


def test_changed_opcode_raises_unpickling_error_or_loads():
    data = pickle.dumps({"numbers": [1, 2], "text": "x"}, 3)
    for _, _, place in pickletools.genops(data):
        for opcode in sorted(set(range(256)) - HUGE):
            with contextlib.suppress(UnpicklingError):
                load(data[:place] + bytes([opcode]) + data[place + 1 :])
