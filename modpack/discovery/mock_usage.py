"""Static search for the locations where packaged code uses mocked modules.

The search says where a mock is used, and not whether the code runs: that is what a self-test
observes. It follows the names that imports and plain aliases bind, from module to module. Other
values, such as results of calls or attributes of objects, are not followed.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from modpack.core.graph import DependencyGraph
from modpack.core.names import parents
from modpack.core.plan import MockUse, UseKind
from modpack.core.process import gc_paused
from modpack.core.scan import ImportKind
from modpack.discovery.conditions import known_truth
from modpack.discovery.syntax import (
    Function,
    ParsedSource,
    Scope,
    bindings,
    dotted_name,
    import_bindings,
    inner_scope,
    is_type_checking,
    last_name,
    literal_string,
    parameters_of,
    parse_source,
    qualified_name,
)

Sources: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""Sources of interned modules, each with whether the module is a Python package."""

_STATEMENTS = (ImportKind.REQUIRED, ImportKind.FUNCTION, ImportKind.GUARDED, ImportKind.DYNAMIC)
_KEEPS_KIND = (ast.Tuple, ast.List, ast.Starred, ast.IfExp, ast.BoolOp, ast.BinOp)
_SAFE_COMPARISONS = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
_TYPE_CHECKS = frozenset({"isinstance", "issubclass", "hasattr", "callable", "type", "id"})
_EXCEPTIONS = ("Error", "Exception", "Warning")
_BUILTINS = frozenset(vars(builtins))
_MAX_STEPS = 20
"""Limit for the modules that pass a name on. A longer chain is a cycle."""


@gc_paused()  # garbage collection of torch's objects took half of the time
def find_uses(
    sources: Sources, mocked: Collection[str], graph: DependencyGraph
) -> tuple[MockUse, ...]:
    r"""Find the uses of mocked modules' names in interned modules.

    Only modules that import a mock, or a name that leads to one, are parsed.

    Args:
        sources: All interned modules.
        mocked: Mocked modules.
        graph: Dependency graph, with the saved objects.

    Returns:
        The uses, sorted by mocked module. Those in the classes and functions of saved objects come
        first, then those whose module is nearest to a saved object.

    >>> from modpack.core.graph import Edge
    >>> graph = DependencyGraph()
    >>> graph.add_edge(Edge("<net.pkl>", "net", ImportKind.PICKLE, names=("report",)))
    True
    >>> graph.add_edge(Edge("net", "tracker", ImportKind.REQUIRED, 1))
    True
    >>> source = b"import tracker\n\ndef report(x):\n    tracker.log(x)\n"
    >>> (use,) = find_uses({"net": (source, False)}, ["tracker"], graph)
    >>> use.name, use.line, use.kind.value, use.scope
    ('log', 4, 'function-body', 'report')
    """
    if not mocked:
        return ()
    search = _Search(sources, frozenset(mocked), graph)
    found = dict.fromkeys([*search.uses(), *_uses_in_saved_objects(graph, frozenset(mocked))])
    # The classes and functions in a saved object, without nested ones.
    pickled = [edge for edge in graph.edges() if edge.kind is ImportKind.PICKLE]
    own = {(edge.imported, name.partition(".")[0]) for edge in pickled for name in edge.names}

    distances = graph.distances()

    def order(use: MockUse) -> tuple[object, ...]:
        is_own = (use.importer, use.scope.partition(".")[0]) in own or use.importer[:1] == "<"
        distance = distances.get(use.importer, len(distances))
        return use.module, not is_own, distance, use.importer, use.line, use.name, use.kind.value

    return tuple(sorted(found, key=order))


def _uses_in_saved_objects(graph: DependencyGraph, mocked: frozenset[str]) -> Iterator[MockUse]:
    """Yield the mocks that functions in saved objects import, because they use what they import."""
    for edge in graph.edges():
        is_import = edge.kind in _STATEMENTS and edge.imported in mocked
        if not is_import or not edge.importer.startswith("<"):
            continue
        for name in edge.names or [""]:
            path = f"{edge.imported}.{name}"
            module, rest = (path, "") if path in mocked else (edge.imported, name)
            yield MockUse(module, rest, edge.importer, edge.line or 1, UseKind.FUNCTION_BODY)


