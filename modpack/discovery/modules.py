"""Modules as the walk sees them: where each is, and what its source says.

What was found is kept for the life of an export: everything that looks at a module sees the same
place and the same bytes, those that were scanned, looked through for secrets, and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from modpack.core.imports import ModuleScan, ScanFailure
from modpack.core.location import CodeKind, Environment, Location
from modpack.core.names import root_of
from modpack.discovery.source import scan_source

if TYPE_CHECKING:
    from modpack.discovery.presence import Answer

__all__ = ["Modules", "Scan"]

Scan = Callable[[bytes, str, bool], ModuleScan]
"""Reads a source, given the module's path and whether it is a package."""

_MOST_KEPT: Final = 64 << 20
"""Bytes of sources that are kept; of further ones, each is read as often as it is asked for."""


class Modules:
    """Modules of several environments.

    Args:
        environments: where modules come from, first choice first.
        scan: reads sources.

    Attributes:
        scans: what each source says that was scanned.
    """

    def __init__(self, environments: Sequence[Environment], scan: Scan = scan_source) -> None:
        self.scans: dict[str, ModuleScan] = {}
        self._environments = tuple(environments)
        self._scan_source = scan
        self._provided: dict[str, tuple[bytes, Location]] = {}
        self._folders: dict[str, Location] = {}
        self._home: dict[str, Environment] = {}
        self._found: dict[str, tuple[Environment, Location]] = {}
        self._sources: dict[str, bytes] = {}
        self._telling: dict[str, bool] = {}
        self._presences: dict[str, Callable[[str], Answer]] = {}
        self._kept = 0

    def home_of(self, module: str) -> Environment | None:
        """The environment that a module's root was pinned to, if it was."""
        return self._home.get(root_of(module))

    def environment_of(self, module: str) -> Environment | None:
        """The environment that a module was found in; None if its source was given."""
        return None if module in self._provided else self._find(module)[0]

    def locate(self, module: str) -> Location | None:
        """Where a module was found, in the first environment that has it.

        A module whose source was given is found in no file, and neither is a folder of saved
        resources that no environment has a module for.
        """
        given = self._provided.get(module)
        if given is not None:
            return given[1]
        return self._find(module)[1] or self._folders.get(module)

    def add_folder(self, package: str) -> None:
        """Note a package that will exist in any case, for the resources that are saved in it."""
        self._folders[package] = Location(package, CodeKind.NAMESPACE, None, True)

    def is_folder(self, module: str) -> bool:
        """Whether a module is nothing but the folder of saved resources."""
        if module not in self._folders:
            return False
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.NAMESPACE

    def is_loaded(self, module: str) -> bool:
        """Whether a module is loaded in this process, or held by a package."""
        return any(module in environment.loaded() for environment in self._environments)

    def needed_beside(self, module: str) -> list[str]:
        """The modules that are known to be needed where a module comes from."""
        environment = self._find(module)[0] if module not in self._provided else None
        return list(environment.loaded()) if environment is not None else []

    def live_home(self, module: str, name: str) -> str | None:
        """Where a class or function lives that a loaded module binds to a name."""
        environment = self._find(module)[0] if module not in self._provided else None
        return environment.live_home(module, name) if environment is not None else None

    def is_out_of_reach(self, importer: str, module: str) -> bool:
        """Whether an importer comes from a package that was made without a module."""
        environment = self._find(importer)[0] if importer not in self._provided else None
        return environment is not None and environment.lacks(module)

    def is_from_package(self, module: str) -> bool:
        """Whether a module comes from a package, which lacks what was left out of it."""
        environment = self._find(module)[0] if module not in self._provided else None
        return environment is not None and environment.is_package

    def has_source(self, module: str) -> bool:
        """Whether a module has a source that can be taken along."""
        location = self.locate(module)
        return location is not None and location.kind is CodeKind.SOURCE

    def source(self, module: str) -> bytes:
        """The source of a module that was located or provided.

        Raises:
            OSError: it cannot be read any more.
        """
        if module in self._provided:
            return self._provided[module][0]
        if module in self._sources:
            return self._sources[module]
        environment, location = self._find(module)
        if environment is None or location is None:
            raise FileNotFoundError(f"there is no module {module!r}")
        return self._keep(module, environment.read_source(location))

    def _keep(self, module: str, source: bytes) -> bytes:
        if self._kept + len(source) <= _MOST_KEPT:
            self._kept += len(source)
            self._sources[module] = source
        return source

    def is_package(self, module: str) -> bool:
        """Whether a module can have submodules."""
        location = self.locate(module)
        return location is not None and location.is_package

    def scan(self, module: str) -> ModuleScan:
        """What a module's source says about imports; empty if it has no source."""
        if module not in self.scans:
            self.scans[module] = self._scan(module)
        return self.scans[module]

    def tells_presence(self, name: str) -> bool:
        """Whether a name, such as ``lib.utils.is_x_available``, tells if some module is there.

        Most need not be asked: a few modules of a library have such names.
        """
        if name not in self._telling:
            waiting, seen, is_told = [name], {name}, False
            while waiting and not is_told:
                module, _, attribute = waiting.pop().rpartition(".")
                if self.has_source(module) and self.scan(module).failure is None:
                    answer = self._presence(module)(attribute)
                    is_told = answer.is_told
                    waiting.extend(each for each in answer.elsewhere if each not in seen)
                    seen.update(answer.elsewhere)
            self._telling[name] = is_told
        return self._telling[name]

    def _presence(self, module: str) -> Callable[[str], Answer]:
        if module not in self._presences:
            from modpack.discovery.presence import presence_in

            source = self.source(module)
            self._presences[module] = presence_in(source, module, self.is_package(module))
        return self._presences[module]

    def _scan(self, module: str) -> ModuleScan:
        if not self.has_source(module):
            return ModuleScan()
        try:
            source = self.source(module)
        except OSError as failure:
            return ModuleScan(failure=ScanFailure(f"it cannot be read: {failure}"))
        return self._scan_source(source, module, self.is_package(module))

    def _find(self, module: str) -> tuple[Environment | None, Location | None]:
        known = self._found.get(module)
        if known is not None:
            return known
        pinned = self._home.get(root_of(module))
        for environment in self._environments if pinned is None else (pinned,):
            location = environment.locate(module)
            if location is not None:
                self._found[module] = environment, location
                return environment, location
        return None, None

    def _take_from(self, root: str, environment: Environment) -> None:
        """Look for all modules under a root in one environment from here on."""
        self._home[root] = environment
        self._found.clear()
        for module in [m for m in (*self.scans, *self._sources) if root_of(m) == root]:
            self._forget_source(module)

    def _forget_source(self, module: str) -> None:
        """Read and scan a module again when it is asked for the next time."""
        self.scans.pop(module, None)
        self._kept -= len(self._sources.pop(module, b""))
