"""The module of definitions from a script that saved objects need.

A script is a file, or the cells of a notebook.
"""

from __future__ import annotations
import __future__

import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from modpack.core.cell_magic import magic_body, without_magics
from modpack.core.plan import PackagingErrorReason
from modpack.diagnostics import Diagnostic
from modpack.discovery.script import (
    DEFINITION,
    IMPORTS,
    Cell,
    ModulePiece,
    ModuleText,
    Script,
    StatementKind,
    TopLevelStatement,
    literal_text,
    module_text,
    statement_text,
    value_comment,
)
from modpack.environment.finder import is_a
from modpack.errors import ObjMismatchError
from modpack.exporting.live_code import absolute_file
from modpack.exporting.script_choice import (
    CapturedName,
    CaptureMethod,
    DefinitionSelector,
    flags_of,
    is_literal,
)
from modpack.pickling.scripts import SCRIPT_MARK
from modpack.saving.base import Filling

_CELL_NAMES = re.compile(r"<(ipython|python)-input-|[\\/]ipykernel_\d+[\\/]")
"""File names that IPython, its kernel, and Python's REPL (3.13) give to cells."""
_NOTEBOOK_GLOBALS = frozenset({"get_ipython", "In", "Out", "exit", "quit"})
"""Globals that a notebook sets for its own use."""
_ADDITION = "@"
"""Prefix of the number of a statement that binds no name."""
_POSTPONED_ANNOTATIONS = __future__.annotations.compiler_flag
_GROUPS = {
    StatementKind.FUNCTION: DEFINITION,
    StatementKind.CLASS: DEFINITION,
    StatementKind.IMPORT: IMPORTS,
    StatementKind.IMPORT_BLOCK: IMPORTS,
}
_CIRCULAR = (
    "definitions need its value when they are executed, but the value is built from them",
    "Assign it in a separate statement, or move it into a module.",
)
_OUTDATED_HINT = "Run its definition again as well, and re-create the object."
_RENAME_HINT = "Give one of the two another name."
_HEADER = (
    "# Definitions from {title} that objects in this package need.\n"
    "# The script itself is not in the package and never runs. Values that it computed\n"
    "# are stored with the objects.\n"
)

StoreValue = Callable[[str, object, str], bool]
"""Pickles a value into its own record. Returns False if the value refers to a module."""


