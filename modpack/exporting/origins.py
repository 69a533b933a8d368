"""Where an exporter's modules and objects come from: its importers, and files."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from modpack.core.graph import ModuleSource
from modpack.core.names import root_of
from modpack.discovery.finder import HostEnvironment, ImportedEnvironment
from modpack.discovery.importers import Importer, OrderedImporter, sys_importer
from modpack.discovery.walk import Walker
from modpack.errors import ObjMismatchError, ObjNotFoundError


def as_importer(importer: object) -> Importer:
    """One importer, made of several if several are given.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(importer, Importer):
        return importer
    is_text = isinstance(importer, (str, bytes))
    listed = list(importer) if isinstance(importer, Sequence) and not is_text else [importer]
    importers: list[Importer] = []
    for each in listed:
        if not isinstance(each, Importer):
            raise TypeError(
                "importer must be a modpack importer (PackageImporter, sys_importer, ...) or a "
                f"sequence of them, not {type(each).__name__}"
            )
        importers.append(each)
    if not importers:
        raise ValueError("importer must not be empty: without an importer nothing has a name")
    return OrderedImporter(*importers)


class ObjectOrigins:
    """The importers of an exporter, and where the classes and functions that it saves were.

    Args:
        importer: one importer, or an ordered one; ordered ones may nest.

    Attributes:
        importers: the importers, first choice first.
        environments: theirs; the host's is last, for what packages leave to it.
    """

    def __init__(self, importer: Importer) -> None:
        self.importers = tuple(_flattened(importer))
        self._environments = {id(each): _environment(each) for each in self.importers}
        self._environments.setdefault(id(sys_importer), HostEnvironment())
        self.environments = tuple(self._environments.values())
        self._homes: dict[str, tuple[Importer, object]] = {}

    def _environment_of(self, importer: Importer) -> ModuleSource:
        """The environment of one of the importers, or of the host."""
        known = self._environments
        return known.get(id(importer), known[id(sys_importer)])

    def find(self, obj: object, name: str) -> tuple[Importer, str, str]:
        """The first importer that has an object, with the module path and the name that it has.

        Args:
            obj: a class, a function, or whatever else has a name in a module.
            name: its qualified name.

        Raises:
            ObjNotFoundError: no importer knows it.
            ObjMismatchError: one knows something else by that name.
        """
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self.importers:
            try:
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        mismatches = [f for f in failures if isinstance(f, ObjMismatchError)]
        raise (mismatches or failures)[0]

    def require_listed(self, importer: Importer, obj: object) -> None:
        """Refuse an object of a package that the exporter does not know.

        Raises:
            ObjNotFoundError: If its importer is none of the exporter's.
        """
        if not any(importer is each for each in self.importers):
            raise ObjNotFoundError(
                f"{obj!r} was loaded from {importer!r}: name that one too, "
                "importer=[package, sys_importer]"
            )

    def remember(self, importer: Importer, module: str, obj: object) -> None:
        """Note that something of a module is saved.

        Args:
            importer: what has it.
            module: the module path that it has there.
            obj: what is saved.

        Raises:
            ObjMismatchError: something of the same library is saved from another importer.
        """
        if importer is not sys_importer and self._environment_of(importer).locate(module) is None:
            importer = sys_importer  # extern in its package: the host's, like everywhere else
        root = root_of(module)
        home, first = self._homes.setdefault(root, (importer, obj))
        if home is not importer:
            raise ObjMismatchError(
                f"{obj!r} comes from {importer!r}, but {first!r} comes from {home!r}: a package "
                f"holds one version of {root!r}. Save them into two packages"
            )

    def pin(self, walker: Walker) -> None:
        """Fix the environment from which the walk takes the objects' own modules.

        Raises:
            ObjMismatchError: modules of the same library came from another one already.
        """
        if len(self.importers) > 1:
            for root, (importer, first) in self._homes.items():
                module = walker.pin(root, self._environment_of(importer))
                if module is not None:
                    raise ObjMismatchError(
                        f"{first!r} comes from {importer!r}, but the module {module!r} was taken "
                        f"from another importer: a package holds one version of {root!r}. Save "
                        "them into two packages"
                    )


def _flattened(importer: Importer) -> Iterator[Importer]:
    if isinstance(importer, OrderedImporter):
        for each in importer.importers:
            yield from _flattened(each)
    else:
        yield importer


def _environment(importer: Importer) -> ModuleSource:
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
