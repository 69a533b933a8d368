"""Patterns over module paths and file paths.

``*`` stays within one component, ``**`` stands for any number of whole components, none
included. The notation is torch.package's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["GlobGroup", "GlobPattern", "covers"]

GlobPattern = str | Iterable[str]
"""One pattern, or several of which any may match."""

_MOST_STATES = 20_000
_STRANGE = "\ue000"
"""A letter that no pattern names."""


class GlobGroup:
    """A set of patterns: matches what an include pattern matches and no exclude pattern does.

    Args:
        include: one pattern or several; of an empty list, nothing matches.
        exclude: one pattern or several; none by default.
        separator: what parts components: ``"."`` for module paths, ``"/"`` for files.

    Raises:
        TypeError: a pattern is no string.
        ValueError: a pattern has an empty component, or ``**`` is only a part of one.

    >>> group = GlobGroup("mylib.**", exclude="mylib.tests.**")
    >>> group.matches("mylib"), group.matches("mylib.net.conv"), group.matches("mylib.tests.t1")
    (True, True, False)
    >>> GlobGroup("mylib.*").matches("mylib.net.conv")
    False
    """

    def __init__(
        self, include: GlobPattern, *, exclude: GlobPattern = (), separator: str = "."
    ) -> None:
        self.separator = separator
        self.include = _patterns(include, "include", separator)
        self.exclude = _patterns(exclude, "exclude", separator)
        self._included = _compiled(self.include, separator)
        self._excluded = _compiled(self.exclude, separator)

    def matches(self, candidate: str) -> bool:
        """Whether the group matches a whole module path or file path."""
        text = self.separator + candidate
        if not (self._included and self._included.fullmatch(text)):
            return False
        return not (self._excluded and self._excluded.fullmatch(text))

    def literally(self, root: str) -> GlobGroup:
        """The group with only those include patterns that have ``root`` as first component.

        >>> GlobGroup(["torch.**", "**"]).literally("torch")
        GlobGroup('torch.**')
        """
        literal = [p for p in self.include if p.partition(self.separator)[0] == root]
        return GlobGroup(literal, exclude=self.exclude, separator=self.separator)

    def spells(self, candidate: str) -> bool:
        """Whether it matches by a pattern that has the first component literally.

        >>> GlobGroup("torch.**").spells("torch.nn"), GlobGroup("**").spells("torch.nn")
        (True, False)
        """
        root = candidate.partition(self.separator)[0]
        return self.matches(candidate) and self.literally(root).matches(candidate)

    def __str__(self) -> str:
        shown = _shown(self.include)
        return f"{shown}, exclude={_shown(self.exclude)}" if self.exclude else shown

    def __repr__(self) -> str:
        return f"GlobGroup({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return (self.separator, self.include, self.exclude)


def _shown(patterns: tuple[str, ...]) -> str:
    if len(patterns) == 1:
        return repr(patterns[0])
    return "[" + ", ".join(map(repr, patterns)) + "]"


def _patterns(given: GlobPattern, argument: str, separator: str) -> tuple[str, ...]:
    patterns: list[object] = [given] if isinstance(given, str) else _listed(given, argument)
    return tuple(_checked(pattern, argument, separator) for pattern in patterns)


def _listed(given: object, argument: str) -> list[object]:
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{argument} must be a pattern or several patterns, not {type(given).__name__}"
        )
    return list(given)


def _checked(pattern: object, argument: str, separator: str) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"{argument} must hold patterns (str), not {type(pattern).__name__}")
    for component in pattern.split(separator):
        if not component:
            raise ValueError(f"{argument}: the pattern {pattern!r} has an empty component")
        if "**" in component and component != "**":
            raise ValueError(
                f"{argument}: in the pattern {pattern!r}, '**' must be a whole component"
            )
    return pattern


def _compiled(patterns: Sequence[str], separator: str) -> re.Pattern[str] | None:
    """One expression for all patterns, over candidates that start with a separator."""
    if not patterns:
        return None
    mark, rest = re.escape(separator), f"[^{re.escape(separator)}]"

    def component(text: str) -> str:
        if text == "**":
            return f"(?:{mark}{rest}+)*"
        return mark + f"{rest}*".join(map(re.escape, text.split("*")))

    each = ("".join(map(component, pattern.split(separator))) for pattern in patterns)
    return re.compile("|".join(f"(?:{expression})" for expression in each))


def covers(earlier: Sequence[GlobGroup], later: GlobGroup) -> bool:
    """Whether everything that ``later`` matches is matched by one of ``earlier``.

    Decides the inclusion of the languages by searching for a counterexample, letter by
    letter, in all patterns at once; a few likely ones are tried first. Gives up and says
    False when the search grows too large.

    >>> covers([GlobGroup("a.**")], GlobGroup("a.*.c"))
    True
    >>> covers([GlobGroup("a.*")], GlobGroup("a.**"))
    False
    >>> covers([GlobGroup("a"), GlobGroup("a.*.**")], GlobGroup("a.**"))
    True
    """
    if any(not any(group.matches(each) for group in earlier) for each in _samples(later)):
        return False
    machines = [_Machine(group) for group in (later, *earlier)]
    separator = later.separator
    letters = {letter for machine in machines for letter in machine.letters} - {separator}
    alphabet = [separator, *sorted(letters), "\0"]  # "\0": any letter that no pattern names
    start = (tuple(machine.start for machine in machines), "")
    seen, queue = {start}, deque([start])
    while queue:
        states, last = queue.popleft()
        if last not in ("", separator) and machines[0].accepts(states[0]):
            if not any(m.accepts(s) for m, s in zip(machines[1:], states[1:], strict=True)):
                return False
        for letter in alphabet:
            if (last == "" and letter != separator) or last == letter == separator:
                continue  # a candidate starts with a separator and has no empty component
            following = tuple(m.step(s, letter) for m, s in zip(machines, states, strict=True))
            state = (following, separator if letter == separator else "\0")
            if following[0][0] and state not in seen:
                if len(seen) * len(machines) >= _MOST_STATES:
                    return False
                seen.add(state)
                queue.append(state)
    return True


def _samples(group: GlobGroup) -> Iterator[str]:
    """Some of what a group matches: names that are as odd as its patterns allow."""
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
        self._include = [_tokens(p, group.separator) for p in group.include]
        self._exclude = [_tokens(p, group.separator) for p in group.exclude]
        self.letters = {t for tokens in self._include + self._exclude for t in tokens}
        self.letters -= {"*", "**"}
        self.start = (self._begin(self._include), self._begin(self._exclude))

    def accepts(self, state: tuple[_Positions, _Positions]) -> bool:
        included = any(i == len(self._include[p]) for p, i, _ in state[0])
        return included and not any(i == len(self._exclude[p]) for p, i, _ in state[1])

    def step(
        self, state: tuple[_Positions, _Positions], letter: str
    ) -> tuple[_Positions, _Positions]:
        return (
            self._advance(self._include, state[0], letter),
            self._advance(self._exclude, state[1], letter),
        )

    def _begin(self, patterns: list[list[str]]) -> _Positions:
        return self._closure(patterns, {(p, 0, 0) for p in range(len(patterns))})

    def _advance(self, patterns: list[list[str]], state: _Positions, letter: str) -> _Positions:
        reached: set[tuple[int, int, int]] = set()
        is_separator = letter == self._separator
        for p, i, phase in state:
            if i == len(patterns[p]):
                continue
            token = patterns[p][i]
            if token == "**":
                if is_separator and phase != 1:
                    reached.add((p, i, 1))
                elif not is_separator and phase != 0:
                    reached.add((p, i, 2))
            elif token == "*" and not is_separator:
                reached.add((p, i, 0))
            elif token == letter:
                reached.add((p, i + 1, 0))
        return self._closure(patterns, reached)

    @staticmethod
    def _closure(patterns: list[list[str]], state: set[tuple[int, int, int]]) -> _Positions:
        todo = list(state)
        while todo:
            p, i, phase = todo.pop()
            skippable = i < len(patterns[p]) and (
                patterns[p][i] == "*" or (patterns[p][i] == "**" and phase != 1)
            )
            if skippable and (p, i + 1, 0) not in state:
                state.add((p, i + 1, 0))
                todo.append((p, i + 1, 0))
        return frozenset(state)


def _tokens(pattern: str, separator: str) -> list[str]:
    """A pattern over candidates that start with a separator: letters, ``*`` and ``**``."""
    tokens: list[str] = []
    for component in pattern.split(separator):
        tokens.extend(["**"] if component == "**" else [separator, *component])
    return tokens
