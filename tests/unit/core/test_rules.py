from __future__ import annotations

import pytest

from modpack.core.names import GlobGroup
from modpack.core.rules import (
    Action,
    Owner,
    Rule,
    RuleOrigin,
    dead_rules,
    deciding_rule,
    inherited,
    saved,
)


def rule(action: Action, *patterns: str, owner: Owner | None = None) -> Rule:
    return Rule(action, GlobGroup(patterns), owner=owner)


def decided(rules: list[Rule], module: str, owner: Owner = Owner.LOCAL) -> Action | None:
    found = deciding_rule(rules, module, owner)
    return found.action if found is not None else None


def test_first_matching_rule_decides():
    rules = [rule(Action.MOCK, "a.b"), rule(Action.INTERN, "a.**"), rule(Action.DENY, "**")]
    assert [decided(rules, name) for name in ("a.b", "a.c", "b")] == [
        Action.MOCK,
        Action.INTERN,
        Action.DENY,
    ]
    assert decided(rules[:2], "b") is None


@pytest.mark.parametrize("owner", [Owner.STDLIB, Owner.RUNTIME])
def test_stdlib_and_torch_are_extern_unless_named(owner):
    rules = [rule(Action.INTERN, "**"), rule(Action.DENY, "json.tool")]
    assert decided([], "json", owner) is Action.EXTERN
    assert decided(rules, "json", owner) is Action.EXTERN
    assert decided(rules, "json.tool", owner) is Action.DENY


def test_only_the_pattern_that_spells_a_name_counts_for_it():
    rules = [rule(Action.MOCK, "torch.distributed.**", "**")]
    assert decided(rules, "torch.nn", Owner.RUNTIME) is Action.EXTERN
    assert decided(rules, "torch.distributed.rpc", Owner.RUNTIME) is Action.MOCK


def test_owner_rule_matches_only_modules_of_owner():
    rules = [rule(Action.EXTERN, "**", owner=Owner.INSTALLED), rule(Action.INTERN, "**")]
    assert decided(rules, "numpy", Owner.INSTALLED) is Action.EXTERN
    assert decided(rules, "mine", Owner.LOCAL) is Action.INTERN


def test_rules_are_shown_as_they_are_called():
    assert str(rule(Action.INTERN, "a.**")) == "intern('a.**')"
    assert str(Rule(Action.DENY, GlobGroup("a", exclude="b"))) == "deny('a', exclude='b')"
    assert str(saved("a.b")) == "saved explicitly by name"
    assert str(inherited(Action.MOCK, "a", "a.b")) == "parent of mocked 'a.b'"
    assert inherited(Action.MOCK, "a", "a.b").origin is RuleOrigin.PARENT


def dead(*rules: Rule) -> list[tuple[str, str]]:
    found = dead_rules(rules, lambda root: root in ("json", "torch"))
    return [(str(each.rule), str(each.by)) for each in found]


def test_covered_rule_is_shadowed():
    assert dead(rule(Action.INTERN, "a.**"), rule(Action.DENY, "a.b")) == [
        ("deny('a.b')", "intern('a.**')")
    ]


def test_repeated_rule_is_shadowed():
    twice = rule(Action.INTERN, "a.**")
    assert len(dead(twice, twice)) == 1


def test_rule_is_shadowed_only_by_earlier_rules():
    assert dead(rule(Action.DENY, "a.b"), rule(Action.INTERN, "a.**")) == []


def test_owner_rule_shadows_only_rules_of_same_owner():
    installed = rule(Action.EXTERN, "**", owner=Owner.INSTALLED)
    assert dead(installed, rule(Action.INTERN, "a")) == []
    assert len(dead(rule(Action.INTERN, "**"), installed)) == 1


def test_wildcard_does_not_shadow_rule_that_names_stdlib():
    everything = rule(Action.INTERN, "**")
    assert dead(everything, rule(Action.DENY, "json")) == []
    assert dead(everything, rule(Action.DENY, "json", "a")) == []
    assert len(dead(everything, rule(Action.EXTERN, "json.**"), rule(Action.DENY, "json"))) == 1


def test_rule_without_patterns_is_not_shadowed():
    assert dead(rule(Action.INTERN, "**"), Rule(Action.DENY, GlobGroup([]))) == []
