"""Conditions around imports: whether they look for a module, the platform, or a device.

``if HAS_X:`` is as good as a ``try`` around the import, wherever ``HAS_X`` comes from: a test, a
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

_FAILED_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "PackageNotFoundError"})
_ABSENCE = _FAILED_IMPORT | {"Exception", "BaseException"}
_ENVIRONMENT = frozenset(
    {"sys.version_info", "sys.hexversion", "sys.platform", "sys.implementation", "os.name"}
    | {"platform.system", "platform.python_implementation"}
)
_FINDERS = frozenset({"find_spec", "find_loader"})
_TELLS = re.compile(
    r"(?:.*\.)?(?:find_spec|find_loader|metadata\.(?:version|distribution)|is_available)|sys\.modules"
)
"""What looks for a module, a distribution, or a device."""
_TESTS = (ast.If, ast.IfExp, ast.While)
_NO_NAMES = Scope()


class ConditionResult(NamedTuple):
    """What a condition asks.

    Attributes:
        is_guard: whether it looks for a module itself, or for the Python or platform that runs.
        is_told: whether its answer comes from what is there in any way, the platform apart.
        elsewhere: the names of other modules of the same library that it asks.
    """

    is_guard: bool = False
    is_told: bool = False
    elsewhere: tuple[str, ...] = ()


class ImportContext(NamedTuple):
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

    def within(self, outer: ImportContext) -> ImportContext:
        """This standing, inside a block that has another."""
        return ImportContext(
            self.in_function or outer.in_function,
            self.guarded or outer.guarded,
            self.never or outer.never,
            self.optional or outer.optional,
            tuple(dict.fromkeys((*self.asked, *outer.asked))),
        )


_Origin: TypeAlias = tuple[ast.AST, Scope, bool]
"""What a name is bound to, and the names that this sees; last, whether it is the value itself."""


class ConditionEvaluator:
    """Reads the conditions of one module, and judges blocks by those around them.

    Each expression is read once, however many conditions lead to it.

    Args:
        module: the module's name.
        origins: what its names are bound to.
    """

    def __init__(self, module: str, origins: Bindings) -> None:
        self._origins = origins
        self._within = f"{root_of(module)}."
        self._standings: dict[Block, ImportContext] = {}
        self._parts: dict[ast.AST, tuple[ConditionResult, list[_Origin]]] = {}
        self._functions: dict[ast.AST, tuple[bool, list[ast.AST]]] = {}

    # -- blocks ------------------------------------------------------------------------------

    def standing(self, block: Block) -> ImportContext:
        """What all the blocks around a statement, ``block`` first, say about it."""
        unknown: list[Block] = []
        outer: Block | None = block
        while outer is not None and outer not in self._standings:
            unknown.append(outer)
            outer = outer.parent
        standing = ImportContext() if outer is None else self._standings[outer]
        for inner in reversed(unknown):
            standing = self._own(inner).within(standing)
            self._standings[inner] = standing
        return standing

    def _own(self, block: Block) -> ImportContext:
        owner = block.owner
        # An outer scope is right for a test: it stands outside the block that it opens.
        scope = block.scope
        if isinstance(owner, FUNCTIONS):
            return ImportContext(in_function=True)
        if isinstance(owner, ast.Assert):
            never = _truth(owner.test, scope) is False
            return self._asking(owner.test, scope, never, is_rest=True)
        if isinstance(owner, _TESTS):
            never = _truth(owner.test, scope) is (block.part is not BlockPart.BODY)
            return self._asking(owner.test, scope, never, block.part is BlockPart.REST)
        if isinstance(owner, TRIES):
            return ImportContext(guarded=block.part is BlockPart.BODY and _is_caught(owner))
        if isinstance(owner, ast.ExceptHandler):
            return ImportContext(guarded=catches_absence(owner.type))
        if isinstance(owner, (ast.With, ast.AsyncWith)):
            return ImportContext(guarded=any(_suppresses(item, scope) for item in owner.items))
        if isinstance(owner, ast.Match):
            return self._asking(owner.subject, scope)
        if isinstance(owner, ast.BoolOp):
            return self._asking(owner, scope)
        return ImportContext()

    def _asking(
        self, test: ast.expr, scope: Scope, never: bool = False, is_rest: bool = False
    ) -> ImportContext:
        """What a test says of the block that it opens, or of the rest of the body around it.

        Of a rest, the Python and the platform that a module refuses say nothing.
        """
        answer = self.asked_by(test, scope)
        guarded = answer.is_guard and not is_rest
        return ImportContext(False, guarded, never, answer.is_told, answer.elsewhere)

    # -- conditions --------------------------------------------------------------------------

    def asked_by(self, test: ast.AST, scope: Scope) -> ConditionResult:
        """What a condition asks, also by way of names and functions of the module.

        Args:
            test: the condition.
            scope: the names that it sees.
        """
        elsewhere: dict[str, None] = {}
        is_guard = is_told = False
        waiting: list[_Origin] = [(test, scope, True)]
        seen: set[ast.AST] = set()
        while waiting:
            root, scope, is_value = waiting.pop()
            if root in seen:
                continue
            seen.add(root)
            if root not in self._parts:
                self._parts[root] = self._read_part(root, scope)
            answer, origins = self._parts[root]
            is_guard |= is_value and answer.is_guard
            is_told |= answer.is_told
            elsewhere.update(dict.fromkeys(answer.elsewhere))
            waiting.extend(
                (origin, outer, is_value and is_plain) for origin, outer, is_plain in origins
            )
        return ConditionResult(is_guard, is_told, tuple(elsewhere))

    def _read_part(self, root: ast.AST, scope: Scope) -> tuple[ConditionResult, list[_Origin]]:
        """What one expression of a condition asks by itself, and what its names are bound to."""
        is_guard = is_told = False
        elsewhere: dict[str, None] = {}
        origins: list[_Origin] = []
        for node in ast.walk(root):
            name = qualified_name(node, scope)
            if name is not None:
                is_guard |= name.rpartition(".")[2] in _FINDERS or name in _ENVIRONMENT
                is_told |= _TELLS.fullmatch(name) is not None
                if name.startswith(self._within):
                    elsewhere[name] = None
            for block, value in self._bound(node, scope):
                is_told |= _depends_on_import(block)
                if isinstance(value, FUNCTIONS):
                    looks, returned = self._function(value)
                    is_told |= looks
                    origins.extend((each, block.scope, False) for each in returned)
                elif value is not None:
                    origins.append((value, block.scope, True))
        return ConditionResult(is_guard, is_told, tuple(elsewhere)), origins

    def _bound(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.AST | None]]:
        """What a name is bound to, an attribute of a class, or a new object: all of its class.

        A class by itself tells nothing. ``isinstance(x, Net)`` asks none of its methods.
        """
        if isinstance(node, ast.Name):
            for block, value in self._origins.of(node.id, scope):
                yield block, None if isinstance(value, ast.ClassDef) else value
        elif isinstance(node, ast.Attribute):
            for block, body in self._classes(node.value, scope):
                for member in body.body:
                    yield from ((block, each) for each in _values_of(member, node.attr))
        elif isinstance(node, ast.Call):
            yield from self._classes(node.func, scope)

    def _classes(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.ClassDef]]:
        for block, value in self._origins.of(node.id, scope) if isinstance(node, ast.Name) else ():
            if isinstance(value, ast.ClassDef):
                yield block, value

    def _function(self, function: ast.AST) -> tuple[bool, list[ast.AST]]:
        """Whether a function looks for a module in its body, and the expressions it returns."""
        if function not in self._functions:
            looks = False
            returned: list[ast.AST] = [function] if isinstance(function, ast.Lambda) else []
            for node in ast.walk(function):
                looks = looks or _is_self_test(node) or _is_finder(node)
                if isinstance(node, ast.Return) and node.value is not None:
                    returned.append(node.value)
            self._functions[function] = looks, returned
        return self._functions[function]


def _values_of(member: ast.stmt, name: str) -> Iterator[ast.AST]:
    """What a statement of a class's body makes an attribute of that name."""
    if isinstance(member, Function):
        if member.name == name:
            yield member
    else:
        yield from (value for bound, value in bindings(member) if bound == name and value)


