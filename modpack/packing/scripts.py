"""The definitions of one script that saved objects need, as a module for the package."""

from __future__ import annotations
import __future__

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from modpack.core.plan import PackagingErrorReason, Problem
from modpack.discovery.definitions import Cell, Kind, Script, Statement
from modpack.discovery.definitiontext import ModuleText
from modpack.errors import ObjMismatchError
from modpack.packing.scriptchoice import Choice, Chooser, How
from modpack.packing.scriptmodule import ModuleBuilder, needed_at_once, outdated
from modpack.packing.scriptpatches import patches_of
from modpack.packing.scriptproof import Proof, flags_of
from modpack.packing.scriptsources import cells_of, title_of
from modpack.pickling.definitions import Filling

__all__ = ["ScriptDefinitions"]

_OF_NOTEBOOKS = frozenset({"get_ipython", "In", "Out", "exit", "quit"})
"""What a notebook puts into the globals for its own use."""

MakeValue = Callable[[str, object], bool]
"""Pickles the value of a name on its own; tells whether that was possible without the module."""


@dataclass
class ScriptDefinitions:
    """The definitions of one script (:class:`modpack.pickling.definitions.ScriptSource`).

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

    # -- while objects are pickled (modpack.pickling.definitions.ScriptSource) ---------------

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
