"""Static search for uses of mocked modules in packaged code.

A name may have several values: everything that any statement binds it to. Names are followed across
aliases, scopes, and modules.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from modpack.core.graph import DependencyGraph
from modpack.core.names import parents
from modpack.core.plan import MockUse, UseKind
from modpack.core.process import gc_paused
from modpack.core.scan import ImportKind
from modpack.discovery.mock_reachability import Reachability
from modpack.discovery.mock_texts import ImporterIndex, SourceIndex
from modpack.discovery.mock_usage_reader import (
    Assigned,
    Binding,
    DefinedClass,
    Imported,
    Instance,
    ModuleTable,
    NameScope,
    attribute_call,
    read_table,
)
from modpack.discovery.syntax import last_name, literal_string, resolve_relative

Sources: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""Sources of interned modules, each with whether the module is a Python package."""

_STATEMENTS = (ImportKind.REQUIRED, ImportKind.FUNCTION, ImportKind.GUARDED, ImportKind.DYNAMIC)
_KINDS = list(UseKind)
_MAX_PARTS = 10
_MAX_VALUES = 16
"""Limit for the values of one name, which only loops of references exceed."""
_MAX_DEPTH = 40
_BUILTINS = frozenset(vars(builtins))
_CALL, _ITEM, _AWAIT = "(...)", "[...]", "await"
"""Operations on a value. Any other operation is the name of an attribute."""


@gc_paused()  # garbage collection of torch's objects took half of the time
def find_uses(
    sources: Sources, mocked: Collection[str], graph: DependencyGraph
) -> tuple[MockUse, ...]:
    r"""Find all uses of mocked modules' names in interned modules.

    The search follows names from their imports through assignments, attributes, classes, functions,
    and modules, including cycles. It parses only sources that may lead to a mock, or call code that
    does.

    Args:
        sources: All interned modules.
        mocked: Mocked modules.
        graph: Dependency graph, with the saved objects.

    Returns:
        The uses, sorted by mocked module, importer, and line.

    >>> from modpack.core.graph import Edge
    >>> graph = DependencyGraph()
    >>> graph.add_edge(Edge("<net.pkl>", "net", ImportKind.PICKLE, names=("report",)))
    True
    >>> graph.add_edge(Edge("net", "tracker", ImportKind.REQUIRED, 1))
    True
    >>> source = b"import tracker\n\ndef report(x):\n    tracker.log(x)\n"
    >>> (use,) = find_uses({"net": (source, False)}, ["tracker"], graph)
    >>> use.name, use.line, use.kind.value, use.scope, use.is_live
    ('log', 4, 'function-body', 'report', True)
    """
    if not mocked:
        return ()
    index = SourceIndex(sources)
    search = _UseSearch(sources, frozenset(mocked), ImporterIndex(index, graph))
    search.run()
    reachability = Reachability(index, mocked, search.read, externally_callable(graph))
    found = dict.fromkeys(
        [*search.uses(reachability), *_uses_in_saved_objects(graph, frozenset(mocked))]
    )
    return tuple(sorted(found, key=_sort_key))


def externally_callable(graph: DependencyGraph) -> list[tuple[str, str]]:
    """Return module and qualified name of the classes and functions that a user can call.

    These are the names in saved objects and hooks. A module that was saved by name has an empty
    name, because everything in it can be called.
    """
    named = [
        (edge.imported, name)
        for edge in graph.edges()
        if edge.kind is ImportKind.PICKLE
        for name in edge.names
    ]
    return [*named, *((root, "") for root in graph.roots() if not root.startswith("<"))]


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


def _sort_key(use: MockUse) -> tuple[str, str, int, str, int]:
    return (use.module, use.importer, use.line, use.name, _KINDS.index(use.kind))


