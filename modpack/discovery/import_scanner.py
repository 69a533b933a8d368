"""A static scanner for imports and bindings, which never runs the source.

One pass over the statements, with a stack, finds imports, calls, and bindings with their blocks.
The conditions, handlers, and functions around a block determine the kind of each import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from modpack.core.process import gc_paused
from modpack.core.scan import (
    DynamicImport,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ScanFailure,
)
from modpack.discovery.conditions import ContextReader, ImportContext
from modpack.discovery.dynamic_imports import CallReader, may_import_listed
from modpack.discovery.file_names import find_file_names
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
    bodies,
    contains_line,
    import_bindings,
    inner_scope,
    keyword_lines,
    literal_strings,
    parse_source,
    qualified_name,
    resolve_relative,
    targets_of,
)

_MAX_EXCERPT = 80  # characters
# Code without these keywords is skipped. Otherwise, a cold scan of 200 modules of torch, rich, and
# click takes twice the CPU time (benchmark row walk-sympy).
_SCOPE_KEYWORDS = ("import", "global", "__all__", ":=")
"""Each relevant function or class body contains one of these."""
_EXPRESSION_KEYWORDS = ("import_module", "import__", ":=")
"""Each relevant expression contains one of these, unless the source renames an importer."""
_IMPORTERS = ("import_module", "__import__")


def scan_source(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    """Scan a source for its imports and the names that it binds.

    Nothing is executed or imported. Nesting of any depth is scanned if Python's parser accepts it;
    a parse error is part of the result.

    Args:
        source: Text, or bytes with or without a byte order mark and a coding cookie (PEP 263).
        module: Absolute name of the module, from which relative imports start (PEP 328).
        is_package: Whether the source is a Python package's ``__init__``.

    Returns:
        The scan result.

    >>> scan = scan_source("from . import tools", "pkg.core", is_package=False)
    >>> scan.imports[0].module, scan.imports[0].names
    ('pkg', ('tools',))
    >>> scan_source("x = = 1", "pkg.core", is_package=False).failure.line
    1
    """
    with gc_paused():
        return _scan(source, module, is_package)


def _scan(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    # A function of its own, so that the tree is freed before the collector runs again: traversing
    # it takes 1 ms (8 % of a scan of 200 modules of torch, rich, and click).
    parsed = parse_source(source)
    if isinstance(parsed, ScanFailure):
        return ModuleScan(failure=parsed)
    scanner = _Scanner(parsed, module, is_package)
    # The keywords do not find calls by another name, so the second pass skips nothing.
    if scanner.renames_importers:
        scanner = _Scanner(parsed, module, is_package, everywhere=True)
    return scanner.result()


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Found = tuple[int, int, ImportStatement | DynamicImport]  # line, column, what


class _Scanner:
    """One pass over a module.

    Args:
        parsed: Parsed source.
        module: Absolute name of the module.
        is_package: Whether the source is a Python package's ``__init__``.
        everywhere: Whether to visit scopes and expressions without keywords, too.

    Attributes:
        scope: Scope of the module.
        renames_importers: Whether the source gives another name to a function that imports.
    """

    def __init__(
        self, parsed: ParsedSource, module: str, is_package: bool, everywhere: bool = False
    ) -> None:
        self.scope = Scope()
        self._values = Bindings()
        self._contexts = ContextReader(self._values)
        self._parsed = parsed
        self._module = module
        self._package = module if is_package else module.rpartition(".")[0]
        self._imports: list[tuple[ast.Import | ast.ImportFrom, Block]] = []
        self._calls: list[tuple[ast.Call, Block]] = []
        # Names that statements bind in the module, or delete, where the last item is True.
        self._bindings: list[tuple[str, Block, bool]] = []
        self._exports: list[tuple[ast.stmt, Block]] = []
        self._exports_change_in_function = False
        self._has_exports = _EXPORTS in parsed.text
        self.renames_importers = False
        self._everywhere = everywhere
        keywords = keyword_lines(_SCOPE_KEYWORDS, parsed.text)
        self._scope_lines = [line for line, _ in keywords]
        self._expression_lines = [
            line for line, start in keywords if parsed.text.startswith(_EXPRESSION_KEYWORDS, start)
        ]
        self._walk()

    def _walk(self) -> None:
        """Visit all statements in source order."""
        root = Block(None, self.scope, self._parsed.tree)
        pending: list[tuple[Iterator[ast.stmt], Block]] = [(iter(self._parsed.tree.body), root)]
        while pending:
            statements, block = pending.pop()
            for statement in statements:
                self._visit(statement, block)
                inner = [
                    (iter(body), _enter_block(block, owner, part))
                    for owner, part, body in bodies(statement)
                    if not isinstance(statement, _SCOPES)
                    or self._has_line(self._scope_lines, statement)
                ]
                if _is_conditional_exit(statement):
                    block = block.inside(statement, BlockPart.FOLLOWING)
                # The iterator keeps its position: the rest of this block follows its inner blocks.
                if inner:
                    pending += [(statements, block), *reversed(inner)]
                    break

    def _visit(self, statement: ast.stmt, block: Block) -> None:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._visit_import(statement, block)
        elif isinstance(statement, (Function, ast.ClassDef)):
            self._bind(statement.name, block)
        elif isinstance(statement, ast.Global):
            block.scope.declared_global.update(statement.names)
        elif isinstance(statement, ast.Delete):
            # A deleted name is no attribute, so it does not hide a submodule of that name.
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    if block.scope.binder_of(target.id) is self.scope:
                        self._bindings.append((target.id, block, True))
        else:
            for name, value in bindings(statement):
                self._bind(name, block, value)
        if self._has_exports and mentions_exports(statement):
            if block.scope is self.scope:
                self._exports.append((statement, block))
            elif isinstance(statement, ast.Expr) or block.scope.binder_of(_EXPORTS) is self.scope:
                self._exports_change_in_function = True
        if self._has_line(self._expression_lines, statement):
            self._visit_expressions(statement, block)

    def _has_line(self, lines: Sequence[int], statement: ast.stmt) -> bool:
        return self._everywhere or contains_line(statement, lines)

    def _visit_import(self, statement: ast.Import | ast.ImportFrom, block: Block) -> None:
        self._imports.append((statement, block))
        for name, meaning in import_bindings(statement, self._package):
            # ``from . import x`` in a package may bind its submodule x, so x is not an attribute.
            if meaning == f"{self._module}.{name}":
                block.scope.bind(name, meaning)
            elif name != "*":
                self._bind(name, block, meaning=meaning)

    def _bind(
        self,
        name: str,
        block: Block,
        value: ast.expr | None = None,
        meaning: str | None = None,
    ) -> None:
        scope = block.scope.binder_of(name)
        if meaning is None and isinstance(value, (ast.Name, ast.Attribute)):
            meaning = qualified_name(value, block.scope)
        if meaning is not None and meaning.endswith(_IMPORTERS) and not name.endswith(_IMPORTERS):
            self.renames_importers = True
        if scope is self.scope:
            self._bindings.append((name, block, False))
        scope.bind(name, meaning or f".{name}")
        self._values.add(name, scope, block.scope, value)

    def _visit_expressions(self, statement: ast.stmt, block: Block) -> None:
        """Find the calls and bindings in a statement's own expressions."""
        pending: list[tuple[ast.AST, Block]] = [(statement, block)]
        while pending:
            node, inner = pending.pop()
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target.id, inner, node.value)
            elif isinstance(node, ast.Call):
                self._calls.append((node, inner))
            elif isinstance(node, COMPREHENSIONS):
                inner = inner.inside(node, scope=inner_scope(node, inner.scope))
            pending.extend(_subexpressions(node, inner))

    def result(self) -> ModuleScan:
        """Return the scan of the source."""
        found = [*self._imports_by_statement(), *self._imports_by_call()]
        # By position only: the fields of the records have different types and do not compare.
        results = [item for _, _, item in sorted(found, key=lambda each: each[:2])]
        return ModuleScan(
            imports=tuple(item for item in results if isinstance(item, ImportStatement)),
            unreadable=tuple(item for item in results if isinstance(item, DynamicImport)),
            bound=self._bound(),
            exported=self._exported(),
            file_names=find_file_names(self._parsed),
            imports_listed=may_import_listed(self._parsed.text),
        )

    def _imports_by_statement(self) -> Iterator[_Found]:
        for statement, block in self._imports:
            context = self._contexts.context_of(block)
            position = (statement.lineno, statement.col_offset)
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    yield *position, _import_statement(alias.name, (), statement, context)
                continue
            module = resolve_relative(self._package, statement.level, statement.module or "")
            if module is not None:  # otherwise it is beyond the top level, and always fails
                names = tuple(alias.name for alias in statement.names)
                yield *position, _import_statement(module, names, statement, context)

    def _imports_by_call(self) -> Iterator[_Found]:
        reader = CallReader(self._module, self._package, self._values)
        for call, block in self._calls:
            reading = reader.read(call, block.scope)
            # Most calls import nothing and need no context.
            if reading.readable and reading.module is None:
                continue
            context = self._contexts.context_of(block)
            position = (call.lineno, call.col_offset)
            if reading.module is not None:
                found = _import_statement(reading.module, reading.names, call, context)
                yield *position, found
            if not reading.readable and not context.never:
                excerpt = _excerpt(self._parsed.text, call)
                yield *position, DynamicImport(excerpt, call.lineno, context.guarded)

    def _bound(self) -> frozenset[str]:
        bound: set[str] = set()
        # In source order, so that a later binding of a deleted name counts.
        for name, block, is_deleted in self._bindings:
            if is_deleted:
                bound.discard(name)
            elif not self._contexts.context_of(block).never:
                bound.add(name)
        return frozenset(bound)

    def _exported(self) -> tuple[str, ...] | None:
        if self._exports_change_in_function:
            return None
        return literal_exports(
            statement
            for statement, block in self._exports
            if not self._contexts.context_of(block).never
        )