@dataclass
class ScriptDefinitions:
    """The definitions of one script (:class:`modpack.saving.base.ScriptSource`).

    Attributes:
        module: The path of their module in the package.
        namespace: The script's globals.
        values_package: The package of values that the module needs at import.
        store_value: Writes those values.
    """

    module: str
    namespace: dict[str, Any]
    values_package: str
    store_value: StoreValue
    _cells: tuple[Cell, ...] | None = None
    _selector: DefinitionSelector = field(init=False)
    _choices: dict[str, CapturedName] = field(default_factory=dict)
    _needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _roots: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Read the source and the values again, before another object is saved."""
        # A cell may have run again since, and any name may have another value.
        cells = executed_cells(self.namespace)
        if cells != self._cells:
            self._cells = cells
            self._selector = DefinitionSelector(Script(cells), self.namespace)
        self._choices.clear()
        self._needs.clear()
        for name in self._roots:
            self._select_with_dependencies(name)

    def holds(self, name: str, obj: object) -> bool:
        """Return whether the script binds a name at its top level to an object."""
        first, *others = name.split(".")
        found = self.namespace.get(first)
        for part in others:
            found = getattr(found, part, None)
        return found is obj

    def require_current(self, name: str, obj: object) -> None:
        """Check that the script has not redefined a class.

        Raises:
            ObjMismatchError: If the name refers to another class now.
        """
        first = name.partition(".")[0]
        if first in self.namespace and not self.holds(name, obj):
            statements = self._selector.script.find_bindings(first)
            where = f" ({statements[-1].location})" if statements else ""
            raise ObjMismatchError(
                f"{obj!r} is not the script's current {name}, which was redefined{where}",
                hint="Re-create the object from the current class.",
            )

    def take(self, name: str) -> Sequence[Filling] | None:
        """Include a definition and its dependencies. Return None if that is impossible."""
        first = name.partition(".")[0]
        self._select_with_dependencies(first)
        how = self._choices[first].how
        # Problems are found through the roots, too, and must not be lost.
        if how in (CaptureMethod.TEXT, CaptureMethod.PROBLEM):
            self._roots[first] = None
        return self._fillings([first]) if how is CaptureMethod.TEXT else None

    def take_all(self, names: Sequence[str]) -> Sequence[Filling]:
        """Include the names that a function of the script uses and that are not definitions."""
        wanted = [name for name in names if name in self.namespace]
        for name in wanted:
            self._select_with_dependencies(name)
            self._roots[name] = None
        return self._fillings(wanted)

    def _fillings(self, roots: Iterable[str]) -> list[Filling]:
        found: list[Filling] = []
        for name in self._reached(roots):
            choice = self._choices[name]
            if choice.how is CaptureMethod.VALUE:
                found.append(Filling((name,), self.namespace[name]))
            elif choice.how is CaptureMethod.TEXT and choice.statement is not None:
                found.extend(self._selector.fillings(name, choice.statement))
        # Instances of the script's classes come last: the classes get their attributes before.
        own = self.namespace.get("__name__")
        return sorted(found, key=lambda each: type(each.value).__module__ == own)

    def _select_with_dependencies(self, root: str) -> None:
        """Select the capture method of a name and of all its dependencies."""
        todo = [root]
        while todo:
            name = todo.pop()
            if name not in self._choices:
                self._choices[name] = self._choice(name)
                self._needs[name] = tuple(self._needed_by(name))
            todo.extend(each for each in self._needs[name] if each not in self._choices)

    def _choice(self, name: str) -> CapturedName:
        script = self._selector.script
        if name.startswith(_ADDITION):
            return CapturedName(
                CaptureMethod.TEXT, script.statement(int(name.removeprefix(_ADDITION)))
            )
        # Each module has dunder names of its own, and In and Out hold all results of a notebook.
        if name.startswith("__") or (name in _NOTEBOOK_GLOBALS and not script.find_bindings(name)):
            return CapturedName(CaptureMethod.ABSENT)
        return self._selector.choose(name)

    def _needed_by(self, name: str) -> Iterator[str]:
        statement, script = self._choices[name].included, self._selector.script
        if statement is not None:
            # Builtins, and names that the script never bound, are left to the loading environment.
            for each in sorted(statement.uses.eager | statement.uses.late):
                if each in self.namespace or script.find_bindings(each):
                    yield each
            if statement.kind in (
                StatementKind.FUNCTION,
                StatementKind.CLASS,
            ) and not name.startswith(_ADDITION):
                for addition in script.additions(statement):
                    yield f"{_ADDITION}{addition.number}"
                if name in statement.uses.eager:
                    yield from self._former_binding(name, statement)

    def _former_binding(self, name: str, statement: TopLevelStatement) -> Iterator[str]:
        """Yield the import that a definition of the same name uses: ``class Linear(Linear)``."""
        bindings = self._selector.script.find_bindings(name)
        former = [each for each in bindings if each.number < statement.number]
        if former and former[-1].kind in (StatementKind.IMPORT, StatementKind.IMPORT_BLOCK):
            yield f"{_ADDITION}{former[-1].number}"
        elif former:
            text = f"it uses the former {name} ({former[-1].location}), which has the same name"
            problem = CapturedName(CaptureMethod.PROBLEM, statement, text, _RENAME_HINT)
            self._choices[name] = problem

    def _reached(self, roots: Iterable[str]) -> list[str]:
        """Return the given names and all their dependencies."""
        seen: dict[str, None] = {}
        todo = [*roots]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen[name] = None
                todo.extend(self._needs[name])
        return list(seen)

    def _included(self) -> tuple[list[str], dict[str, TopLevelStatement]]:
        """Return all names that the module binds, and the statements included for them."""
        names = self._reached(self._roots)
        found = {name: self._choices[name].included for name in names}
        return names, {n: statement for n, statement in found.items() if statement is not None}

    @property
    def is_empty(self) -> bool:
        """Whether no definition is included."""
        return not self._roots

    @property
    def why(self) -> str:
        """The reason why the module is in the package."""
        return f"definitions of {script_title(self.namespace)} that objects need"

    def source(self) -> ModuleText:
        """Return the module's source, with everything included so far."""
        # First, because storing a value may include further definitions.
        early = self._store_early_values()
        names, statements = self._included()
        units: dict[str, ModulePiece] = {}
        needs: dict[str, frozenset[str]] = {}
        bound_by: dict[TopLevelStatement, list[str]] = {}
        for name in names:
            choice = self._choices[name]
            if name in early:
                arguments = f'"{self.values_package}", "{name}.pkl"'
                loaded = f"torch_package_importer.load_pickle({arguments})"
                text = literal_text(choice.statement, name, loaded)
            elif name in statements:
                bound_by.setdefault(statements[name], []).append(name)
                continue
            elif choice.how is CaptureMethod.LITERAL:
                text = literal_text(choice.statement, name, choice.text)
            elif choice.how is CaptureMethod.VALUE:
                text = value_comment(choice.statement, name)
            else:
                continue
            number = choice.statement.number if choice.statement is not None else -1
            units[name] = ModulePiece(number, text)
        package = str(self.namespace.get("__package__") or "")
        # A statement is copied once, although several names may lead to it: ``a = b = Net``.
        for statement, bound in bound_by.items():
            own = (statement.binds if n.startswith(_ADDITION) else (n,) for n in bound)
            kept = frozenset(name for names in own for name in names)
            text, line = statement_text(statement, kept, package)
            group, origin = _GROUPS.get(statement.kind, ""), (statement.cell.file, line)
            units.update(dict.fromkeys(bound, ModulePiece(statement.number, text, group, origin)))
            needs.update(dict.fromkeys(bound, statement.uses.eager))
        title = script_title(self.namespace)
        # Before all copied statements, whose positions start at 0.
        pieces = [ModulePiece(-2, f"{SCRIPT_MARK} = {title!r}", "mark")]
        if early:
            pieces.append(ModulePiece(-1, "import torch_package_importer", IMPORTS))
        for position, piece in enumerate(_sort_pieces(units, needs)):
            pieces.append(piece._replace(number=position))
        postponed = any(
            (flags_of(self.namespace.get(name)) | statement.flags) & _POSTPONED_ANNOTATIONS
            for name, statement in statements.items()
        )
        return module_text(_HEADER.format(title=title), pieces, postponed)

    def problems(self) -> Iterator[Diagnostic]:
        """Yield a problem for each definition that cannot be included."""
        names, statements = self._included()
        choices = [(name, self._choices[name]) for name in names]
        failed = [(n, choice) for n, choice in choices if choice.how is CaptureMethod.PROBLEM]
        failed += _find_outdated(names, statements, self._selector.script)
        for name, choice in failed:
            place = choice.statement.location if choice.statement is not None else None
            subject = f"{self.namespace.get('__name__')}.{name}"
            reason = PackagingErrorReason.DEFINED_IN_SCRIPT
            text = f"{subject}: {choice.text}"
            hint = choice.hint or None
            yield Diagnostic.from_code(reason, subject, text, place, hint=hint)

    def _store_early_values(self) -> list[str]:
        """Write the values that the module needs at import, and return their names."""
        # Storing a value may include further definitions, which need further values.
        stored: dict[str, bool] = {}
        while True:
            names, statements = self._included()
            new = [
                name
                for name in _needed_at_once(names, statements)
                if name in names
                and name not in stored
                and self._choices[name].how is CaptureMethod.VALUE
            ]
            if not new:
                return [name for name, is_stored in stored.items() if is_stored]
            for name in new:
                stored[name] = False
                container = self._choices[name].before
                value = self.namespace[name]
                # A container that still equals its literal needs no stored value.
                if container is None or not is_literal(container.value, value):
                    record = f"{self.values_package}/{name}.pkl"
                    stored[name] = self.store_value(record, value, self.module)
                    if not stored[name]:
                        self._rebuild(name)

    def _rebuild(self, name: str) -> None:
        """Include the statement of a value that is built from the definitions themselves."""
        binding = reversed(self._selector.script.find_bindings(name))
        statement = next((s for s in binding if s.kind is StatementKind.ASSIGNMENT), None)
        if statement is None:
            self._choices[name] = CapturedName(CaptureMethod.PROBLEM, None, *_CIRCULAR)
            return
        self._choices[name] = CapturedName(CaptureMethod.VALUE, statement, before=statement)
        self._needs[name] = tuple(self._needed_by(name))
        for each in self._needs[name]:
            self._select_with_dependencies(each)


