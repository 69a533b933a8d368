"""Conditions around imports: tests for a module, the platform, or a device.

``if HAS_X:`` guards an import like a ``try`` around it, wherever ``HAS_X`` comes from: a test, a
``try`` that imports, or a function that returns one of these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from modpack.core.names import root_of
from modpack.discovery.syntax import (
    FUNCTIONS,
    LOOPS,
    TRIES,
    Bindings,
    Block,
    BlockPart,
    Function,
    Scope,
    bindings,
    last_name,
    qualified_name,
)

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "PackageNotFoundError"})
_IMPORT_FAILURES = _IMPORT_ERRORS | {"Exception", "BaseException"}
_ENVIRONMENT = frozenset(
    {"sys.version_info", "sys.hexversion", "sys.platform", "sys.implementation", "os.name"}
    | {"platform.system", "platform.python_implementation"}
)
_FINDERS = frozenset({"find_spec", "find_loader"})
_PRESENCE_TEST = re.compile(
    r"(?:.*\.)?(?:find_spec|find_loader|metadata\.(?:version|distribution)|is_available)|sys\.modules"
)
"""Names of tests for a module, a distribution, or a device."""
_TESTS = (ast.If, ast.IfExp, ast.While)
_NO_NAMES = Scope()


class ConditionResult(NamedTuple):
    """What a condition tests.

    Attributes:
        is_guard: Whether it searches for a module, or tests the Python version or the platform.
        checks_presence: Whether its value depends on an installed module or device.
        external_names: Names in other modules of the same library that it uses.
    """

    is_guard: bool = False
    checks_presence: bool = False
    external_names: tuple[str, ...] = ()


class ImportContext(NamedTuple):
    """How the blocks around a statement affect it.

    Attributes:
        in_function: Whether it runs only when a function is called.
        guarded: Whether the code handles its failure.
        never: Whether it never runs.
        optional: Whether a condition tests for an installed module or device.
        condition_names: Names in other modules of the library that its conditions use.
    """

    in_function: bool = False
    guarded: bool = False
    never: bool = False
    optional: bool = False
    condition_names: tuple[str, ...] = ()

    def within(self, outer: ImportContext) -> ImportContext:
        """Return this context combined with that of an outer block."""
        return ImportContext(
            self.in_function or outer.in_function,
            self.guarded or outer.guarded,
            self.never or outer.never,
            self.optional or outer.optional,
            tuple(dict.fromkeys((*self.condition_names, *outer.condition_names))),
        )


_Origin: TypeAlias = tuple[ast.AST, Scope, bool]
"""An expression that a name is bound to, its scope, and whether it is the name's whole value."""


