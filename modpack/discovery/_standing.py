"""How strongly a block's imports count: what the conditions around it say."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from modpack.discovery._blocks import Block, Origins, Part, Scope, qualified_name
from modpack.discovery._nodes import FUNCTIONS, TRIES
from modpack.discovery._presence import Presence, catches_absence, is_caught

__all__ = ["Conditions", "Standing"]

_TESTS = (ast.If, ast.IfExp, ast.While)


class Standing(NamedTuple):
    """What the blocks around a statement say about it.

    Attributes:
        in_function: it runs when a function is called.
        guarded: the code copes with its failure.
        never: it does not run at all.
        optional: a condition tells whether what it imports may be there.
        asked: names of other modules of the library that its conditions ask.
    """

    in_function: bool = False
    guarded: bool = False
    never: bool = False
    optional: bool = False
    asked: tuple[str, ...] = ()

    def within(self, outer: Standing) -> Standing:
        """This standing, inside a block that has another."""
        return Standing(
            self.in_function or outer.in_function,
            self.guarded or outer.guarded,
            self.never or outer.never,
            self.optional or outer.optional,
            tuple(dict.fromkeys((*self.asked, *outer.asked))),
        )


class Conditions:
    """Judges blocks by the tests, handlers and functions around them.

    Args:
        module: the scanned module's name.
        origins: what its names are bound to.
    """

    def __init__(self, module: str, origins: Origins) -> None:
        self._presence = Presence(module, origins)
        self._standings: dict[Block, Standing] = {}

    def standing(self, block: Block) -> Standing:
        """What all the blocks around a statement, ``block`` first, say about it."""
        if block in self._standings:
            return self._standings[block]
        unknown: list[Block] = []
        outer: Block | None = block
        while outer is not None and outer not in self._standings:
            unknown.append(outer)
            outer = outer.parent
        standing = Standing() if outer is None else self._standings[outer]
        for inner in reversed(unknown):
            standing = self._own(inner).within(standing)
            self._standings[inner] = standing
        return standing

    def _own(self, block: Block) -> Standing:
        owner = block.owner
        # An outer scope is right for a test: it stands outside the block that it opens.
        scope = block.scope
        if isinstance(owner, FUNCTIONS):
            return Standing(in_function=True)
        if isinstance(owner, ast.Assert):
            never = _truth(owner.test, scope) is False
            return self._asking(owner.test, scope, never, is_rest=True)
        if isinstance(owner, _TESTS):
            never = _truth(owner.test, scope) is (block.part is not Part.BODY)
            return self._asking(owner.test, scope, never, block.part is Part.REST)
        if isinstance(owner, TRIES):
            return Standing(guarded=block.part is Part.BODY and is_caught(owner.handlers))
        if isinstance(owner, ast.ExceptHandler):
            return Standing(guarded=catches_absence(owner.type))
        if isinstance(owner, (ast.With, ast.AsyncWith)):
            return Standing(guarded=any(_suppresses(item, scope) for item in owner.items))
        if isinstance(owner, ast.Match):
            return self._asking(owner.subject, scope)
        if isinstance(owner, ast.BoolOp):
            return self._asking(owner, scope)
        return Standing()

    def _asking(
        self, test: ast.expr, scope: Scope, never: bool = False, is_rest: bool = False
    ) -> Standing:
        """What a test says of the block that it opens, or of the rest of the body around it.

        Of a rest, the Python and the platform that a module refuses say nothing.
        """
        answer = self._presence.asked_by(test, scope)
        guarded = answer.is_guard and not is_rest
        return Standing(False, guarded, never, answer.is_told, answer.elsewhere)


def _suppresses(item: ast.withitem, scope: Scope) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = qualified_name(call.func, scope)
    if name not in ("contextlib.suppress", "suppress"):
        return False
    return any(catches_absence(argument) for argument in call.args)


def _truth(test: ast.expr, scope: Scope) -> bool | None:
    """What a test is when the program runs, where that is certain; else None.

    Works through ``not``, ``and`` and ``or`` with a stack: a test may nest to any depth.
    """
    waiting: list[tuple[ast.expr, bool]] = [(test, False)]
    known: list[bool | None] = []
    while waiting:
        node, operands_known = waiting.pop()
        operands = _operands(node)
        if not operands:
            known.append(_atom_truth(node, scope))
        elif not operands_known:
            waiting.append((node, True))
            waiting.extend((operand, False) for operand in operands)
        else:
            values = known[-len(operands) :]
            del known[-len(operands) :]
            known.append(_combined_truth(node, values))
    return known[0]


def _operands(node: ast.expr) -> Sequence[ast.expr]:
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return (node.operand,)
    return ()


def _combined_truth(node: ast.expr, values: Sequence[bool | None]) -> bool | None:
    if not isinstance(node, ast.BoolOp):
        return None if values[0] is None else not values[0]
    deciding = isinstance(node.op, ast.Or)
    if deciding in values:
        return deciding
    return None if None in values else not deciding


def _atom_truth(node: ast.expr, scope: Scope) -> bool | None:
    if isinstance(node, ast.Constant):
        return bool(node.value)
    name = qualified_name(node, scope)
    # Its one meaning everywhere: type checkers go by the last name too.
    return False if name and name.rpartition(".")[2] == "TYPE_CHECKING" else None