class _UseSearch:
    """A search that follows the names of mocks from module to module until a fixed point."""

    def __init__(self, sources: Sources, mocked: frozenset[str], importers: ImporterIndex) -> None:
        self._sources = sources
        self._mocked = mocked
        self._importers = importers
        self._names = _Names(mocked, sources)
        self._tables_by_module: dict[str, ModuleTable | None] = {}
        self._queue: dict[str, None] = {}
        self._mock_names: dict[str, set[str]] = defaultdict(set)
        self._module_aliases: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._words: set[str] = set()

    def read(self, module: str) -> ModuleTable | None:
        """Return the table of an interned module; None if it cannot be parsed."""
        if module not in self._tables_by_module:
            source, is_package = self._sources[module]
            self._tables_by_module[module] = read_table(source, module, is_package)
        return self._tables_by_module[module]

    def run(self) -> None:
        """Analyze all modules that the names of mocks reach."""
        for mock in sorted(self._mocked):
            self._words.add(mock.rpartition(".")[2])
            self._enqueue(self._importers.find_mock_users(mock))
        while self._queue:
            module = next(iter(self._queue))
            del self._queue[module]
            self._analyze(module)

    def uses(self, reachability: Reachability) -> Iterator[MockUse]:
        """Yield all uses in the analyzed modules."""
        self._names.forget_locals()
        for module, table in self._names.tables.items():
            for node, scope, kind, target in table.references:
                if self._names.is_result_of_use(node, scope):
                    continue  # the call itself is reported as a use
                makes = target if kind in (UseKind.DECORATOR, UseKind.BASE_CLASS) else ""
                for value, via in self._names.value_of(node, scope).items():
                    if isinstance(value, MockValue):
                        in_function = kind is UseKind.FUNCTION_BODY
                        yield MockUse(
                            value.module,
                            value.name,
                            module,
                            node.lineno,
                            kind,
                            scope.label,
                            is_live=not in_function or reachability.is_live(module, scope.unit),
                            via=tuple(each for each in via if each != module),
                            is_called_later=bool(makes)
                            and reachability.is_called_later(module, makes),
                        )

    def _enqueue(self, modules: Iterable[str]) -> None:
        self._queue.update(dict.fromkeys(sorted(modules)))

    def _analyze(self, module: str) -> None:
        """Resolve the names of a module, and queue the modules that this affects."""
        table = self.read(module)
        if table is None:
            return
        self._names.tables[module] = table
        for name in self._names.resolve_module(module):
            if self._names.leads_to_mock(module, name):
                self._record_mock_name(module, name)
            else:
                self._record_module_alias(module, name)
        # Queue the modules whose requested names may lead to a mock.
        for other, names in self._names.wanted.items():
            is_new = other in self._sources and other not in self._names.tables
            if is_new and ("*" in names or not self._words.isdisjoint(names)):
                self._enqueue([other])

    def _record_mock_name(self, module: str, name: str) -> None:
        """Queue the modules that may use a name that leads to a mock."""
        self._mock_names[module].add(name)
        self._words.update((name, module.rpartition(".")[2]))
        self._enqueue(self._importers.find_name_users(module, name))
        for importer, alias in self._module_aliases[module]:
            self._enqueue(self._importers.find_alias_users(importer, alias, [name]))

    def _record_module_alias(self, importer: str, alias: str) -> None:
        """Queue the modules that may use mocks through a name for another module."""
        for module in self._names.modules_of(importer, alias):
            self._module_aliases[module].add((importer, alias))
            if names := self._mock_names[module]:
                self._enqueue(self._importers.find_alias_users(importer, alias, names))


@dataclass(frozen=True)
class MockValue:
    """A mocked module, or an object from it if the name is not empty."""

    module: str
    name: str = ""

    def derive(self, suffix: str) -> MockValue:
        """Return the result of an operation on this object; at a limit, the object itself."""
        if self.name.count(".") + self.name.count(_CALL) >= _MAX_PARTS:
            return self
        return MockValue(self.module, f"{self.name}{suffix}".lstrip(". "))


@dataclass(frozen=True)
class ModuleValue:
    """A module that is not mocked."""

    path: str


@dataclass(frozen=True)
class ClassValue:
    """A class in packaged code, or an instance of it."""

    body: NameScope


Value: TypeAlias = MockValue | ModuleValue | ClassValue
Values: TypeAlias = dict[Value, tuple[str, ...]]
"""Possible values, each with the modules through which it was imported, in order."""