class _Reference(NamedTuple):
    """One use of a name with all its attributes (``tools.log``)."""

    name: str
    line: int
    kind: UseKind
    scope: Scope
    label: str


class _Table:
    """The names of a module.

    Attributes:
        scope: Scope of the module.
        stars: Modules of star imports.
        references: Uses of names in code that can run.
    """

    def __init__(self) -> None:
        self.scope = Scope()
        self.stars: list[str] = []
        self.references: list[_Reference] = []


class _Search:
    """Follows the names of mocks from module to module until there are no new ones."""

    def __init__(self, sources: Sources, mocked: frozenset[str], graph: DependencyGraph) -> None:
        self._sources = sources
        self._mocked = mocked
        self._graph = graph
        self._tables: dict[str, _Table] = {}
        self._passed_on: dict[str, set[str]] = {}
        edges = (edge for mock in sorted(mocked) for edge in graph.edges_to(mock))
        statements = (edge for edge in edges if edge.kind in _STATEMENTS)
        pending = dict.fromkeys(e.importer for e in statements if e.importer in sources)
        # A module is read again when one that it imports passes on new names. These sets only grow,
        # so the loop ends, also for import cycles.
        while pending:
            module = next(iter(pending))
            del pending[module]
            pending.update(dict.fromkeys(self._read(module)))

    def uses(self) -> Iterator[MockUse]:
        """Yield all uses in the modules that were read."""
        for module, table in self._tables.items():
            # Resolved only now: a function may use a name that is bound below it.
            for name, line, kind, scope, label in table.references:
                root, dot, rest = name.partition(".")
                binder = scope.find_binder(root)
                meaning = self._in_stars(table, root) if binder is None else binder.names[root]
                found = self._follow(f"{meaning}{dot}{rest}") if meaning else None
                if found is not None:
                    mock, attribute, via = found
                    via = tuple(each for each in via if each != module)
                    yield MockUse(mock, attribute, module, line, kind, label, via)

    def _read(self, module: str) -> Iterator[str]:
        """Read a module, and yield the modules that may use the mocks that it passes on."""
        if module not in self._tables:
            source, is_package = self._sources[module]
            # A source that cannot be parsed is a problem of the plan; here, it has no names.
            parsed, table = parse_source(source), _Table()
            if isinstance(parsed, ParsedSource):
                package = module if is_package else module.rpartition(".")[0]
                table = _ModuleReader(parsed.tree, package).table
            self._tables[module] = table
        table, known = self._tables[module], self._passed_on.setdefault(module, set())
        names = {*table.scope.names, *(n for star in table.stars for n in self._exports(star))}
        new = {name for name in names - known if self._follow(f"{module}.{name}")}
        known |= new
        for edge in self._graph.edges_to(module) if new else ():
            if edge.kind in _STATEMENTS and edge.importer in self._sources:
                # An edge without names is ``import module``: its source shows the accessed names.
                source, names = self._sources[edge.importer][0], set(edge.names)
                is_accessed = not names and any(f".{name}".encode() in source for name in new)
                if is_accessed or "*" in names or names & new:
                    yield edge.importer

    def _exports(self, module: str) -> Iterator[str]:
        """Yield the names that a star import takes from a module and that lead to mocks."""
        yield from (name for name in self._passed_on.get(module, ()) if name[:1] != "_")

    def _in_stars(self, table: _Table, name: str) -> str | None:
        """Return the meaning of a name that a module does not bind. A mock may have any name."""
        for star in table.stars:
            # A star import of a mock may be meant to bind any name that is not a builtin.
            is_mock = star in self._mocked and name not in _BUILTINS
            if is_mock or name in self._exports(star):
                return f"{star}.{name}"
        return None

    def _follow(self, path: str) -> tuple[str, str, tuple[str, ...]] | None:
        """Return the mocked module, the name in it, and the modules that pass the name on."""
        via: dict[str, None] = {}
        for _ in range(_MAX_STEPS):
            owners = [path, *parents(path)]
            mock = next((each for each in owners if each in self._mocked), None)
            if mock is not None:
                return mock, path[len(mock) + 1 :], tuple(via)
            module = next((each for each in owners if each in self._sources), None)
            table = self._tables.get(module) if module is not None and module != path else None
            if module is None or table is None:
                return None
            name, dot, rest = path[len(module) + 1 :].partition(".")
            meaning = table.scope.names.get(name) or self._in_stars(table, name)
            if meaning is None or meaning.startswith("."):
                return None
            via[module] = None
            path = f"{meaning}{dot}{rest}"
        return None


