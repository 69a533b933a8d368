"""Rules: actions and patterns, the rule that decides a module, and shadowed rules.

The first rule that matches wins. Before all rules, the standard library and torch are extern,
unless a rule names them: ``intern("**")`` does not include the standard library, but
``deny("subprocess")`` denies that module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

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


_MAX_STEPS = 300_000
"""Positions to examine before the search gives up, which takes well below a second."""

_STRANGE = "\ue000"
"""A letter that no pattern contains."""


def covers(earlier: Sequence[GlobGroup], later: GlobGroup) -> bool:
    """Return whether everything that ``later`` matches is matched by one of ``earlier``.

    Decides the inclusion of the languages by searching for a counterexample, letter by letter, in
    all patterns at once, after trying a few likely ones. Returns False if the search becomes too
    large.

    >>> covers([GlobGroup("a.**")], GlobGroup("a.*.c"))
    True
    >>> covers([GlobGroup("a.*")], GlobGroup("a.**"))
    False
    >>> covers([GlobGroup("a"), GlobGroup("a.*.**")], GlobGroup("a.**"))
    True
    """
    parts = [
        GlobGroup(pattern, exclude=later.exclude, separator=later.separator)
        for pattern in dict.fromkeys(later.include)
    ]
    samples = (sample for part in parts for sample in _samples(part))
    if any(not any(group.matches(sample) for group in earlier) for sample in samples):
        return False
    return all(_covers_pattern(_near(earlier, part), part) for part in parts)


def _near(earlier: Sequence[GlobGroup], later: GlobGroup) -> list[GlobGroup]:
    """Return the earlier patterns whose first component can equal that of the later one."""
    root = later.include[0].partition(later.separator)[0]
    found = []
    for group in earlier:
        firsts = {p: p.partition(group.separator)[0] for p in group.include}
        near = [p for p, first in firsts.items() if first == root or "*" in first + root]
        if near:
            found.append(GlobGroup(near, exclude=group.exclude, separator=group.separator))
    return found


def _covers_pattern(earlier: Sequence[GlobGroup], later: GlobGroup) -> bool:
    machines = [_Machine(group) for group in (later, *earlier)]
    separator = later.separator
    letters = {letter for machine in machines for letter in machine.letters} - {separator}
    alphabet = [separator, *sorted(letters), _STRANGE]
    start = (tuple(machine.start for machine in machines), "")
    seen, queue, steps = {start}, deque([start]), 0
    while queue:
        states, last = queue.popleft()
        if last == _STRANGE and machines[0].accepts(states[0]):
            if not any(m.accepts(s) for m, s in zip(machines[1:], states[1:], strict=True)):
                return False
        steps += sum(map(len, states)) * len(alphabet)
        if steps > _MAX_STEPS:
            return False
        for letter in alphabet:
            if (last == "" and letter != separator) or last == letter == separator:
                continue  # a candidate starts with a separator and has no empty component
            following = tuple(m.step(s, letter) for m, s in zip(machines, states, strict=True))
            state = (following, separator if letter == separator else _STRANGE)
            if machines[0].may_accept(following[0]) and state not in seen:
                seen.add(state)
                queue.append(state)
    return True


def _samples(group: GlobGroup) -> Iterator[str]:
    """Yield some names that a group matches, with components that no other pattern contains."""
    for pattern in group.include:
        components = pattern.split(group.separator)
        for filling in ([], [_STRANGE], [_STRANGE, _STRANGE]):
            filled = [filling if c == "**" else [c.replace("*", _STRANGE)] for c in components]
            candidate = group.separator.join(part for parts in filled for part in parts)
            if candidate and group.matches(candidate):
                yield candidate


_Positions = frozenset[tuple[int, int, int]]


class _Machine:
    """The patterns of one group as a nondeterministic automaton.

    A position is (pattern, token, phase). Phases matter for ``**`` only: 0 at a boundary,
    1 after a separator, 2 within a component.
    """

    def __init__(self, group: GlobGroup) -> None:
        self._separator = group.separator
        self._patterns = [_tokens(p, group.separator) for p in (*group.include, *group.exclude)]
        self._included = range(len(group.include))
        self.letters = {t for tokens in self._patterns for t in tokens} - {"*", "**"}
        self.start = self._closure({(p, 0, 0) for p in range(len(self._patterns))})

    def accepts(self, state: _Positions) -> bool:
        ended = {p for p, i, _ in state if i == len(self._patterns[p])}
        return bool(ended) and all(p in self._included for p in ended)

    def may_accept(self, state: _Positions) -> bool:
        return any(p in self._included for p, _, _ in state)

    def step(self, state: _Positions, letter: str) -> _Positions:
        reached: set[tuple[int, int, int]] = set()
        is_separator = letter == self._separator
        for p, i, phase in state:
            if i == len(self._patterns[p]):
                continue
            token = self._patterns[p][i]
            if token == "**":
                if is_separator and phase != 1:
                    reached.add((p, i, 1))
                elif not is_separator and phase != 0:
                    reached.add((p, i, 2))
            elif token == "*" and not is_separator:
                reached.add((p, i, 0))
            elif token == letter:
                reached.add((p, i + 1, 0))
        return self._closure(reached)

    def _closure(self, state: set[tuple[int, int, int]]) -> _Positions:
        todo = list(state)
        while todo:
            p, i, phase = todo.pop()
            token = self._patterns[p][i] if i < len(self._patterns[p]) else ""
            skippable = token == "*" or (token == "**" and phase != 1)
            if skippable and (p, i + 1, 0) not in state:
                state.add((p, i + 1, 0))
                todo.append((p, i + 1, 0))
        return frozenset(state)


def _tokens(pattern: str, separator: str) -> list[str]:
    """Split a pattern over candidates that start with a separator into letters, ``*``, ``**``."""
    tokens: list[str] = []
    for component in pattern.split(separator):
        tokens.extend(["**"] if component == "**" else [separator, *component])
    return tokens


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
