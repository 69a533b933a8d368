"""Scripts whose definitions go into a package: found while objects are pickled."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from modpack.core.plan import Problem
from modpack.pickling.functions import SCRIPTS

if TYPE_CHECKING:
    from modpack.discovery.definitiontext import ModuleText
    from modpack.packing.scripts import ScriptDefinitions

__all__ = ["ModuleSink", "ScriptSaver", "stored_values"]


class ModuleSink(Protocol):
    """Where the modules of definitions go (:class:`modpack.planning.planner.Planner`)."""

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
        from modpack.packing.scripts import ScriptDefinitions  # most packages need no script
        from modpack.packing.scriptsources import name_of

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
