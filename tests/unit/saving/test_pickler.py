"""The fast path for plain data, and the fallback for other objects."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest

from modpack.errors import PicklingError
from modpack.saving import pickler
from modpack.saving.pickler import Pickled, pickle_object
from tests.unit.pickling.test_saving import Notes


class Entry:
    def __init__(self, number: int) -> None:
        self.number = number


class Slotted:
    __slots__ = ("x",)


class Counting:
    """A class that counts the calls of its ``__getstate__``."""

    asked = 0

    def __getstate__(self) -> dict[str, int]:
        Counting.asked += 1
        return {"asked": Counting.asked}


class Words(list):  # type: ignore[type-arg]
    pass


def save(obj: object, protocol: int = 3) -> Pickled:
    return pickle_object(obj, context=Notes(), resource="m/o.pkl", protocol=protocol)


@pytest.fixture
def asked(monkeypatch):
    """The types of all objects for which ``persistent_id`` was called."""
    kinds: list[type] = []
    own = pickler.Pickler._persistent_ids

    def persistent_ids(self: Any) -> Any:
        asks = own(self)

        def noting(obj: Any) -> Any:
            kinds.append(type(obj))
            return asks(obj)

        return noting

    monkeypatch.setattr(pickler.Pickler, "_persistent_ids", persistent_ids)
    return kinds


def slotted() -> Slotted:
    obj = Slotted()
    obj.x = (1, 2)
    return obj


PLAIN = {
    "values": {"a": [1, 2.5, "text", None, True, b"x", (1, (2,)), 10**30]},
    "objects": [Entry(1), Entry(2), slotted(), Entry],
    "containers": [OrderedDict(a=1), deque([1, 2], 3), defaultdict(list, b=[1])],
    "nothing": None,
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("protocol", [2, 3])
def test_plain_data_takes_fast_path(asked, name, protocol):
    obj = PLAIN[name]
    if protocol == 2 and name == "values":
        obj = {"a": [1, "text"]}  # protocol 2 writes bytes as calls of a function
    assert save(obj, protocol).data == pickle.dumps(obj, protocol, fix_imports=False)
    assert asked == []


def test_fast_path_records_references():
    named = [reference.name for reference in save([Entry(1), deque([Words()])]).references]
    assert named == ["Entry", "deque", "Words"]


def test_fast_path_leaves_sets_to_other_pickler(asked):
    forth, back = ["delta", "alpha", "omega"], ["omega", "alpha", "delta"]
    for protocol in (2, 3, 4, 5):
        one, other = ({"x": [set(names), 1]} for names in (forth, back))
        assert save(one, protocol).data == save(other, protocol).data
    assert set in asked


def test_getstate_is_called_once(asked):
    Counting.asked = 0
    save([Entry(1), Counting(), Entry(2)])
    assert Counting.asked == 1
    assert Counting in asked


def test_references_are_ordered_after_fast_path_gives_up():
    named = [reference.name for reference in save([Entry(1), Words(), Counting()]).references]
    assert named == ["Entry", "Words", "Counting"]


def test_unsupported_object_is_reported_after_fast_path():
    with pytest.raises(PicklingError, match=r"at obj\[1\]\.number"):
        save([Entry(1), Entry(each for each in ()), Entry(3)])  # type: ignore[arg-type]
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(PicklingError, match="nests too deeply"):
        save(nested)


def test_ordered_dict_with_other_objects_pickles_as_with_pickle():
    with_attributes: Any = OrderedDict(b=1)
    with_attributes.note = "kept"
    obj = [OrderedDict(), OrderedDict(z=1, a=[2]), with_attributes]
    mixed = save([*obj, {1, 2}]).data
    plain = save(obj).data
    assert pickle.loads(plain)[2].note == "kept"
    assert mixed.startswith(plain[: -len(b"e.")])
