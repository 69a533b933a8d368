"""Comparison of the live modules with those that the package loads.

A difference counts if it may change what the loaded object computes and the user can act on it.
Differences that the modules' own functions make are remarks. Those that two processes do not agree
on, such as addresses and random values, are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from modpack.core.names import is_everywhere, root_of, strip_namespaces
from modpack.core.rules import Owner
from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.walk import Walker
from modpack.environment.finder import is_a
from modpack.environment.importers import module_dict
from modpack.pickling.functions import SCRIPTS
from modpack.selftest.module_names import reached_names
from modpack.selftest.module_state import ALL_NAMES, BASES, CUT, Namespace, describe_modules
from modpack.selftest.object_rows import (
    ANYTHING,
    MAX_ATTRIBUTES,
    SAME,
    Row,
    StateDifference,
    compare_objects,
    is_part,
)
from modpack.selftest.stored_names import StoredNames

_MAX_NAME: Final = 80
_ABSOLUTE_PATH: Final = re.compile(r"(str|pathlib\.\w+ \w+\() ?'([/\\]|\w:)")
"""The start of a row's text for a folder or file of this machine, which libraries look up."""


class ModuleDifference(NamedTuple):
    """A difference between the live state of a module and the loaded one.

    Attributes:
        name: The module and the name in it.
        text: The name, the location of its definition, and both values in a few words.
        is_own: Whether functions of the package itself change the name.
    """

    name: str
    text: str
    is_own: bool


