"""The fast path for objects that consist of their attributes."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from modpack.saving import pickler
from modpack.saving.pickler import is_made_of_attributes, pickle_object
from tests.unit.pickling.test_saving import Notes


class Entry:
    def __init__(self, *values: Any) -> None:
        self.values = list(values)


class Derived(Entry):
    known = True


@dataclass(frozen=True)
class Frozen:
    number: int
    text: str = "a"


class Generic(list[int]):
    def __init__(self, *values: int) -> None:
        super().__init__(values)
        self.note = "a list"


class Table(dict[str, int]):
    def __init__(self) -> None:
        super().__init__(a=1)
        self.note = "a dict"


class Slotted:
    __slots__ = ("__dict__", "x")

    def __init__(self) -> None:
        self.x, self.y = 1, 2


class SlottedBelow(Entry):
    __slots__ = ("x",)

    def __init__(self) -> None:
        super().__init__(3)
        self.x = 1


class SlottedLater(Entry):
    """A class with a slot that the first object leaves empty."""

    __slots__ = ("x",)


class Numbered(int):
    note = "a number"

    def __init__(self, _: int) -> None:
        self.own = 1


class Color(enum.Enum):
    RED = 1


class OtherAttributes:
    """A class whose ``__dict__`` is a property."""

    def __init__(self) -> None:
        self.hidden = 1

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return {"shown": 1}


class Forwarding:
    def __init__(self) -> None:
        self.number = 1

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Remembering:
    """A class with a ``__getstate__``."""

    def __init__(self) -> None:
        self.number = 1

    def __getstate__(self) -> dict[str, Any]:
        return {"number": 2}


class Arguing:
    def __new__(cls, number: int = 0) -> Arguing:
        made = super().__new__(cls)
        made.number = number  # type: ignore[attr-defined]
        return made

    def __getnewargs__(self) -> tuple[int]:
        return (7,)


class AnotherState:
    def __new__(cls) -> Any:
        return {"values": "its own"}


class AnotherEntry:
    def __new__(cls, protocol: int) -> Any:
        return Entry, (protocol, "of its own")


OF_THE_OBJECT = {"__getstate__": AnotherState, "__reduce_ex__": AnotherEntry, "__reduce__": 1}
"""Methods set on an object itself; pickle does not look up the last one."""


MADE: dict[str, Callable[[], Any]] = {
    "attributes": lambda: Entry(1, "a"),
    "derived": lambda: Derived(1),
    "frozen": lambda: Frozen(1),
    "namespace": lambda: SimpleNamespace(a=1),
    "list": lambda: Generic(1, 2),
    "dict": Table,
    "slots": Slotted,
    "slots below": SlottedBelow,
    "empty slots": lambda: SlottedLater(1),
    "number": lambda: Numbered(3),
    "enum": lambda: Color.RED,
    "other attributes": OtherAttributes,
    "forwarding": Forwarding,
    "state of its own": Remembering,
    "arguments": Arguing,
    "exception": lambda: ValueError("x"),
}
ONLY_ATTRIBUTES = ("attributes", "derived", "frozen")


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("protocol", [2, 3])
def test_is_made_of_attributes_recognizes_plain_objects(name, protocol):
    assert is_made_of_attributes(MADE[name](), protocol) == (name in ONLY_ATTRIBUTES)


@pytest.mark.parametrize("name", ONLY_ATTRIBUTES)
@pytest.mark.parametrize("protocol", [2, 3])
def test_plain_objects_pickle_as_with_pickle(name, protocol):
    first, second = MADE[name](), MADE[name]()
    obj = [first, second, {"again": first}, (second, [Entry(first)])]
    pickled = pickle_object(obj, context=Notes(), resource="m/o.pkl", protocol=protocol)
    assert pickled.data == pickle.dumps(obj, protocol, fix_imports=False)


def test_plain_objects_without_attributes_pickle_as_with_pickle():
    bare = Entry.__new__(Entry)
    for obj in ([Entry(1), bare], [Entry(1), bare, Entry(2), bare]):
        pickled = pickle_object(obj, context=Notes(), resource="m/o.pkl", protocol=3)
        assert pickled.data == pickle.dumps(obj, 3, fix_imports=False)


def test_slot_set_only_on_later_object_is_saved():
    used = SlottedLater(2)
    used.x = 3
    pickled = pickle_object([SlottedLater(1), used], context=Notes(), resource="m", protocol=3)
    assert pickle.loads(pickled.data)[1].x == 3


@pytest.mark.parametrize("name", OF_THE_OBJECT)
def test_instance_methods_apply_as_with_pickle(name):
    entry = Entry(1)
    setattr(entry, name, OF_THE_OBJECT[name])
    pickled = pickle_object([Entry(0), entry], context=Notes(), resource="m/o.pkl", protocol=3)
    assert pickled.data == pickle.dumps([Entry(0), entry], 3, fix_imports=False)


def test_fast_path_inspects_each_class_once(monkeypatch):
    looked_at = []

    def is_made(first: Any, protocol: int) -> bool:
        looked_at.append(type(first))
        return is_made_of_attributes(first, protocol)

    monkeypatch.setattr(pickler, "is_made_of_attributes", is_made)
    obj = [Entry(Entry(1)), Entry(2), Derived(3), Derived(4)]
    pickle_object(obj, context=Notes(), resource="m/o.pkl", protocol=3)
    assert looked_at == [Entry, Derived]
