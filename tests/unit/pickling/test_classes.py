"""Classes made in functions or at run time are saved with their objects."""

from __future__ import annotations

import abc
import collections
import copy
import copyreg
import dataclasses
import enum
import functools
import typing
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest
import torch
from torch import nn

import modpack
from tests.reloading import again


def network(scale: float) -> nn.Module:
    class Base(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Linear(width, width)

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale

    class Net(Base):
        """Scales."""

        __slots__ = ()
        depth: ClassVar[int] = 2

        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.inner = Base(width)

        @property
        def size(self) -> int:
            return self.layer.in_features

        @staticmethod
        def half(x: torch.Tensor) -> torch.Tensor:
            return x / 2

        @classmethod
        def make(cls, width: int) -> Net:
            return cls(width)

        @functools.cached_property
        def twice(self) -> int:
            return self.size * 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.half(self.scaled(self.layer(self.inner.layer(x))))

    return Net(3)


def test_local_class_model_behaves_like_original():
    model, x = network(3.0), torch.randn(2, 3)
    loaded = again(model)
    kind = type(loaded)
    assert torch.equal(loaded(x), model(x))
    assert (loaded.size, loaded.twice, kind.depth, kind.__doc__) == (3, 6, 2, "Scales.")
    assert kind is not type(model) and kind.__name__ == "Net"
    assert kind.__qualname__ == "network.<locals>.Net" and kind.__module__ == __name__
    assert type(loaded.inner) is kind.__mro__[1]
    assert type(kind.make(4)) is kind and kind.make(4).size == 4
    assert torch.equal(copy.deepcopy(loaded)(x), model(x))
    assert torch.equal(again(loaded)(x), model(x))


def test_local_class_may_refer_to_itself_and_its_objects():
    class Tree:
        instances: ClassVar[list[Any]] = []

        def __init__(self, *children: Tree) -> None:
            self.children = children
            Tree.instances.append(self)

        def grow(self) -> Tree:
            return Tree(self)

    tree = Tree(Tree())
    loaded = again(tree)
    kind = type(loaded)
    assert type(loaded.grow()) is kind and len(kind.instances) == 3
    assert kind.instances[1] is loaded and kind.instances[0] is loaded.children[0]
    assert len(Tree.instances) == 2


class Held:
    """The base of classes that are derived at run time."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def shown(self) -> str:
        return f"held {self.value}"


def mixed_in(kind: type) -> Any:
    return type(kind.__name__, (kind,), {"shown": lambda self: "mixed in", "k": 3})


def test_local_class_with_name_of_its_base_is_saved():
    loaded = again(mixed_in(Held)(5))
    assert (loaded.shown(), loaded.value, loaded.k) == ("mixed in", 5, 3)
    assert type(loaded).__mro__[1] is Held


Renamed = type("SomethingElse", (Held,), {"__module__": __name__})


def test_class_is_saved_by_another_name_of_its_module():
    assert type(again(Renamed())) is Renamed


def test_local_class_keeps_slots_and_private_names():
    class Slotted:
        __slots__ = ("_Slotted__secret", "__weakref__", "open")

        def __init__(self) -> None:
            self.__secret, self.open = 7, 8

        def secret(self) -> int:
            return self.__secret

    loaded = again(Slotted())
    assert (loaded.secret(), loaded.open, hasattr(loaded, "__dict__")) == (7, 8, False)


def test_local_abstract_and_generic_classes_are_saved():
    T = TypeVar("T")

    class Shape(abc.ABC, Generic[T]):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Square(Shape[int]):
        def area(self) -> float:
            return 4.0

    loaded, shape = again([Square(), Shape])
    assert loaded.area() == 4.0 and isinstance(loaded, shape)
    assert shape.__abstractmethods__ == {"area"}
    assert shape[int].__origin__ is shape
    with pytest.raises(TypeError, match="abstract"):
        shape()


class Registering(type):
    """A metaclass that records the classes that it creates."""

    made: ClassVar[list[str]] = []

    def __new__(mcs, name: str, bases: Any, body: Any) -> Any:
        cls = super().__new__(mcs, name, bases, body)
        mcs.made.append(name)
        return cls


def test_local_class_is_recreated_by_its_metaclass():
    class Noted(metaclass=Registering):
        value = 3

    loaded = again(Noted())
    assert type(type(loaded)) is Registering and loaded.value == 3
    assert Registering.made == ["Noted", "Noted"]


def test_local_autograd_function_is_saved():
    factor = 3.0

    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * factor

    kind, apply = again([Tripled, Tripled.apply])
    for function in (kind.apply, apply):
        x = torch.ones(2, requires_grad=True)
        function(x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 3.0))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("slots", [False, True])
def test_local_dataclasses_are_saved(frozen, slots):
    @dataclasses.dataclass(frozen=frozen, slots=slots, order=True)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        scale: ClassVar[int] = 10

        def scaled(self) -> int:
            return self.x * self.scale

    loaded = again(Point(1, tags=["a"]))
    kind = type(loaded)
    assert (loaded.x, loaded.y, loaded.tags, loaded.scaled()) == (1, 2, ["a"], 10)
    assert repr(kind(5)) == repr(Point(5)) and kind(1) == loaded < kind(2)
    assert dataclasses.replace(loaded, y=9).y == 9
    assert [f.name for f in dataclasses.fields(kind)] == ["x", "y", "tags"]
    assert hasattr(loaded, "__dict__") is not slots
    if frozen:
        assert hash(loaded) == hash(kind(1))
        with pytest.raises(dataclasses.FrozenInstanceError):
            loaded.x = 3


def test_make_dataclass_result_is_saved():
    made = dataclasses.make_dataclass("Made", [("a", int), ("b", list, dataclasses.field())])
    loaded = again(made(1, [2]))
    assert (loaded.a, loaded.b, type(loaded)(1, [2]) == loaded) == (1, [2], True)


def test_local_named_tuples_are_saved():
    class Typed(NamedTuple):
        a: int
        b: str = "b"

        def both(self) -> str:
            return f"{self.a}{self.b}"

    plain = collections.namedtuple("plain", "x y", defaults=[5])
    first, second = again([Typed(1), plain(3)])
    assert (first.both(), first._asdict(), second.y) == ("1b", {"a": 1, "b": "b"}, 5)
    assert first._replace(a=2).both() == "2b" and type(second)(1) == (1, 5)


def test_local_protocols_are_saved_and_typed_dicts_rejected():
    class Options(typing.TypedDict, total=False):
        width: int

    class Sized(typing.Protocol):
        def size(self) -> int: ...

    assert again(Sized).__name__ == "Sized"
    with pytest.raises(modpack.PicklingError, match="top level of a module"):
        again(Options)


def test_local_enum_is_rejected():
    class Color(enum.Enum):
        RED = 1

    for each in (Color.RED, Color, enum.Flag("Flags", "a b")):
        with pytest.raises(modpack.PicklingError, match=r"the enum .* top level of a module"):
            again(each)


def test_unsupported_class_attribute_is_reported_with_path():
    class Odd:
        steps = (number for number in range(3))

    with pytest.raises(modpack.PicklingError) as caught:
        again({"x": Odd()})
    assert caught.value.path == "obj['x'].__class__.steps"


def test_copyreg_reducer_of_metaclass_is_used():
    class Meta(type):
        pass

    class Special(metaclass=Meta):
        pass

    copyreg.pickle(Meta, lambda cls: (str, ("special",)))
    try:
        assert again([Special]) == ["special"]
    finally:
        del copyreg.dispatch_table[Meta]
