"""The numbers by which a package tells hooks apart, in place of the ids that torch gave them.

Torch counts all hooks of a process: an id tells how many were registered before, by anybody. In a
package the hooks are counted as they are met.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["FIRST", "HookNumbers", "LiveIds"]

FIRST = 1_000_000
"""The first number. In a process that reads the package with torch.package, torch counts from 0:
the next hook to be registered would overwrite one that has a small number."""


class HookNumbers:
    """Gives each id a number, the same one each time."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    @property
    def following(self) -> int:
        """The next number; all that were given are below."""
        return FIRST + len(self._numbers)

    def of(self, identity: Any) -> Any:
        """The number of a hook by its id; what is no id stays as it is."""
        if type(identity) is not int or identity < 0:
            return identity
        return self._numbers.setdefault(identity, self.following)

    def of_all(self, identities: Iterable[Any]) -> list[Any]:
        """The numbers of several hooks."""
        return [self.of(identity) for identity in identities]

    def table(self, table: Mapping[Any, Any]) -> OrderedDict[Any, Any]:
        """A table of hooks, or of flags of hooks, by their numbers."""
        return OrderedDict((self.of(identity), value) for identity, value in table.items())


class LiveIds(HookNumbers):
    """The ids themselves, where hooks stay in their process."""

    @property
    def following(self) -> int:
        """Zero: hooks that are restored without a package get fresh ids, and none keeps its own."""
        return 0

    def of(self, identity: Any) -> Any:
        """The id."""
        return identity