class _Names:
    """The analyzed modules and the known values of their names.

    Args:
        mocked: Mocked modules.
        interned: Interned modules.

    Attributes:
        tables: Tables of the analyzed modules.
        names: Values of module-level names, by module and name. Values are only added.
        wanted: Requested names, by module.
    """

    def __init__(self, mocked: Collection[str], interned: Collection[str]) -> None:
        self.tables: dict[str, ModuleTable] = {}
        self.names: dict[str, dict[str, Values]] = defaultdict(dict)
        self.wanted: dict[str, set[str]] = defaultdict(set)
        self._mocked = frozenset(mocked)
        known = {*mocked, *interned}
        self._modules = known.union(*map(parents, known))
        self._busy: set[tuple[NameScope, str]] = set()
        self._local: dict[tuple[NameScope, str], Values] = {}
        self._is_partial = False
        self._depth = 0

    def resolve_module(self, module: str) -> list[str]:
        """Update the values of a module's names; return the names with new values."""
        scope = self.tables[module].scope
        changed: dict[str, None] = {}
        while True:
            self._local.clear()
            more = [name for name in scope.bindings if self._update_name(module, name, scope)]
            more += self._import_stars(module, scope)
            if not more:
                return list(changed)
            changed.update(dict.fromkeys(more))

    def forget_locals(self) -> None:
        """Drop cached values of local scopes, which are outdated once names have new values."""
        self._local.clear()

    def leads_to_mock(self, module: str, name: str) -> bool:
        """Return whether a module-level name leads to a mock, directly or through a class."""
        seen: set[Value] = set()
        pending = list(self.names[module].get(name, ()))
        while pending:
            value = pending.pop()
            if isinstance(value, MockValue):
                return True
            if isinstance(value, ClassValue) and value not in seen:
                body = value.body
                parts = [self._values_in_scope(each, body) for each in body.bindings]
                parts.append(self._base_values(body))
                pending += (v for part in parts for v in part if not isinstance(v, ModuleValue))
            seen.add(value)
        return False

    def modules_of(self, module: str, name: str) -> list[str]:
        """Return the modules that a module-level name may refer to."""
        values = self.names[module].get(name, ())
        return [value.path for value in values if isinstance(value, ModuleValue)]

    def _update_name(self, module: str, name: str, scope: NameScope) -> bool:
        values = self.names[module].setdefault(name, {})
        before = len(values)
        for binding in scope.bindings[name]:
            _merge(values, self._binding_values(binding))
        return len(values) > before

    def _import_stars(self, module: str, scope: NameScope) -> Iterator[str]:
        """Bind the names from star imports; yield those with new values."""
        for source in scope.stars:
            self.wanted[source].add("*")
            table = self.tables.get(source)
            exported = table.exported if table is not None else None
            for name, found in list(self.names.get(source, {}).items()):
                is_taken = name in exported if exported is not None else name[:1] != "_"
                if source == module or not is_taken:
                    continue
                values = self.names[module].setdefault(name, {})
                if _merge(values, _via_module(source, found, module)):
                    yield name

    def _look_up(self, name: str, scope: NameScope) -> Values:
        """Return the values of a name that is used in a scope."""
        binder = scope.binder(name)
        top = scope.top
        if binder is not None and binder is not top:
            return self._values_in_scope(name, binder)
        found = self.names[top.module].get(name, {})
        if binder is not None or found or name in _BUILTINS:
            return found
        # An unbound name can only come from a star import.
        return {MockValue(star, name): () for star in top.stars if star in self._mocked}

    def _values_in_scope(self, name: str, scope: NameScope) -> Values:
        key = (scope, name)
        if key in self._local:
            return self._local[key]
        if key in self._busy or len(self._busy) > _MAX_DEPTH:
            self._is_partial = True
            return {}
        self._busy.add(key)
        values: Values = {}
        for binding in scope.bindings.get(name, ()):
            _merge(values, self._binding_values(binding))
        self._busy.discard(key)
        if not self._busy:
            self._is_partial = False
        if not self._is_partial:
            self._local[key] = values
        return values

    def _binding_values(self, binding: Binding) -> Values:
        if isinstance(binding, Imported):
            found = self._module(binding.module)
            return found if binding.name is None else self._attributes(found, binding.name, None)
        if isinstance(binding, Assigned):
            return self.value_of(binding.value, binding.scope)
        if isinstance(binding, Instance):
            return {ClassValue(binding.body): ()}
        if isinstance(binding, DefinedClass):
            # A class with a mocked base cannot be instantiated either.
            body = binding.body
            name = body.label.rpartition(".")[2]
            derived = _derive_from_mocks(self._base_values(body), f" (base of {name})")
            return {ClassValue(body): (), **derived}
        values: Values = {}
        for decorator in binding.decorators:
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            made = self.value_of(node, binding.scope)
            values.update(_derive_from_mocks(made, f" (decorates {binding.name})"))
        return values

    def _base_values(self, body: NameScope) -> Values:
        statement, scope = body.definition, body.parent
        values: Values = {}
        if statement is not None and scope is not None:
            for base in [*statement.bases, *(word.value for word in statement.keywords)]:
                while isinstance(base, ast.Subscript):  # Base[T] derives from Base
                    base = base.value
                _merge(values, self.value_of(base, scope))
        return values

    def _module(self, path: str) -> Values:
        if path in self._mocked:
            return {MockValue(path): ()}
        return {ModuleValue(path): ()} if path in self._modules else {}

    def _attributes(self, values: Values, name: str, importer: str | None) -> Values:
        """Return the values of an attribute.

        Args:
            values: Values of the object.
            name: Attribute name.
            importer: Module that accesses the attribute; its own values get no ``via`` entry.
        """
        found: Values = {}
        for value, via in values.items():
            if isinstance(value, MockValue):
                submodule = self._module(f"{value.module}.{name}") if not value.name else {}
                _merge(found, submodule or {value.derive(f".{name}"): via})
            elif isinstance(value, ModuleValue):
                self.wanted[value.path].add(name)
                inside = self.names.get(value.path, {}).get(name, {})
                _merge(found, _append_via(_via_module(value.path, inside, importer), via))
                _merge(found, self._module(f"{value.path}.{name}"))
            else:
                inside = self._class_attribute(value.body, name)
                _merge(found, _append_via(_via_module(value.body.module, inside, importer), via))
        return found

    def _class_attribute(self, body: NameScope, name: str) -> Values:
        if name in body.bindings:
            return self._values_in_scope(name, body)
        key = (body, f"{name} of its bases")
        if key in self._busy or len(self._busy) > _MAX_DEPTH:
            self._is_partial = True
            return {}
        self._busy.add(key)
        bases = self._base_values(body).items()
        others: Values = {v: via for v, via in bases if not isinstance(v, ModuleValue)}
        found = self._attributes(others, name, body.module)
        self._busy.discard(key)
        return found

    def value_of(self, node: ast.expr, scope: NameScope) -> Values:
        """Return the values of an expression; empty for most."""
        if self._depth > _MAX_DEPTH:
            return {}
        self._depth += 1
        try:
            return self._value_of(node, scope)
        finally:
            self._depth -= 1

    def is_result_of_use(self, node: ast.expr, scope: NameScope) -> bool:
        """Return whether an attribute belongs to a mock's result, as in ``mock.init().log``."""
        unwrapped = _unwrap(node)
        while unwrapped is not None and unwrapped[1] not in (_CALL, _ITEM, _AWAIT):
            node = unwrapped[0]
            unwrapped = _unwrap(node)
        if unwrapped is None or unwrapped[1] != _CALL:
            return False
        return any(isinstance(value, MockValue) for value in self.value_of(node, scope))

    def _value_of(self, node: ast.expr, scope: NameScope) -> Values:
        wrappers: list[str] = []
        while (unwrapped := _unwrap(node)) is not None:
            node, wrapper = unwrapped
            if wrapper != _AWAIT:
                wrappers.append(wrapper)
            if len(wrappers) > _MAX_DEPTH:
                return {}
        values: Values = {}
        if isinstance(node, ast.Name):
            values = self._look_up(node.id, scope)
        elif isinstance(node, ast.Call):
            values = self._imported_module(node, scope)
        else:
            for part in _alternatives(node):
                _merge(values, self.value_of(part, scope))
        for wrapper in reversed(wrappers):
            values = self._apply(values, wrapper, scope)
        return values

    def _apply(self, values: Values, wrapper: str, scope: NameScope) -> Values:
        """Return the values of an attribute, a call, or an item of some values."""
        if wrapper not in (_CALL, _ITEM):
            return self._attributes(values, wrapper, scope.module)
        found: Values = {}
        for value, via in values.items():
            if isinstance(value, MockValue):
                if not scope.is_late:  # in functions, the mock raises and has no result
                    found[value.derive(wrapper)] = via
            elif isinstance(value, ClassValue) and wrapper == _CALL:
                found[value] = via
        return found

    def _imported_module(self, call: ast.Call, scope: NameScope) -> Values:
        """Return the module that a call imports, if its name is a constant."""
        arguments = [*call.args, *(word.value for word in call.keywords if word.arg == "name")]
        name = self._string_value(arguments[0], scope) if arguments else None
        if name is None:
            return {}
        if last_name(call.func) == "__import__":
            words = {word.arg for word in call.keywords}
            takes_names = len(call.args) > 3 or "fromlist" in words
            return self._module(name if takes_names else name.partition(".")[0])
        level = len(name) - len(name.lstrip("."))
        if not level:
            return self._module(name)
        anchors = [*call.args[1:], *(w.value for w in call.keywords if w.arg == "package")]
        package = self._string_value(anchors[0], scope) if anchors else None
        absolute = resolve_relative(package, level, name[level:]) if package else None
        return self._module(absolute) if absolute is not None else {}

    def _string_value(self, node: ast.expr, scope: NameScope) -> str | None:
        """Return the value of a string literal, or of a name that is bound to one."""
        if isinstance(node, ast.Name):
            if node.id == "__name__":
                return scope.module
            if node.id == "__package__":
                return self.tables[scope.module].package
            binder = scope.binder(node.id)
            meanings = binder.bindings.get(node.id, []) if binder is not None else []
            if len(meanings) != 1 or not isinstance(meanings[0], Assigned):
                return None
            node = meanings[0].value
        return literal_string(node)