class _Context(NamedTuple):
    """The context of a node.

    Attributes:
        scope: Scope of the node.
        label: Qualified name of the enclosing function or class; empty for a module.
        is_late: Whether the node runs only when a function is called.
        kind: Kind of use of the node's names.
    """

    scope: Scope
    label: str = ""
    is_late: bool = False
    kind: UseKind = UseKind.MODULE_LEVEL

    @property
    def plain(self) -> _Context:
        """Context for parts of an expression. Annotations contain only annotations."""
        if self.kind is UseKind.ANNOTATION:
            return self
        return self._replace(kind=UseKind.FUNCTION_BODY if self.is_late else UseKind.MODULE_LEVEL)

    def using(self, kind: UseKind) -> _Context:
        """Return this context with another kind, as far as it matters when the node runs."""
        is_check = kind is UseKind.TYPE_CHECK
        matters = kind is UseKind.ANNOTATION or is_check is self.is_late
        return self._replace(kind=kind) if matters else self.plain

    def enter(self, node: Function | ast.Lambda | ast.ClassDef) -> _Context:
        """Return the context of the body of a function or class."""
        owner = self.scope.outside_comprehensions().owner
        within = ".<locals>." if isinstance(owner, Function) else "."
        name = getattr(node, "name", "<lambda>")
        label = f"{self.label}{within}{name}" if self.label else name
        scope = inner_scope(node, self.scope)
        if isinstance(node, ast.ClassDef):
            return self._replace(scope=scope, label=label)
        return _Context(scope, label, True, UseKind.FUNCTION_BODY)