def _sort_pieces(
    pieces: Mapping[str, ModulePiece], needs: Mapping[str, frozenset[str]]
) -> Iterator[ModulePiece]:
    """Yield the pieces in the script's order, each after those that it needs at once.

    Args:
        pieces: The pieces, by the names that they bind.
        needs: The names that must be bound before a name.
    """
    done: set[int] = set()

    def place(name: str, above: tuple[int, ...]) -> Iterator[ModulePiece]:
        piece = pieces[name]
        # In a cycle of needs, the script's order decides.
        if id(piece) in done or id(piece) in above:
            return
        needed = [each for each in needs.get(name, ()) if each in pieces]
        for each in sorted(needed, key=lambda each: (pieces[each].number, each)):
            yield from place(each, (*above, id(piece)))
        done.add(id(piece))
        yield piece

    for name in sorted(pieces, key=lambda name: pieces[name].number):
        yield from place(name, ())


def _needed_at_once(names: Sequence[str], statements: Mapping[str, TopLevelStatement]) -> list[str]:
    """Return the names whose values definitions need when they are executed.

    A function that is called meanwhile, such as a decorator, needs all names that it uses.
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


def _find_outdated(
    names: Sequence[str], statements: Mapping[str, TopLevelStatement], script: Script
) -> Iterator[tuple[str, CapturedName]]:
    """Yield definitions that use a name which was redefined after them."""
    for name in (each for each in names if each in statements):
        statement = statements[name]
        for used in sorted(statement.uses.eager):
            other = statements.get(used)
            if other is None or other.kind not in (StatementKind.FUNCTION, StatementKind.CLASS):
                continue
            if other.number > statement.number and len(script.find_bindings(used)) > 1:
                text = f"it uses {used}, which was redefined later ({other.location})"
                yield name, CapturedName(CaptureMethod.PROBLEM, statement, text, _OUTDATED_HINT)


def script_identifier(namespace: Mapping[str, object]) -> str:
    """Return a script's name as an identifier: the stem of its file, or ``notebook``."""
    title = script_title(namespace)
    stem = title.removesuffix(".py") if title != "a notebook" else "notebook"
    return re.sub(r"\W", "_", stem)


