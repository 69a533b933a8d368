"""Conditions around imports, and handlers of failed imports.

An import in an ``if`` runs only under its condition, whatever that is: if the module is missing, a
run decides whether the code needs it. Tests for a module, the Python version, or the platform guard
an import like a ``try`` around it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

from modpack.discovery.syntax import (
    FUNCTIONS,
    TRIES,
    Bindings,
    Block,
    BlockPart,
    Scope,
    last_name,
    qualified_name,
)

_IMPORT_FAILURES = frozenset(
    {"ImportError", "ModuleNotFoundError", "PackageNotFoundError", "Exception", "BaseException"}
)
_ENVIRONMENT = frozenset(
    {"sys.version_info", "sys.hexversion", "sys.platform", "sys.implementation", "os.name"}
    | {"platform.system", "platform.python_implementation"}
)
_FINDERS = frozenset({"find_spec", "find_loader"})
_TESTS = (ast.If, ast.IfExp, ast.While)


class ImportContext(NamedTuple):
    """How the blocks around a statement affect it.

    Attributes:
        in_function: Whether it runs only when a function is called.
        guarded: Whether the code handles its failure.
        never: Whether it never runs.
        optional: Whether it runs only under a condition.
    """

    in_function: bool = False
    guarded: bool = False
    never: bool = False
    optional: bool = False

    def within(self, outer: ImportContext) -> ImportContext:
        """Return this context combined with that of an outer block."""
        return ImportContext(*(mine or its for mine, its in zip(self, outer, strict=True)))


class ContextReader:
    """Reads the contexts of a module's blocks.

    Args:
        bindings: Bindings of the module's names.
    """

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings
        self._contexts: dict[Block, ImportContext] = {}

    def context_of(self, block: Block) -> ImportContext:
        """Return the combined context of a block and all blocks around it."""
        # With a stack, because blocks nest as deeply as the parser accepts.
        unknown: list[Block] = []
        outer: Block | None = block
        while outer is not None and outer not in self._contexts:
            unknown.append(outer)
            outer = outer.parent
        context = ImportContext() if outer is None else self._contexts[outer]
        for inner in reversed(unknown):
            context = self._owner_context(inner).within(context)
            self._contexts[inner] = context
        return context

    def _owner_context(self, block: Block) -> ImportContext:
        owner = block.owner
        # A test is evaluated in the outer scope: it is outside the block that it opens.
        scope = block.scope
        if isinstance(owner, FUNCTIONS):
            return ImportContext(in_function=True)
        if isinstance(owner, (ast.Assert, *_TESTS)):
            truth = _static_truth(owner.test, scope)
            if truth is None:
                return self._test_context(owner.test, scope, block.part is BlockPart.FOLLOWING)
            # Statements follow an assertion if it holds, but a conditional exit if its test fails.
            runs_if = isinstance(owner, ast.Assert) or block.part is BlockPart.BODY
            return ImportContext(never=truth is not runs_if)
        if isinstance(owner, TRIES):
            # Failures in ``else`` and ``finally`` do not reach the handlers.
            handles = any(catches_import_error(handler.type) for handler in owner.handlers)
            return ImportContext(guarded=block.part is BlockPart.BODY and handles)
        if isinstance(owner, ast.ExceptHandler):
            return ImportContext(guarded=catches_import_error(owner.type))
        if isinstance(owner, (ast.With, ast.AsyncWith)):
            return ImportContext(guarded=any(_suppresses(item, scope) for item in owner.items))
        if isinstance(owner, ast.Match):
            return self._test_context(owner.subject, scope)
        if isinstance(owner, ast.BoolOp):
            return self._test_context(owner, scope)
        return ImportContext()

    def _test_context(self, test: ast.expr, scope: Scope, follows: bool = False) -> ImportContext:
        """Return the context that a test gives its block, or the statements that follow.

        Code that rejects a Python version or a platform needs the following statements elsewhere.
        """
        environment, module = self._subjects(test, scope)
        guarded = (environment or module) and not follows
        return ImportContext(guarded=guarded, optional=not (follows and environment))

    def _subjects(self, test: ast.expr, scope: Scope) -> tuple[bool, bool]:
        """Return whether a condition tests the version or the platform, and whether a module.

        Names are followed to the expressions that they are bound to.
        """
        environment = module = False
        waiting = [(test, scope)]
        seen: set[ast.expr] = set()
        while waiting:
            root, scope = waiting.pop()
            # Bindings may form cycles, as in ``x = x or find_spec("y")``.
            if root in seen:
                continue
            seen.add(root)
            for node in ast.walk(root):
                name = qualified_name(node, scope) or ""
                environment = environment or name in _ENVIRONMENT
                module = module or name.rpartition(".")[2] in _FINDERS
                if isinstance(node, ast.Name):
                    bound = self._bindings.find(node.id, scope)
                    waiting += [(value, place) for place, value in bound if value is not None]
        return environment, module


def catches_import_error(caught: ast.expr | None) -> bool:
    """Return whether an ``except`` clause of this type catches a failed import."""
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    names = (last_name(each) for each in types if not isinstance(each, ast.Call))
    return caught is None or not _IMPORT_FAILURES.isdisjoint(names)


def _suppresses(item: ast.withitem, scope: Scope) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = qualified_name(call.func, scope)
    if name not in ("contextlib.suppress", "suppress"):
        return False
    return any(catches_import_error(argument) for argument in call.args)


def _static_truth(test: ast.expr, scope: Scope) -> bool | None:
    """Return the value of a test at run time, or None if it is uncertain."""

    def known(node: ast.expr) -> bool | None:
        name = qualified_name(node, scope)
        # Type checkers compare the last component too.
        return False if name and name.rpartition(".")[2] == "TYPE_CHECKING" else None

    return known_truth(test, known)


def known_truth(test: ast.expr, known: Callable[[ast.expr], bool | None]) -> bool | None:
    """Return the value of a condition at run time, or None if it is uncertain.

    Evaluates ``not``, ``and``, and ``or`` with a stack, so a test may nest to any depth.

    Args:
        test: Condition to evaluate.
        known: Function that returns the value of any other non-constant operand.
    """
    waiting: list[tuple[ast.expr, bool]] = [(test, False)]
    values: list[bool | None] = []
    while waiting:
        node, has_operands = waiting.pop()
        operands: Sequence[ast.expr] = ()
        if isinstance(node, ast.BoolOp):
            operands = node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operands = (node.operand,)
        if not operands:
            values.append(bool(node.value) if isinstance(node, ast.Constant) else known(node))
        elif not has_operands:
            waiting.append((node, True))
            # Their values arrive in reverse order, which does not matter to ``and`` and ``or``.
            waiting.extend((operand, False) for operand in operands)
        else:
            inner = values[-len(operands) :]
            del values[-len(operands) :]
            values.append(_combine_truth(node, inner))
    return values[0]


def _combine_truth(node: ast.expr, values: Sequence[bool | None]) -> bool | None:
    if not isinstance(node, ast.BoolOp):
        return None if values[0] is None else not values[0]
    deciding = isinstance(node.op, ast.Or)
    if deciding in values:
        return deciding
    return None if None in values else not deciding
