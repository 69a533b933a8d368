"""Uses of mocked modules in packaged code, found without running any of it.

A name may stand for several things, for all that is known: whatever some statement binds it to.
Names are followed across aliases, scopes and modules.
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
from modpack.discovery.mock_texts import ImporterIndex, Texts
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
"""Interned modules: the source, and whether it is that of a package."""

_STATEMENTS = (ImportKind.REQUIRED, ImportKind.FUNCTION, ImportKind.GUARDED, ImportKind.DYNAMIC)
_KINDS = list(UseKind)
_MAX_PARTS = 10
_MAX_VALUES = 16
"""For one name: more would be the product of a loop, not of what people write."""
_DEEPEST = 40
_BUILTINS = frozenset(vars(builtins))
_CALL, _ITEM, _AWAIT = "(...)", "[...]", "await"
"""What is taken of a value, where it is no attribute: those have names."""


@gc_paused()  # the search went through all of torch, which took half of the time
def find_uses(
    sources: Sources, mocked: Collection[str], graph: DependencyGraph
) -> tuple[MockUse, ...]:
    r"""Find every place where interned modules use a name of a mocked one.

    A name is followed from its import through assignments, attributes, classes and functions,
    and from module to module, in circles as well. Reads the sources, and only those that may lead
    to a mock or call what does.

    Args:
        sources: all interned modules.
        mocked: the mocked modules.
        graph: who imports whom, and what was saved.

    Returns:
        The uses, by mocked module, importer and line.

    >>> from modpack.core.graph import Edge
    >>> graph = DependencyGraph()
    >>> graph.add_edge(Edge("<net.pkl>", "net", ImportKind.PICKLE, names=("report",)))
    True
    >>> graph.add_edge(Edge("net", "tracker", ImportKind.REQUIRED, 1))
    True
    >>> source = b"import tracker\n\ndef report(x):\n    tracker.log(x)\n"
    >>> (use,) = find_uses({"net": (source, False)}, ["tracker"], graph)
    >>> use.name, use.line, use.kind.value, use.scope, use.is_live
    ('log', 4, 'function', 'report', True)
    """
    if not mocked:
        return ()
    texts = Texts(sources)
    search = _UseSearch(sources, frozenset(mocked), ImporterIndex(texts, graph))
    search.run()
    reachability = Reachability(texts, mocked, search.read, callable_from_outside(graph))
    found = dict.fromkeys(
        [*search.uses(reachability), *_of_saved_objects(graph, frozenset(mocked))]
    )
    return tuple(sorted(found, key=_order))


def callable_from_outside(graph: DependencyGraph) -> list[tuple[str, str]]:
    """Return the modules and qualified names of what users of a package can call.

    Saved objects and hooks name classes and functions; of a module that was saved by name,
    everything can be called, which is an empty name.
    """
    named = [
        (edge.imported, name)
        for edge in graph.edges()
        if edge.kind is ImportKind.PICKLE
        for name in edge.names
    ]
    return [*named, *((root, "") for root in graph.roots() if not root.startswith("<"))]


def _of_saved_objects(graph: DependencyGraph, mocked: frozenset[str]) -> Iterator[MockUse]:
    """Functions that travel by their source, inside saved objects: what they import, they use."""
    for edge in graph.edges():
        is_import = edge.kind in _STATEMENTS and edge.imported in mocked
        if not is_import or not edge.importer.startswith("<"):
            continue
        for name in edge.names or [""]:
            path = f"{edge.imported}.{name}"
            module, rest = (path, "") if path in mocked else (edge.imported, name)
            yield MockUse(module, rest, edge.importer, edge.line or 1, UseKind.FUNCTION_BODY)


def _order(use: MockUse) -> tuple[str, str, int, str, int]:
    return (use.module, use.importer, use.line, use.name, _KINDS.index(use.kind))


class _UseSearch:
    """Follows the names of mocks from module to module, until nothing new comes of it."""

    def __init__(self, sources: Sources, mocked: frozenset[str], importers: ImporterIndex) -> None:
        self._sources = sources
        self._mocked = mocked
        self._importers = importers
        self._names = _Names(mocked, sources)
        self._known: dict[str, ModuleTable | None] = {}
        self._queue: dict[str, None] = {}
        self._leading: dict[str, set[str]] = defaultdict(set)
        self._holders: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._words: set[str] = set()

    def read(self, module: str) -> ModuleTable | None:
        """The table of an interned module; None if it cannot be parsed."""
        if module not in self._known:
            source, is_package = self._sources[module]
            self._known[module] = read_table(source, module, is_package)
        return self._known[module]

    def run(self) -> None:
        """Look at all modules that the names of mocks reach."""
        for mock in sorted(self._mocked):
            self._words.add(mock.rpartition(".")[2])
            self._enqueue(self._importers.of_mock(mock))
        while self._queue:
            module = next(iter(self._queue))
            del self._queue[module]
            self._look_at(module)

    def uses(self, reachability: Reachability) -> Iterator[MockUse]:
        """Every use in the modules that were looked at."""
        self._names.forget_locals()
        for module, table in self._names.tables.items():
            for node, scope, kind, target in table.references:
                if self._names.comes_of_use(node, scope):
                    continue  # which is a use by itself
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

    def _look_at(self, module: str) -> None:
        """Work out what a module's names stand for, and who is to be looked at for that."""
        table = self.read(module)
        if table is None:
            return
        self._names.tables[module] = table
        for name in self._names.settle(module):
            if self._names.leads_to_mock(module, name):
                self._tell(module, name)
            else:
                self._hold(module, name)
        # Look at the modules of which names were wanted that may lead to a mock.
        for other, names in self._names.wanted.items():
            is_new = other in self._sources and other not in self._names.tables
            if is_new and ("*" in names or not self._words.isdisjoint(names)):
                self._enqueue([other])

    def _tell(self, module: str, name: str) -> None:
        """A name leads to a mock: whoever may take it is looked at, directly or through others."""
        self._leading[module].add(name)
        self._words.update((name, module.rpartition(".")[2]))
        self._enqueue(self._importers.of_name(module, name))
        for holder, alias in self._holders[module]:
            self._enqueue(self._importers.of_alias(holder, alias, [name]))

    def _hold(self, holder: str, alias: str) -> None:
        """A name is another module: what leads to a mock there can be taken from here."""
        for module in self._names.modules_of(holder, alias):
            self._holders[module].add((holder, alias))
            if leading := self._leading[module]:
                self._enqueue(self._importers.of_alias(holder, alias, leading))


