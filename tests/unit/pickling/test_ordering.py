"""The order of a set's members, by content and position."""

from __future__ import annotations

import datetime
import enum
import itertools
from typing import Any

import pytest
import torch

from modpack.saving.graph_context import Ordering


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Holder:
    def __init__(self, name: str) -> None:
        self.name = name


class Stubborn:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


@pytest.mark.parametrize(
    "members",
    [
        ["beta", "alpha", "gamma"],
        [b"beta", b"alpha"],
        [None, "one", 1, 2.5, (1, "a"), ...],
        [("b", 1), ("a", 2), ("a", 1)],
        [frozenset({"x", "y"}), frozenset({"y", "z"}), frozenset()],
        [Color.RED, Color.GREEN],
        [torch.float32, torch.int8, torch.bool],
        [dict, torch.nn.Linear, Color],
        [datetime.date(2020, 1, day) for day in (3, 1, 2)],
        [Holder("b"), Holder("a"), Holder("c")],
        [torch.ones(2), torch.zeros(2), torch.zeros(3)],
        [len, torch.relu, Holder.__init__],
    ],
    ids=lambda members: type(members[0]).__name__,
)
def test_sort_is_independent_of_member_order(members):
    orders = {
        tuple(map(id, Ordering().sort(list(each)) or each))
        for each in itertools.permutations(members)
    }
    assert len(orders) == 1


def test_sort_leaves_numbers_unsorted():
    assert Ordering().sort({3, 1.5, True}) is None
    assert Ordering().sort({"one"}) is None


def test_sort_orders_objects_by_position_in_root():
    last, first = Holder("a"), Holder("z")
    root = Holder("root")
    root.all, root.list = {last, first}, [first, last]
    order = Ordering()
    order.add_root(root)
    assert order.sort(root.all) == [first, last]


def test_sort_tolerates_unpicklable_members():
    members = [Stubborn(), "alpha", Stubborn()]
    assert sorted(map(id, Ordering().sort(members) or ())) == sorted(map(id, members))
