"""What becomes of a name of a script: its text, an import, a literal, or its value.

The source of the module that holds a script's definitions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any

from modpack.discovery.finder import is_a
from modpack.discovery.script import (
    DEFINITION,
    IMPORTS,
    Kind,
    ModuleText,
    Piece,
    Script,
    Statement,
    imported_as,
    literal_text,
    module_text,
    text_of_statement,
    value_comment,
)
from modpack.exporting.script_proof import (
    Proof,
    gives,
    is_container,
    is_literal,
    is_named_by_itself,
    is_type,
    literal_of,
    resolved,
)
from modpack.pickling.base import SCRIPT_MARK


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


_DEFINITIONS = (Kind.FUNCTION, Kind.CLASS)
_GROUPS = {
    Kind.FUNCTION: DEFINITION,
    Kind.CLASS: DEFINITION,
    Kind.IMPORT: IMPORTS,
    Kind.IMPORT_BLOCK: IMPORTS,
}


@dataclass
class _Unit:
    """A statement in the module, or what takes its place.

    Attributes:
        number: the place of the statement in the script.
        text: its text.
        needs: the names that must be there before.
        group: what it stands together with; see :class:`Piece`.
        origin: where its first line stands in the script.
    """

    number: int
    text: str
    needs: frozenset[str] = frozenset()
    group: str = ""
    origin: tuple[str, int] | None = None


@dataclass
class ModuleBuilder:
    """Puts the module together.

    Attributes:
        choices: what becomes of each name.
        statements: the statements that are taken as they stand, by the name they are taken for.
        package: what relative imports of the script start from.
        postponed: whether annotations are postponed (PEP 563).
    """

    choices: Mapping[str, Choice]
    statements: Mapping[str, Statement]
    package: str
    postponed: bool
    _units: dict[str, _Unit] = field(default_factory=dict)

    def text(
        self, names: Sequence[str], early: Sequence[str], stored: str, title: str
    ) -> ModuleText:
        """The module's source.

        Args:
            names: what it is to bind.
            early: those names whose values are stored for the time when it is imported.
            stored: the package in which those are.
            title: what the script is called.
        """
        taken = {n: s for n, s in self.statements.items() if n in names and n not in early}
        for name in names:
            place = stored if name in early else None
            unit = self._stand_in(name, self.choices[name], place)
            if unit is not None and name not in taken:
                self._units[name] = unit
        for statement, bound in _by_statement(taken):
            unit = self._statement(statement, frozenset(bound))
            self._units.update(dict.fromkeys(bound, unit))
        pieces = [*_first_lines(title, bool(early)), *self._pieces()]
        return module_text(_header(title), pieces, self.postponed)

    def _statement(self, statement: Statement, names: frozenset[str]) -> _Unit:
        text, line = text_of_statement(statement, names, self.package)
        group, origin = _GROUPS.get(statement.kind, ""), (statement.cell.file, line)
        return _Unit(statement.number, text, statement.uses.eager, group, origin)

    def _stand_in(self, name: str, choice: Choice, stored: str | None) -> _Unit | None:
        """What takes the place of a name's statement; in which package its value is stored."""
        number = choice.statement.number if choice.statement is not None else -1
        if stored is not None:
            loaded = f'torch_package_importer.load_pickle("{stored}", "{name}.pkl")'
            return _Unit(number, literal_text(choice.statement, name, loaded))
        if choice.how is How.LITERAL:
            return _Unit(number, literal_text(choice.statement, name, choice.text))
        if choice.how is How.VALUE:
            return _Unit(number, value_comment(choice.statement, name))
        return None

    def _pieces(self) -> Iterator[Piece]:
        """The units in the script's order, but each behind what it needs at once."""
        done: dict[int, _Unit] = {}
        for unit in sorted(self._units.values(), key=lambda each: each.number):
            self._place(unit, done, ())
        for position, unit in enumerate(done.values()):
            yield Piece(position, unit.text, unit.group, unit.origin)

    def _place(self, unit: _Unit, done: dict[int, _Unit], above: tuple[int, ...]) -> None:
        if id(unit) in done or id(unit) in above:
            return
        needed = [self._units[name] for name in unit.needs if name in self._units]
        for each in sorted(needed, key=lambda each: each.number):
            self._place(each, done, (*above, id(unit)))
        done[id(unit)] = unit


def needed_at_once(names: Sequence[str], statements: Mapping[str, Statement]) -> list[str]:
    """The names whose values definitions need while they are run.

    A function that is called meanwhile, such as a decorator, needs all that it uses.
    """
    todo: list[str] = []
    for name in names:
        if name in statements:
            todo += sorted(statements[name].uses.eager)
    seen: dict[str, None] = {}
    while todo:
        name = todo.pop(0)
        if name not in seen:
            seen[name] = None
            if name in statements:
                todo += sorted(statements[name].uses.eager | statements[name].uses.late)
    return list(seen)


def outdated(
    names: Sequence[str], statements: Mapping[str, Statement], script: Script
) -> Iterator[tuple[str, Choice]]:
    """Definitions that were made with something that was defined anew after them."""
    for name in (each for each in names if each in statements):
        statement = statements[name]
        for used in sorted(statement.uses.eager):
            other = statements.get(used)
            if other is None or other.kind not in _DEFINITIONS:
                continue
            if other.number > statement.number and len(script.binding(used)) > 1:
                text = _OUTDATED.format(used=used, place=other.place)
                yield name, Choice(How.PROBLEM, statement, text)


_OUTDATED = (
    "it was made with {used}, which was defined again since ({place}). Remedy: run its own "
    "definition again too, and make the object anew"
)


def _by_statement(taken: Mapping[str, Statement]) -> Iterator[tuple[Statement, list[str]]]:
    by_number: dict[int, list[str]] = {}
    for name, statement in taken.items():
        by_number.setdefault(statement.number, []).append(name)
    for names in by_number.values():
        yield taken[names[0]], names


def _header(title: str) -> str:
    return (
        f"# Definitions that objects in this package need, as they stand in {title}.\n"
        "# The script itself is not in the package, and is never run; values that it computed\n"
        "# come with the objects.\n"
    )


def _first_lines(title: str, loads: bool) -> Iterator[Piece]:
    yield Piece(-2, f"{SCRIPT_MARK} = {title!r}", "mark")
    if loads:
        yield Piece(-1, "import torch_package_importer", IMPORTS)
