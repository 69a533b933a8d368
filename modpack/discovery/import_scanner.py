"""Imports of a module, read off its source without running any of it.

One pass over the statements, with a stack, finds what a module imports, calls and binds, and in
which block. The conditions, handlers and functions around a block say what that means.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from modpack.core.process import gc_paused
from modpack.core.scan import (
    BrokenImport,
    DynamicImport,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ScanFailure,
)
from modpack.discovery.conditions import ConditionEvaluator, ConditionResult, ImportContext
from modpack.discovery.data_files import find_reads
from modpack.discovery.definitions import defined_by
from modpack.discovery.dynamic_imports import CallReader, find_listings
from modpack.discovery.syntax import (
    COMPREHENSIONS,
    FUNCTIONS,
    Bindings,
    Block,
    BlockPart,
    Function,
    ParsedSource,
    Scope,
    bindings,
    binds_dynamically,
    bodies,
    has_line_in,
    lines_of,
    literal_string,
    literal_strings,
    parameters_of,
    parse_source,
    qualified_name,
    resolve_relative,
    targets_of,
)

_LONGEST_CALL = 80  # characters
# Where none of these words is, nothing matters: without that, scanning takes half as long again
# (benchmark row walk-sympy).
_IN_SCOPES = ("import", "global", "__all__", ":=")
"""One of these is in each function and class whose body matters."""
_IN_EXPRESSIONS = ("import_module", "__import__", ":=")
"""One of these is in each statement whose expressions matter, unless importers were renamed."""
_IMPORTERS = ("import_module", "__import__")


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
    # The tree is gone before the collector may run again. One search of it takes 5 ms.
    with gc_paused():
        parsed = parse_source(source)
        if isinstance(parsed, ScanFailure):
            return ModuleScan(failure=parsed)
        scanner = _Scanner(parsed, module, is_package)
        if scanner.renames_importers:
            scanner = _Scanner(parsed, module, is_package, everywhere=True)
        return scanner.result()


def presence_in(source: bytes, module: str, is_package: bool) -> Callable[[str], ConditionResult]:
    r"""Read a source for names such as ``HAS_X`` and ``is_x_available``.

    Args:
        source: the source; one that is no Python has no names.
        module: the module's name.
        is_package: whether it is a package's ``__init__``.

    Returns:
        Tells what a name of the module asks.

    >>> asked = presence_in(b"import sys\nHAS = 'x' in sys.modules\nN = 1", "lib", True)
    >>> asked("HAS").checks_presence, asked("N").checks_presence
    (True, False)
    """
    with gc_paused():
        parsed = parse_source(source)
        if isinstance(parsed, ScanFailure):
            return lambda name: ConditionResult()
        scanner = _Scanner(parsed, module, is_package)
    return lambda name: scanner.conditions.evaluate(ast.Name(name, ast.Load()), scanner.scope)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Found = tuple[int, int, ImportStatement | DynamicImport | BrokenImport]  # line, column, what


class _Scanner:
    """One walk over a module, and what its findings mean.

    Args:
        parsed: the source.
        module: the module's name.
        is_package: whether it is a package's ``__init__``.
        everywhere: Whether to look into scopes and expressions without the words that matter.

    Attributes:
        scope: the module's own.
        conditions: what conditions in the module ask.
        renames_importers: Whether a function that imports got another name.
    """

    def __init__(
        self, parsed: ParsedSource, module: str, is_package: bool, everywhere: bool = False
    ) -> None:
        self.scope = Scope()
        self._origins = Bindings()
        self.conditions = ConditionEvaluator(module, self._origins)
        self._parsed = parsed
        self._module = module
        self._package = module if is_package else module.rpartition(".")[0]
        self._imports: list[tuple[ast.Import | ast.ImportFrom, Block]] = []
        self._calls: list[tuple[ast.Call, Block]] = []
        # Names that statements give to the module; or take away from it, where the last is True.
        self._bindings: list[tuple[str, Block, bool]] = []
        self._exports: list[tuple[ast.stmt, Block]] = []
        self._exports_change_out_of_sight = False
        self._has_exports = _EXPORTS in parsed.text
        self.renames_importers = False
        self._everywhere = everywhere
        self._scope_lines = lines_of(_IN_SCOPES, parsed.text)
        self._expression_lines = lines_of(_IN_EXPRESSIONS, parsed.text)
        self._walk()

    def _walk(self) -> None:
        """See each statement in its turn, what is in a compound one right after itself."""
        root = Block(None, self.scope, self._parsed.tree)
        waiting: list[tuple[Iterator[ast.stmt], Block]] = [(iter(self._parsed.tree.body), root)]
        while waiting:
            statements, block = waiting.pop()
            for statement in statements:
                self._see(statement, block)
                inner = [
                    (iter(body), _block_in(block, owner, part))
                    for owner, part, body in bodies(statement)
                    if not isinstance(statement, _SCOPES)
                    or self._has_line(self._scope_lines, statement)
                ]
                if _may_leave(statement):
                    block = block.inside(statement, BlockPart.REST)
                if inner:
                    waiting += [(statements, block), *reversed(inner)]
                    break

    def _see(self, statement: ast.stmt, block: Block) -> None:
        if isinstance(statement, ast.Import):
            self._see_import(statement, block)
        elif isinstance(statement, ast.ImportFrom):
            self._see_import_from(statement, block)
        elif isinstance(statement, (Function, ast.ClassDef)):
            self._bind(statement.name, block, definition=statement)
        elif isinstance(statement, ast.Global):
            block.scope.declared_global.update(statement.names)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                if isinstance(target, ast.Name) and block.scope.binds_in_module(target.id):
                    self._bindings.append((target.id, block, True))
        else:
            for name, value in bindings(statement):
                self._bind(name, block, value)
        if self._has_exports and mentions_exports(statement):
            if block.scope is self.scope:
                self._exports.append((statement, block))
            elif isinstance(statement, ast.Expr) or block.scope.binds_in_module(_EXPORTS):
                self._exports_change_out_of_sight = True
        if self._has_line(self._expression_lines, statement):
            self._see_expressions(statement, block)

    def _has_line(self, lines: Sequence[int], statement: ast.stmt) -> bool:
        return self._everywhere or has_line_in(statement, lines)

    def _see_import(self, statement: ast.Import, block: Block) -> None:
        self._imports.append((statement, block))
        for alias in statement.names:
            if alias.asname is None:
                root = alias.name.partition(".")[0]
                self._bind(root, block, meaning=root)
            elif alias.name != f"{self._module}.{alias.asname}":
                self._bind(alias.asname, block, meaning=alias.name)

    def _see_import_from(self, statement: ast.ImportFrom, block: Block) -> None:
        self._imports.append((statement, block))
        source = resolve_relative(self._package, statement.level, statement.module or "")
        for alias in statement.names:
            name = alias.asname or alias.name
            meaning = f"{source or ''}.{alias.name}"
            # ``from . import x`` in a package may well bind its submodule x.
            if source == self._module and name == alias.name:
                block.scope.bind(name, meaning)
            elif alias.name != "*":
                self._bind(name, block, meaning=meaning)

    def _bind(
        self,
        name: str,
        block: Block,
        value: ast.expr | None = None,
        meaning: str | None = None,
        definition: ast.stmt | None = None,
    ) -> None:
        scope = block.scope
        if meaning is None and isinstance(value, (ast.Name, ast.Attribute)):
            meaning = qualified_name(value, scope)
        if meaning is not None and meaning.endswith(_IMPORTERS) and not name.endswith(_IMPORTERS):
            self.renames_importers = True
        if scope.binds_in_module(name):
            scope = self.scope
            self._bindings.append((name, block, False))
        scope.bind(name, meaning or f".{name}")
        self._origins.add(name, scope, block, value or definition)

    def _see_expressions(self, statement: ast.stmt, block: Block) -> None:
        """See what a statement's own expressions call and bind."""
        waiting: list[tuple[ast.AST, Block]] = [(statement, block)]
        while waiting:
            node, here = waiting.pop()
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target.id, here, node.value)
            elif isinstance(node, ast.Call):
                self._calls.append((node, here))
            waiting.extend(_subexpressions(node, here))

    def result(self) -> ModuleScan:
        """What the source says."""
        found = sorted((*self._statements(), *self._imports_by_call()), key=lambda item: item[:2])
        results = [result for _, _, result in found]
        return ModuleScan(
            imports=tuple(item for item in results if isinstance(item, ImportStatement)),
            unreadable=tuple(item for item in results if isinstance(item, DynamicImport)),
            broken_imports=tuple(item for item in results if isinstance(item, BrokenImport)),
            bound=self._bound(),
            binds_dynamically=binds_dynamically(self._parsed.text),
            exported=self._exported(),
            reads=find_reads(self._parsed, self._module, self._package),
            listings=find_listings(self._parsed, self._module, self._package),
            defined=defined_by(self._parsed),
        )

    def _statements(self) -> Iterator[_Found]:
        for statement, block in self._imports:
            context = self.conditions.context_of(block)
            position = (statement.lineno, statement.col_offset)
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    yield *position, _imported(alias.name, (), statement, context)
                continue
            module = resolve_relative(self._package, statement.level, statement.module or "")
            if module is not None:
                names = tuple(alias.name for alias in statement.names)
                yield *position, _imported(module, names, statement, context)
            elif not (context.never or context.guarded or context.optional):
                excerpt = _excerpt(self._parsed.text, statement)
                yield *position, BrokenImport(excerpt, statement.lineno)

    def _imports_by_call(self) -> Iterator[_Found]:
        reader = CallReader(self._module, self._package, self._origins, self.scope)
        for call, block in self._calls:
            reading = reader.read(call, block)
            if reading.readable and not reading.modules:
                continue
            context = self.conditions.context_of(block)
            position = (call.lineno, call.col_offset)
            for module in reading.modules:
                yield *position, _imported(module, reading.names, call, context)
            if not reading.readable and not context.never:
                excerpt = _excerpt(self._parsed.text, call)
                yield *position, DynamicImport(excerpt, call.lineno, context.guarded)

    def _bound(self) -> frozenset[str]:
        bound: set[str] = set()
        for name, block, is_deleted in self._bindings:
            if is_deleted:
                bound.discard(name)
            elif not self.conditions.context_of(block).never:
                bound.add(name)
        return frozenset(bound)

    def _exported(self) -> tuple[str, ...] | None:
        if self._exports_change_out_of_sight:
            return None
        return literal_exports(
            (statement, block.parent is None)
            for statement, block in self._exports
            if not self.conditions.context_of(block).never
        )


