"""Rules: actions and patterns, the rule that decides a module, and shadowed rules.

The first rule that matches wins. Before all rules, the standard library and torch are extern,
unless a rule names them: ``intern("**")`` does not include the standard library, but
``deny("subprocess")`` denies that module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from modpack.core.names import PACKAGES, GlobGroup, root_of


class Action(str, Enum):
    """The decision about one module."""

    INTERN = "intern"
    """Include its source in the package."""
    EXTERN = "extern"
    """Import it from the loading environment."""
    MOCK = "mock"
    """Replace it with a mock, which raises an error when it is used."""
    DENY = "deny"
    """Reject a package that needs it."""

    @property
    def past(self) -> str:
        """The past participle: ``interned``, ``externed``, ``mocked``, ``denied``."""
        return "denied" if self is Action.DENY else f"{self.value}ed"


class Owner(str, Enum):
    """The owner of a module in the export environment."""

    STDLIB = "stdlib"
    """Python's standard library."""
    RUNTIME = "runtime"
    """torch and modpack, which every loading environment has."""
    INSTALLED = "installed"
    """An installed distribution that is not an editable install."""
    NOT_PORTABLE = "not-portable"
    """An installed distribution that presets keep extern, because it has native code or an
    extern distribution requires it."""
    LOCAL = "local"
    """The user's own code, editable installs, and single files."""


_ANY_PART = "\ue000"
"""A letter that no pattern contains, for what a ``*`` stands for."""
_ANY_PARTS = "\ue001"
"""The same for ``**``."""


def covers(earlier: Sequence[GlobGroup], later: GlobGroup) -> bool:
    """Return whether everything that ``later`` matches is certainly matched by one of ``earlier``.

    Compares pattern by pattern. Patterns that cover one only together are recognized if they
    divide what its first ``**`` matches. False means that it is not certain.

    >>> covers([GlobGroup("a.**")], GlobGroup("a.*.c"))
    True
    >>> covers([GlobGroup("a.*")], GlobGroup("a.**"))
    False
    >>> covers([GlobGroup("a"), GlobGroup("a.*.**")], GlobGroup("a.**"))
    True
    """

    def is_covered(pattern: str) -> bool:
        return any(_covers_pattern(group, pattern, later) for group in earlier)

    return all(
        is_covered(pattern) or ("**" in pattern and all(map(is_covered, _cases(pattern, later))))
        for pattern in dict.fromkeys(later.include)
    )


def _covers_pattern(earlier: GlobGroup, pattern: str, later: GlobGroup) -> bool:
    """Return whether a group matches everything that one pattern of a later group matches."""
    separator = later.separator
    return _includes(earlier.include, pattern, separator) and all(
        _includes(later.exclude, excluded, separator) or _are_disjoint(excluded, pattern, separator)
        for excluded in earlier.exclude
    )


def _cases(pattern: str, group: GlobGroup) -> list[str]:
    """Return two patterns that together equal one: its first ``**`` is empty, or is not."""
    components = pattern.split(group.separator)
    at = components.index("**")
    cases = (components[:at] + components[at + 1 :], [*components[:at], "*", *components[at:]])
    return [group.separator.join(case) for case in cases if case]


def _includes(wide: tuple[str, ...], narrow: str, separator: str) -> bool:
    """Return whether one of some patterns matches everything that a pattern matches.

    What only a ``*`` of the wide pattern can match, it matches whatever it is: one example with a
    strange letter for each ``*`` of the narrow one decides.
    """
    components = (
        _ANY_PARTS if component == "**" else component.replace("*", _ANY_PART)
        for component in narrow.split(separator)
    )
    example = separator + separator.join(components)
    return _expression(wide, separator).fullmatch(example) is not None


@lru_cache(maxsize=256)
def _expression(patterns: tuple[str, ...], separator: str) -> re.Pattern[str]:
    """Compile patterns, as :class:`GlobGroup` does, but ``*`` does not match the sign of ``**``."""
    mark = re.escape(separator)

    def component(text: str) -> str:
        if text == "**":
            return f"(?:{mark}[^{mark}]+)*"
        return mark + f"[^{mark}{_ANY_PARTS}]*".join(map(re.escape, text.split("*")))

    each = ("".join(map(component, pattern.split(separator))) for pattern in patterns)
    return re.compile("|".join(f"(?:{expression})" for expression in each) or "(?!)")


def _are_disjoint(one: str, other: str, separator: str) -> bool:
    """Return whether two patterns differ in components without wildcards at their start."""
    for first, second in zip(one.split(separator), other.split(separator), strict=False):
        if "*" in first + second:
            return False
        if first != second:
            return True
    return "**" not in one + other and one.count(separator) != other.count(separator)


class RuleOrigin(str, Enum):
    """The origin of a rule."""

    USER = "user"
    PRESET = "preset"
    IMPLICIT = "implicit"
    SAVED = "saved"
    PARENT = "parent"


