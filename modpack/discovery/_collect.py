"""One pass over a syntax tree, with a stack: what it binds, imports and calls, and where.

Most of a source is the inside of functions that import nothing. The words that matter are looked
for in its text first, and functions, classes and expressions without any of them are left out.
"""

from __future__ import annotations

import ast
import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from modpack.discovery._bindings import BINDING, bindings
from modpack.discovery._blocks import Block, Part, Scope, qualified_name, resolve_relative
from modpack.discovery._exports import mentions_exports
from modpack.discovery._nodes import COMPREHENSIONS, TRIES
from modpack.discovery._parse import ParsedSource

__all__ = ["Binding", "Findings", "collect"]

_IMPORTERS = ("import_module", "__import__")
_WORTH_A_VISIT = ("import", "global", "__all__")
"""Words of which one stands in every function and class that matters; in names of importers too."""
_IN_EXPRESSIONS = (*_IMPORTERS, ":=")
"""What stands in every expression that matters, as long as importers keep their names."""
_SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_COMPOUND = frozenset(
    {*_SCOPES, *TRIES, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith}
    | {ast.Match}
)


class Binding(NamedTuple):
    """A name that a statement gives to the module, or takes away from it.

    Attributes:
        name: the name.
        block: where the statement stands.
        value: the expression that it is bound to, if it is one expression.
        deleted: whether the statement is a ``del``.
    """

    name: str
    block: Block
    value: ast.expr | None = None
    deleted: bool = False


@dataclass
class Findings:
    """What the pass brings home, all in source order.

    Attributes:
        imports: import statements.
        calls: the calls that may import: all in statements that have a word for it.
        bindings: the module's names, coming and going.
        exports: module-level statements that touch ``__all__``.
        exports_change_out_of_sight: whether a function changes ``__all__``.
    """

    imports: list[tuple[ast.Import | ast.ImportFrom, Block]] = field(default_factory=list)
    calls: list[tuple[ast.Call, Block]] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    exports: list[tuple[ast.stmt, Block]] = field(default_factory=list)
    exports_change_out_of_sight: bool = False


def collect(parsed: ParsedSource, module: str, package: str) -> Findings:
    """Walk a module's statements, and its expressions where they may import or bind.

    Args:
        parsed: the source.
        module: the module's name.
        package: the package that it is in, or is.
    """
    walk = _Walk(parsed, module, package)
    walk.run()
    if walk.renames_importers:  # then calls of them have none of the words that are looked for
        walk = _Walk(parsed, module, package, everywhere=True)
        walk.run()
    return walk.findings


class _Walk:
    """One walk over a module.

    Args:
        parsed: the source.
        module: the module's name.
        package: the package that it is in, or is.
        everywhere: whether to look at what has none of the words as well.

    Attributes:
        findings: what it brings home.
        renames_importers: whether a function that imports was given a name of its own.
    """

    def __init__(
        self, parsed: ParsedSource, module: str, package: str, everywhere: bool = False
    ) -> None:
        self.findings = Findings()
        self.renames_importers = False
        self._module = module
        self._package = package
        self._everywhere = everywhere
        self._tree = parsed.tree
        self._root = Block(None, Scope(), parsed.tree)
        self._lines = _lines_with(_WORTH_A_VISIT, parsed.text)
        self._lines_of_expressions = _lines_with(_IN_EXPRESSIONS, parsed.text)
        self._lines_of_exports = _lines_with(("__all__",), parsed.text)
        self._stack: list[tuple[ast.stmt, Block]] = []

    def run(self) -> None:
        self._push(self._tree.body, self._root)
        while self._stack:
            statement, block = self._stack.pop()
            self._visit(statement, block)
            if self._is_entered(statement):
                for statements, inside in reversed(list(_bodies(statement, block))):
                    self._push(statements, inside)

    def _push(self, statements: Sequence[ast.stmt], block: Block) -> None:
        self._stack.extend((statement, block) for statement in reversed(statements))

    def _is_entered(self, statement: ast.stmt) -> bool:
        """Whether to look into a statement that has others in it: always, short of scopes."""
        kind = type(statement)
        if kind in _SCOPES:
            return self._spans(statement, self._lines)
        return kind in _COMPOUND

    def _spans(self, statement: ast.stmt, lines: Sequence[int]) -> bool:
        return self._everywhere or _spans_any(statement, lines)

    def _visit(self, statement: ast.stmt, block: Block) -> None:
        if type(statement) in BINDING:
            for name, value in bindings(statement):
                self._bind(name, block, value)
        elif isinstance(statement, ast.Import):
            self._see_import(statement, block)
        elif isinstance(statement, ast.ImportFrom):
            self._see_import_from(statement, block)
        elif isinstance(statement, ast.Global):
            block.scope.declared_global.update(statement.names)
        elif isinstance(statement, ast.Delete):
            self._see_delete(statement, block)
        if _spans_any(statement, self._lines_of_exports) and mentions_exports(statement):
            self._see_exports(statement, block)
        if self._spans(statement, self._lines_of_expressions):
            self._visit_expressions(statement, block)

    def _bind(
        self, name: str, block: Block, value: ast.expr | None = None, meaning: str | None = None
    ) -> None:
        if meaning is None and isinstance(value, (ast.Name, ast.Attribute)):
            meaning = qualified_name(value, block.scope)
        in_module = block.scope.binds_in_module(name)
        scope = self._root.scope if in_module else block.scope
        scope.bind(name, meaning or f".{name}")
        if meaning is not None and meaning.endswith(_IMPORTERS):
            self.renames_importers |= not name.endswith(_IMPORTERS)
        if in_module:
            self.findings.bindings.append(Binding(name, block, value))

    def _see_import(self, statement: ast.Import, block: Block) -> None:
        self.findings.imports.append((statement, block))
        for alias in statement.names:
            if alias.asname is None:
                root = alias.name.partition(".")[0]
                self._bind(root, block, meaning=root)
            elif alias.name != f"{self._module}.{alias.asname}":
                self._bind(alias.asname, block, meaning=alias.name)

    def _see_import_from(self, statement: ast.ImportFrom, block: Block) -> None:
        self.findings.imports.append((statement, block))
        source = resolve_relative(self._package, statement.level, statement.module or "")
        for alias in statement.names:
            name = alias.asname or alias.name
            # ``from . import x`` in a package may well bind its submodule x.
            if alias.name != "*" and not (source == self._module and name == alias.name):
                self._bind(name, block, meaning=f"{source or ''}.{alias.name}")

    def _see_delete(self, statement: ast.Delete, block: Block) -> None:
        for target in statement.targets:
            if isinstance(target, ast.Name) and block.scope.binds_in_module(target.id):
                self.findings.bindings.append(Binding(target.id, block, deleted=True))

    def _see_exports(self, statement: ast.stmt, block: Block) -> None:
        if block.scope is self._root.scope:
            self.findings.exports.append((statement, block))
        elif isinstance(statement, ast.Expr) or block.scope.binds_in_module("__all__"):
            self.findings.exports_change_out_of_sight = True

    def _visit_expressions(self, statement: ast.stmt, block: Block) -> None:
        waiting: list[tuple[ast.AST, Block]] = [(node, block) for node in _parts_of(statement)]
        while waiting:
            node, here = waiting.pop()
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target.id, here, node.value)
            elif isinstance(node, ast.Call):
                self.findings.calls.append((node, here))
            waiting.extend(_subexpressions(node, here))


