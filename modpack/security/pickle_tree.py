"""A pickle as a tree of inert values: nothing is imported, and nothing is called.

A name becomes a :class:`PickledName`, a call a :class:`Made`, a persistent id a
:class:`Persistent`, a dictionary :class:`Pairs`; sets are lists. Texts, numbers, tuples and lists
are what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from modpack.core.process import collection_paused
from modpack.pickling.allowlist import DATA
from modpack.pickling.pickle_machine import Actions, MalformedError, PickleMachine
from modpack.pickling.rebuild import current_module

MOST_NAMES: Final = 100_000
"""What a pickle may name: ten times as much as torch has to offer."""
_MOST_NODES: Final = 1_000_000
"""Of a model with 100,000 tensors and their names there are half as many."""


@dataclass(frozen=True, slots=True)
class PickledName:
    """Something that a pickle looks up in a module.

    Attributes:
        module: the module path, as today's Python calls it.
        name: what is taken from it, dotted; empty for the module itself, which packages hold as a
            persistent id.
        position: behind the opcode, in bytes from the start.
    """

    module: str
    name: str
    position: int = field(compare=False, default=0)

    @property
    def is_data(self) -> bool:
        """Whether it is in the closed table."""
        return f"{self.module}.{self.name}" in DATA

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary, or what is set in an object as in one."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value under a text; None if there is none. The last one counts."""
        return next((v for k, v in reversed(self.items) if type(k) is str and k == key), None)


@dataclass(eq=False, slots=True)
class Made:
    """The result of a call, with what is put into it afterwards.

    Attributes:
        function: what is called.
        arguments: the arguments.
        is_instance: whether the function is a class, of which an instance is made as it is.
        pairs: items that are set in it; arguments by name before them.
        states: what ``BUILD`` gives it.
        added: elements that are appended or added to it.
        calls: functions that are called with it and something else, for what they do to it.
    """

    function: Any
    arguments: Any
    is_instance: bool = False
    pairs: Pairs | None = None
    states: Sequence[Any] = ()
    added: Sequence[Any] = ()
    calls: Sequence[tuple[Any, Any]] = ()

    def get(self, key: str) -> Any:
        """What its last state has under a text; None if there is none."""
        state = self.states[-1] if self.states else None
        return state.get(key) if isinstance(state, Pairs) else None


@dataclass(eq=False, slots=True)
class Persistent:
    """An object that the loader has to know by an id."""

    identity: Any


class PickleTree(Actions):
    """Reads pickles that continue each other: one unpickler loads them, with one memo.

    Attributes:
        named: everything that the pickles look up, in order.

    >>> import pickle, fractions
    >>> (made,) = PickleTree().read_all(pickle.dumps(fractions.Fraction(1, 3)))
    >>> str(made.function), made.arguments
    ('fractions.Fraction', (1, 3))
    """

    def __init__(self) -> None:
        self.named: dict[PickledName, None] = {}
        self._known: dict[tuple[str, str], PickledName] = {}
        self._nodes = 0
        self._machine = PickleMachine(self)

    def read_one(self, data: bytes, start: int = 0) -> tuple[Any, int]:
        """Read one pickle; returns what it makes, and where it ends.

        Raises:
            MalformedError: it cannot be read to its end.
        """
        with collection_paused():  # all that is made is kept
            return self._machine.run(data, start)

    def read_all(self, data: bytes) -> list[Any]:
        """Read all pickles in some bytes, one after the other.

        Raises:
            MalformedError: they cannot be read to the end.
        """
        end, found = 0, []
        while end < len(data):
            made, end = self.read_one(data, end)
            found.append(made)
        return found

    def _count(self, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes > _MOST_NODES:
            raise MalformedError("it makes more values than can be followed")

    @property
    def position(self) -> int:
        """Behind the opcode that is being read, in bytes from the start."""
        return self._machine.position

    def find(self, module: str, name: str) -> PickledName:
        """A name."""
        found = self._known.get((module, name))
        if found is None:
            if len(self._known) >= MOST_NAMES:
                raise MalformedError("it names more than can be followed")
            found = self._known[module, name] = PickledName(
                current_module(module, name), name, self.position
            )
            self.named[found] = None
        return found

    def persistent(self, pid: Any) -> Any:
        """An object that the loader knows by an id."""
        self._count()
        return Persistent(pid)

    def call(self, function: Any, arguments: Any) -> Made:
        """A call."""
        self._count()
        return Made(function, arguments)

    def make(self, kind: Any, arguments: Any, named: Any) -> Made:
        """An instance, made without a call of ``__init__``."""
        self._count()
        return Made(kind, arguments, True, named if isinstance(named, Pairs) else None)

    def dropped(self, value: Any) -> None:
        """Note a call whose result is not used: it has set the state of its first argument."""
        arguments = value.arguments if isinstance(value, Made) else None
        if type(arguments) is tuple and len(arguments) == 2 and isinstance(arguments[0], Made):
            of = arguments[0]
            of.calls = _longer(of.calls, ((value.function, arguments[1]),))

    def build(self, made: Any, state: Any) -> None:
        """A state, beside those that it had before."""
        if not isinstance(made, Made):
            raise MalformedError("it sets the state of what it has not made")
        made.states = _longer(made.states, (state,))

    def dictionary(self) -> Pairs:
        """A dictionary."""
        self._count()
        return Pairs()

    def grouped(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """A tuple."""
        self._count()
        return tuple(items)

    def listed(self, items: Sequence[Any]) -> list[Any]:
        """A list."""
        self._count()
        return list(items)

    def emptied(self) -> list[Any]:
        """A set."""
        return []

    def collected(self, items: Sequence[Any]) -> list[Any]:
        """A frozenset."""
        return list(items)

    def extend(self, target: Any, items: Sequence[Any]) -> None:
        """Items of a list, or of what is like one."""
        if type(target) is not list and not isinstance(target, Made):
            raise MalformedError("it appends to what is no list")
        if isinstance(target, Made):
            target.added = _longer(target.added, items)
        else:
            target.extend(items)

    def add(self, target: Any, items: Sequence[Any]) -> None:
        """Items of a set."""
        self.extend(target, items)

    def store(self, target: Any, items: Sequence[Any]) -> None:
        """Items of a dictionary, or of what is like one."""
        if isinstance(target, Made):
            target.pairs = target.pairs or Pairs()
        pairs = target.pairs if isinstance(target, Made) else target
        if not isinstance(pairs, Pairs):
            raise MalformedError("it sets items of what is no dict")
        self._count(len(items) // 4)
        pairs.items.extend(zip(items[::2], items[1::2], strict=True))


def _longer(items: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """A list with more in it: the same one, if there is one. Most objects need none."""
    made = items if isinstance(items, list) else []
    made.extend(more)
    return made
