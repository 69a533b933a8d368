"""The numbers by which a package tells hooks apart, in place of the ids that torch gave them.

Torch counts all hooks of a process: an id tells how many were registered before, by anybody. In a
package the hooks are counted as they are met.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FIRST", "HookNumbers"]

FIRST = 1_000_000
"""The first number. torch.package's reader keeps hooks under these numbers, while torch counts from
0 in a new process: with small ones, the next hook that is registered would overwrite one of them."""


class HookNumbers:
    """Gives each id a number, the same one each time."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, identity: Any) -> Any:
        """The number of a hook by its id; what is no id stays as it is."""
        if type(identity) is not int or identity < 0:
            return identity
        return self._numbers.setdefault(identity, self.following)

    @property
    def following(self) -> int:
        """The next number; all that were given are below."""
        return FIRST + len(self._numbers)
