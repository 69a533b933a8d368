"""What a module's source says about its imports, without running any of it.

The names that a module exports: its ``__all__``, where that can be read.

One pass over a syntax tree, with a stack: what it binds, imports and calls, and where.

Most of a source is the inside of functions that import nothing. The words that matter are looked
for in its text first, and functions, classes and expressions without any of them are left out.

Scanning a source: its tree, and what the findings of the walk through it mean.

Whether a name of a module tells that some other module is there, asked from outside.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from modpack.core.process import collection_paused
from modpack.core.scan import (
    AstrayImport,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ScanFailure,
    UnreadableImport,
)
from modpack.discovery.conditions import Answer, Conditions, Presence, Standing
from modpack.discovery.constants import StaticStrings, literal_strings
from modpack.discovery.data_files import find_reads
from modpack.discovery.definitions import defined_by
from modpack.discovery.dynamic_imports import find_listings, read_call
from modpack.discovery.syntax import (
    BINDING,
    COMPREHENSIONS,
    TRIES,
    Block,
    Origins,
    ParsedSource,
    Part,
    Scope,
    assigned_names,
    bindings,
    binds_unseen,
    child_nodes,
    lines_at,
    parse_source,
    places_of,
    qualified_name,
    resolve_relative,
    spans_any,
)


def scan_source(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    """Read a module's imports, and the names that it binds, from its source.

    Nothing is executed or imported, and no nesting is too deep: what Python's own parser
    accepts is scanned, what it refuses is a failure in the result.

    Args:
        source: text, or bytes with or without a byte order mark and a coding cookie (PEP 263).
        module: the module's absolute name, from which relative imports start (PEP 328).
        is_package: whether the source is a package's ``__init__``.

    Returns:
        Its imports with their kinds, and what else
        :class:`~modpack.core.scan.ModuleScan` holds.

    >>> scan = scan_source("from . import tools", "pkg.core", is_package=False)
    >>> scan.imports[0].module, scan.imports[0].names
    ('pkg', ('tools',))
    >>> scan_source("x = = 1", "pkg.core", is_package=False).failure.line
    1
    """
    with collection_paused():
        # 5 ms that a process need not pay whose sources have all been scanned before

        return scanned(source, module, is_package)  # whose tree is gone when it returns


_EXPORTS = "__all__"


def mentions_exports(statement: ast.stmt) -> bool:
    """Whether a statement assigns ``__all__`` or calls one of its methods."""
    if isinstance(statement, ast.Expr):
        return _called_method(statement.value) is not None
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == _EXPORTS for alias in statement.names)
    if isinstance(statement, ast.Delete):
        return any(_EXPORTS in assigned_names(target) for target in statement.targets)
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(_is_exports(node) for target in targets for node in ast.walk(target))
    return any(name == _EXPORTS for name, _ in bindings(statement))


def literal_exports(statements: Iterable[tuple[ast.stmt, bool]]) -> tuple[str, ...] | None:
    """The value of ``__all__`` after some statements, if all of them are literal.

    Args:
        statements: those that touch ``__all__``, in source order, each with whether it runs
            unconditionally. A conditional assignment adds to what is there: either may hold.
    """
    exported: tuple[str, ...] | None = None
    computed = False
    for statement, unconditional in statements:
        names = _names_after(statement, exported or ())
        starts_afresh = isinstance(statement, (ast.Assign, ast.AnnAssign)) and unconditional
        computed = names is None or (computed and not starts_afresh)
        if names is not None:
            exported = names if starts_afresh else _union(exported or (), names)
    return None if computed else exported


def _union(names: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def _names_after(statement: ast.stmt, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """All that ``__all__`` holds after a statement; None if that is computed."""
    if isinstance(statement, ast.Assign):
        plain = all(_is_exports(target) for target in statement.targets)
        return _concatenated(statement.value, before) if plain else None
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return _concatenated(statement.value, before)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        more = _concatenated(statement.value, before)
        return None if more is None else before + more
    if isinstance(statement, ast.Expr):
        more = _added_by_call(statement.value, before)
        return None if more is None else before + more
    return None


def _added_by_call(call: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    method = _called_method(call)
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    if method in ("sort", "reverse") and not call.args:
        return ()
    if len(call.args) != 1:
        return None
    argument = call.args[0]
    if method == "extend":
        return _concatenated(argument, before)
    if method == "append" and isinstance(argument, ast.Constant):
        return (argument.value,) if isinstance(argument.value, str) else None
    return None


def _concatenated(value: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """The strings in a sum of literal lists and tuples, and of ``__all__`` itself."""
    names: list[str] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            waiting.extend((node.right, node.left))
            continue
        strings = before if _is_exports(node) else literal_strings(node)
        if strings is None:
            return None
        names.extend(strings)
    return tuple(names)


def _called_method(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr if _is_exports(node.func.value) else None
    return None


def _is_exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _EXPORTS


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


_LONGEST_CALL = 80  # characters


def scanned(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    """What :func:`modpack.discovery.import_scanner.scan_source` says."""
    parsed = parse_source(source)
    if isinstance(parsed, ScanFailure):
        return ModuleScan(failure=parsed)
    return _Scan(parsed, module, is_package).result()


_Found = tuple[int, int, ImportStatement | UnreadableImport | AstrayImport]  # line, column, what


class _Scan:
    """Turns the findings of the walk into values."""

    def __init__(self, parsed: ParsedSource, module: str, is_package: bool) -> None:
        self._parsed = parsed
        self._module = module
        self._text = parsed.text
        self._package = module if is_package else module.rpartition(".")[0]
        self._findings = collect(parsed, module, self._package)
        self._conditions = Conditions(module, self._findings.origins)
        values = _values_by_name(self._findings.bindings)
        self._strings = StaticStrings(module, self._package, values)

    def result(self) -> ModuleScan:
        found = sorted((*self._statements(), *self._calls()), key=lambda item: item[:2])
        results = [result for _, _, result in found]
        return ModuleScan(
            imports=tuple(item for item in results if isinstance(item, ImportStatement)),
            unreadable=tuple(item for item in results if isinstance(item, UnreadableImport)),
            astray=tuple(item for item in results if isinstance(item, AstrayImport)),
            bound=self._bound(),
            binds_unseen=binds_unseen(self._text),
            exported=self._exported(),
            reads=find_reads(self._parsed, self._module, self._package),
            listings=find_listings(self._parsed, self._module, self._package),
            defined=defined_by(self._parsed),
        )

    def _statements(self) -> Iterator[_Found]:
        for statement, block in self._findings.imports:
            standing = self._conditions.standing(block)
            position = (statement.lineno, statement.col_offset)
            for item in self._modules_of(statement, standing):
                yield *position, item

    def _modules_of(
        self, statement: ast.Import | ast.ImportFrom, standing: Standing
    ) -> Iterator[ImportStatement | AstrayImport]:
        kind = _kind(standing)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield ImportStatement(
                    alias.name, (), kind, statement.lineno, standing.optional, standing.asked
                )
            return
        module = resolve_relative(self._package, statement.level, statement.module or "")
        if module is not None:
            names = tuple(alias.name for alias in statement.names)
            yield ImportStatement(
                module, names, kind, statement.lineno, standing.optional, standing.asked
            )
        elif not (standing.never or standing.guarded or standing.optional):
            yield AstrayImport(_excerpt(self._text, statement), statement.lineno)

    def _calls(self) -> Iterator[_Found]:
        for call, block in self._findings.calls:
            reading = read_call(call, block, self._strings, self._package)
            if reading.readable and not reading.modules:
                continue
            standing = self._conditions.standing(block)
            kind = _kind_of_call(standing)
            position = (call.lineno, call.col_offset)
            for module in reading.modules:
                found = ImportStatement(
                    module, reading.names, kind, call.lineno, standing.optional, standing.asked
                )
                yield *position, found
            if not reading.readable and not standing.never:
                yield *position, self._unreadable(call, standing)

    def _unreadable(self, node: ast.stmt | ast.expr, standing: Standing) -> UnreadableImport:
        return UnreadableImport(_excerpt(self._text, node), node.lineno, standing.guarded)

    def _bound(self) -> frozenset[str]:
        bound: set[str] = set()
        blocks = {binding.block for binding in self._findings.bindings}
        never = {block for block in blocks if self._conditions.standing(block).never}
        for name, block, _, is_deleted in self._findings.bindings:
            if is_deleted:
                bound.discard(name)
            elif block not in never:
                bound.add(name)
        return frozenset(bound)

    def _exported(self) -> tuple[str, ...] | None:
        if self._findings.exports_change_out_of_sight:
            return None
        return literal_exports(
            (statement, block.parent is None)
            for statement, block in self._findings.exports
            if not self._conditions.standing(block).never
        )


def _values_by_name(bindings: Iterable[Binding]) -> dict[str, list[ast.expr | None]]:
    values: dict[str, list[ast.expr | None]] = defaultdict(list)
    for binding in bindings:
        values[binding.name].append(binding.value)
    return values


def _kind(standing: Standing) -> ImportKind:
    if standing.never:
        return ImportKind.TYPE_CHECKING
    if standing.guarded:
        return ImportKind.GUARDED
    return ImportKind.FUNCTION if standing.in_function else ImportKind.REQUIRED


def _kind_of_call(standing: Standing) -> ImportKind:
    """Where a call stands matters only if it may fail or never runs."""
    kind = _kind(standing)
    return kind if kind.may_be_absent else ImportKind.DYNAMIC


def _excerpt(text: str, node: ast.stmt | ast.expr) -> str:
    """A node as written, in one line and cut to a readable length."""
    last = node.end_lineno or node.lineno
    lines = [line.encode() for line in text.split("\n")[node.lineno - 1 : last]]
    lines[-1] = lines[-1][: node.end_col_offset]  # columns count bytes
    lines[0] = lines[0][node.col_offset :]
    excerpt = " ".join(b" ".join(lines).decode().split())
    return excerpt if len(excerpt) <= _LONGEST_CALL else excerpt[: _LONGEST_CALL - 3] + "..."


def presence_in(source: bytes, module: str, is_package: bool) -> Callable[[str], Answer]:
    r"""Read a source for names such as ``HAS_X`` and ``is_x_available``.

    Args:
        source: the source; one that is no Python has no names.
        module: the module's name.
        is_package: whether it is a package's ``__init__``.

    Returns:
        Tells what a name of the module asks.

    >>> asked = presence_in(b"import sys\nHAS = 'x' in sys.modules\nN = 1", "lib", True)
    >>> asked("HAS").is_told, asked("N").is_told
    (True, False)
    """
    with collection_paused():
        parsed = parse_source(source)
        if isinstance(parsed, ScanFailure):
            return lambda name: Answer()
        findings = collect(parsed, module, module if is_package else module.rpartition(".")[0])
    presence = Presence(module, findings.origins)
    return lambda name: presence.asked_by(ast.Name(name, ast.Load()), findings.scope)
