"""The source of the module that holds a script's definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modpack.discovery.definitions import Kind, Script, Statement
from modpack.discovery.definitiontext import (
    DEFINITION,
    IMPORTS,
    ModuleText,
    Piece,
    literal_text,
    module_text,
    text_of_statement,
    value_comment,
)
from modpack.packing.scriptchoice import Choice, How
from modpack.pickling.definitions import SCRIPT_MARK

__all__ = ["ModuleBuilder", "needed_at_once", "outdated"]

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
