"""Scripts whose definitions are included in a package, discovered during pickling."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from modpack.diagnostics import Diagnostic
from modpack.environment.importers import local_path
from modpack.exporting.live_code import unwrap_functions
from modpack.exporting.planner import Planner
from modpack.pickling.functions import SCRIPTS
from modpack.saving.base import Filling

if TYPE_CHECKING:
    from modpack.discovery.script import ModuleText
    from modpack.exporting.script_module import ScriptDefinitions, StoreValue


class ScriptExporter:
    """The scripts of one exporter.

    Args:
        planner: Receives the modules of definitions.
        store_value: Pickles values that a module of definitions needs at import.
    """

    def __init__(self, planner: Planner, store_value: StoreValue) -> None:
        self._planner = planner
        self._store_value = store_value
        self._scripts: dict[int, ScriptDefinitions] = {}
        self._texts: dict[str, ModuleText] = {}
        self._names = set(SCRIPTS)
        self._additions: dict[int, tuple[type, list[Filling]]] = {}

    def add(self, module: str) -> None:
        """Treat a module like the script that runs."""
        self._names.add(module)

    @property
    def names(self) -> frozenset[str]:
        """The modules whose definitions are included like those of a script."""
        return frozenset(self._names)

    def find(self, module: str) -> ScriptDefinitions | None:
        """Return a script, or None for other modules and for scripts with an explicit rule."""
        live = sys.modules.get(module) if module in self._names else None
        name = "__main__" if module in SCRIPTS else module
        if live is None or self._planner.has_explicit_rule(name):
            return None
        # __main__ and __mp_main__ are two names of one module.
        key = id(vars(live))
        if key not in self._scripts:
            from modpack.exporting.script_module import ScriptDefinitions, script_identifier

            stem = script_identifier(vars(live))
            names = itertools.chain([stem], (f"{stem}_{n}" for n in itertools.count(2)))
            name = next(filter(self._is_free, names))
            self._scripts[key] = ScriptDefinitions(
                f"{name}_definitions", vars(live), f"{name}_values", self._store_value
            )
        return self._scripts[key]

    def additions(self, kind: type) -> list[Filling]:
        """Return what scripts have set on a class of an interned module.

        Only the script can have set a function that it defines: no other module contains it.
        """
        # The entry keeps the class alive, so that no other object gets its id.
        if id(kind) in self._additions:
            return self._additions[id(kind)][1]
        scripts = {id(vars(sys.modules[n])) for n in self._names if n in sys.modules}
        path, module = tuple(kind.__qualname__.split(".")), local_path(kind.__module__)
        found = [
            Filling((*path, name), value)
            for name, value in vars(kind).items()
            if any(id(f.__globals__) in scripts for f in unwrap_functions(value))
        ]
        is_own = id(vars(sys.modules.get(kind.__module__, sys))) in scripts
        if found and (is_own or "<locals>" in path or not self._planner.interns(module)):
            found = []
        self._additions[id(kind)] = kind, found
        return found

    def _is_free(self, name: str) -> bool:
        """Return whether a module name is unused: another package of the script may be loaded."""
        walker, module = self._planner.walker, f"{name}_definitions"
        return module not in walker.actions and walker.locate(module) is None

    def refresh(self) -> None:
        """Read the scripts again, before another object is saved."""
        self._additions.clear()
        for script in self._scripts.values():
            script.refresh()

    def provide(self, follow: bool) -> None:
        """Pass the modules of definitions, with everything included so far, to the planner.

        Args:
            follow: Whether to follow their imports.
        """
        for script in self._scripts.values():
            if not script.is_empty:
                self._texts[script.module] = made = script.source()
                source = made.text.encode()
                self._planner.add_source(script.module, source, False, follow, script.why)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the scripts whose definitions are included."""
        files = (script.namespace.get("__file__") for script in self._scripts.values())
        return tuple(file for file in files if isinstance(file, str))

    def place(self, place: str) -> str:
        """Map a location in a module of definitions to the script. Others are unchanged."""
        module, _, line = place.rpartition(":")
        if module not in self._texts or not line.isdigit():
            return place
        return self._texts[module].script_location(int(line)) or place

    def problems(self) -> Iterator[Diagnostic]:
        """Yield a problem for each definition that cannot be included."""
        for script in self._scripts.values():
            yield from script.problems()


def stored_values(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield package and resource of each value that a module of definitions loads at import."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) == "torch_package_importer.load_pickle":
                package, resource = (str(getattr(each, "value", "")) for each in node.args)
                yield package, resource
