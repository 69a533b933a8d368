"""What opcodes work on: the stack, the memo, and what is told of both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from modpack.core.knownnames import special_attribute
from modpack.discovery._picklemachine.calls import call
from modpack.discovery._picklemachine.changes import mutate
from modpack.discovery._picklemachine.found import Found, Memo
from modpack.discovery._picklemachine.reach import give, put
from modpack.discovery._picklemachine.stack import Stack
from modpack.discovery._picklemachine.values import OPAQUE, Made, Named, Table
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["Machine"]

_MOST_TABLES: Final = 1_500_000
"""Dictionaries that are looked into."""
_BLANK: Final = re.compile(r"\s")


class Machine(Stack):
    """Where one pickle is followed.

    Args:
        found: is told what it does.
        memo: of the unpickler.
        data: a record with the pickle in it.
        start: where the pickle begins.
        look_inside: follows bytes in it that may be a pickle; None to leave them alone.
    """

    def __init__(
        self,
        found: Found,
        memo: Memo,
        data: bytes,
        start: int,
        look_inside: Callable[[Found, bytes], None] | None,
    ) -> None:
        super().__init__(data)
        self.found = found
        self.memo = memo
        self.start = start
        self.look_inside = look_inside
        self._tables = 0
        if found.has_old_names is None:  # the unpickler of packages looks at these bytes only
            is_new = data[start : start + 1] == b"\x80" and data[start + 1 : start + 2] >= b"\x03"
            found.has_old_names = not is_new

    def push_tuple(self, values: list[object]) -> None:
        """A tuple; what it holds has been given away."""
        kept = self.kept
        super().push_tuple(values)
        if self.kept != kept:  # there is something of interest in it
            give(self.found, values)

    def push_table(self) -> None:
        """A dictionary; only the bodies of graphs are looked into."""
        self._tables += 1
        self.stack.append(Table() if self._tables < _MOST_TABLES else OPAQUE)

    def push_unresolved(self, text: str) -> None:
        """Something of which it is not known what it is."""
        self.found.flaw(FlawKind.UNRESOLVED, text)
        self.stack.append(OPAQUE)

    def add(self, values: list[object]) -> None:
        """Follow how items are added to what is on the stack."""
        target = self.top()
        if isinstance(target, (Table, Made)):
            put(self.found, values)
        else:
            give(self.found, values)
        if isinstance(target, Table) and not target.is_closed:
            target.fill(values)
        else:
            mutate(self.found, target)

    def append(self, values: list[object]) -> None:
        """Follow how items are added to a list or a set, or to what has methods like theirs."""
        target = self.top()
        if self.found.has_adder and isinstance(target, Made):
            text = (
                f"it adds to {target}, which may call what the pickle has set as a method for that"
            )
            self.found.flaw(FlawKind.REACHES, text)
        self.add(values)

    def take(self, module: str, name: str) -> object:
        """Follow how something is taken from a module."""
        if not module or not name or _BLANK.search(module) or _BLANK.search(name):
            told = f"it takes {f'{module} {name}'!r:.200}, which is no module and name"
            self.found.flaw(FlawKind.UNRESOLVED, told)
            return OPAQUE
        if self.found.has_old_names:
            module, name = _todays_name(module, name)
        special = special_attribute(name) if "__" in name else None
        if special is not None and name != special:
            self.found.flaw(FlawKind.REACHES, f"it takes the attribute {special} of {module}")
        return self.found.named(module, name)

    def call(self, called: object, arguments: object) -> object:
        """Follow a call; what it makes costs memory if it differs from call to call."""
        made = call(self.found, called, arguments if isinstance(arguments, tuple) else None)
        if isinstance(called, Named) and made is not called.made:
            self.keep()
        return made


def _todays_name(module: str, name: str) -> tuple[str, str]:
    """What Python 2's names are called now; unpicklers translate them for old protocols."""
    from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

    if (module, name) in NAME_MAPPING:
        return NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name