class _ModuleReader:
    """A visitor for one pass over a module, with a stack instead of recursion: code nests deeply.

    Methods are named like those of :class:`ast.NodeVisitor`.

    Args:
        tree: The module.
        package: The Python package that contains the module, or that it is.
    """

    def __init__(self, tree: ast.Module, package: str) -> None:
        self.table = _Table()
        self._package = package
        self._stack: list[tuple[ast.AST, _Context]] = [(tree, _Context(self.table.scope))]
        while self._stack:
            node, context = self._stack.pop()
            if isinstance(node, ast.stmt):
                for name, value in bindings(node):
                    self._bind(name, value, context.scope)
            getattr(self, f"visit_{type(node).__name__}", self._visit_parts)(node, context)

    def _push(self, nodes: Iterable[ast.AST | None], context: _Context) -> None:
        self._stack.extend((node, context) for node in reversed(list(nodes)) if node is not None)

    def _visit_parts(self, node: ast.AST, context: _Context) -> None:
        keeps_kind = isinstance(node, _KEEPS_KIND)
        self._push(ast.iter_child_nodes(node), context if keeps_kind else context.plain)

    def _bind(self, name: str, value: ast.expr | str | None, scope: Scope) -> None:
        if isinstance(value, (ast.Name, ast.Attribute)):
            value = qualified_name(value, scope)
        elif isinstance(value, ast.Call) and last_name(value) == "import_module" and value.args:
            value = literal_string(value.args[0])
        scope.binder_of(name).bind(name, value if isinstance(value, str) else f".{name}")

    def visit_Name(self, node: ast.Name | ast.Attribute, context: _Context) -> None:
        name = dotted_name(node) if isinstance(node.ctx, ast.Load) else ""
        if name:
            self.table.references.append(
                _Reference(name, node.lineno, context.kind, context.scope, context.label)
            )
        elif isinstance(node, ast.Attribute):  # of another expression, or a target
            self._push([node.value], context.plain)

    visit_Attribute = visit_Name

    def visit_Import(self, node: ast.Import | ast.ImportFrom, context: _Context) -> None:
        for name, meaning in import_bindings(node, self._package):
            if name == "*":
                self.table.stars.append(meaning.removesuffix(".*"))
            else:
                self._bind(name, meaning, context.scope)

    visit_ImportFrom = visit_Import

    def visit_Global(self, node: ast.Global, context: _Context) -> None:
        context.scope.declared_global.update(node.names)

    def visit_NamedExpr(self, node: ast.NamedExpr, context: _Context) -> None:
        self._bind(node.target.id, node.value, context.scope)
        self._push([node.value], context.plain)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp, context: _Context) -> None:
        holds = known_truth(node.test, _known_condition)
        self._push([node.test], context.plain)
        for branch, skipped in ((node.body, False), (node.orelse, True)):
            # A condition of unknown value (None) skips neither branch.
            if holds is not skipped:
                self._push(branch if isinstance(branch, list) else [branch], context)

    visit_While = visit_IfExp = visit_If

    def visit_FunctionDef(self, node: Function, context: _Context) -> None:
        self._push(node.decorator_list, context.using(UseKind.DECORATOR))
        notes = [*(each.annotation for each in parameters_of(node)), node.returns]
        self._push(notes, context.using(UseKind.ANNOTATION))
        self.visit_Lambda(node, context)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: Function | ast.Lambda, context: _Context) -> None:
        self._push([*node.args.defaults, *node.args.kw_defaults], context.plain)
        body = node.body if isinstance(node.body, list) else [node.body]
        self._push(body, context.enter(node))

    def visit_ClassDef(self, node: ast.ClassDef, context: _Context) -> None:
        self._push(node.decorator_list, context.using(UseKind.DECORATOR))
        bases = [*node.bases, *(word.value for word in node.keywords)]
        self._push(bases, context.using(UseKind.BASE_CLASS))
        self._push(node.body, context.enter(node))

    def visit_ListComp(self, node: ast.ListComp, context: _Context) -> None:
        scope = inner_scope(node, context.scope)
        self._visit_parts(node, context._replace(scope=scope))

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_AnnAssign(self, node: ast.AnnAssign, context: _Context) -> None:
        self._push([node.value, node.target], context.plain)
        self._push([node.annotation], context.using(UseKind.ANNOTATION))

    def visit_Constant(self, node: ast.Constant, context: _Context) -> None:
        if context.kind is UseKind.ANNOTATION and isinstance(node.value, str):  # quoted
            parsed = parse_source(node.value.strip())
            for statement in parsed.tree.body[:1] if isinstance(parsed, ParsedSource) else ():
                # Lines in the quoted text start at 1.
                ast.increment_lineno(statement, node.lineno - statement.lineno)
                self._push([statement], context)

    def visit_Subscript(self, node: ast.Subscript, context: _Context) -> None:
        self._push([node.value], context)  # Base[T] is a base class like Base
        is_literal = context.kind is UseKind.ANNOTATION and last_name(node.value) == "Literal"
        self._push([] if is_literal else [node.slice], context.plain)

    def visit_Call(self, node: ast.Call, context: _Context) -> None:
        is_check = dotted_name(node.func) in _TYPE_CHECKS
        self._push([node.func], context)  # @watch(1) is a decorator like @watch
        plain = context.plain
        self._push(node.args, plain.using(UseKind.TYPE_CHECK) if is_check else plain)
        self._push((word.value for word in node.keywords), plain)

    def visit_Compare(self, node: ast.Compare, context: _Context) -> None:
        is_check = all(isinstance(each, _SAFE_COMPARISONS) for each in node.ops)
        plain = context.plain
        parts = [node.left, *node.comparators]
        self._push(parts, plain.using(UseKind.TYPE_CHECK) if is_check else plain)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, context: _Context) -> None:
        if node.name is not None:
            self._bind(node.name, None, context.scope)
        self._push(node.body, context)
        for each in node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]:
            # Mocked exceptions are classes, as "except" requires; other mocks are not.
            is_check = last_name(each).endswith(_EXCEPTIONS)
            self._push([each], context.using(UseKind.TYPE_CHECK) if is_check else context.plain)


def _known_condition(test: ast.expr) -> bool | None:
    """Return the value of ``TYPE_CHECKING`` and ``__name__ == "__main__"``; None for others."""
    if is_type_checking(test):
        return False
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides = (test.left, test.comparators[0])
    is_name = any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
    is_main = any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)
    if not (is_name and is_main):
        return None
    return {ast.Eq: False, ast.NotEq: True}.get(type(test.ops[0]))
