"""How strongly a block's imports count: what the conditions around it say."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modpack.discovery._blocks import Block, Part, Scope, qualified_name
from modpack.discovery._nodes import FUNCTIONS, TRIES

__all__ = ["Conditions", "Standing"]

_TESTS = (ast.If, ast.IfExp, ast.While)
_ABSENCE = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_FINDERS = frozenset({"find_spec", "find_loader"})
_ENVIRONMENT = frozenset(
    {"sys.version_info", "sys.hexversion", "sys.platform", "sys.implementation", "os.name"}
    | {"platform.system", "platform.python_implementation"}
)


class Standing(NamedTuple):
    """What the blocks around a statement say about it.

    Attributes:
        in_function: it runs when a function is called.
        guarded: the code copes with its failure.
        never: it does not run at all.
    """

    in_function: bool = False
    guarded: bool = False
    never: bool = False

    def within(self, outer: Standing) -> Standing:
        """This standing, inside a block that has another."""
        return Standing(*(mine or theirs for mine, theirs in zip(self, outer, strict=True)))


class Conditions:
    """Judges blocks by the tests, handlers and functions around them.

    Args:
        values: name -> every expression that module-level code assigns to it, None for a
            binding that assigns no single expression. A name that holds the outcome of a
            guarding test is as good as the test.
    """

    def __init__(self, values: Mapping[str, Sequence[ast.expr | None]]) -> None:
        self._values = values
        self._standings: dict[Block, Standing] = {}
        self._guards: dict[ast.AST, bool] = {}

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
        if isinstance(owner, _TESTS):
            never = _truth(owner.test, scope) is (block.part is Part.ELSE)
            return Standing(guarded=self._is_guard(owner.test, scope), never=never)
        if isinstance(owner, TRIES):
            return Standing(guarded=block.part is Part.BODY and _is_caught(owner.handlers))
        if isinstance(owner, ast.ExceptHandler):
            return Standing(guarded=_catches_absence(owner.type))
        if isinstance(owner, (ast.With, ast.AsyncWith)):
            return Standing(guarded=any(_suppresses(item, scope) for item in owner.items))
        if isinstance(owner, ast.Match):
            return Standing(guarded=self._is_guard(owner.subject, scope))
        if isinstance(owner, ast.BoolOp):
            return Standing(guarded=self._is_guard(owner, scope))
        return Standing()

    def _is_guard(self, test: ast.expr, scope: Scope) -> bool:
        if test not in self._guards:
            self._guards[test] = self._mentions_guard(test, scope)
        return self._guards[test]

    def _mentions_guard(self, test: ast.expr, scope: Scope) -> bool:
        seen: set[str] = set()
        waiting: list[ast.AST] = [test]
        while waiting:
            for node in ast.walk(waiting.pop()):
                name = qualified_name(node, scope)
                if name is None:
                    continue
                if name in _ENVIRONMENT or name.rpartition(".")[2] in _FINDERS:
                    return True
                if isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    waiting.extend(filter(None, self._values.get(node.id, ())))
        return False


def _is_caught(handlers: Sequence[ast.ExceptHandler]) -> bool:
    return any(_catches_absence(handler.type) for handler in handlers)


def _catches_absence(caught: ast.expr | None) -> bool:
    """Whether an ``except`` clause of this type catches a failed import."""
    if caught is None:
        return True
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(_last_name(kind) in _ABSENCE for kind in types)


def _suppresses(item: ast.withitem, scope: Scope) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = qualified_name(call.func, scope)
    if name not in ("contextlib.suppress", "suppress"):
        return False
    return any(_catches_absence(argument) for argument in call.args)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


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
