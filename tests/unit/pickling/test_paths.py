from __future__ import annotations

import collections
import functools

import pytest
from torch import nn

from modpack.pickling.paths import path_to

TARGET = object()


class Box:
    def __init__(self, **contents: object) -> None:
        self.__dict__.update(contents)

    def method(self) -> None:
        pass


class Slots:
    __slots__ = ("__dict__", "left", "right")


class Secretive:
    """Answers every question with an error, or with something else."""

    def __init__(self) -> None:
        object.__setattr__(self, "inner", TARGET)

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"asked for {name}")

    @property
    def computed(self) -> object:
        raise RuntimeError("computed")


def slots() -> Slots:
    made = Slots()
    made.right = [TARGET]
    return made


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (TARGET, "obj"),
        ([0, TARGET], "obj[1]"),
        (({"a": TARGET},), "obj[0]['a']"),
        ({3: {True: TARGET}}, "obj[3][True]"),
        ({(1, 2): TARGET}, "obj[tuple]"),
        ({TARGET: 1}, "obj.keys()[object]"),
        ({TARGET}, "obj{...}"),
        (collections.deque([TARGET]), "obj[0]"),
        (collections.defaultdict(list, a=[TARGET]), "obj['a'][0]"),
        (Box(a=Box(b=TARGET)), "obj.a.b"),
        (slots(), "obj.right[0]"),
        (Box(a=TARGET).method, "obj.__self__.a"),
        (functools.partial(print, 1, TARGET), "obj.args[1]"),
        (functools.partial(print, end=TARGET), "obj.keywords['end']"),
        ("text", None),
        (Box(a=1), None),
        (Box, None),
    ],
)
def test_the_path_is_written_as_code_that_leads_there(root, path):
    assert path_to(root, TARGET) == path


def test_an_object_is_looked_into_without_being_asked():
    assert path_to([Secretive()], TARGET) == "obj[0].inner"


def test_the_root_may_have_a_name():
    assert path_to([TARGET], TARGET, "model") == "model[0]"


def test_the_shortest_path_is_taken_even_in_circles():
    loop = Box()
    loop.self = loop
    loop.long = Box(way=TARGET)
    loop.short = TARGET
    assert path_to(loop, TARGET) == "obj.short"


def test_module_tables_are_spelled_as_their_users_do():
    model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"head": nn.Linear(1, 1)}))
    assert path_to(model, model[1]["head"].weight, "model") == "model[1].head.weight"
    model.register_buffer("step", None)
    model.extra = TARGET
    assert path_to(model, TARGET, "model") == "model.extra"


def test_a_class_is_found_at_its_instances():
    assert path_to([1, Box(inner=Slots())], Slots) == "obj[1].inner"


def test_what_shows_itself_with_an_error_is_not_asked_to():
    class Angry:
        def __repr__(self) -> str:
            raise RuntimeError

    assert path_to({Angry(): TARGET}, TARGET) == "obj[Angry]"
