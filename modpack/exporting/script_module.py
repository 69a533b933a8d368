"""The source of the module that holds a script's definitions, and the values set on them."""

from __future__ import annotations

import abc
import ast
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType

from modpack.discovery.finder import is_a
from modpack.discovery.script import (
    DEFINITION,
    IMPORTS,
    Kind,
    ModuleText,
    Piece,
    Script,
    Statement,
    literal_text,
    module_text,
    text_of_statement,
    value_comment,
)
from modpack.exporting.script_choice import Choice, DefinitionSelector, How, mangled
from modpack.pickling.base import SCRIPT_MARK, Filling

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_KEPT_BY_PYTHON = frozenset({"_abc_impl"})
_GROUPS = {
    Kind.FUNCTION: DEFINITION,
    Kind.CLASS: DEFINITION,
    Kind.IMPORT: IMPORTS,
    Kind.IMPORT_BLOCK: IMPORTS,
}
_OUTDATED = (
    "it was made with {used}, which was defined again since ({place}). Remedy: run its own "
    "definition again too, and make the object anew"
)
_HEADER = (
    "# Definitions that objects in this package need, as they stand in {title}.\n"
    "# The script itself is not in the package, and is never run; values that it computed\n"
    "# come with the objects.\n"
)


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
class ModuleWriter:
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
        units: dict[str, _Unit] = {}
        together: dict[int, list[str]] = {}
        for name in names:
            statement = self.statements.get(name)
            if statement is not None and name not in early:
                together.setdefault(statement.number, []).append(name)
                continue
            choice = self.choices[name]
            if name in early:
                loaded = f'torch_package_importer.load_pickle("{stored}", "{name}.pkl")'
                text = literal_text(choice.statement, name, loaded)
            elif choice.how is How.LITERAL:
                text = literal_text(choice.statement, name, choice.text)
            elif choice.how is How.VALUE:
                text = value_comment(choice.statement, name)
            else:
                continue
            number = choice.statement.number if choice.statement is not None else -1
            units[name] = _Unit(number, text)
        for bound in together.values():
            units.update(dict.fromkeys(bound, self._unit(bound)))
        pieces = [Piece(-2, f"{SCRIPT_MARK} = {title!r}", "mark")]
        if early:
            pieces.append(Piece(-1, "import torch_package_importer", IMPORTS))
        for position, unit in enumerate(_in_order(units)):
            pieces.append(Piece(position, unit.text, unit.group, unit.origin))
        return module_text(_HEADER.format(title=title), pieces, self.postponed)

    def _unit(self, bound: Sequence[str]) -> _Unit:
        statement = self.statements[bound[0]]
        text, line = text_of_statement(statement, frozenset(bound), self.package)
        group, origin = _GROUPS.get(statement.kind, ""), (statement.cell.file, line)
        return _Unit(statement.number, text, statement.uses.eager, group, origin)


def _in_order(units: Mapping[str, _Unit]) -> Iterator[_Unit]:
    """The units in the script's order, but each behind what it needs at once."""
    done: dict[int, _Unit] = {}

    def place(unit: _Unit, above: tuple[int, ...]) -> None:
        if id(unit) in done or id(unit) in above:
            return
        needed = [units[name] for name in unit.needs if name in units]
        for each in sorted(needed, key=lambda each: each.number):
            place(each, (*above, id(unit)))
        done[id(unit)] = unit

    for unit in sorted(units.values(), key=lambda each: each.number):
        place(unit, ())
    yield from done.values()


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
            if other is None or other.kind not in (Kind.FUNCTION, Kind.CLASS):
                continue
            if other.number > statement.number and len(script.binding(used)) > 1:
                text = _OUTDATED.format(used=used, place=other.place)
                yield name, Choice(How.PROBLEM, statement, text)


def patches_of(name: str, statement: Statement, selector: DefinitionSelector) -> Iterator[Filling]:
    """Values to set on a class or function once its definition was run.

    These are default values and class attributes that something else than a literal gave, and
    what was set or replaced later.

    Args:
        name: the name in the script.
        statement: its definition.
        selector: knows the script and its globals.
    """
    value = selector.namespace.get(name)  # type checkers know names that are not there
    node = statement.node
    if isinstance(node, _Function) and type(value) is FunctionType and not node.decorator_list:
        yield from _of_function((name,), value, node, selector)
    elif isinstance(node, ast.ClassDef) and isinstance(value, type):
        if not issubclass(value, enum.Enum):
            yield from _of_class(name, value, node, statement, selector)


def _of_function(
    path: tuple[str, ...],
    function: FunctionType,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    selector: DefinitionSelector,
) -> Iterator[Filling]:
    named = [d for d in node.args.kw_defaults if d is not None]
    given = (function.__defaults__ or (), tuple((function.__kwdefaults__ or {}).values()))
    for attribute, expressions, values in zip(
        ("__defaults__", "__kwdefaults__"), (node.args.defaults, named), given, strict=True
    ):
        is_same = len(expressions) == len(values)
        if not is_same or not all(map(selector.reproduces, expressions, values)):
            yield Filling((*path, attribute), getattr(function, attribute))
    for name, value in vars(function).items():
        yield Filling((*path, name), value)


def _of_class(
    path: str,
    kind: type,
    node: ast.ClassDef,
    statement: Statement,
    selector: DefinitionSelector,
) -> Iterator[Filling]:
    own = vars(kind)
    replaced = set(selector.replaced(kind, statement))
    for name in replaced & set(own):
        yield Filling((path, name), own[name])
    for method in node.body:
        if isinstance(method, _Function) and method.name not in replaced:
            name = mangled(kind, method.name)
            live = own.get(name)
            bare = live.__func__ if is_a(live, (staticmethod, classmethod)) else live
            decorators = {getattr(each, "id", None) for each in method.decorator_list}
            if type(bare) is FunctionType and decorators <= {"staticmethod", "classmethod"}:
                yield from _of_function((path, name), bare, method, selector)
    for name in _attributes_to_set(kind, node, selector):
        if name not in replaced:
            yield Filling((path, name), own[name])


def _attributes_to_set(
    kind: type, node: ast.ClassDef, selector: DefinitionSelector
) -> Iterator[str]:
    """The data among a class's attributes that its body alone would not give."""
    written = dict(_assigned_in(node))
    # Attributes can be set without further effects; those of a named tuple cannot.
    is_plain = type(kind) in (type, abc.ABCMeta) and not hasattr(kind, "_fields")
    for name, value in vars(kind).items():
        is_dunder = name.startswith("__") and name.endswith("__")
        is_data = not is_a(value, (ModuleType, type)) and not hasattr(type(value), "__get__")
        if is_dunder or not is_data or name in _KEPT_BY_PYTHON:
            continue
        expression = written.get(name)
        if expression is not None:
            if not selector.reproduces(expression, value):
                yield name
        elif name not in written and not _binds(node, name):
            if is_plain or (kind.__name__, name) in selector.script.patched:
                yield name


def _assigned_in(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each.value
        elif isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    yield target.id, each.value


def _binds(node: ast.ClassDef, name: str) -> bool:
    """Whether any statement of a class body, however nested, binds a name."""
    return any(
        getattr(each, "name", None) == name
        or (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        for each in ast.walk(node)
    )