class ConditionEvaluator:
    """Evaluator for the conditions of one module. Each expression is evaluated once.

    Args:
        module: Module name.
        bindings: Bindings of the module's names.
    """

    def __init__(self, module: str, bindings: Bindings) -> None:
        self._bindings = bindings
        self._library_prefix = f"{root_of(module)}."
        self._contexts: dict[Block, ImportContext] = {}
        self._evaluated: dict[ast.AST, tuple[ConditionResult, list[_Origin]]] = {}
        self._functions: dict[ast.AST, tuple[bool, list[ast.AST]]] = {}

    def context_of(self, block: Block) -> ImportContext:
        """Return the combined context of a block and all blocks around it."""
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
        if isinstance(owner, ast.Assert):
            never = _truth(owner.test, scope) is False
            return self._test_context(owner.test, scope, never, follows=True)
        if isinstance(owner, _TESTS):
            never = _truth(owner.test, scope) is (block.part is not BlockPart.BODY)
            return self._test_context(owner.test, scope, never, block.part is BlockPart.FOLLOWING)
        if isinstance(owner, TRIES):
            return ImportContext(guarded=block.part is BlockPart.BODY and _is_caught(owner))
        if isinstance(owner, ast.ExceptHandler):
            return ImportContext(guarded=catches_import_error(owner.type))
        if isinstance(owner, (ast.With, ast.AsyncWith)):
            return ImportContext(guarded=any(_suppresses(item, scope) for item in owner.items))
        if isinstance(owner, ast.Match):
            return self._test_context(owner.subject, scope)
        if isinstance(owner, ast.BoolOp):
            return self._test_context(owner, scope)
        return ImportContext()

    def _test_context(
        self, test: ast.expr, scope: Scope, never: bool = False, follows: bool = False
    ) -> ImportContext:
        """Return the context that a test gives its block, or the statements that follow.

        A module that rejects a Python version or platform does not guard the following statements.
        """
        answer = self.evaluate(test, scope)
        guarded = answer.is_guard and not follows
        return ImportContext(False, guarded, never, answer.checks_presence, answer.external_names)

    def evaluate(self, test: ast.AST, scope: Scope) -> ConditionResult:
        """Return what a condition tests, following names and functions of the module.

        Args:
            test: Condition to evaluate.
            scope: Scope of the condition.
        """
        external_names: dict[str, None] = {}
        is_guard = checks_presence = False
        waiting: list[_Origin] = [(test, scope, True)]
        seen: set[ast.AST] = set()
        while waiting:
            root, scope, is_value = waiting.pop()
            if root in seen:
                continue
            seen.add(root)
            if root not in self._evaluated:
                self._evaluated[root] = self._evaluate_one(root, scope)
            answer, origins = self._evaluated[root]
            is_guard |= is_value and answer.is_guard
            checks_presence |= answer.checks_presence
            external_names.update(dict.fromkeys(answer.external_names))
            waiting.extend(
                (origin, outer, is_value and is_plain) for origin, outer, is_plain in origins
            )
        return ConditionResult(is_guard, checks_presence, tuple(external_names))

    def _evaluate_one(self, root: ast.AST, scope: Scope) -> tuple[ConditionResult, list[_Origin]]:
        """Return what one expression tests itself, and the expressions its names are bound to."""
        is_guard = checks_presence = False
        external_names: dict[str, None] = {}
        origins: list[_Origin] = []
        for node in ast.walk(root):
            name = qualified_name(node, scope)
            if name is not None:
                is_guard |= name.rpartition(".")[2] in _FINDERS or name in _ENVIRONMENT
                checks_presence |= _PRESENCE_TEST.fullmatch(name) is not None
                if name.startswith(self._library_prefix):
                    external_names[name] = None
            for block, value in self._bindings_of(node, scope):
                checks_presence |= _depends_on_import(block)
                if isinstance(value, FUNCTIONS):
                    looks, returned = self._read_function(value)
                    checks_presence |= looks
                    origins.extend((each, block.scope, False) for each in returned)
                elif value is not None:
                    origins.append((value, block.scope, True))
        return ConditionResult(is_guard, checks_presence, tuple(external_names)), origins

    def _bindings_of(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.AST | None]]:
        """Yield the bindings of a name, of a class attribute, and the class of a new object.

        A bare class tests nothing: ``isinstance(x, Net)`` calls none of its methods.
        """
        if isinstance(node, ast.Name):
            for block, value in self._bindings.find(node.id, scope):
                yield block, None if isinstance(value, (ast.ClassDef, *LOOPS)) else value
        elif isinstance(node, ast.Attribute):
            for block, body in self._classes(node.value, scope):
                for member in body.body:
                    yield from ((block, each) for each in _values_of(member, node.attr))
        elif isinstance(node, ast.Call):
            yield from self._classes(node.func, scope)

    def _classes(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.ClassDef]]:
        found = self._bindings.find(node.id, scope) if isinstance(node, ast.Name) else ()
        for block, value in found:
            if isinstance(value, ast.ClassDef):
                yield block, value

    def _read_function(self, function: ast.AST) -> tuple[bool, list[ast.AST]]:
        """Return whether a function tests for a module, and the expressions it returns."""
        if function not in self._functions:
            looks = False
            returned: list[ast.AST] = [function] if isinstance(function, ast.Lambda) else []
            for node in ast.walk(function):
                looks = looks or _tries_import(node) or _is_finder(node)
                if isinstance(node, ast.Return) and node.value is not None:
                    returned.append(node.value)
            self._functions[function] = looks, returned
        return self._functions[function]


def _values_of(member: ast.stmt, name: str) -> Iterator[ast.AST]:
    """Yield the values that a statement in a class body binds to a name."""
    if isinstance(member, Function):
        if member.name == name:
            yield member
    else:
        yield from (value for bound, value in bindings(member) if bound == name and value)


def catches_import_error(caught: ast.expr | None) -> bool:
    """Return whether an ``except`` clause of this type catches a failed import."""
    return caught is None or not _IMPORT_FAILURES.isdisjoint(_types_of(caught))


def _is_caught(statement: ast.Try) -> bool:
    return any(catches_import_error(handler.type) for handler in statement.handlers)


def _types_of(caught: ast.expr) -> list[str]:
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return [last_name(each) for each in types if not isinstance(each, ast.Call)]


def _is_finder(node: ast.AST) -> bool:
    name = qualified_name(node, _NO_NAMES)
    return name is not None and _PRESENCE_TEST.fullmatch(name) is not None


def _depends_on_import(block: Block) -> bool:
    """Return whether a block runs only if an import succeeds, or only if it fails."""
    inner: Block | None = block
    while inner is not None and not isinstance(inner.owner, FUNCTIONS):
        owner = inner.owner
        if isinstance(owner, ast.ExceptHandler) and owner.type is not None:
            if not _IMPORT_ERRORS.isdisjoint(_types_of(owner.type)):
                return True  # handlers for any exception do not count
        if _tries_import(owner):
            return True
        inner = inner.parent
    return False


def _tries_import(node: ast.AST) -> bool:
    """Return whether a statement tries to import and catches the failure."""
    if not isinstance(node, TRIES) or not _is_caught(node):
        return False
    return any(
        isinstance(each, (ast.Import, ast.ImportFrom))
        or _is_finder(each)
        or (isinstance(each, ast.Call) and last_name(each) in ("import_module", "__import__"))
        for statement in node.body
        for each in ast.walk(statement)
    )


def _suppresses(item: ast.withitem, scope: Scope) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    name = qualified_name(call.func, scope)
    if name not in ("contextlib.suppress", "suppress"):
        return False
    return any(catches_import_error(argument) for argument in call.args)


def _truth(test: ast.expr, scope: Scope) -> bool | None:
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
