"""Sorted sets in pickles."""

from __future__ import annotations

import io
import pickle
import random
from typing import Any

import pytest

from modpack.saving.pickle_edits import SetWriter

PROTOCOLS = [2, 3, 4, 5]


class Holder:
    """An object in reference cycles with sets."""


class Pickler(pickle.Pickler):
    """Pickles several objects with one memo and sets sorted by repr."""

    def __init__(self, protocol: int) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol)
        self.sets = SetWriter(lambda members: sorted(members, key=repr))

    def persistent_id(self, obj: Any) -> Any:
        return self.sets.persistent_id(obj) if type(obj) in (set, frozenset) else None

    def dumped(self, *objects: object) -> bytes:
        pieces = []
        for obj in objects:
            start = self.buffer.tell()
            self.dump(obj)
            pieces.append(self.sets.finish(self.buffer.getvalue()[start:]))
        return b"".join(pieces)


def loaded(data: bytes, count: int) -> list[Any]:
    unpickler = pickle.Unpickler(io.BytesIO(data))
    return [unpickler.load() for _ in range(count)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sets_with_same_members_have_same_bytes(protocol):
    forth = {number * 8: None for number in range(9)}
    one, other = set(forth), set(reversed(forth))
    assert Pickler(protocol).dumped(one) == Pickler(protocol).dumped(other)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_set_writer_keeps_bytes_that_look_like_opcodes(protocol):
    odd = [{"R", "q"}, b"Q" * 300, "Rq\x01Q" * 100, b"R\x94Q" * 70_000, ("Q", b"Q")]
    assert loaded(Pickler(protocol).dumped(odd), 1) == [odd]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_set_is_one_object_in_pickles_with_shared_memo(protocol):
    words = {"alpha", "beta"}
    data = Pickler(protocol).dumped(["no set", "here"], [words], [words, words], {"x": words})
    _, first, second, third = loaded(data, 4)
    assert first[0] is second[0] is second[1] is third["x"] and first[0] == words


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sets_in_reference_cycles_load(protocol):
    holder: Any = Holder()
    holder.members, holder.frozen = {holder, "alpha"}, frozenset({holder, "beta"})
    (again,) = loaded(Pickler(protocol).dumped(holder), 1)
    assert again in again.members and again in again.frozen
    assert len(again.members) == len(again.frozen) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_nested_sets_load(protocol):
    changed = []
    for seed in range(40):
        objects = [made(random.Random(seed * 10 + each), 4) for each in range(4)]
        again = loaded(Pickler(protocol).dumped(*objects), len(objects))
        if again != objects or sharing(again) != sharing(objects):
            changed.append(seed)
    assert changed == []


SHARED: list[Any] = [{"alpha", "beta"}, frozenset({"gamma", 1, None}), {1.5}, set()]


def made(numbers: random.Random, depth: int) -> Any:
    choices = [
        lambda: numbers.choice(SHARED),
        lambda: [made(numbers, depth - 1) for _ in range(numbers.randrange(4))],
        lambda: tuple(made(numbers, depth - 1) for _ in range(numbers.randrange(5))),
        lambda: {numbers.random(): made(numbers, depth - 1) for _ in range(3)},
        lambda: frozenset({numbers.choice(["u", b"v"]), frozenset({"w", "x"}), (1, "y")}),
        lambda: "é" * numbers.randrange(300),
        lambda: {str(numbers.random()), b"Q" * numbers.randrange(300)},
    ]
    return numbers.choice(choices if depth else choices[:1])()


def sharing(obj: Any) -> list[int]:
    """Return for each set in an object when a walk reached it first."""
    found: list[int] = []

    def walk(each: Any) -> None:
        if isinstance(each, (set, frozenset)):
            found.append(id(each))
        elif isinstance(each, (list, tuple)):
            list(map(walk, each))
        elif isinstance(each, dict):
            list(map(walk, each.values()))

    walk(obj)
    return [found.index(each) for each in found]