def _lines_with(words: Sequence[str], text: str) -> list[int]:
    """1-based numbers, ascending, of the lines that hold one of the words."""
    lines: list[int] = []
    for word in words:
        line, counted = 1, 0
        found = text.find(word)
        while found >= 0:
            line += text.count("\n", counted, found)
            counted = found
            if not _is_in_example(text, found):
                lines.append(line)
            found = text.find(word, found + len(word))
    return sorted(lines)


def _is_in_example(text: str, at: int) -> bool:
    """Whether a place is in the example of a docstring: no line of code begins with ``>>>``.

    A quarter of the walk of a library with such examples was spent on them.
    """
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before.lstrip().startswith(">>>") and not ('"' in before or "'" in before)


def _spans_any(statement: ast.stmt, lines: Sequence[int]) -> bool:
    """Whether one of the lines, which ascend, is among those that a statement is written on."""
    if not lines:
        return False
    following = bisect.bisect_left(lines, _first_line(statement))
    return following < len(lines) and lines[following] <= (statement.end_lineno or 0)


def _first_line(statement: ast.stmt) -> int:
    """Where a statement begins: with its first decorator, if it has one."""
    decorators = getattr(statement, "decorator_list", ())
    return decorators[0].lineno if decorators else statement.lineno


def _bodies(statement: ast.stmt, block: Block) -> Iterator[tuple[Sequence[ast.stmt], Block]]:
    """The runs of statements in a compound statement, each with the block that it makes."""
    if isinstance(statement, (ast.If, ast.For, ast.AsyncFor, ast.While)):
        yield statement.body, block.inside(statement)
        yield statement.orelse, block.inside(statement, Part.ELSE)
    elif isinstance(statement, ast.ClassDef):
        yield statement.body, block.inside(statement, scope=Scope(block.scope, owner=statement))
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.body, block.inside(statement, scope=_function_scope(statement, block))
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        yield statement.body, block.inside(statement)
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body, block.inside(statement)
    elif isinstance(statement, TRIES):
        yield statement.body, block.inside(statement)
        for handler in statement.handlers:
            yield handler.body, block.inside(handler)
        yield statement.orelse, block.inside(statement, Part.ELSE)
        yield statement.finalbody, block.inside(statement, Part.FINALLY)


def _function_scope(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, block: Block
) -> Scope:
    """A function's own scope, with its parameters in it."""
    parameters = function.args
    named = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
    starred = filter(None, (parameters.vararg, parameters.kwarg))
    names = {item.arg: f".{item.arg}" for item in (*named, *starred)}
    return Scope(block.scope, names, owner=function)


def _parts_of(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's own expressions; those of the statements inside it are left out."""
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.ExceptHandler):
            if node.type is not None:
                yield node.type
        elif isinstance(node, ast.match_case):
            yield node.pattern
            if node.guard is not None:
                yield node.guard
        elif not isinstance(node, ast.stmt):
            yield node


def _subexpressions(node: ast.AST, block: Block) -> Iterable[tuple[ast.AST, Block]]:
    if isinstance(node, ast.IfExp):
        yield node.test, block
        yield node.body, block.inside(node)
        yield node.orelse, block.inside(node, Part.ELSE)
    elif isinstance(node, ast.Lambda):
        yield node.args, block
        yield node.body, block.inside(node, scope=_function_scope(node, block))
    else:
        if isinstance(node, (*COMPREHENSIONS, ast.BoolOp)):
            block = block.inside(node)
        for child in ast.iter_child_nodes(node):
            yield child, block
