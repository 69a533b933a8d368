"""GlobGroup compared with a reference on components, and covers with brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from modpack.core.names import GlobGroup
from modpack.core.rules import Action, Rule, covers

LETTERS = "ab"

part = st.lists(st.sampled_from([*LETTERS, "*"]), min_size=1, max_size=3).map(
    lambda letters: "".join(letters).replace("**", "*a")
)
component = st.one_of(part, st.just("**"))
pattern = st.lists(component, min_size=1, max_size=4).map(".".join)
patterns = st.lists(pattern, min_size=1, max_size=3)
groups = st.builds(
    lambda include, exclude: GlobGroup(include, exclude=exclude),
    patterns,
    st.lists(pattern, max_size=2),
)
names = st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=1, max_size=5).map(".".join)


def component_matches(text: str, pattern: str) -> bool:
    """Match one component: a star matches any number of letters."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(component_matches(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return text[:1] == pattern[0] and component_matches(text[1:], pattern[1:])


def matches(parts: Sequence[str], components: Sequence[str]) -> bool:
    """Match components: two stars match any number of them."""
    if not components:
        return not parts
    if components[0] == "**":
        return any(matches(parts[n:], components[1:]) for n in range(len(parts) + 1))
    return bool(parts) and (
        component_matches(parts[0], components[0]) and matches(parts[1:], components[1:])
    )


def reference(name: str, include: Sequence[str], exclude: Sequence[str] = ()) -> bool:
    def any_of(group: Sequence[str]) -> bool:
        return any(matches(name.split("."), pattern.split(".")) for pattern in group)

    return any_of(include) and not any_of(exclude)


@given(groups, names)
@settings(max_examples=400)
def test_glob_group_matches_like_reference(group, name):
    assert group.matches(name) == reference(name, group.include, group.exclude)


@given(patterns, names)
def test_glob_group_treats_slashes_like_dots(include, name):
    with_slashes = [pattern.replace(".", "/") for pattern in include]
    group = GlobGroup(with_slashes, separator="/")
    assert group.matches(name.replace(".", "/")) == reference(name, include)


@given(patterns, names)
def test_rule_names_modules_explicitly_by_patterns_with_their_literal_root(include, name):
    literal = [p for p in include if p.split(".")[0] == name.split(".")[0]]
    rule = Rule(Action.INTERN, GlobGroup(include))
    assert rule.names_explicitly(name) == reference(name, literal)


@given(names, names)
def test_pattern_without_stars_matches_itself_only(name, other):
    assert GlobGroup(name).matches(other) == (name == other)


PARTS = ["".join(p) for n in (1, 2) for p in itertools.product("abz", repeat=n)]
SHORT_NAMES = [".".join(p) for n in (1, 2, 3) for p in itertools.product(PARTS, repeat=n)]
"""All names of up to three components of up to two letters, one of which no pattern names."""


@given(groups, groups)
@settings(max_examples=60, deadline=None)
def test_covered_pattern_has_no_counterexample(earlier, later):
    if covers(earlier, later):
        for name in SHORT_NAMES:
            assert not later.matches(name) or earlier.matches(name)


@given(groups)
def test_group_covers_itself_and_two_stars_cover_all(group):
    assert covers(group, group)
    assert covers(GlobGroup("**"), group)