def script_title(namespace: Mapping[str, object]) -> str:
    """Return a script's display name: the name of its file, or ``a notebook``."""
    file = namespace.get("__file__")
    if not isinstance(file, str):
        return "a notebook"
    path = Path(file)
    return f"{path.absolute().parent.name}/__main__.py" if path.stem == "__main__" else path.name


def executed_cells(namespace: Mapping[str, object]) -> tuple[Cell, ...]:
    """Return the sources that were executed in a namespace, in the order of execution.

    Args:
        namespace: The globals of ``__main__``.
    """
    files: dict[str, str] = {}
    for name in _executed_files(namespace):
        # A relative and an absolute path may name the same file.
        files.setdefault(absolute_file(name), name)
    texts = ("".join(linecache.getlines(name, dict(namespace))) for name in files.values())
    cells = [Cell(name, text) for name, text in zip(files.values(), texts, strict=True)]
    history = namespace.get("_ih")
    if isinstance(history, list):  # IPython's history, in which a cell may occur again
        last = {str(text).strip(): number for number, text in enumerate(history)}
        cells.sort(key=lambda cell: last.get(cell.text.strip(), -1))
    return tuple(_convert_magics(cell for cell in cells if cell.text))


def _executed_files(namespace: Mapping[str, object]) -> Iterator[str]:
    """Yield the files of the code in a namespace, in the order of their first appearance."""
    file = namespace.get("__file__")
    if isinstance(file, str):
        yield file
    # linecache has the texts of all cells of a session, also of modules; those count that look like
    # the cells of functions in this namespace.
    of_functions = [
        each.__code__.co_filename
        for value in list(namespace.values())
        for each in (list(vars(value).values()) if is_a(value, type) else [value])
        if is_a(each, FunctionType) and each.__globals__ is namespace
    ]
    own = {_name_pattern(name) for name in of_functions}
    for name in list(linecache.cache):
        if _CELL_NAMES.search(name) or (_name_pattern(name) in own and not Path(name).exists()):
            yield name
    yield from of_functions


def _name_pattern(name: str) -> str:
    """Return a cell's file name with numbers and digests replaced."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "0", name)


def _convert_magics(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield cells with their magics replaced by the Python code that the magics execute.

    Some magics execute their body as a separate cell, which is skipped because it is not in the
    history.
    """
    known = {cell.text.strip(): cell for cell in cells}
    bodies = {cell: magic_body(cell.text) for cell in known.values()}
    inner = {body.strip() for body in bodies.values() if body is not None}
    for cell, body in bodies.items():
        if body is not None:
            same = known.get(body.strip())
            # An empty line replaces the magic, so that the cell's line numbers stay valid.
            yield Cell(same.file, body) if same else Cell(cell.file, "\n" + body)
        elif cell.text.strip() not in inner:
            is_cell = cell.file.startswith("<") or _CELL_NAMES.search(cell.file) is not None
            yield Cell(cell.file, without_magics(cell.text)) if is_cell else cell
