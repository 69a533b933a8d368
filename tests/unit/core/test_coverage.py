from __future__ import annotations

import pytest

from modpack.core.names import GlobGroup
from modpack.core.rules import covers


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (["a.**"], "a.b", True),
        (["a.**"], "a", True),
        (["a.*"], "a", False),
        (["a.*"], "a.b*", True),
        (["a.b*"], "a.*", False),
        (["**"], "a.**.b", True),
        (["a.**", "b.**"], ["a.x", "b.y"], True),
        (["*.a"], "**.a", False),
        (["a", "a.*.**"], "a.**", False),
        (["a*b*"], "a*b", True),
        (["*ab*"], "*a*b*", False),
    ],
)
def test_covering(earlier, later, expected):
    assert covers(GlobGroup(earlier), GlobGroup(later)) is expected


def test_exclusions_count_on_both_sides():
    assert not covers(GlobGroup("a.**", exclude="a.b"), GlobGroup("a.b"))
    assert covers(GlobGroup("a.**", exclude="a.b"), GlobGroup("a.*", exclude="a.b"))


def test_group_without_patterns_covers_nothing():
    assert covers(GlobGroup([]), GlobGroup([]))
    assert not covers(GlobGroup([]), GlobGroup("**"))


def test_long_lists_are_compared_to_their_end():
    names = [f"library_{number}.part.**" for number in range(300)]
    assert covers(GlobGroup("**"), GlobGroup(names))
    assert covers(GlobGroup(names), GlobGroup(names[::-1]))
    assert not covers(GlobGroup(names[1:]), GlobGroup(names))


def test_many_stars_are_compared_quickly():
    hard = GlobGroup([f"*{x}*{y}*{z}*" for x in "abc" for y in "def" for z in "ghi"])
    assert covers(hard, GlobGroup("*a*d*g*"))
    assert not covers(hard, GlobGroup("*a*d*"))