@dataclass(frozen=True)
class Rule:
    """One rule of an export.

    Attributes:
        action: Action for modules that the rule matches.
        pattern: Module paths that the rule matches.
        allow_empty: Whether the rule may match no module.
        origin: Origin of the rule.
        owner: Owner of the modules that the rule matches; None for all owners.
        label: Text that represents the rule; empty to derive it from the other fields.
    """

    action: Action
    pattern: GlobGroup
    allow_empty: bool = True
    origin: RuleOrigin = RuleOrigin.USER
    owner: Owner | None = None
    label: str = ""

    def matches(self, module: str, owner: Owner) -> bool:
        """Return whether the rule matches a module of this owner."""
        if self.owner is not None and self.owner is not owner:
            return False
        return self.pattern.matches(module)

    def names_explicitly(self, module: str) -> bool:
        """Return whether the rule matches a module by a pattern that starts with its literal root.

        >>> torch, everything = Rule(Action.DENY, GlobGroup("torch.**")), IMPLICIT[0]
        >>> torch.names_explicitly("torch.nn"), everything.names_explicitly("torch.nn")
        (True, False)
        """
        return _with_root(self.pattern, root_of(module)).matches(module)

    def __str__(self) -> str:
        return self.label or f"{self.action.value}({self.pattern})"


def _with_root(group: GlobGroup, root: str) -> GlobGroup:
    """Return the group with only the include patterns whose first component is ``root``."""
    named = [pattern for pattern in group.include if root_of(pattern) == root]
    return GlobGroup(named, exclude=group.exclude)


IMPLICIT = (
    Rule(
        Action.EXTERN,
        GlobGroup("**"),
        origin=RuleOrigin.IMPLICIT,
        owner=Owner.STDLIB,
        label="implicit: the standard library is extern",
    ),
    Rule(
        Action.EXTERN,
        GlobGroup("**"),
        origin=RuleOrigin.IMPLICIT,
        owner=Owner.RUNTIME,
        label="implicit: torch and modpack are extern",
    ),
)
"""Modules that are extern in every package."""

RUNNING_SCRIPT = Rule(
    Action.EXTERN,
    GlobGroup("__main__"),
    origin=RuleOrigin.IMPLICIT,
    label="implicit: the running script is extern",
)
"""For code that imports ``__main__`` to inspect the running script."""

LOADED_PACKAGES = Rule(
    Action.DENY,
    GlobGroup(f"{PACKAGES}.**"),
    origin=RuleOrigin.IMPLICIT,
    label="implicit: code cannot import the modules of a loaded package",
)
"""For code that names a private namespace, which exists only where that package is loaded."""

UNRECORDED = "not recorded"
"""The rule that is shown for a module if the package does not record it."""


def saved(module: str, why: str = "saved explicitly by name") -> Rule:
    """Return the rule of a module that was saved by name."""
    return Rule(Action.INTERN, GlobGroup(module), origin=RuleOrigin.SAVED, label=why)


def inherited(action: Action, parent: str, child: str) -> Rule:
    """Return the rule of a package that no rule names, derived from a decided module in it."""
    return Rule(
        action,
        GlobGroup(parent),
        origin=RuleOrigin.PARENT,
        label=f"parent of {action.past} {child!r}",
    )


def deciding_rule(rules: Sequence[Rule], module: str, owner: Owner) -> Rule | None:
    """Return the rule that decides a module: the first that matches, or None.

    Args:
        rules: Rules of the user and of presets, in order.
        module: The module path.
        owner: Owner of the module in the export environment.
    """
    implicit = next((rule for rule in IMPLICIT if rule.matches(module, owner)), None)
    for rule in rules:
        if rule.matches(module, owner) and (implicit is None or rule.names_explicitly(module)):
            return rule
    return implicit


@dataclass(frozen=True)
class ShadowedRule:
    """A rule that can never match, and the earlier rules that cover it."""

    rule: Rule
    covered_by: tuple[Rule, ...]

    def __str__(self) -> str:
        by = " and ".join(str(rule) for rule in self.covered_by)
        return f"{self.rule} can never match: {by} already decides all modules that it matches"


def dead_rules(rules: Sequence[Rule], is_implicit: Callable[[str], bool]) -> Iterator[ShadowedRule]:
    """Find the rules that can never match, because earlier rules match the same modules.

    Args:
        rules: The rules, in order.
        is_implicit: Returns whether the modules of a root are extern unless a rule names the root
            explicitly. Only rules that name it shadow each other.
    """
    for position, rule in enumerate(rules):
        earlier = [r for r in rules[:position] if r.owner in (None, rule.owner)]
        single = next((r for r in earlier if _covered([r], rule, is_implicit)), None)
        if single is not None:
            yield ShadowedRule(rule, (single,))
        elif len(earlier) > 1 and _covered(earlier, rule, is_implicit):
            yield ShadowedRule(rule, tuple(earlier))


def _covered(earlier: Sequence[Rule], later: Rule, is_implicit: Callable[[str], bool]) -> bool:
    patterns = later.pattern.include
    roots = {root for p in patterns if is_implicit(root := root_of(p))}
    others = [p for p in patterns if root_of(p) not in roots]
    parts = [
        (_with_root(later.pattern, root), [_with_root(e.pattern, root) for e in earlier])
        for root in roots
    ]
    if others:
        group = GlobGroup(others, exclude=later.pattern.exclude)
        parts.append((group, [e.pattern for e in earlier]))
    return bool(parts) and all(covers(groups, part) for part, groups in parts)
