from __future__ import annotations

import collections
import decimal
import io
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modpack.discovery.pickles import FlawKind, PickleReader, scan_pickle


class Looked:
    """Collects what a real unpickler looks up."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def load(self, data: bytes) -> list[str]:
        names = self.names

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> object:
                names.append(f"{module}.{name}")
                return super().find_class(module, name)

        Unpickler(io.BytesIO(data)).load()
        return list(dict.fromkeys(names))


def names(data: bytes) -> list[str]:
    return [str(name) for name in scan_pickle(data).names]


def kinds(data: bytes) -> list[FlawKind]:
    return [flaw.kind for flaw in scan_pickle(data).flaws]


VALUES = [
    [decimal.Decimal(1), decimal.Decimal(2), collections.OrderedDict(a=1)],
    {"os": "system", 3: (None, True, b"x" * 300, 2**70, 1.5)},
    {frozenset({1}), frozenset()},
    [os.path.join, len, collections.Counter("aab")],
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", VALUES)
def test_it_names_what_an_unpickler_looks_up(value, protocol):
    data = pickle.dumps(value, protocol)
    assert names(data) == [
        found.replace("__builtin__", "builtins") for found in Looked().load(data)
    ]
    assert scan_pickle(data).flaws == ()
    assert scan_pickle(data).end == len(data)


def test_names_of_python_2_are_told_by_what_they_are_called_now():
    assert names(b"c__builtin__\neval\n.") == ["builtins.eval"]
    assert names(b"\x80\x02ccopy_reg\n_reconstructor\n.") == ["copyreg._reconstructor"]
    assert names(b"\x80\x03c__builtin__\neval\n.") == ["__builtin__.eval"]


def test_a_name_that_lies_in_the_memo_is_found_and_has_its_place():
    data = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x300h\x00h\x01\x93."
    data = data.replace(b"\x300", b"0")
    (found,) = scan_pickle(data).names
    assert (str(found), data[found.position : found.position + 1]) == ("os.system", b"\x93")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", FlawKind.MALFORMED),
        (b".", FlawKind.MALFORMED),
        (b"no pickle", FlawKind.MALFORMED),
        (pickle.dumps([1, 2])[:-1], FlawKind.MALFORMED),
        (b"\x80\x09N.", FlawKind.MALFORMED),
        (b"h\x07.", FlawKind.MALFORMED),
        (b"(R.", FlawKind.MALFORMED),
        (pickle.dumps(1) + b"more", FlawKind.TRAILING),
        (pickle.dumps([pickle.dumps(len)]), FlawKind.NESTED),
        (pickle.dumps([pickle.dumps(len, 0)]), FlawKind.NESTED),
        (b"\x80\x02\x82\x01.", FlawKind.EXTENSION),
        (b"\x80\x05\x97.", FlawKind.BUFFER),
        (b"cos path\nsystem\n.", FlawKind.UNRESOLVED),
        # "os" comes out of a call, so that no text on the stack tells it
        (b"\x80\x04cbuiltins\nstr\n\x8c\x02os\x85R\x8c\x06system\x93.", FlawKind.UNRESOLVED),
    ],
)
def test_what_cannot_be_relied_upon_is_a_flaw(data, kind):
    assert kind in kinds(data)


def test_modules_are_found_by_their_persistent_ids():
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("module", obj.__name__) if obj is os else None

    for protocol in (2, 3, 4):
        file = io.BytesIO()
        Pickler(file, protocol).dump([os, (1, 2, 3, 4)])
        assert names(file.getvalue()) == ["os"]
        assert kinds(file.getvalue()) == []
    made_up = b"\x80\x03cbuiltins\nstr\nX\x06\x00\x00\x00module\x85RQ."
    assert kinds(made_up) == [FlawKind.UNRESOLVED]


def test_bytes_that_only_look_like_a_pickle_are_none():
    assert (
        kinds(pickle.dumps([b"a sentence.", bytes(range(46)) + b".", pickle.dumps([1, 2])])) == []
    )


def test_pickles_in_one_record_are_read_with_one_memo():
    first = pickle.dumps(["os", "system"], 4)
    reader = PickleReader()
    assert reader.read(first).flaws == ()
    # The second pickle takes both texts from the memo of the first: 0 is the list.
    second = b"\x80\x04h\x01h\x02\x93." + pickle.dumps(decimal.Decimal)
    scan = reader.read(second, several=True)
    assert [str(name) for name in scan.names] == ["os.system", "decimal.Decimal"]
    assert scan.flaws == ()


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(data):
    scan = scan_pickle(data)
    assert scan.end <= len(data)
    assert scan.flaws or pickle_ends(data)


def pickle_ends(data: bytes) -> bool:
    return data.endswith(b".")


# -- what becomes of what is named -----------------------------------------------------------------


def uses(data: bytes) -> dict[str, str]:
    return {str(name): name.use.value for name in scan_pickle(data).names}


class Plain:
    pass


def test_it_tells_what_is_done_with_a_name():
    data = pickle.dumps([len, Plain(), decimal.Decimal(1)], 4)
    plain = f"{Plain.__module__}.Plain"
    assert uses(data) == {"builtins.len": "held", plain: "built", "decimal.Decimal": "called"}


@pytest.mark.parametrize("protocol", range(6))
def test_the_most_that_is_done_with_a_name_counts(protocol):
    counter = collections.Counter("a")
    (name,) = scan_pickle(pickle.dumps([collections.Counter, counter], protocol)).names
    assert name.use.value == "called"
    assert name.used_at > name.position


def test_what_getattr_and_attrgetter_lead_to_is_named():
    getter = b"\x80\x03coperator\nattrgetter\nX\x01\x00\x00\x00a\x85Rccollections\nabc\n\x85R."
    assert "collections.abc.a" in names(getter)
    assert "builtins.list.append" in names(pickle.dumps(list.append, 4))


def test_arguments_of_partials_are_called_when_the_partial_is():
    inner = b"\x80\x03cfunctools\npartial\ncbuiltins\nlen\n\x85R"
    assert uses(inner + b".")["builtins.len"] == "held"
    assert uses(inner + b")R.")["builtins.len"] == "called"


def test_storages_are_told_with_the_most_that_is_asked_of_them():
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", dict, "7", "cpu", obj.real) if isinstance(obj, Size) else None

    class Size(int):
        """Numbers that become persistent ids."""

    file = io.BytesIO()
    Pickler(file, 3).dump([Size(99), Size(100), Size(5)])
    (storage,) = scan_pickle(file.getvalue()).storages
    assert (storage.key, storage.kind, storage.size) == ("7", "builtins.dict", 100)


def test_functions_by_source_are_told():
    from modpack.pickling.functions import make_function

    class Function:
        def __reduce__(self):
            fields = ("lambda x: x", True, "f", (), 0, None, 7)
            return make_function, (fields, ("f", "Net.f", "net"), None, ())

    (source,) = scan_pickle(pickle.dumps(Function())).sources
    assert (source.name, source.text, source.line) == ("Net.f", "lambda x: x", 7)


def test_nested_pickles_are_told_with_their_bytes():
    inner = pickle.dumps(decimal.Decimal(1))
    (nested,) = scan_pickle(pickle.dumps([inner, pickle.dumps(3)])).nested
    assert nested[1] == inner


@pytest.mark.parametrize(
    "unit",
    [
        b"N",
        b"N0",
        b"(",
        b"}",
        b"]",
        b"2\x85",
        b"\x8c\x02ab",
        b"\x8c\x02ab\x94",
        b"cbuiltins\ndict\n)R",
        b"cfunctools\npartial\n)R\x94",
        b"2)R",
        b"Nb",
        b"C\x06cos\nx.",
        b"cbuiltins\ngetattr\ncos\nx\n\x8c\x01a\x86R",
    ],
)
def test_however_often_something_is_done_there_is_an_answer(unit):
    data = b"\x80\x04N" + unit * (300_000 // len(unit)) + b"."
    scan = scan_pickle(data)
    assert scan.end == len(data) or scan.flaws
    assert len(scan.flaws) <= 101
