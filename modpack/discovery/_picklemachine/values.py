"""Values on a pickle's stack, as far as they are of interest.

A value is a text, a number, a tuple of values, something named (:class:`Named`), what a call or a
class makes (:class:`Made`), a dictionary (:class:`Table`), or anything else (:data:`OPAQUE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from modpack.core.compileoptions import COMPILE_OPTIONS
from modpack.discovery.pickledvalues import FlawKind, NameUse

__all__ = ["OPAQUE", "Arguments", "Made", "Named", "Recorder", "Table", "Value", "shown"]


class _Opaque:
    """A value that is of no interest: nothing can be named, called or changed by it."""

    def __repr__(self) -> str:
        return "<a value>"


OPAQUE: Final = _Opaque()

_MOST_GIVEN: Final = 16

Value = object
"""A str, an int, a tuple of values, Named, Made, or OPAQUE."""

Arguments = tuple[Value, ...] | None
"""Of a call; None if they are not known."""


class Named:
    """Something that the pickle takes from a module, or the module itself."""

    __slots__ = ("made", "module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.made = Made(self, None)
        """What calling it makes, where the arguments are of no interest."""

    def __repr__(self) -> str:
        return ".".join(filter(None, (self.module, self.name)))


class Made:
    """What a call has made, or an instance that was made without one."""

    __slots__ = ("arguments", "by")

    def __init__(self, by: Named, arguments: tuple[Value, ...] | None) -> None:
        self.by = by
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{self.by}(...)"


def shown(value: Value) -> str:
    """A value, for people."""
    return repr(value)[:100] if isinstance(value, (Named, Made)) else "a value"


class Table:
    """A dictionary of the pickle's own: the code of a graph in it, and what might be called."""

    __slots__ = ("code", "config", "given", "is_closed", "is_plain", "odd_key")

    def __init__(self) -> None:
        self.code: Value = None
        self.given: tuple[Value, ...] = ()
        """Values that are named or made, up to a few."""
        self.is_plain = True
        """Whether all its keys are known, and the code is set at most once."""
        self.config: Value = None
        self.odd_key: Value = None
        """A key that is no option of ``torch.compile``."""
        self.is_closed = False
        """Whether nothing more may be added."""

    def fill(self, values: Sequence[Value]) -> None:
        for key, value in zip(values[::2], values[1::2], strict=False):
            if isinstance(value, (Named, Made)) and len(self.given) < _MOST_GIVEN:
                self.given = (*self.given, value)
            if key in ("_code", "code"):
                self.is_plain = self.is_plain and self.code is None
                self.code = value
            elif key == "config":
                self.is_plain = self.is_plain and self.config is None
                self.config = value
            elif not isinstance(key, str):
                self.is_plain = False
            if self.odd_key is None and not (isinstance(key, str) and key in COMPILE_OPTIONS):
                self.odd_key = key


class Recorder(Protocol):
    """What following a call tells."""

    def named(self, module: str, name: str) -> Value:
        """Something is reached by a name; returns it."""

    def used(self, named: Named, use: NameUse) -> None:
        """Something named is used."""

    def flaw(self, kind: FlawKind, text: str) -> None:
        """Something cannot be known."""

    def sets_adder(self) -> None:
        """What may be called is set as ``append``, ``extend`` or ``add``, which pickles call."""

    def function_text(self, text: str, name: str, line: int) -> None:
        """A function is made from its source."""

    def is_only_torch(self) -> bool:
        """Whether nothing was named so far but what torch and plain containers consist of."""

    def filled(self, module: str, name: str, value: Value) -> None:
        """A name of a module is given another value."""
