"""What becomes of a name of a script: its text, an import, a literal, or its value."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any

from modpack.discovery.definitions import Kind, Script, Statement, imported_as
from modpack.packing.scriptproof import Proof, resolved
from modpack.packing.scriptvalues import (
    gives,
    is_container,
    is_literal,
    is_named_by_itself,
    is_type,
    literal_of,
)
from modpack.resolution.live import is_a

__all__ = ["Choice", "Chooser", "How"]


class How(Enum):
    """How a name comes into the module of definitions."""

    TEXT = "text"
    LITERAL = "literal"
    VALUE = "value"
    """Its value comes with the objects; the text, if there is one, makes it before that."""
    ABSENT = "absent"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Choice:
    """What becomes of one name.

    Attributes:
        how: how it comes into the module.
        statement: the statement that is taken; for a literal or a value the first that binds
            the name, if there is any.
        text: a literal; for a problem what is wrong.
    """

    how: How
    statement: Statement | None = None
    text: str = ""


@dataclass(frozen=True)
class Chooser:
    """Chooses for the names of one script.

    Attributes:
        script: its source.
        namespace: its globals.
        proof: compares the two.
    """

    script: Script
    namespace: Mapping[str, Any]
    proof: Proof

    def choose(self, name: str) -> Choice:
        """What becomes of a name, by what it is bound to now."""
        if name not in self.namespace:
            return self._of_type_checkers(name)
        value = self.namespace[name]
        statements = self.script.binding(name)
        taken = self._imported(name, value) or self._defined(name, value)
        if taken is not None:
            return taken
        first = statements[0] if statements else None
        if literal_of(value) is not None:
            return self._literal(name, value)
        for statement in reversed(statements):
            expression = statement.value
            if gives(expression, value, self.namespace) or is_type(expression, value):
                return Choice(How.TEXT, statement)
            if expression is not None and is_named_by_itself(name, value):
                return Choice(How.TEXT, statement)
        return Choice(How.VALUE, first)

    def text_for_value(self, name: str) -> Statement | None:
        """The statement that makes a fresh container for a name, whose value comes later."""
        for statement in self.script.binding(name):
            if is_container(statement.value, self.namespace):
                return statement
        return None

    def remakes(self, name: str) -> bool:
        """Whether the text for a name alone gives its present value."""
        statement = self.text_for_value(name)
        return statement is not None and is_literal(statement.value, self.namespace.get(name))

    def reproduces(self, expression: ast.expr, value: Any) -> bool:
        """Whether an expression in a definition gives this value wherever it is run."""
        if is_literal(expression, value):
            return literal_of(value) is not None
        if gives(expression, value, self.namespace):
            return True
        return literal_of(value) is not None and resolved(expression, self.namespace) is value

    # -- imports ------------------------------------------------------------------------------

    def _of_type_checkers(self, name: str) -> Choice:
        """An import that only type checkers see, for a name that only annotations use."""
        for statement in self.script.binding(name):
            if statement.kind is Kind.IMPORT_BLOCK:
                return Choice(How.TEXT, statement)
        return Choice(How.ABSENT)

    def _imported(self, name: str, value: Any) -> Choice | None:
        for statement in reversed(self.script.binding(name)):
            node = statement.node
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if self._brings(node, name, value):
                    return Choice(How.TEXT, statement)
            elif statement.kind is Kind.IMPORT_BLOCK and self._block_brings(node, name, value):
                return Choice(How.TEXT, statement)
        if self.script.binding(name):
            return None
        for statement in reversed(self.script.star_imports):
            node = statement.node
            if isinstance(node, ast.ImportFrom) and self._from(node, name) is value:
                return Choice(How.TEXT, statement)
        return None

    def _brings(self, node: ast.Import | ast.ImportFrom, name: str, value: Any) -> bool:
        for bound, alias in imported_as(node):
            if bound == name:
                if isinstance(node, ast.ImportFrom):
                    return self._from(node, alias.name) is value
                module = alias.name if alias.asname else bound
                return sys.modules.get(module) is value
        return False

    def _block_brings(self, block: ast.stmt, name: str, value: Any) -> bool:
        for node in ast.walk(block):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and self._brings(node, name, value):
                return True
            if isinstance(node, ast.Assign) and name in _targets(node):
                if is_literal(node.value, value) or gives(node.value, value, self.namespace):
                    return True
        return False

    def _from(self, node: ast.ImportFrom, name: str) -> Any:
        """What ``from module import name`` gives; modules are only looked at."""
        module = node.module or ""
        if node.level:
            package = str(self.namespace.get("__package__") or "")
            base = package.rsplit(".", node.level - 1)[0]
            module = f"{base}.{module}" if module else base
        if module not in sys.modules:
            return _ABSENT
        found = getattr(sys.modules[module], name, _ABSENT)  # as the script did
        return sys.modules.get(f"{module}.{name}", _ABSENT) if found is _ABSENT else found

    # -- classes and functions ---------------------------------------------------------------

    def _defined(self, name: str, value: Any) -> Choice | None:
        if is_a(value, type) and self._lives_here(value, name):
            return self._class(name, value)
        statements = self.script.binding(name)
        last = statements[-1] if statements else None
        if last is not None and last.kind is Kind.CLASS and not isinstance(value, type):
            return Choice(How.TEXT, last)  # a decorator made something else of it
        made = [each for each in statements if each.kind is Kind.FUNCTION]
        for statement in reversed(made):
            if self.proof.is_function(value, statement):
                return Choice(How.TEXT, statement)
        if made and is_a(value, FunctionType) and self._lives_here(value, name):
            return Choice(How.PROBLEM, made[-1], _CHANGED)
        return None

    def _lives_here(self, value: Any, name: str) -> bool:
        here = self.namespace.get("__name__")
        return bool(value.__module__ == here and value.__qualname__ == name)

    def _class(self, name: str, kind: type) -> Choice:
        statements = self.script.binding(name)
        classes = [each for each in statements if each.kind is Kind.CLASS]
        fitting = [each for each in classes if self.proof.is_class(kind, each)]
        if fitting:
            return Choice(How.TEXT, self._best(kind, fitting))
        if classes:
            return Choice(How.PROBLEM, classes[-1], _CHANGED)
        called = [each for each in statements if isinstance(each.value, ast.Call)]
        if called:
            return Choice(How.TEXT, called[-1])
        return Choice(How.PROBLEM, None, _NO_SOURCE)

    def _best(self, kind: type, statements: list[Statement]) -> Statement:
        """Of several that fit: the one at the very line (Python 3.13), else the last."""
        line = vars(kind).get("__firstlineno__")
        exact = [each for each in statements if each.line == line]
        return (exact or statements)[-1]

    def _literal(self, name: str, value: Any) -> Choice:
        statements = self.script.binding(name)
        for statement in statements[-1:]:
            if statement.kind is Kind.ASSIGNMENT and is_literal(statement.value, value):
                return Choice(How.TEXT, statement)
        return Choice(How.LITERAL, statements[0] if statements else None, literal_of(value) or "")


_ABSENT = object()
_CHANGED = (
    "its source has changed since it was run, or something replaced parts of it. Remedy: run "
    "the script, or the cell, again, and make the object anew; or move it into a module"
)
_NO_SOURCE = (
    "its source cannot be found: no class statement of the script makes it. Remedy: define it "
    "with a class statement in a file or in a cell of a notebook, or move it into a module"
)


def _targets(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id