def _merge(values: Values, more: Values) -> bool:
    """Add values; return whether any of them is new."""
    before = len(values)
    for value, via in more.items():
        if value not in values and len(values) < _MAX_VALUES:
            values[value] = via
    return len(values) > before


def _via_module(module: str, values: Values, importer: str | None) -> Values:
    """Append a module to the ``via`` of values, unless it is the importer itself."""
    if module == importer:
        return values
    return {v: (*via, module) if module not in via else via for v, via in values.items()}


def _append_via(values: Values, via: tuple[str, ...]) -> Values:
    """Append further modules to the ``via`` of values."""
    if not via:
        return values
    return {v: (*known, *(m for m in via if m not in known)) for v, known in values.items()}


def _derive_from_mocks(values: Values, suffix: str) -> Values:
    return {v.derive(suffix): via for v, via in values.items() if isinstance(v, MockValue)}


def _unwrap(node: ast.expr) -> tuple[ast.expr, str] | None:
    """Return the operand and the operation of an attribute, a call, an item, or an ``await``."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Subscript):
        return node.value, _ITEM
    if isinstance(node, ast.Await):
        return node.value, _AWAIT
    if not isinstance(node, ast.Call):
        return None
    if last_name(node.func) in ("import_module", "__import__") and (node.args or node.keywords):
        return None  # a module, like a name
    return attribute_call(node) or (node.func, _CALL)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands that may be the value of an expression, as in ``a or b``."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.IfExp):
            pending += [part.orelse, part.body]
        elif isinstance(part, ast.BoolOp):
            pending += reversed(part.values)
        elif isinstance(part, ast.NamedExpr):
            pending.append(part.value)
        elif part is not node:
            yield part
