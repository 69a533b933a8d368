"""What following a pickle tells, as it is gathered; with bounds on what a hostile one may take."""

from __future__ import annotations

from typing import Final

from modpack.discovery._picklemachine.values import Named
from modpack.discovery.pickledvalues import (
    FlawKind,
    NameUse,
    PickledName,
    PickledSource,
    PickledStorage,
    PickleFlaw,
)

__all__ = ["Found", "MalformedError", "Memo"]

_MOST_NAMES: Final = 20_000
_LONGEST_NAME: Final = 4000
_MOST_FLAWS: Final = 100
_MOST_TIMES: Final = 10_000
"""How often something may be wrong; what is wrong more often is not followed to its end."""
_MOST_ODD: Final = 100_000
"""Places in the memo that are not numbered in turn."""
_OF_GRAPHS: Final = frozenset(
    {"torch", "builtins", "collections", "math", "_operator", "operator", "typing"}
)
"""Where graphs are from, and what is in them."""
_USES: Final = tuple(NameUse)


class MalformedError(ValueError):
    """The bytes are no pickle, or none that can be followed."""


class Memo:
    """What an unpickler remembers: values by number, mostly numbered in turn."""

    def __init__(self) -> None:
        self._in_turn: list[object] = []
        self._odd: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._in_turn) + len(self._odd)

    def put(self, number: int, value: object) -> None:
        known = len(self._in_turn)
        if 0 <= number < known:
            self._in_turn[number] = value
        elif number == known and number not in self._odd:
            self._in_turn.append(value)
        elif number < 0 or (len(self._odd) >= _MOST_ODD and number not in self._odd):
            raise MalformedError(f"it remembers something by the number {number}")
        else:
            self._odd[number] = value

    def get(self, number: int) -> object:
        if 0 <= number < len(self._in_turn):
            return self._in_turn[number]
        return self._odd[number]


class Found:
    """What is told by one record of pickles; implements the recorder of calls.

    Args:
        before: what was told by the record before, which the same unpickler loads.
    """

    def __init__(self, before: Found | None = None) -> None:
        self.flaws: dict[tuple[FlawKind, str], PickleFlaw] = {}
        self.sources: list[PickledSource] = []
        self.storages: dict[tuple[str, str], PickledStorage] = {}
        self.nested: list[tuple[int, bytes]] = []
        self.at = 0
        self._times = 0
        self.has_adder: bool = before.has_adder if before else False
        """Whether something that may be called has the name of a method that adds items."""
        self.has_old_names: bool | None = before.has_old_names if before else None
        """Whether names of Python 2 are translated; the first bytes of all decide that."""
        self._named: dict[tuple[str, str], Named] = before._named if before else {}
        self._positions: dict[Named, tuple[int, NameUse, int]] = {}
        self._filled: dict[tuple[str, str], object] = before._filled if before else {}

    def names(self) -> tuple[PickledName, ...]:
        return tuple(
            PickledName(named.module, named.name, *told) for named, told in self._positions.items()
        )

    def named(self, module: str, name: str) -> object:
        key = (module, name)
        if key in self._filled:
            return self._filled[key]
        known = self._named.get(key)
        if known is None:
            if len(self._named) >= _MOST_NAMES:
                raise MalformedError(f"it names more than {_MOST_NAMES} things")
            if len(module) + len(name) > _LONGEST_NAME:
                raise MalformedError(f"it names something of {len(module) + len(name)} characters")
            known = self._named[key] = Named(module, name)
        if known not in self._positions:
            self._positions[known] = (self.at, NameUse.HELD, self.at)
        return known

    def used(self, named: Named, use: NameUse) -> None:
        if not named.module:
            return
        first, most, _ = self._positions.get(named, (self.at, NameUse.HELD, self.at))
        if named not in self._positions or _USES.index(use) > _USES.index(most):
            self._positions[named] = (first, use, self.at)

    def sets_adder(self) -> None:
        self.has_adder = True

    def flaw(self, kind: FlawKind, text: str) -> None:
        self._times += 1
        if self._times > _MOST_TIMES:
            raise MalformedError(f"it has more than {_MOST_TIMES} flaws")
        if len(self.flaws) < _MOST_FLAWS:
            self.add(kind, text)

    def add(self, kind: FlawKind, text: str) -> None:
        """A flaw that counts in any case."""
        self.flaws.setdefault((kind, text), PickleFlaw(kind, text, self.at))

    def function_text(self, text: str, name: str, line: int) -> None:
        self.sources.append(PickledSource(name, text, line, self.at))

    def is_only_torch(self) -> bool:
        return all(
            named.name and named.module.partition(".")[0] in _OF_GRAPHS
            for named in self._named.values()
        )

    def filled(self, module: str, name: str, value: object) -> None:
        self._filled[module, name] = value

    def storage(self, key: str, kind: object, size: object) -> None:
        name = repr(kind) if isinstance(kind, Named) else ""  # others may be of any length
        known = self.storages.get((key, name))
        number = size if isinstance(size, int) else None
        if known is None:
            self.storages[key, name] = PickledStorage(key, name, number, self.at)
        elif known.size is not None and (number is None or number > known.size):
            self.storages[key, name] = PickledStorage(key, name, number, known.position)