@dataclass(frozen=True)
class MockValue:
    """Something of a mocked module: the module itself, if the name is empty."""

    module: str
    name: str = ""

    def part(self, suffix: str) -> MockValue:
        """What is got from it; what is got from that over and over again is one and the same."""
        if self.name.count(".") + self.name.count(_CALL) >= _MAX_PARTS:
            return self
        return MockValue(self.module, f"{self.name}{suffix}".lstrip(". "))


@dataclass(frozen=True)
class ModuleValue:
    """A module that is not mocked."""

    path: str


@dataclass(frozen=True)
class ClassValue:
    """A class of the packaged code, or an instance of it."""

    body: NameScope


Value: TypeAlias = MockValue | ModuleValue | ClassValue
Values: TypeAlias = dict[Value, tuple[str, ...]]
"""What something may be, each with the modules through which it came, the last one last."""


class _Names:
    """The modules that are looked at, and what their names stand for so far.

    Args:
        mocked: the mocked modules.
        interned: the interned modules.

    Attributes:
        tables: what was read, by module.
        names: what module-level names stand for, by module and name; it only grows.
        wanted: names that were looked for in modules that were not read yet.
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

    def settle(self, module: str) -> list[str]:
        """Work out what the names of a module stand for; returns those of which more is known."""
        scope = self.tables[module].scope
        grown: dict[str, None] = {}
        while True:
            self._local.clear()
            more = [name for name in scope.bindings if self._grow(module, name, scope)]
            more += self._take_stars(module, scope)
            if not more:
                return list(grown)
            grown.update(dict.fromkeys(more))

    def forget_locals(self) -> None:
        """Drop what was worked out for scopes inside modules: more is known by now."""
        self._local.clear()

    def leads_to_mock(self, module: str, name: str) -> bool:
        """Whether a mock, or something of one in a class, can be had by a module-level name."""
        seen: set[Value] = set()
        waiting = list(self.names[module].get(name, ()))
        while waiting:
            value = waiting.pop()
            if isinstance(value, MockValue):
                return True
            if isinstance(value, ClassValue) and value not in seen:
                body = value.body
                parts = [self._in_scope(each, body) for each in body.bindings]
                parts.append(self._of_bases(body))
                waiting += (v for part in parts for v in part if not isinstance(v, ModuleValue))
            seen.add(value)
        return False

    def modules_of(self, module: str, name: str) -> list[str]:
        """The modules that a module-level name stands for."""
        values = self.names[module].get(name, ())
        return [value.path for value in values if isinstance(value, ModuleValue)]

    def _grow(self, module: str, name: str, scope: NameScope) -> bool:
        values = self.names[module].setdefault(name, {})
        before = len(values)
        for binding in scope.bindings[name]:
            _merge(values, self._meaning(binding))
        return len(values) > before

    def _take_stars(self, module: str, scope: NameScope) -> Iterator[str]:
        """The names that star imports take from other modules of the package."""
        for source in scope.stars:
            self.wanted[source].add("*")
            table = self.tables.get(source)
            exported = table.exported if table is not None else None
            for name, found in list(self.names.get(source, {}).items()):
                is_taken = name in exported if exported is not None else name[:1] != "_"
                if source == module or not is_taken:
                    continue
                values = self.names[module].setdefault(name, {})
                if _merge(values, _through(source, found, module)):
                    yield name

    # -- what a name stands for --------------------------------------------------------------

    def _look_up(self, name: str, scope: NameScope) -> Values:
        """What a name stands for where it is used."""
        binder = scope.binder(name)
        top = scope.top
        if binder is not None and binder is not top:
            return self._in_scope(name, binder)
        found = self.names[top.module].get(name, {})
        if binder is not None or found or name in _BUILTINS:
            return found
        # Whatever is bound nowhere else can only come from the stars.
        return {MockValue(star, name): () for star in top.stars if star in self._mocked}

    def _in_scope(self, name: str, scope: NameScope) -> Values:
        key = (scope, name)
        if key in self._local:
            return self._local[key]
        if key in self._busy or len(self._busy) > _DEEPEST:
            self._is_partial = True
            return {}
        self._busy.add(key)
        values: Values = {}
        for binding in scope.bindings.get(name, ()):
            _merge(values, self._meaning(binding))
        self._busy.discard(key)
        if not self._busy:
            self._is_partial = False
        if not self._is_partial:
            self._local[key] = values
        return values

    def _meaning(self, binding: Binding) -> Values:
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
            derived = _parts_of_mocks(self._of_bases(body), f" (base of {name})")
            return {ClassValue(body): (), **derived}
        values: Values = {}
        for decorator in binding.decorators:
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            made = self.value_of(node, binding.scope)
            values.update(_parts_of_mocks(made, f" (decorates {binding.name})"))
        return values

    def _of_bases(self, body: NameScope) -> Values:
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

    def _attributes(self, values: Values, name: str, here: str | None) -> Values:
        """What an attribute of something stands for.

        Args:
            values: what it is taken from.
            name: the attribute.
            here: the module that takes it; what it has itself did not come through a module.
        """
        found: Values = {}
        for value, via in values.items():
            if isinstance(value, MockValue):
                submodule = self._module(f"{value.module}.{name}") if not value.name else {}
                _merge(found, submodule or {value.part(f".{name}"): via})
            elif isinstance(value, ModuleValue):
                self.wanted[value.path].add(name)
                inside = self.names.get(value.path, {}).get(name, {})
                _merge(found, _onwards(_through(value.path, inside, here), via))
                _merge(found, self._module(f"{value.path}.{name}"))
            else:
                inside = self._of_class(value.body, name)
                _merge(found, _onwards(_through(value.body.module, inside, here), via))
        return found

    def _of_class(self, body: NameScope, name: str) -> Values:
        if name in body.bindings:
            return self._in_scope(name, body)
        key = (body, f"{name} of its bases")
        if key in self._busy or len(self._busy) > _DEEPEST:
            self._is_partial = True
            return {}
        self._busy.add(key)
        bases = self._of_bases(body).items()
        others: Values = {v: via for v, via in bases if not isinstance(v, ModuleValue)}
        found = self._attributes(others, name, body.module)
        self._busy.discard(key)
        return found

    # -- what an expression stands for -------------------------------------------------------

    def value_of(self, node: ast.expr, scope: NameScope) -> Values:
        """What an expression stands for; nothing, for most."""
        if self._depth > _DEEPEST:
            return {}
        self._depth += 1
        try:
            return self._value_of(node, scope)
        finally:
            self._depth -= 1

    def comes_of_use(self, node: ast.expr, scope: NameScope) -> bool:
        """Whether an attribute is taken from what a mock gave, as in ``mock.init().log``."""
        taken = _taken(node)
        while taken is not None and taken[1] not in (_CALL, _ITEM, _AWAIT):
            node = taken[0]
            taken = _taken(node)
        if taken is None or taken[1] != _CALL:
            return False
        return any(isinstance(value, MockValue) for value in self.value_of(node, scope))

    def _value_of(self, node: ast.expr, scope: NameScope) -> Values:
        wrappers: list[str] = []
        while (taken := _taken(node)) is not None:
            node, wrapper = taken
            if wrapper != _AWAIT:
                wrappers.append(wrapper)
            if len(wrappers) > _DEEPEST:
                return {}
        values: Values = {}
        if isinstance(node, ast.Name):
            values = self._look_up(node.id, scope)
        elif isinstance(node, ast.Call):
            values = self._imported(node, scope)
        else:
            for part in _alternatives(node):
                _merge(values, self.value_of(part, scope))
        for wrapper in reversed(wrappers):
            values = self._wrapped(values, wrapper, scope)
        return values

    def _wrapped(self, values: Values, wrapper: str, scope: NameScope) -> Values:
        """What an attribute, a call or an item of something is."""
        if wrapper not in (_CALL, _ITEM):
            return self._attributes(values, wrapper, scope.module)
        found: Values = {}
        for value, via in values.items():
            if isinstance(value, MockValue):
                if not scope.is_late:  # later on, it raises: nothing comes of it
                    found[value.part(wrapper)] = via
            elif isinstance(value, ClassValue) and wrapper == _CALL:
                found[value] = via
        return found

    def _imported(self, call: ast.Call, scope: NameScope) -> Values:
        """The module that a call imports, if its name is written there."""
        arguments = [*call.args, *(word.value for word in call.keywords if word.arg == "name")]
        name = self._text(arguments[0], scope) if arguments else None
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
        package = self._text(anchors[0], scope) if anchors else None
        absolute = resolve_relative(package, level, name[level:]) if package else None
        return self._module(absolute) if absolute is not None else {}

    def _text(self, node: ast.expr, scope: NameScope) -> str | None:
        """A text that is written there, or bound to the name that is."""
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
    """Add what else something may be; returns whether that is more than before."""
    before = len(values)
    for value, via in more.items():
        if value not in values and len(values) < _MAX_VALUES:
            values[value] = via
    return len(values) > before


def _through(module: str, values: Values, here: str | None) -> Values:
    """Values that come from a module: it is the last one on their way."""
    if module == here:
        return values
    return {v: (*via, module) if module not in via else via for v, via in values.items()}


def _onwards(values: Values, via: tuple[str, ...]) -> Values:
    """The same values, come through further modules."""
    if not via:
        return values
    return {v: (*way, *(m for m in via if m not in way)) for v, way in values.items()}


def _parts_of_mocks(values: Values, suffix: str) -> Values:
    return {v.part(suffix): via for v, via in values.items() if isinstance(v, MockValue)}


def _taken(node: ast.expr) -> tuple[ast.expr, str] | None:
    """What an attribute, a call, an item or an await is taken of, and how; None for others."""
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
    """The expressions one of which is the value of another, as in ``a or b``."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.IfExp):
            waiting += [part.orelse, part.body]
        elif isinstance(part, ast.BoolOp):
            waiting += reversed(part.values)
        elif isinstance(part, ast.NamedExpr):
            waiting.append(part.value)
        elif part is not node:
            yield part
