from __future__ import annotations

import pytest

from modpack.core.names import GlobGroup


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a", ["a"], ["a.b", "b", "aa", ""]),
        ("a.*", ["a.b", "a.bc"], ["a", "a.b.c", "ab"]),
        ("*", ["a", "abc"], ["a.b"]),
        ("a*", ["a", "ab"], ["ba", "ab.c"]),
        ("*a*b", ["ab", "xaxb", "aab"], ["a", "abx"]),
        ("a.**", ["a", "a.b", "a.b.c"], ["ab", "b.a"]),
        ("**", ["a", "a.b.c"], []),
        ("**.a", ["a", "b.a", "c.b.a"], ["ab", "a.b"]),
        ("a.**.b", ["a.b", "a.x.b", "a.x.y.b"], ["ab", "a.xb", "a"]),
        ("a.b+c", ["a.b+c"], ["a.bbc"]),
    ],
)
def test_patterns_match_whole_paths(pattern, matching, others):
    group = GlobGroup(pattern)
    assert [name for name in matching + others if group.matches(name)] == matching


def test_any_include_and_no_exclude():
    group = GlobGroup(["a.*", "b.**"], exclude=("a.x", "b.*.y"))
    names = ["a.x", "a.y", "b", "b.x.y", "b.x.z", "c"]
    assert [name for name in names if group.matches(name)] == ["a.y", "b", "b.x.z"]


def test_patterns_can_come_from_any_iterable():
    assert GlobGroup(name for name in ("a", "b")) == GlobGroup(["a", "b"])


def test_glob_group_accepts_other_separator():
    group = GlobGroup("src/**/*.py", separator="/")
    assert group.matches("src/a.b/c.py") and group.matches("src/c.py")
    assert not group.matches("src/c.pyc")


def test_groups_with_the_same_patterns_are_equal():
    assert GlobGroup("a", exclude="b") == GlobGroup(["a"], exclude=["b"])
    assert hash(GlobGroup("a")) == hash(GlobGroup(["a"]))
    assert GlobGroup("a") != GlobGroup("b")
    assert GlobGroup("a") != GlobGroup("a", separator="/")
    assert GlobGroup("a") != "a"


def test_glob_group_repr_shows_patterns():
    assert str(GlobGroup("a.**")) == "'a.**'"
    assert str(GlobGroup(["a", "b"], exclude="c")) == "['a', 'b'], exclude='c'"
    assert repr(GlobGroup("a")) == "GlobGroup('a')"


@pytest.mark.parametrize("wrong", [3, None, b"a", bytearray(b"a"), [b"a"], [None], {1: 2}])
def test_pattern_of_wrong_type_raises_type_error(wrong):
    with pytest.raises(TypeError, match="include"):
        GlobGroup(wrong)
    with pytest.raises(TypeError, match="exclude"):
        GlobGroup("a", exclude=wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [("", "empty component"), ("a..b", "empty component"), ("a.**b", "whole component")],
)
def test_invalid_pattern_raises_value_error(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        GlobGroup(wrong)


def test_of_no_pattern_nothing_matches():
    assert not GlobGroup([]).matches("a")
