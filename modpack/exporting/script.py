"""What differs between a live class or function and what its definition alone would make.

The definitions of one script that saved objects need, as a module for the package.

Scripts whose definitions go into a package: found while objects are pickled.
"""

from __future__ import annotations
import __future__

import abc
import ast
import enum
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Protocol

from modpack.core.plan import PackagingErrorReason, Problem
from modpack.discovery.finder import is_a
from modpack.discovery.script import Cell, Kind, ModuleText, Script, Statement
from modpack.errors import ObjMismatchError
from modpack.exporting.script_module import (
    Choice,
    Chooser,
    How,
    ModuleBuilder,
    needed_at_once,
    outdated,
)
from modpack.exporting.script_proof import Proof, cells_of, flags_of, mangled, title_of
from modpack.pickling.base import Filling
from modpack.pickling.functions import SCRIPTS

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def patches_of(name: str, statement: Statement, chooser: Chooser) -> Iterator[Filling]:
    """Values to set on a class or function once its definition was run.

    These are default values and class attributes that something else than a literal gave, and
    what was set or replaced later.

    Args:
        name: the name in the script.
        statement: its definition.
        chooser: knows the script and its globals.
    """
    value = chooser.namespace.get(name)  # type checkers know names that are not there
    node = statement.node
    if isinstance(node, _Function) and type(value) is FunctionType and not node.decorator_list:
        yield from _of_function((name,), value, node, chooser)
    elif isinstance(node, ast.ClassDef) and isinstance(value, type):
        yield from _of_class((name,), value, node, statement, chooser)


def _of_function(
    path: tuple[str, ...],
    function: FunctionType,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    chooser: Chooser,
) -> Iterator[Filling]:
    given = function.__defaults__ or ()
    if not _all_reproduced(node.args.defaults, given, chooser):
        yield Filling((*path, "__defaults__"), function.__defaults__)
    named = [d for d in node.args.kw_defaults if d is not None]
    if not _all_reproduced(named, tuple((function.__kwdefaults__ or {}).values()), chooser):
        yield Filling((*path, "__kwdefaults__"), function.__kwdefaults__)
    for name, value in vars(function).items():
        yield Filling((*path, name), value)


def _all_reproduced(expressions: list[ast.expr], values: tuple[Any, ...], chooser: Chooser) -> bool:
    if len(expressions) != len(values):
        return False
    return all(map(chooser.reproduces, expressions, values))


def _of_class(
    path: tuple[str, ...],
    kind: type,
    node: ast.ClassDef,
    statement: Statement,
    chooser: Chooser,
) -> Iterator[Filling]:
    own = vars(kind)
    if issubclass(kind, enum.Enum):
        return
    replaced = set(chooser.proof.replaced(kind, statement))
    for name in replaced & set(own):
        yield Filling((*path, name), own[name])
    for method in node.body:
        if isinstance(method, _Function):
            live = own.get(mangled(kind, method.name))
            bare = live.__func__ if is_a(live, (staticmethod, classmethod)) else live
            if type(bare) is FunctionType and method.name not in replaced and _is_bare(method):
                inner = (*path, mangled(kind, method.name))
                yield from _of_function(inner, bare, method, chooser)
    for name in _attributes_to_set(kind, node, chooser):
        if name not in replaced:
            yield Filling((*path, name), own[name])