def _may_leave(statement: ast.stmt) -> bool:
    """Whether what follows a statement runs only if its condition says so."""
    if isinstance(statement, ast.If):
        return isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
    return isinstance(statement, ast.Assert)


def _block_in(block: Block, owner: ast.AST, part: BlockPart) -> Block:
    """The block that a part of a compound statement, or of an expression, makes."""
    if isinstance(owner, ast.ClassDef):
        return block.inside(owner, part, Scope(block.scope, owner=owner))
    if not isinstance(owner, FUNCTIONS):
        return block.inside(owner, part)
    names = {each.arg: f".{each.arg}" for each in parameters_of(owner)}
    return block.inside(owner, part, Scope(block.scope, names, owner=owner))


def _subexpressions(node: ast.AST, block: Block) -> Iterator[tuple[ast.AST, Block]]:
    """What is in an expression, or in a statement short of the statements inside it."""
    if isinstance(node, ast.IfExp):
        yield node.test, block
        yield node.body, block.inside(node)
        yield node.orelse, block.inside(node, BlockPart.ELSE)
    elif isinstance(node, ast.Lambda):
        yield node.args, block
        yield node.body, _block_in(block, node, BlockPart.BODY)
    else:
        if isinstance(node, (*COMPREHENSIONS, ast.BoolOp)):
            block = block.inside(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                yield child, block


def _imported(
    module: str, names: tuple[str, ...], node: ast.stmt | ast.expr, context: ImportContext
) -> ImportStatement:
    kind = ImportKind.REQUIRED
    if context.never:
        kind = ImportKind.TYPE_CHECKING
    elif context.guarded:
        kind = ImportKind.GUARDED
    elif isinstance(node, ast.Call):  # where it stands matters only if it may fail or never runs
        kind = ImportKind.DYNAMIC
    elif context.in_function:
        kind = ImportKind.FUNCTION
    optional, condition_names = context.optional, context.condition_names
    return ImportStatement(module, names, kind, node.lineno, optional, condition_names)


def _excerpt(text: str, node: ast.stmt | ast.expr) -> str:
    """A node as written, in one line and cut to a readable length."""
    last = node.end_lineno or node.lineno
    lines = [line.encode() for line in text.split("\n")[node.lineno - 1 : last]]
    lines[-1] = lines[-1][: node.end_col_offset]  # columns count bytes
    lines[0] = lines[0][node.col_offset :]
    excerpt = " ".join(b" ".join(lines).decode().split())
    return excerpt if len(excerpt) <= _LONGEST_CALL else excerpt[: _LONGEST_CALL - 3] + "..."


_EXPORTS = "__all__"


def mentions_exports(statement: ast.stmt) -> bool:
    """Whether a statement assigns ``__all__`` or calls one of its methods."""
    if isinstance(statement, ast.Expr):
        return _called_method(statement.value) is not None
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == _EXPORTS for alias in statement.names)
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        parts = (node for target in targets_of(statement) for node in ast.walk(target))
        return any(map(_is_exports, parts))
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
            either = dict.fromkeys((*(exported or ()), *names))
            exported = names if starts_afresh else tuple(either)
    return None if computed else exported


def _names_after(statement: ast.stmt, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """All names in ``__all__`` after a statement; None if they are computed."""
    more: tuple[str, ...] | None = None
    if isinstance(statement, ast.Assign):
        plain = all(_is_exports(target) for target in statement.targets)
        return _concatenated(statement.value, before) if plain else None
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return _concatenated(statement.value, before)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        more = _concatenated(statement.value, before)
    elif isinstance(statement, ast.Expr):
        more = _added_by_call(statement.value, before)
    return None if more is None else before + more


def _added_by_call(call: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    method = _called_method(call)
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    if method in ("sort", "reverse") and not call.args:
        return ()
    if len(call.args) != 1:
        return None
    if method == "extend":
        return _concatenated(call.args[0], before)
    text = literal_string(call.args[0]) if method == "append" else None
    return None if text is None else (text,)


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