def catches_absence(caught: ast.expr | None) -> bool:
    """Whether an ``except`` clause of this type catches a failed import."""
    return caught is None or not _ABSENCE.isdisjoint(_types_of(caught))


def _is_caught(statement: ast.Try) -> bool:
    return any(catches_absence(handler.type) for handler in statement.handlers)


def _types_of(caught: ast.expr) -> list[str]:
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return [last_name(each) for each in types if not isinstance(each, ast.Call)]


def _is_finder(node: ast.AST) -> bool:
    name = qualified_name(node, _NO_NAMES)
    return name is not None and _TELLS.fullmatch(name) is not None


def _depends_on_import(block: Block) -> bool:
    """Whether statements of a block run only if an import succeeds, or only if it fails."""
    inner: Block | None = block
    while inner is not None and not isinstance(inner.owner, FUNCTIONS):
        owner = inner.owner
        if isinstance(owner, ast.ExceptHandler) and owner.type is not None:
            if not _FAILED_IMPORT.isdisjoint(_types_of(owner.type)):
                return True  # and not a handler for whatever may fail
        if _is_self_test(owner):
            return True
        inner = inner.parent
    return False


def _is_self_test(node: ast.AST) -> bool:
    """Whether a statement tries to import, and catches the failure."""
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
    return any(catches_absence(argument) for argument in call.args)


def _truth(test: ast.expr, scope: Scope) -> bool | None:
    """What a test is when the program runs, where that is certain; else None."""

    def known(node: ast.expr) -> bool | None:
        name = qualified_name(node, scope)
        # Its one meaning everywhere: type checkers go by the last name too.
        return False if name and name.rpartition(".")[2] == "TYPE_CHECKING" else None

    return known_truth(test, known)


def known_truth(test: ast.expr, known: Callable[[ast.expr], bool | None]) -> bool | None:
    """What a condition is when the program runs, where that is certain; else None.

    Works through ``not``, ``and`` and ``or`` with a stack: a test may nest to any depth.

    Args:
        test: the condition.
        known: what a part of it is that is no constant and none of these.
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
            values.append(_combined_truth(node, inner))
    return values[0]


def _combined_truth(node: ast.expr, values: Sequence[bool | None]) -> bool | None:
    if not isinstance(node, ast.BoolOp):
        return None if values[0] is None else not values[0]
    deciding = isinstance(node.op, ast.Or)
    if deciding in values:
        return deciding
    return None if None in values else not deciding
