"""Rows that describe an object, and the comparison of a live object's rows with a loaded one's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

RowKind: TypeAlias = Literal["module", "tensor", "hook", "attribute"]

ANYTHING: Final = "anything"
"""The text for a live object whose class decides what is loaded in its place."""
SAME: Final = "the same object as "
"""Start of the text for an object that another row describes, followed by the path of that row."""
MAX_ATTRIBUTES: Final = 100_000
"""Attributes of one description. Further ones are not compared."""


class Row(NamedTuple):
    """One part of an object.

    Attributes:
        path: Its path: ``model.layers.0.weight``.
        kind: The kind of part.
        text: Its type, and its value in a few words.
        module: The module of the class or function that the text names, or an empty string.
    """

    path: str
    kind: RowKind
    text: str
    module: str = ""


class StateDifference(NamedTuple):
    """A difference between a live object and the loaded one.

    Attributes:
        path: The path of the part.
        kind: The kind of part.
        live: The live part; empty if there is none.
        loaded: The loaded part; empty if there is none.
    """

    path: str
    kind: RowKind
    live: str
    loaded: str

    @property
    def is_error(self) -> bool:
        """Whether the loaded object is not the saved one. Other attributes only cause a warning."""
        return self.kind != "attribute"

    @property
    def shown(self) -> tuple[str, str]:
        """The live and the loaded part in a few words."""
        live, loaded = _without_strings(self.live), _without_strings(self.loaded)
        if live == loaded:
            live += f" with {'other code' if live.startswith('function ') else 'another value'}"
        return live, loaded

    def __str__(self) -> str:
        live, loaded = self.shown
        return f"{self.path}: saved {live}, loaded {loaded}"


def _without_strings(text: str) -> str:
    """Return a row's text without strings, which may be secret, and without checksums."""
    kind, *words = text.split() or [""]
    if kind == "function":
        return " ".join([kind, *words[:1]])
    if kind in ("str", "bytes"):
        return f"a {kind}"
    text = re.sub(r" strides \[[\d, ]*\] from \d+| data [0-9a-f]{8}\b", "", text)
    return (text.replace(":", ".", 1) if text.startswith(SAME) else text) or "nothing"


def compare_objects(
    live: Sequence[Row], loaded: Sequence[Row], is_expected: Callable[[Row], bool]
) -> list[StateDifference]:
    """Return the differences between two descriptions, in the order of the live one.

    Parts of a part that differs are left out.

    Args:
        live: The description of the saved object.
        loaded: The description of the loaded object.
        is_expected: Returns whether a rule or an option changed a live part.
    """
    found = {row.path: row for row in loaded}
    known = {row.path for row in live}
    differing: set[str] = set()
    differences: list[StateDifference] = []
    for row in live:
        other = found.get(row.path)
        if (other is None or other.text != row.text) and not is_part(row.path, differing):
            # Also if the difference is expected: then those of its parts are, too.
            differing.add(row.path)
            if row.text != ANYTHING and not is_expected(row):
                text = "" if other is None else other.text
                differences.append(StateDifference(row.path, row.kind, row.text, text))
    for row in loaded:
        if row.path not in known and not is_part(row.path, differing):
            differing.add(row.path)
            differences.append(StateDifference(row.path, row.kind, "", row.text))
    return differences


def is_part(path: str, parts: set[str]) -> bool:
    """Return whether a path is one of several parts or leads through one."""
    steps = (end for end, sign in enumerate(path) if sign in ".[{/")
    return path in parts or any(path[:end] in parts for end in steps)