class LiveModules:
    """The live modules of a package.

    Args:
        roots: The saved objects.
        packaged: The namespaces of the modules that were loaded from packaged sources.
        mocked: The mocked modules.
        available: Top-level names that the package contains or imports from outside.
        walker: The walk, which has the sources.
        installed: The installed distributions.
        scripts: Modules whose definitions are packaged as those of a script.

    Attributes:
        names: The names that count, by module.
    """

    def __init__(
        self,
        roots: Iterable[object],
        packaged: Mapping[str, Namespace],
        mocked: Iterable[str],
        available: Iterable[str],
        walker: Walker,
        installed: DistributionIndex,
        scripts: Iterable[str],
    ) -> None:
        self._packaged = packaged
        self._mocked = frozenset(mocked)
        self._available = frozenset(available)
        self._walker = walker
        self._installed = installed
        self._scripts = frozenset(scripts)
        self._rows: tuple[Row, ...] = ()
        self._origins: dict[str, str] = {}
        self._is_users = cache(self._is_of_user)
        self._stored = cache(lambda module: StoredNames(walker.source(module)))
        self._reached = reached_names(roots, packaged.__contains__, self._is_users)
        self.names = {
            module: (ALL_NAMES,)
            if module in packaged and self._is_users(module)
            else tuple(self._reached.get(module, ()))
            for module in {**packaged, **self._reached}
        }

    def is_of_mock(self, row: Row) -> bool:
        """Return whether a part of an object or module belongs to a mocked module."""
        return row.module in self._mocked

    def _describe(self, loaded: Sequence[Row]) -> None:
        """Describe those live modules that a process has loaded, as they are now.

        Objects are described where they are found first, which must not be in another module.
        """
        found = {row.path for row in loaded}
        names = {module: each for module, each in self.names.items() if module in found}
        live = {m: self._packaged.get(m) or module_dict(sys.modules.get(m)) for m in names}
        folders = {
            # The folder above the top-level package: one step for each dot, and one for __init__.
            str(Path(str(each["__file__"])).parents[module.count(".") + ("__path__" in each)])
            for module, each in self._packaged.items()
            if module.rpartition(".")[0] not in self._packaged
        }
        self._rows = describe_modules(live, names, self._packaged, folders, self._scripts)
        self._origins = {row.path: row.module for row in self._rows}

    def compare(
        self, loaded: Sequence[Row], describe_again: Callable[[bool], Sequence[Row]]
    ) -> list[ModuleDifference]:
        """Return the differences from the modules that a process loaded.

        Args:
            loaded: The rows of the loaded modules.
            describe_again: Returns the rows of another process, which is not a fork if the argument
                is True: forks have the same order of sets. Called if anything differs.
        """
        self._describe(loaded)
        before, differences = _texts(loaded), list(self._differences(loaded))
        explained = list(map(self._explain, differences))
        # A second run tells values that differ in each process, such as ids and times, from changed
        # ones. Only a new interpreter has another order of sets than a fork, and it takes longer.
        for is_new in (False, True):
            if all(each.is_own for each in explained) and (is_new or not explained):
                break
            again = _texts(describe_again(is_new))
            unstable = {path for path, text in before.items() if again.get(path) != text}
            unstable |= {re.sub(r"\[\d+\]$", "", path) for path in unstable}  # a list's order
            differences = [d for d in differences if not is_part(d.path, unstable)]
            explained = list(map(self._explain, differences))
        return explained

    def _is_of_user(self, module: str) -> bool:
        if module in SCRIPTS or not module:
            return module != ""
        is_loaded = module in sys.modules or self._walker.is_loaded(module)
        parts = {module, root_of(module)}  # a library may write modules of its own
        owners = {self._installed.owner(part, self._walker.locate(part)) for part in parts}
        return is_loaded and owners == {Owner.LOCAL}

    def _differences(self, loaded: Sequence[Row]) -> Iterator[StateDifference]:
        rows, found = _texts(self._rows), _texts(loaded)
        is_cut = max(len(rows), len(found)) >= MAX_ATTRIBUTES
        differences = compare_objects(self._rows, loaded, self.is_of_mock)
        changed = {each.path for each in differences}
        # Of a class, parts may be missing because no object led to it in one of the processes.
        partial = {
            path.removesuffix(f".{end}")
            for path in {**rows, **found}
            for end in (CUT, BASES)
            if path.endswith(end) and (end == CUT or not (path in rows and path in found))
        }
        for each in differences:
            module, _, name = each.path.partition(":")
            is_one_sided = not (each.live and each.loaded)
            if (
                name
                and module in found
                and each.loaded != ANYTHING
                and not (is_one_sided and (is_cut or is_part(each.path, partial)))
                # The object is described under another name, which differs itself.
                and not is_part(each.live.removeprefix(SAME), changed)
                and not is_part(each.loaded.removeprefix(SAME), changed)
                and not self._is_of_absent_library(each.path, module, name)
                and self._counts(each, module, name)
            ):
                yield each

    def _is_of_absent_library(self, path: str, module: str, name: str) -> bool:
        """Return whether a value is that of an optional import, or was bound on its line.

        The package neither contains nor requires the library, which other notes report.
        """
        live = self._packaged.get(module, {})
        if name not in live:
            return False
        lines, source = self._stored(module).lines, self._walker.source(module)
        bound = [other for other in live if other in lines and lines[other] == lines.get(name)]
        origins = (self._origins.get(path, ""), *(_origin_of(live[other]) for other in bound))
        return any(
            root_of(origin) not in self._available
            and not is_everywhere(origin)
            and not self._is_users(origin)
            and root_of(origin).encode() in source  # otherwise, the user has set it
            for origin in filter(None, origins)
        )

    def _counts(self, each: StateDifference, module: str, name: str) -> bool:
        """Return whether a difference may matter, by the owner of the code."""
        if module not in self._packaged or (not each.live and name.isidentifier()):
            return not each.loaded.startswith("module ")  # imports of submodules differ
        if each.live.startswith("module ") and not each.loaded:
            return False
        if self._is_users(module):
            # What only the live module has counts if the code of the saved objects reads it.
            return (
                each.loaded != ""
                or not name.isidentifier()
                or name in self._reached.get(module, ())
            )
        # Libraries fill their own tables and caches. These count only if they refer to code from
        # elsewhere, such as a class that a script registers.
        is_private = any(step[:1] == "_" != step[1:2] for step in name.split("."))
        is_added = not each.loaded and (name.isidentifier() or name[-1:] in "]}")
        origin = self._origins.get(each.path, "")
        is_outside = not is_everywhere(origin) and root_of(origin) not in ("", root_of(module))
        is_path = _ABSOLUTE_PATH.match(each.live) is not None
        return is_outside or self._is_users(origin) or not (is_private or is_added or is_path)

    def _explain(self, each: StateDifference) -> ModuleDifference:
        module, _, name = each.path.partition(":")
        name = name.removesuffix(f".{BASES}")
        stored = self._stored(module) if module in self._packaged else StoredNames(b"")
        line = stored.lines.get(name) or stored.lines.get(re.split(r"[.\[{]", name)[0])
        file = module_dict(sys.modules.get(module)).get("__file__")
        place = f" ({Path(str(file)).name}:{line})" if line else ""
        live, loaded = each.shown
        short = f"{name[:_MAX_NAME]}..." if len(name) > _MAX_NAME else name
        text = f"{module}.{short}{place}: live {live}, loaded {loaded}"
        return ModuleDifference(f"{module}.{short}", text, self._is_own(each, module, name, stored))

    def _is_own(self, each: StateDifference, module: str, name: str, stored: StoredNames) -> bool:
        """Return whether functions of the package may have made a difference."""
        origin = self._origins.get(each.path, "")
        if origin not in self._packaged and self._is_users(origin):
            return False  # code that the package does not contain
        owner = each.path.rpartition(".")[0]  # an entry of an attribute is not one
        is_in_class = name[-1:] != "]" and f"{owner}.{BASES}" in self._origins
        if stored.change(name, is_in_class) or (not each.loaded and stored.has_dynamic_names):
            return True
        if self._is_users(module):
            others = (m for m in self._packaged if m != module and self._is_users(m))
            return any(self._stored(other).change_outside(name) for other in others)
        # Any module of a library, or of that of an object's class, may change its attributes.
        libraries = {root_of(module), root_of(self._origins.get(owner, ""))}
        attribute = name.rpartition(".")[2].partition("[")[0]
        return attribute != name and any(
            self._stored(other).change(f".{attribute}", is_in_class)
            for other in self._packaged
            if root_of(other) in libraries and attribute.encode() in self._walker.source(other)
        )


def _origin_of(value: Any) -> str:
    """Return the path of a module, or the module of a class or function."""
    if is_a(value, ModuleType):
        return str(module_dict(value).get("__name__"))
    return strip_namespaces(str(value.__module__)) if is_a(value, (type, FunctionType)) else ""


def _texts(rows: Iterable[Row]) -> Mapping[str, str]:
    return {row.path: row.text for row in rows}
