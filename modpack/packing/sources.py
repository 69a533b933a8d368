"""Where an exporter's modules come from: its importers as environments, and files."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from modpack.core.location import Environment
from modpack.resolution.host import HostEnvironment
from modpack.resolution.imported import ImportedEnvironment
from modpack.resolution.importers import Importer, OrderedImporter, sys_importer

__all__ = ["ImporterEnvironments", "encoded", "files_of"]


class ImporterEnvironments:
    """The environment of each importer of an exporter.

    Args:
        importer: one importer, or an ordered one; ordered ones may nest.
    """

    def __init__(self, importer: Importer) -> None:
        self._importers = tuple(_flattened(importer))
        self._environments = {id(each): _environment(each) for each in self._importers}
        self._host = self._environments.get(id(sys_importer)) or HostEnvironment()

    def in_order(self) -> tuple[Environment, ...]:
        """The environments, first choice first; the host last, for what packages leave to it."""
        found = tuple(self._environments.values())
        return found if self.has_host else (*found, self._host)

    @property
    def has_host(self) -> bool:
        """Whether this interpreter's own modules are among them."""
        return any(each is sys_importer for each in self._importers)

    @property
    def importers(self) -> tuple[Importer, ...]:
        """The importers, first choice first."""
        return self._importers

    def of(self, importer: Importer) -> Environment:
        """The environment of one of the importers, or of the host."""
        return self._environments.get(id(importer), self._host)

    def holds(self, importer: Importer, module: str) -> bool:
        """Whether a module that an importer names is its own, and not taken from the host."""
        if importer is sys_importer:
            return True
        return self.of(importer).locate(module) is not None


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


def encoded(source: str) -> bytes:
    r"""Source text as the bytes of a file, in the encoding that its coding cookie names.

    Raises:
        UnicodeEncodeError: that encoding does not have all of its characters.

    >>> encoded("# coding: latin-1\nx = '\xe9'")[-2:]
    b"\xe9'"
    """
    plain = source.encode()
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(plain).readline)[0]
    except SyntaxError:  # an unknown encoding: reading the source will say so
        return plain
    if encoding.startswith("utf-8"):
        return plain
    try:
        return source.encode(encoding)
    except LookupError:  # a codec that is not for text: reading the source will say so, too
        return plain


def files_of(module: str, place: Path) -> Iterator[tuple[str, Path, bool]]:
    """The sources at a place, as module path, file, and whether it is a package.

    Args:
        module: the module path of the place itself.
        place: a source file, or a folder with sources at any depth. What no import statement
            can name is left out: files in ``.ipynb_checkpoints`` and the like.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if place.is_dir():
        for file in sorted(place.rglob("*.py")):
            *folders, name = file.relative_to(place).parts
            own = [] if name == "__init__.py" else [name[: -len(".py")]]
            if not any("." in part for part in (*folders, *own)):
                yield ".".join([module, *folders, *own]), file, name == "__init__.py"
    elif place.is_file():
        yield module, place, place.name == "__init__.py"
    else:
        raise FileNotFoundError(f"there is no file or folder {str(place)!r} to take {module} from")
