"""Rules: actions and patterns, the rule that decides a module, and shadowed rules.

The first rule that matches wins. Before all rules, the standard library and torch are extern,
unless a rule names them: ``intern("**")`` does not include the standard library, but
``deny("subprocess")`` denies that module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from modpack.core.names import PACKAGES, GlobGroup, compiled, root_of


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


def covers(earlier: GlobGroup, later: GlobGroup) -> bool:
    """Return whether one group certainly matches everything that another one matches.

    Compares pattern by pattern. False means that it is not certain.

    >>> covers(GlobGroup("a.**"), GlobGroup("a.*.c")), covers(GlobGroup("a.*"), GlobGroup("a.**"))
    (True, False)
    """
    separator = later.separator
    wide = compiled(earlier.include, separator, _ANY_PARTS)

    def is_covered(pattern: str) -> bool:
        # What only a ``*`` of the wide pattern can match, it matches whatever it is: one example
        # with a strange letter for each ``*`` of the narrow one decides.
        components = (
            _ANY_PARTS if component == "**" else component.replace("*", _ANY_PART)
            for component in pattern.split(separator)
        )
        candidate = separator + separator.join(components)
        return wide is not None and wide.fullmatch(candidate) is not None

    # A module that only the earlier group excludes is left for the later one.
    return set(earlier.exclude) <= set(later.exclude) and all(map(is_covered, later.include))


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
    # For modules that are extern anyway, `**` does not count as a decision of the user.
    for rule in rules:
        if rule.matches(module, owner) and (implicit is None or rule.names_explicitly(module)):
            return rule
    return implicit


class ShadowedRule(NamedTuple):
    """A rule that can never match, and the earlier rule that covers it."""

    rule: Rule
    by: Rule

    def __str__(self) -> str:
        return f"{self.rule} can never match: {self.by} already decides all modules that it matches"


def dead_rules(rules: Sequence[Rule], is_implicit: Callable[[str], bool]) -> Iterator[ShadowedRule]:
    """Find the rules that can never match, because an earlier rule matches the same modules.

    Args:
        rules: The rules, in order.
        is_implicit: Returns whether the modules of a root are extern unless a rule names the root
            explicitly. Only rules that name it shadow each other.
    """
    for position, rule in enumerate(rules):
        for earlier in rules[:position]:
            # A rule for one owner leaves the modules of all others.
            has_owner = earlier.owner in (None, rule.owner)
            if has_owner and _is_shadowed(rule.pattern, earlier.pattern, is_implicit):
                yield ShadowedRule(rule, earlier)
                break


def _is_shadowed(later: GlobGroup, earlier: GlobGroup, is_implicit: Callable[[str], bool]) -> bool:
    for pattern in later.include:
        root = root_of(pattern)
        group = _with_root(earlier, root) if is_implicit(root) else earlier
        if not covers(group, GlobGroup(pattern, exclude=later.exclude)):
            return False
    # A rule without patterns matches nothing, but no other rule is the reason.
    return bool(later.include)
