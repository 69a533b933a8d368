"""One pass over a syntax tree, with a stack: what it binds, imports and calls, and where.

Most of a source is the inside of functions that import nothing. The words that matter are looked
for in its text first, and functions, classes and expressions without any of them are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from modpack.discovery._bindings import BINDING, assigned_names, bindings
from modpack.discovery._blocks import Block, Origins, Part, Scope, qualified_name, resolve_relative
from modpack.discovery._exports import mentions_exports
from modpack.discovery._nodes import COMPREHENSIONS, TRIES, child_nodes
from modpack.discovery._parse import ParsedSource
from modpack.discovery._wordlines import lines_at, places_of, spans_any

__all__ = ["Binding", "Findings", "collect"]

_IMPORTERS = ("import_module", "__import__")
_SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_CHAINS = (ast.Name, ast.Attribute)
_LEAVING = frozenset({ast.If, ast.Assert})
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
        scope: the module's own.
        origins: what its names, and those of its functions and classes, are bound to.
    """

    imports: list[tuple[ast.Import | ast.ImportFrom, Block]] = field(default_factory=list)
    calls: list[tuple[ast.Call, Block]] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    exports: list[tuple[ast.stmt, Block]] = field(default_factory=list)
    exports_change_out_of_sight: bool = False
    scope: Scope = field(default_factory=Scope)
    origins: Origins = field(default_factory=Origins)


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
        self._root = Block(None, self.findings.scope, parsed.tree)
        text = parsed.text
        # In all that matters of functions and classes stands one of these; import in importers.
        imports, exports = list(places_of("import", text)), list(places_of("__all__", text))
        self._lines = lines_at([*imports, *places_of("global", text), *exports], text)
        self._lines_of_exports = lines_at(exports, text)
        # In expressions that matter, as long as importers keep their names.
        importers = [at for at in imports if _is_importer(text, at)]
        self._lines_of_expressions = lines_at([*importers, *places_of(":=", text)], text)
        self._has_words = bool(everywhere or exports or self._lines_of_expressions)

    def run(self) -> None:
        """See each statement in its turn, what is in a compound one right after itself."""
        see = self._seeing()
        waiting: list[tuple[Iterator[ast.stmt], Block]] = [(iter(self._tree.body), self._root)]
        while waiting:
            statements, block = waiting[-1]
            for statement in statements:
                kind = type(statement)
                if kind in see:
                    see[kind](statement, block)
                if self._has_words:
                    self._see_words(statement, block)
                around = block
                if kind in _LEAVING and _leaves(statement):
                    block = block.inside(statement, Part.REST)
                    waiting[-1] = statements, block
                if kind in _COMPOUND and self._is_entered(statement):
                    bodies = reversed(list(_bodies(statement, around)))
                    waiting.extend((iter(body), inside) for body, inside in bodies)
                    break
            else:
                waiting.pop()

    def _seeing(self) -> Mapping[type[ast.stmt], Callable[[Any, Block], None]]:
        """What to do with each kind of statement; a table, since most kinds need nothing."""
        return {
            **dict.fromkeys(BINDING, self._see_binding),
            **dict.fromkeys(_SCOPES, self._see_definition),
            ast.Assign: self._see_assignment,
            ast.Import: self._see_import,
            ast.ImportFrom: self._see_import_from,
            ast.Global: self._see_global,
            ast.Delete: self._see_delete,
        }

    def _is_entered(self, statement: ast.stmt) -> bool:
        """Whether to look into a compound statement: always, short of scopes."""
        return type(statement) not in _SCOPES or self._spans(statement, self._lines)

    def _spans(self, statement: ast.stmt, lines: Sequence[int]) -> bool:
        return self._everywhere or spans_any(statement, lines)

    def _see_words(self, statement: ast.stmt, block: Block) -> None:
        exports = self._lines_of_exports
        if exports and spans_any(statement, exports) and mentions_exports(statement):
            self._see_exports(statement, block)
        if self._spans(statement, self._lines_of_expressions):
            self._visit_expressions(statement, block)

    def _bind(
        self,
        name: str,
        block: Block,
        value: ast.expr | None = None,
        meaning: str | None = None,
        definition: ast.stmt | None = None,
    ) -> None:
        scope = block.scope
        if meaning is None and value is not None and type(value) in _CHAINS:
            meaning = qualified_name(value, scope)
        if meaning is not None and meaning.endswith(_IMPORTERS):
            self.renames_importers |= not name.endswith(_IMPORTERS)
        if scope.binds_in_module(name):
            scope = self._root.scope
            self.findings.bindings.append(Binding(name, block, value))
        scope.bind(name, meaning or f".{name}")
        self.findings.origins.add(name, scope, block, value or definition)

    def _see_binding(self, statement: ast.stmt, block: Block) -> None:
        for name, value in bindings(statement):
            self._bind(name, block, value)

    def _see_assignment(self, statement: ast.Assign, block: Block) -> None:
        """As :func:`bindings` tells it, without its detours: most names come this way."""
        for target in statement.targets:
            if isinstance(target, ast.Name):
                self._bind(target.id, block, statement.value)
            else:
                for name in assigned_names(target):
                    self._bind(name, block)

    def _see_definition(
        self, statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, block: Block
    ) -> None:
        self._bind(statement.name, block, definition=statement)

    def _see_global(self, statement: ast.Global, block: Block) -> None:
        block.scope.declared_global.update(statement.names)

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
            meaning = f"{source or ''}.{alias.name}"
            # ``from . import x`` in a package may well bind its submodule x.
            if source == self._module and name == alias.name:
                block.scope.bind(name, meaning)
            elif alias.name != "*":
                self._bind(name, block, meaning=meaning)

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


def _leaves(statement: ast.stmt) -> bool:
    """Whether what follows a statement runs only if its condition says so."""
    if isinstance(statement, ast.If):
        return isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
    return True


def _is_importer(text: str, at: int) -> bool:
    """Whether ``import``, at a place in a text, is a part of the name of a function."""
    return text.startswith("import_module", at) or text.startswith("__import__", at - 2)


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
    for node in child_nodes(statement):
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
        for child in child_nodes(node):
            yield child, block
