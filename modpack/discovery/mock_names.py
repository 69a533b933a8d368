"""What a name can stand for, as far as mocks are concerned.

What names stand for, as far as mocks are concerned: across aliases, scopes and modules.

Nothing is run. A name may stand for several things, for all that is known: whatever some
statement binds it to.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from modpack.core.names import parents
from modpack.discovery.mock_scopes import (
    Assigned,
    Binding,
    Decorated,
    Defined,
    Imported,
    Instance,
    ModuleTable,
    NameScope,
    attribute_call,
    import_call,
    text_of,
)
from modpack.discovery.syntax import resolve_relative

_MOST_PARTS = 10


@dataclass(frozen=True)
class StandIn:
    """Something of a mocked module: the module itself, if the name is empty."""

    module: str
    name: str = ""

    def part(self, suffix: str) -> StandIn:
        """What is got from it; what is got from that over and over again is one and the same."""
        if self.name.count(".") + self.name.count("(...)") >= _MOST_PARTS:
            return self
        return StandIn(self.module, f"{self.name}{suffix}".lstrip(". "))


@dataclass(frozen=True)
class ModuleValue:
    """A module that is not mocked."""

    path: str


@dataclass(frozen=True)
class ClassValue:
    """A class of the packaged code, or an instance of it."""

    body: NameScope


Value: TypeAlias = StandIn | ModuleValue | ClassValue
Values: TypeAlias = dict[Value, tuple[str, ...]]
"""What something may be, each with the modules through which it came, the last one last."""


class Lead(Enum):
    """What can be had by a name."""

    STAND_IN = "stand-in"
    """Something of a mock: itself, or an attribute of a class."""
    MODULE = "module"
    """A module, whatever it has."""
    NOTHING = "nothing"


def alternatives(node: ast.expr) -> Iterator[ast.expr]:
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


def inner(
    node: ast.Attribute | ast.Call | ast.Subscript | ast.Await, taken: tuple[ast.expr, str] | None
) -> ast.expr:
    """What an attribute, a call, an item or an await is taken of."""
    if isinstance(node, ast.Call):
        return node.func if taken is None else taken[0]
    return node.value


def through(module: str, values: Values, here: str | None) -> Values:
    """Values that come from a module: it is the last one on their way."""
    if module == here:
        return values
    return {v: (*via, module) if module not in via else via for v, via in values.items()}


def onwards(values: Values, via: tuple[str, ...]) -> Values:
    """The same values, come through further modules."""
    if not via:
        return values
    return {v: (*way, *(m for m in via if m not in way)) for v, way in values.items()}


_MOST_VALUES = 16
"""For one name: more would be the product of a loop, not of what people write."""
_DEEPEST = 40
_BUILTINS = frozenset(vars(builtins))


class World:
    """The modules that are looked at, and what their names stand for by now.

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

    def leads_to(self, module: str, name: str) -> Lead:
        """What can be had by a module-level name, as far as mocks are concerned."""
        seen: set[Value] = set()
        waiting = list(self.names[module].get(name, ()))
        while waiting:
            value = waiting.pop()
            if isinstance(value, StandIn):
                return Lead.STAND_IN
            if isinstance(value, ClassValue) and value not in seen:
                waiting += self._in_class(value.body)
            seen.add(value)
        return Lead.MODULE if self.modules_of(module, name) else Lead.NOTHING

    def modules_of(self, module: str, name: str) -> list[str]:
        """The modules that a module-level name stands for."""
        values = self.names[module].get(name, ())
        return [value.path for value in values if isinstance(value, ModuleValue)]

    def _in_class(self, body: NameScope) -> Iterator[Value]:
        for name in body.bindings:
            yield from (v for v in self._in_scope(name, body) if not isinstance(v, ModuleValue))
        yield from (v for v in self._of_bases(body) if not isinstance(v, ModuleValue))

    def _grow(self, module: str, name: str, scope: NameScope) -> bool:
        values = self.names[module].setdefault(name, {})
        before = len(values)
        for binding in scope.bindings[name]:
            self._merge(values, self._meaning(binding))
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
                before = len(values)
                self._merge(values, through(source, found, module))
                if len(values) > before:
                    yield name

    def _merge(self, values: Values, more: Values) -> None:
        for value, via in more.items():
            if value not in values and len(values) < _MOST_VALUES:
                values[value] = via

    # -- what a name stands for --------------------------------------------------------------

    def look_up(self, name: str, scope: NameScope) -> Values:
        """What a name stands for where it is used."""
        binder = scope.binder(name)
        top = scope.top
        if binder is not None and binder is not top:
            return self._in_scope(name, binder)
        found = self.names[top.module].get(name, {})
        if binder is not None or found or name in _BUILTINS:
            return found
        # Whatever is bound nowhere else can only come from the stars.
        return {StandIn(star, name): () for star in top.stars if star in self._mocked}

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
            self._merge(values, self._meaning(binding))
        self._busy.discard(key)
        if not self._busy:
            self._is_partial = False
            self._local[key] = values
        elif not self._is_partial:
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
        if isinstance(binding, Defined):
            return {ClassValue(binding.body): (), **self._derived(binding)}
        return self._decorated(binding)

    def _derived(self, binding: Defined) -> Values:
        """What a class has of a mocked base: it cannot be instantiated either."""
        bases = self._of_bases(binding.body)
        name = binding.statement.name
        return {
            v.part(f" (base of {name})"): via for v, via in bases.items() if isinstance(v, StandIn)
        }

    def _of_bases(self, body: NameScope) -> Values:
        statement, scope = body.definition, body.parent
        values: Values = {}
        if statement is not None and scope is not None:
            for base in [*statement.bases, *(word.value for word in statement.keywords)]:
                while isinstance(base, ast.Subscript):  # Base[T] derives from Base
                    base = base.value
                self._merge(values, self.value_of(base, scope))
        return values

    def _decorated(self, binding: Decorated) -> Values:
        values: Values = {}
        for decorator in binding.decorators:
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            for value, via in self.value_of(node, binding.scope).items():
                if isinstance(value, StandIn):
                    values[value.part(f" (decorates {binding.name})")] = via
        return values

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
        """Whether an attribute is taken from what a stand-in gave, as in ``mock.init().log``."""
        while True:
            taken = attribute_call(node)
            if taken is not None:
                node = taken[0]
            elif isinstance(node, ast.Attribute):
                node = node.value
            else:
                break
        if not isinstance(node, ast.Call) or import_call(node) is not None:
            return False
        return any(isinstance(value, StandIn) for value in self.value_of(node, scope))

    def _value_of(self, node: ast.expr, scope: NameScope) -> Values:
        wrappers: list[str] = []
        while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript, ast.Await)):
            taken = attribute_call(node)
            if import_call(node) is not None:
                break
            if isinstance(node, ast.Attribute):
                wrappers.append(node.attr)
            elif isinstance(node, ast.Call) and taken is None:
                wrappers.append("(...)")
            elif isinstance(node, ast.Subscript):
                wrappers.append("[...]")
            elif taken is not None:
                wrappers.append(taken[1])
            node = inner(node, taken)
            if len(wrappers) > _DEEPEST:
                return {}
        values = self._root_value(node, scope)
        for wrapper in reversed(wrappers):
            values = self._wrapped(values, wrapper, scope)
        return values

    def _root_value(self, node: ast.expr, scope: NameScope) -> Values:
        if isinstance(node, ast.Name):
            return self.look_up(node.id, scope)
        if isinstance(node, ast.Call):
            return self._imported(node, scope)
        values: Values = {}
        for part in alternatives(node):
            self._merge(values, self.value_of(part, scope))
        return values

    def _wrapped(self, values: Values, wrapper: str, scope: NameScope) -> Values:
        """What an attribute, a call or an item of something is."""
        if wrapper not in ("(...)", "[...]"):
            return self._attributes(values, wrapper, scope.module)
        found: Values = {}
        for value, via in values.items():
            if isinstance(value, StandIn):
                if not scope.is_late:  # later on, it raises: nothing comes of it
                    found[value.part(wrapper)] = via
            elif isinstance(value, ClassValue) and wrapper == "(...)":
                found[value] = via
        return found

    def _imported(self, call: ast.Call, scope: NameScope) -> Values:
        """The module that a call imports, if its name is written there."""
        arguments = [*call.args, *(word.value for word in call.keywords if word.arg == "name")]
        name = self._text(arguments[0], scope) if arguments else None
        if name is None:
            return {}
        if import_call(call) == "__import__":
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
        return text_of(node)

    def _module(self, path: str) -> Values:
        if path in self._mocked:
            return {StandIn(path): ()}
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
            if isinstance(value, StandIn):
                submodule = self._module(f"{value.module}.{name}") if not value.name else {}
                self._merge(found, submodule or {value.part(f".{name}"): via})
            elif isinstance(value, ModuleValue):
                self.wanted[value.path].add(name)
                inside = self.names.get(value.path, {}).get(name, {})
                self._merge(found, onwards(through(value.path, inside, here), via))
                self._merge(found, self._module(f"{value.path}.{name}"))
            else:
                inside = self._of_class(value.body, name)
                self._merge(found, onwards(through(value.body.module, inside, here), via))
        return found

    def _of_class(self, body: NameScope, name: str) -> Values:
        if name in body.bindings:
            return self._in_scope(name, body)
        key = (body, f"{name} of its bases")
        if key in self._busy or len(self._busy) > _DEEPEST:
            self._is_partial = True
            return {}
        self._busy.add(key)
        bases = self._of_bases(body)
        found = self._attributes(
            {v: via for v, via in bases.items() if not isinstance(v, ModuleValue)},
            name,
            body.module,
        )
        self._busy.discard(key)
        return found
