"""Rules: which action a pattern stands for, and which rule decides a module.

The first rule that matches wins. Before all rules, the standard library and torch are
extern, unless a rule spells their name: ``intern("**")`` does not take the standard library
along, while ``deny("subprocess")`` does deny it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from modpack.core.actions import Action, Owner
from modpack.core.coverage import covers
from modpack.core.globs import GlobGroup
from modpack.core.names import root_of

__all__ = [
    "RUNNING_SCRIPT",
    "UNRECORDED",
    "DeadRule",
    "Origin",
    "Rule",
    "dead_rules",
    "deciding_rule",
    "inherited",
    "saved",
]


class Origin(str, Enum):
    """Where a rule comes from."""

    USER = "user"
    PRESET = "preset"
    IMPLICIT = "implicit"
    SAVED = "saved"
    PARENT = "parent"


@dataclass(frozen=True)
class Rule:
    """One line of the rule book.

    Attributes:
        action: what happens to a module that it matches.
        pattern: the module paths that it matches.
        allow_empty: whether it may match nothing at all.
        origin: who made it.
        owner: if given, only modules of this owner match.
        label: how it is shown; made from the other fields if empty.
    """

    action: Action
    pattern: GlobGroup
    allow_empty: bool = True
    origin: Origin = Origin.USER
    owner: Owner | None = None
    label: str = ""

    def matches(self, module: str, owner: Owner) -> bool:
        """Whether the rule speaks about a module."""
        if self.owner is not None and self.owner is not owner:
            return False
        return self.pattern.matches(module)

    def spells(self, module: str) -> bool:
        """Whether the rule matches a module by a pattern that has its root literally."""
        return self.pattern.spells(module)

    def __str__(self) -> str:
        return self.label or f"{self.action.value}({self.pattern})"


IMPLICIT = (
    Rule(
        Action.EXTERN,
        GlobGroup("**"),
        origin=Origin.IMPLICIT,
        owner=Owner.STDLIB,
        label="implicit: the standard library is extern",
    ),
    Rule(
        Action.EXTERN,
        GlobGroup("**"),
        origin=Origin.IMPLICIT,
        owner=Owner.RUNTIME,
        label="implicit: torch and modpack are extern",
    ),
)
"""What every package leaves to the place where it is loaded."""

RUNNING_SCRIPT = Rule(
    Action.EXTERN,
    GlobGroup("__main__"),
    origin=Origin.IMPLICIT,
    label="implicit: whatever script runs is extern",
)
"""For code that imports ``__main__`` to look at the script that runs, wherever it does."""

UNRECORDED = "not recorded"
"""What is shown for the rule of a module in packages that do not tell it."""


def saved(module: str, why: str = "saved explicitly by name") -> Rule:
    """The rule of a module whose source was given."""
    return Rule(Action.INTERN, GlobGroup(module), origin=Origin.SAVED, label=why)


def inherited(action: Action, parent: str, child: str) -> Rule:
    """The rule of a package that no rule names but that a decided module lies in."""
    return Rule(
        action, GlobGroup(parent), origin=Origin.PARENT, label=f"parent of {action.past} {child!r}"
    )


def deciding_rule(rules: Sequence[Rule], module: str, owner: Owner) -> Rule | None:
    """The rule that decides a module: the first that matches, or None.

    Args:
        rules: the user's and presets' rules, in order.
        module: the module path.
        owner: who is responsible for it where it is exported.
    """
    implicit = next((rule for rule in IMPLICIT if rule.matches(module, owner)), None)
    for rule in rules:
        if rule.matches(module, owner) and (implicit is None or rule.spells(module)):
            return rule
    return implicit


@dataclass(frozen=True)
class DeadRule:
    """A rule that can never match, and the earlier rules that cover it."""

    rule: Rule
    covered_by: tuple[Rule, ...]

    def __str__(self) -> str:
        by = " and ".join(str(rule) for rule in self.covered_by)
        return f"{self.rule} can never match: everything that it names is already decided by {by}"


def dead_rules(rules: Sequence[Rule], is_implicit: Callable[[str], bool]) -> Iterator[DeadRule]:
    """Find the rules that no module can reach, because earlier ones match all they match.

    Args:
        rules: the rules, in order.
        is_implicit: whether the modules of a root are extern unless a rule spells them: no
            pattern but such a one covers them.
    """
    for position, rule in enumerate(rules):
        earlier = [r for r in rules[:position] if r.owner in (None, rule.owner)]
        single = next((r for r in earlier if _covered([r], rule, is_implicit)), None)
        if single is not None:
            yield DeadRule(rule, (single,))
        elif len(earlier) > 1 and _covered(earlier, rule, is_implicit):
            yield DeadRule(rule, tuple(earlier))


def _covered(earlier: Sequence[Rule], later: Rule, is_implicit: Callable[[str], bool]) -> bool:
    patterns = later.pattern.include
    roots = {root for p in patterns if is_implicit(root := root_of(p))}
    others = [p for p in patterns if root_of(p) not in roots]
    parts = [(later.pattern.literally(r), [e.pattern.literally(r) for e in earlier]) for r in roots]
    if others:
        group = GlobGroup(others, exclude=later.pattern.exclude)
        parts.append((group, [e.pattern for e in earlier]))
    return bool(parts) and all(covers(groups, part) for part, groups in parts)
