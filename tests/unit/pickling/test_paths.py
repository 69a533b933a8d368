from __future__ import annotations

import collections
import dataclasses
import functools
import types
import weakref

import pytest
from torch import nn

from modpack.saving.object_paths import add_reachable, iter_objects, path_to, paths_to

TARGET = object()


class Box:
    def __init__(self, **contents: object) -> None:
        self.__dict__.update(contents)

    def method(self) -> None:
        pass


class Slots:
    __slots__ = ("__dict__", "left", "right")


class Secretive:
    """An object whose methods raise or return something else."""

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
def test_path_to_returns_code(root, path):
    assert path_to(root, TARGET) == path


def test_path_to_calls_no_methods():
    assert path_to([Secretive()], TARGET) == "obj[0].inner"


def test_path_to_uses_name_of_root():
    assert path_to([TARGET], TARGET, "model") == "model[0]"


def test_path_to_returns_shortest_path_in_cycles():
    loop = Box()
    loop.self = loop
    loop.long = Box(way=TARGET)
    loop.short = TARGET
    assert path_to(loop, TARGET) == "obj.short"


def test_path_to_flattens_module_tables():
    model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"head": nn.Linear(1, 1)}))
    assert path_to(model, model[1]["head"].weight, "model") == "model[1].head.weight"
    model.register_buffer("step", None)
    model.extra = TARGET
    assert path_to(model, TARGET, "model") == "model.extra"


def test_path_to_finds_class_at_instance():
    assert path_to([1, Box(inner=Slots())], Slots) == "obj[1].inner"


def test_path_to_does_not_call_custom_repr():
    class Angry:
        def __repr__(self) -> str:
            raise RuntimeError

    assert path_to({Angry(): TARGET}, TARGET) == "obj[Angry]"


class OddList(list):
    def __iter__(self) -> object:
        raise RuntimeError("iterated")


class OddSet(set):
    def __iter__(self) -> object:
        raise RuntimeError("iterated")


class partial:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"asked for {name}")


def test_path_to_ignores_custom_iteration():
    assert path_to(OddList([0, TARGET]), TARGET) == "obj[1]"
    assert path_to([OddSet([TARGET]), partial()], TARGET) == "obj[0]{...}"


def test_path_to_follows_functions_cells_and_views():
    def function(x=TARGET, *, y=None):
        return closed

    closed = Box(a=1)
    assert path_to(function, TARGET) == "obj.__defaults__[0]"
    assert path_to(function, closed, "f") == "f -> closed"
    assert path_to(function.__closure__[0], closed) == "obj.cell_contents"
    assert path_to({"a": TARGET}.values(), TARGET) == "obj.mapping['a']"
    assert path_to(types.MappingProxyType({"a": TARGET}), TARGET) == "obj.mapping['a']"
    assert path_to(staticmethod(function), closed) == "obj.__func__ -> closed"
    assert path_to(property(function), closed) == "obj.fget -> closed"
    assert path_to([closed].append, closed) == "obj.__self__[0]"


def test_path_to_follows_dataclass_and_named_tuple_fields():
    @dataclasses.dataclass
    class Config:
        backend: object

    pair = collections.namedtuple("pair", "left right")
    assert path_to(Config(TARGET), TARGET, "config") == "config.backend"
    assert path_to(pair(0, TARGET), TARGET) == "obj[1]"


def test_path_to_follows_local_classes():
    class Local:
        registry = (TARGET,)

    assert path_to([Local()], TARGET) == "obj[0].__class__.registry[0]"


def test_path_to_quotes_names_that_are_not_identifiers():
    model = nn.ModuleDict({"1x1": nn.Linear(1, 1), "a b": nn.Linear(1, 1)})
    assert path_to(model, model["1x1"].weight, "model") == "model['1x1'].weight"
    assert path_to(model, model["a b"], "model") == "model['a b']"


def test_paths_to_finds_several_objects():
    first, second = object(), object()
    paths = paths_to([first, {"x": second}], [first, second, object()])
    assert paths == {id(first): "obj[0]", id(second): "obj[1]['x']"}


def test_weak_proxy_is_not_its_referent():
    model = nn.Linear(1, 1)
    proxy, gone = weakref.proxy(model), weakref.proxy(Box())
    assert not any(isinstance(each, nn.Module) for each in iter_objects([proxy, gone]))
    seen: set[int] = set()
    add_reachable([proxy, gone], seen, set())
    assert id(model) not in seen
