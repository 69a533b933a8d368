"""Where an exporter's modules come from: its importers as environments, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modpack.core.location import Environment
from modpack.resolution.host import HostEnvironment
from modpack.resolution.imported import ImportedEnvironment
from modpack.resolution.importers import Importer, OrderedImporter, sys_importer

__all__ = ["ImporterEnvironments", "files_of"]


class ImporterEnvironments:
    """The environment of each importer of an exporter.

    Args:
        importer: one importer, or an ordered one; ordered ones may nest.
    """

    def __init__(self, importer: Importer) -> None:
        self._importers = tuple(_flattened(importer))
        self._environments = {id(each): _environment(each) for each in self._importers}

    def in_order(self) -> tuple[Environment, ...]:
        """The environments, first choice first; the host last, for what packages leave to it."""
        found = tuple(self._environments.values())
        return found if self.has_host else (*found, HostEnvironment())

    @property
    def has_host(self) -> bool:
        """Whether this interpreter's own modules are among them."""
        return any(each is sys_importer for each in self._importers)

    @property
    def importers(self) -> tuple[Importer, ...]:
        """The importers, first choice first."""
        return self._importers

    def of(self, importer: Importer) -> Environment:
        """The environment of one of the importers."""
        return self._environments[id(importer)]


def _flattened(importer: Importer) -> Iterator[Importer]:
    if isinstance(importer, OrderedImporter):
        for each in importer.importers:
            yield from _flattened(each)
    else:
        yield importer


def _environment(importer: Importer) -> Environment:
    if importer is sys_importer:
        return HostEnvironment()
    own = getattr(importer, "environment", None)
    return own if own is not None else ImportedEnvironment(importer)


def files_of(module: str, place: Path) -> Iterator[tuple[str, Path, bool]]:
    """The sources at a place, as module path, file, and whether it is a package.

    Args:
        module: the module path of the place itself.
        place: a source file, or a folder with sources at any depth.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if place.is_dir():
        for file in sorted(place.rglob("*.py")):
            *folders, name = file.relative_to(place).parts
            own = [] if name == "__init__.py" else [name[: -len(".py")]]
            yield ".".join([module, *folders, *own]), file, name == "__init__.py"
    elif place.is_file():
        yield module, place, place.name == "__init__.py"
    else:
        raise FileNotFoundError(f"there is no file or folder {str(place)!r} to take {module} from")