def _is_bare(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether nothing but Python's own method decorators stand over a function."""
    names = [getattr(decorator, "id", None) for decorator in method.decorator_list]
    return all(name in ("staticmethod", "classmethod") for name in names)


def _attributes_to_set(kind: type, node: ast.ClassDef, chooser: Chooser) -> Iterator[str]:
    """The data among a class's attributes that its body alone would not give."""
    written = dict(_assigned_in(node))
    for name, value in vars(kind).items():
        if _is_dunder(name) or not _is_data(value) or name in _KEPT_BY_PYTHON:
            continue
        expression = written.get(name)
        if expression is not None:
            if not chooser.reproduces(expression, value):
                yield name
        elif name not in written and (_is_plain_class(kind) or _is_set(kind, name, chooser)):
            if not _binds(node, name):
                yield name


_KEPT_BY_PYTHON = frozenset({"_abc_impl"})


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
    for each in ast.walk(node):
        bound = getattr(each, "name", None) == name
        if bound or (isinstance(each, ast.Name) and each.id == name and _stores(each)):
            return True
    return False


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_data(value: Any) -> bool:
    return not is_a(value, (ModuleType, type)) and not hasattr(type(value), "__get__")


def _is_plain_class(kind: type) -> bool:
    """Whether attributes can be set on a class without further effects."""
    return type(kind) in (type, abc.ABCMeta) and not hasattr(kind, "_fields")  # a named tuple


def _is_set(kind: type, name: str, chooser: Chooser) -> bool:
    return (kind.__name__, name) in chooser.script.patched


_OF_NOTEBOOKS = frozenset({"get_ipython", "In", "Out", "exit", "quit"})
"""What a notebook puts into the globals for its own use."""

MakeValue = Callable[[str, object], bool]
"""Pickles the value of a name on its own; tells whether that was possible without the module."""


@dataclass
class ScriptDefinitions:
    """The definitions of one script (:class:`modpack.pickling.base.ScriptSource`).

    Attributes:
        module: the path of the module that holds them in the package.
        namespace: the script's globals.
        values_package: where values are stored that are needed while the module is imported.
    """

    module: str
    namespace: dict[str, Any]
    values_package: str
    _cells: tuple[Cell, ...] = ()
    _chooser: Chooser | None = None
    _choices: dict[str, Choice] = field(default_factory=dict)
    _needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _roots: dict[str, None] = field(default_factory=dict)
    _remade: set[str] = field(default_factory=set)

    # -- while objects are pickled (modpack.pickling.base.ScriptSource) ---------------

    def refresh(self) -> None:
        """Look at the source and at the values again: before another object is saved."""
        cells = cells_of(self.namespace)
        if cells != self._cells or self._chooser is None:
            self._cells = cells
            script = Script(cells)
            proof = Proof(script, self.namespace)
            self._chooser = Chooser(script, self.namespace, proof)
        self._choices.clear()
        self._needs.clear()
        self._remade.clear()
        for name in self._roots:
            self._close(name)

    def holds(self, name: str, obj: object) -> bool:
        """Whether an object is what the script binds to a name at its top level."""
        first, *others = name.split(".")
        found = self.namespace.get(first)
        for part in others:
            found = getattr(found, part, None)
        return found is obj

    def require_current(self, name: str, obj: object) -> None:
        """Refuse a class that the script has defined anew since.

        Raises:
            ObjMismatchError: the name stands for another one now.
        """
        first = name.partition(".")[0]
        if first in self.namespace and not self.holds(name, obj):
            statements = self._known.script.binding(first)
            where = f" ({statements[-1].place})" if statements else ""
            raise ObjMismatchError(
                f"{obj!r} is not the {name} that the script has now: it was defined again "
                f"since{where}. Remedy: make the object anew, from the class that is there now"
            )

    def take(self, name: str) -> Sequence[Filling] | None:
        """Take a definition, and all that it needs; None if it cannot be taken."""
        first = name.partition(".")[0]
        self._close(first)
        how = self._choices[first].how
        if how in (How.TEXT, How.PROBLEM):
            self._roots[first] = None
        return self._fillings([first]) if how is How.TEXT else None

    def take_all(self, names: Sequence[str]) -> Sequence[Filling]:
        """Take what a function of the script uses that is not itself a definition."""
        wanted = [name for name in names if name in self.namespace]
        for name in wanted:
            self._close(name)
            self._roots[name] = None
        return self._fillings(wanted)

    def _fillings(self, roots: Sequence[str]) -> list[Filling]:
        found: list[Filling] = []
        for name in self._reached(roots):
            choice = self._choices[name]
            if choice.how is How.VALUE:
                found.append(Filling((name,), self.namespace[name]))
            elif choice.how is How.TEXT and choice.statement is not None:
                found.extend(patches_of(name, choice.statement, self._known))
        own = self.namespace.get("__name__")
        return sorted(found, key=lambda each: type(each.value).__module__ == own)

    # -- the closure ---------------------------------------------------------------------------

    @property
    def _known(self) -> Chooser:
        if self._chooser is None:
            self.refresh()
        assert self._chooser is not None  # refresh() has made it
        return self._chooser

    def _close(self, root: str) -> None:
        """Choose for a name, and for all that it needs."""
        todo = [root]
        while todo:
            name = todo.pop()
            if name not in self._choices:
                self._choices[name] = choice = self._choice(name)
                self._needs[name] = tuple(self._needed_by(name, choice))
            todo.extend(each for each in self._needs[name] if each not in self._choices)

    def _choice(self, name: str) -> Choice:
        if name.startswith(_ADDITION):
            number = int(name.removeprefix(_ADDITION))
            return Choice(How.TEXT, self._known.script.statement(number))
        unbound = not self._known.script.binding(name)
        if name.startswith("__") or (name in _OF_NOTEBOOKS and unbound):
            return Choice(How.ABSENT)
        return self._known.choose(name)

    def _needed_by(self, name: str, choice: Choice) -> Iterator[str]:
        statement = self._statement(name, choice)
        if statement is not None:
            uses = statement.uses
            for each in sorted(uses.eager | uses.late):
                if each in self.namespace or self._known.script.binding(each):
                    yield each
            if statement.kind in (Kind.FUNCTION, Kind.CLASS) and not name.startswith(_ADDITION):
                for addition in self._known.script.additions(statement):
                    yield f"{_ADDITION}{addition.number}"

    def _statement(self, name: str, choice: Choice) -> Statement | None:
        """The statement that is taken for a name, if one is."""
        if choice.how is How.TEXT or (choice.how is How.VALUE and name in self._remade):
            return choice.statement
        return self._known.text_for_value(name) if choice.how is How.VALUE else None

    def _statements(self, names: Sequence[str]) -> dict[str, Statement]:
        found = {name: self._statement(name, self._choices[name]) for name in names}
        return {name: statement for name, statement in found.items() if statement is not None}

    def _reached(self, roots: Sequence[str]) -> list[str]:
        """All names that some names need, themselves included."""
        seen: dict[str, None] = {}
        todo = [*roots]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen[name] = None
                todo.extend(self._needs[name])
        return list(seen)

    # -- the module ----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._roots

    @property
    def why(self) -> str:
        """Why the module is in the package."""
        return f"definitions of {title_of(self.namespace)} that objects need"

    def source(self, make_value: MakeValue) -> ModuleText:
        """The module's source, with everything that was taken so far.

        Args:
            make_value: pickles the values that are needed while the module is imported.
        """
        early = self._early_values(make_value)
        names = self._reached([*self._roots])
        package = str(self.namespace.get("__package__") or "")
        statements = self._statements(names)
        flags = [flags_of(self.namespace.get(name)) for name in statements]
        flags += [statement.flags for statement in statements.values()]
        builder = ModuleBuilder(
            self._choices, statements, package, any(map(_POSTPONED.__and__, flags))
        )
        return builder.text(names, early, self.values_package, title_of(self.namespace))

    def problems(self) -> Iterator[Problem]:
        """What cannot be taken, each with its place."""
        names = self._reached([*self._roots])
        told = [(n, self._choices[n]) for n in names if self._choices[n].how is How.PROBLEM]
        told += outdated(names, self._statements(names), self._known.script)
        for name, choice in told:
            place = choice.statement.place if choice.statement is not None else None
            reason = PackagingErrorReason.DEFINED_IN_SCRIPT
            yield Problem(f"{self.namespace.get('__name__')}.{name}", reason, choice.text, place)

    def _early_values(self, make_value: MakeValue) -> list[str]:
        """The names whose values are stored for the time when the module is imported."""
        stored: dict[str, bool] = {}
        while True:
            names = self._reached([*self._roots])
            needed = needed_at_once(names, self._statements(names))
            new = [name for name in needed if name in names and name not in stored]
            new = [name for name in new if self._choices[name].how is How.VALUE]
            for name in new:
                if not self._known.remakes(name):
                    stored[name] = make_value(name, self.namespace[name])
                    self._remake(name, stored[name])
                else:
                    stored[name] = False
            if not new:
                return [name for name, is_stored in stored.items() if is_stored]

    def _remake(self, name: str, is_stored: bool) -> None:
        """A value that is made of the definitions themselves: its statement is run again."""
        if is_stored or name in self._remade:
            return
        self._remade.add(name)
        statement = next(
            (s for s in reversed(self._known.script.binding(name)) if s.kind is Kind.ASSIGNMENT),
            None,
        )
        if statement is None:
            self._choices[name] = Choice(How.PROBLEM, None, _IN_A_CIRCLE)
            return
        self._choices[name] = Choice(How.VALUE, statement)
        self._needs[name] = tuple(self._needed_by(name, self._choices[name]))
        for each in self._needs[name]:
            self._close(each)


_ADDITION = "@"
"""What stands before the number of a statement that has no name of its own."""

_POSTPONED = __future__.annotations.compiler_flag

_IN_A_CIRCLE = (
    "definitions need its value while they are run, and it is itself made of them. Remedy: assign "
    "it in a statement of its own, or move it into a module"
)


class ModuleSink(Protocol):
    """Where the modules of definitions go (:class:`modpack.exporting.planner.Planner`)."""

    def add_source(
        self, module: str, source: bytes, is_package: bool, follow: bool, why: str
    ) -> None:
        """Intern a module whose source is given."""

    def is_spelled(self, module: str) -> bool:
        """Whether a rule of the user's names a module literally."""

    def is_taken(self, module: str) -> bool:
        """Whether there is a module of that name already."""


StoreValue = Callable[[str, object, str], bool]
"""Pickles a value into a record of its own. Not, and False, if it refers to a module."""


class ScriptSaver:
    """The scripts of one exporter.

    Args:
        sink: where the modules of definitions go.
        store_value: pickles values that a module of definitions needs while it is imported.
    """

    def __init__(self, sink: ModuleSink, store_value: StoreValue) -> None:
        self._sink = sink
        self._store_value = store_value
        self._scripts: dict[int, ScriptDefinitions] = {}
        self._texts: dict[str, ModuleText] = {}
        self._names = set(SCRIPTS)

    def add(self, module: str) -> None:
        """Treat a module like the script that runs."""
        self._names.add(module)

    def find(self, module: str) -> ScriptDefinitions | None:
        """A script; None for other modules, and where a rule of the user's decides it."""
        live = sys.modules.get(module) if module in self._names else None
        if live is None or self._sink.is_spelled("__main__" if module in SCRIPTS else module):
            return None
        from modpack.exporting.script_proof import name_of

        key = id(vars(live))
        if key not in self._scripts:
            name = name_of(vars(live))
            number = next(self._free_numbers(name))
            definitions = f"definitions_of_{name}{number}"
            values = f"values_of_{name}{number}"
            self._scripts[key] = ScriptDefinitions(definitions, vars(live), values)
            self._scripts[key].refresh()
        return self._scripts[key]

    def refresh(self) -> None:
        """Look at the scripts again, before another object is saved."""
        for script in self._scripts.values():
            script.refresh()

    def provide(self, follow: bool) -> None:
        """Give the planner the modules of definitions, with all that was taken by now.

        Args:
            follow: whether to follow what they import.
        """
        for script in self._scripts.values():
            if not script.is_empty:

                def make(name: str, value: object, script: ScriptDefinitions = script) -> bool:
                    record = f"{script.values_package}/{name}.pkl"
                    return self._store_value(record, value, script.module)

                self._texts[script.module] = made = script.source(make)
                source = made.text.encode()
                self._sink.add_source(script.module, source, False, follow, script.why)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the scripts of which something was taken."""
        taken = (script.namespace.get("__file__") for script in self._scripts.values())
        return tuple(file for file in taken if isinstance(file, str))

    def place(self, place: str) -> str:
        """A place, in the script itself if it is in a module of definitions."""
        module, _, line = place.rpartition(":")
        if module not in self._texts or not line.isdigit():
            return place
        return self._texts[module].place(int(line)) or place

    def problems(self) -> Iterator[Problem]:
        """What of the scripts cannot be taken."""
        for script in self._scripts.values():
            yield from script.problems()

    def _free_numbers(self, name: str) -> Iterator[str]:
        """Suffixes with which no module has the name: a package of the same script may be open."""
        for number in range(1, sys.maxsize):
            suffix = "" if number == 1 else f"_{number}"
            module = f"definitions_of_{name}{suffix}"
            if not self._sink.is_taken(module):
                yield suffix


def stored_values(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The values that a module of definitions loads while it is imported: package, resource."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".load_pickle"):
            arguments = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if ast.unparse(node.func) == "torch_package_importer.load_pickle":
                yield str(arguments[0]), str(arguments[1])
