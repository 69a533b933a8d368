from __future__ import annotations

import collections
import io
import pickle

import pytest

from modpack.saving.pickle_edits import rename_modules

PROTOCOLS = [2, 3, 4, 5]


class Thing:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rename_modules_changes_module_of_classes(protocol):
    data = pickle.dumps([collections.OrderedDict(a=1), Thing()], protocol, fix_imports=False)
    renamed = rename_modules(data, {"collections": "elsewhere.new", __name__: "shop"})

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            found.append((module, name))
            return {"OrderedDict": collections.OrderedDict, "Thing": Thing}[name]

    found: list[tuple[str, str]] = []
    assert Unpickler(io.BytesIO(renamed)).load() == [{"a": 1}, Thing()]
    assert found == [("elsewhere.new", "OrderedDict"), ("shop", "Thing")]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(2**100),
        1.5,
        b"bytes" * 100,
        "text" * 1000,
        "é\u2028\ud800",
        "x" * 100_000,
        [Thing(), Thing()],
        {"a": ({1, 2}, frozenset([3]))},
        bytearray(b"x" * 70_000),
        None,
        "",
    ],
    ids=lambda value: type(value).__name__,
)
def test_rename_modules_keeps_other_values(protocol, value):
    data = pickle.dumps(value, protocol)
    assert pickle.loads(rename_modules(data, {"not.in.it": "whatever"})) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rename_modules_keeps_shared_objects(protocol):
    shared = Thing()
    again = pickle.loads(
        rename_modules(pickle.dumps([shared, [shared], "x" * 300], protocol), {"no": "such"})
    )
    assert again[0] is again[1][0]


def test_rename_modules_accepts_long_names():
    long = "package." * 60 + "module"
    assert long.encode() in rename_modules(pickle.dumps(Thing(), 4), {__name__: long})


def test_rename_modules_matches_whole_names():
    data = pickle.dumps(Thing(), 2)
    assert rename_modules(data, {__name__[:-1]: "other"}) == data


def test_rename_modules_reads_frames():
    data = pickle.dumps([Thing(), "x" * 100], 4)
    assert b"\x95" in data[:4]
    assert pickle.loads(rename_modules(data, {"no": "such"})) == [Thing(), "x" * 100]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rename_modules_keeps_what_follows_the_last_name(protocol):
    entries = {f"key {number}": number for number in range(20_000)}
    value = [entries, Thing(), entries.copy(), list(entries)]
    data = rename_modules(pickle.dumps(value, protocol), {__name__: "shop.things"})
    assert b"shop.things" in data and __name__.encode() not in data
    first, _, *others = pickle.loads(rename_modules(data, {"shop.things": __name__}))
    assert [first, *others] == [entries, entries, list(entries)]
