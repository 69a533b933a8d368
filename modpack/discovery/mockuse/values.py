"""What a name can stand for, as far as mocks are concerned."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from modpack.discovery.mockuse.table import NameScope

__all__ = [
    "ClassValue",
    "Lead",
    "ModuleValue",
    "StandIn",
    "Value",
    "Values",
    "alternatives",
    "inner",
    "onwards",
    "through",
]

_MOST_PARTS = 10


@dataclass(frozen=True)
class StandIn:
    """Something of a mocked module: the module itself, if the name is empty."""

    module: str
    name: str = ""

    def part(self, suffix: str) -> StandIn:
        """What is got from it; what is got from that over and over again is one and the same."""
        if self.name.count(".") + self.name.count("(...)") >= _MOST_PARTS:
            return self
        return StandIn(self.module, f"{self.name}{suffix}".lstrip(". "))


@dataclass(frozen=True)
class ModuleValue:
    """A module that is not mocked."""

    path: str


@dataclass(frozen=True)
class ClassValue:
    """A class of the packaged code, or an instance of it."""

    body: NameScope


Value: TypeAlias = StandIn | ModuleValue | ClassValue
Values: TypeAlias = dict[Value, tuple[str, ...]]
"""What something may be, each with the modules through which it came, the last one last."""


class Lead(Enum):
    """What can be had by a name."""

    STAND_IN = "stand-in"
    """Something of a mock: itself, or an attribute of a class."""
    MODULE = "module"
    """A module, whatever it has."""
    NOTHING = "nothing"


def alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions one of which is the value of another, as in ``a or b``."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.IfExp):
            waiting += [part.orelse, part.body]
        elif isinstance(part, ast.BoolOp):
            waiting += reversed(part.values)
        elif isinstance(part, ast.NamedExpr):
            waiting.append(part.value)
        elif part is not node:
            yield part


def inner(
    node: ast.Attribute | ast.Call | ast.Subscript | ast.Await, taken: tuple[ast.expr, str] | None
) -> ast.expr:
    """What an attribute, a call, an item or an await is taken of."""
    if isinstance(node, ast.Call):
        return node.func if taken is None else taken[0]
    return node.value


def through(module: str, values: Values, here: str | None) -> Values:
    """Values that come from a module: it is the last one on their way."""
    if module == here:
        return values
    return {v: (*via, module) if module not in via else via for v, via in values.items()}


def onwards(values: Values, via: tuple[str, ...]) -> Values:
    """The same values, come through further modules."""
    if not via:
        return values
    return {v: (*way, *(m for m in via if m not in way)) for v, way in values.items()}