def _is_conditional_exit(statement: ast.stmt) -> bool:
    """Return whether the condition of a statement decides if the following ones run."""
    if isinstance(statement, ast.If):
        return isinstance(statement.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
    return isinstance(statement, ast.Assert)


def _enter_block(block: Block, owner: ast.AST, part: BlockPart) -> Block:
    """Return the block for a part of a compound statement or an expression."""
    if isinstance(owner, (*FUNCTIONS, ast.ClassDef)):
        return block.inside(owner, part, inner_scope(owner, block.scope))
    if isinstance(owner, ast.ExceptHandler) and owner.name is not None:
        block.scope.bind(owner.name, f".{owner.name}")
    return block.inside(owner, part)


def _subexpressions(node: ast.AST, block: Block) -> Iterator[tuple[ast.AST, Block]]:
    """Yield the parts of an expression, or of a statement without its nested statements."""
    if isinstance(node, ast.IfExp):
        yield node.test, block
        yield node.body, block.inside(node)
        yield node.orelse, block.inside(node, BlockPart.ELSE)
    elif isinstance(node, ast.Lambda):
        yield node.args, block
        yield node.body, _enter_block(block, node, BlockPart.BODY)
    else:
        # As in ``has_x and import_module("x")``, one operand may be the condition of another.
        if isinstance(node, ast.BoolOp):
            block = block.inside(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                yield child, block


def _import_statement(
    module: str, names: tuple[str, ...], node: ast.stmt | ast.expr, context: ImportContext
) -> ImportStatement:
    # Several kinds may apply. Those that let the module be absent come first.
    kind = ImportKind.REQUIRED
    if context.never:
        kind = ImportKind.TYPE_CHECKING
    elif context.guarded:
        kind = ImportKind.GUARDED
    elif isinstance(node, ast.Call):  # dynamic, whether in a function or not
        kind = ImportKind.DYNAMIC
    elif context.in_function:
        kind = ImportKind.FUNCTION
    return ImportStatement(module, names, kind, node.lineno, context.optional)


def _excerpt(text: str, node: ast.stmt | ast.expr) -> str:
    """Return a node's source on one line, shortened."""
    # Not splitlines(), which also splits at form feeds and would shift the numbers of lines.
    last = node.end_lineno or node.lineno
    lines = [line.encode() for line in text.split("\n")[node.lineno - 1 : last]]
    lines[-1] = lines[-1][: node.end_col_offset]  # columns count bytes
    lines[0] = lines[0][node.col_offset :]
    excerpt = " ".join(b" ".join(lines).decode().split())
    return excerpt if len(excerpt) <= _MAX_EXCERPT else excerpt[: _MAX_EXCERPT - 3] + "..."


_EXPORTS = "__all__"


def mentions_exports(statement: ast.stmt) -> bool:
    """Return whether a statement assigns ``__all__`` or calls one of its methods."""
    if isinstance(statement, ast.Expr):
        method = statement.value.func if isinstance(statement.value, ast.Call) else None
        return isinstance(method, ast.Attribute) and _is_exports(method.value)
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == _EXPORTS for alias in statement.names)
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        parts = (node for target in targets_of(statement) for node in ast.walk(target))
        return any(map(_is_exports, parts))
    return any(name == _EXPORTS for name, _ in bindings(statement))


def literal_exports(statements: Iterable[ast.stmt]) -> tuple[str, ...] | None:
    """Return the names that some assignments add to ``__all__``; None if one is computed.

    Names of alternatives, and those before another assignment, count as well. After a method call,
    such as ``__all__.extend(names)``, the loaded submodules show the names.

    Args:
        statements: Statements that change ``__all__``, in source order.
    """
    exported: dict[str, None] = {}
    is_known = False
    for statement in statements:
        value: ast.expr | None = None
        if isinstance(statement, ast.Assign):
            value = statement.value if all(map(_is_exports, statement.targets)) else None
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            is_sum = isinstance(getattr(statement, "op", ast.Add()), ast.Add)
            value = statement.value if is_sum else None
        names = None if value is None else _concatenate(value, tuple(exported))
        if names is None:
            return None
        is_known = True
        exported.update(dict.fromkeys(names))
    return tuple(exported) if is_known else None


def _concatenate(value: ast.expr, before: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the strings in a sum of literal lists, literal tuples, and ``__all__``."""
    names: list[str] = []
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            pending.extend((node.right, node.left))
            continue
        strings = before if _is_exports(node) else literal_strings(node)
        if strings is None:
            return None
        names.extend(strings)
    return tuple(names)


def _is_exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _EXPORTS
