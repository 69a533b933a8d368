"""Origins of an exporter's modules and objects: importers and files."""

from __future__ import annotations

import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modpack.core.graph import ModuleSource
from modpack.core.names import root_of
from modpack.discovery.walk import Walker
from modpack.environment.finder import HostEnvironment, ImportedEnvironment
from modpack.environment.importers import Importer, OrderedImporter, importer_of, sys_importer
from modpack.errors import ObjMismatchError, ObjNotFoundError


def as_importer(importer: object) -> Importer:
    """Return one importer, combining several if a sequence is given.

    Raises:
        TypeError: If an element is not an importer.
        ValueError: If the sequence is empty.
    """
    if isinstance(importer, Importer):
        return importer
    listed: list[Any] = [importer]
    if isinstance(importer, Sequence) and not isinstance(importer, (str, bytes)):
        listed = list(importer)
    if not listed:
        raise ValueError("importer must not be empty: objects are named by their importers")
    return OrderedImporter(*listed)


_SPLIT = "Save the objects in separate packages."


class ObjectOrigins:
    """The importers of an exporter, and the origins of the classes and functions that it saves.

    The importer of a loaded package joins the others, before :data:`modpack.sys_importer`, once an
    object of that package is saved.

    Args:
        importer: One importer, or an ordered one. Ordered importers may nest.

    Attributes:
        importers: The importers, in order of preference.
        environments: Their module sources. If the host is no importer, its source is last, for
            modules that packages extern.
    """

    def __init__(self, importer: Importer) -> None:
        self._host = HostEnvironment()
        self.importers = list(_flatten(importer))
        self.environments = [self._module_source(each) for each in self.importers]
        if sys_importer not in self.importers:
            self.environments.append(self._host)
        self._origins: dict[str, tuple[Importer, object]] = {}

    def _module_source(self, importer: Importer) -> ModuleSource:
        if importer is sys_importer:
            return self._host
        own = getattr(importer, "_environment", None)
        return own if own is not None else ImportedEnvironment(importer)

    def _environment_of(self, importer: Importer) -> ModuleSource:
        """Return the module source of an importer, or the host's."""
        listed = zip(self.importers, self.environments, strict=False)
        return next((source for each, source in listed if each is importer), self._host)

    def add_owner(self, module_name: str) -> None:
        """Add the importer of the package that a live module was loaded from, if it is from one."""
        owner = importer_of(sys.modules.get(module_name))
        if owner is None or any(owner is each for each in self.importers):
            return
        # Before the interpreter, which may have another version of the packaged modules.
        has_host = sys_importer in self.importers
        place = self.importers.index(sys_importer) if has_host else len(self.importers)
        self.importers.insert(place, owner)
        self.environments.insert(place, self._module_source(owner))

    def find(self, obj: object, name: str) -> tuple[Importer, str, str]:
        """Return the first importer that has an object, with the object's module path and name.

        Args:
            obj: A class, a function, or another object with a name in a module.
            name: Its qualified name.

        Raises:
            ObjNotFoundError: If no importer has it.
            ObjMismatchError: If an importer has a different object under that name.
        """
        # An object of a package is found by that package's importer only.
        self.add_owner(str(getattr(obj, "__module__", None)))
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self.importers:
            try:
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        # A mismatch explains more: an importer knows the name, but for another object.
        mismatches = [f for f in failures if isinstance(f, ObjMismatchError)]
        raise (mismatches or failures)[0]

    def remember(self, importer: Importer, module: str, obj: object) -> None:
        """Record that an object of a module is saved.

        Args:
            importer: The importer that has it.
            module: The module path in that importer.
            obj: The object.

        Raises:
            ObjMismatchError: If objects of the same library come from another importer.
        """
        if importer is not sys_importer and self._environment_of(importer).locate(module) is None:
            importer = sys_importer  # extern in its package, so the host provides it
        root = root_of(module)
        origin, first = self._origins.setdefault(root, (importer, obj))
        if origin is not importer:
            raise ObjMismatchError(
                f"{obj!r} comes from {importer!r}, but {first!r} comes from {origin!r}; a package "
                f"can contain only one version of {root!r}",
                hint=_SPLIT,
            )

    def pin(self, walker: Walker) -> None:
        """Make the walk take the saved objects' modules from their own module source.

        Raises:
            ObjMismatchError: If modules of the same library already come from another one.
        """
        if len(self.importers) > 1:  # with one, every module comes from it anyway
            for root, (importer, first) in self._origins.items():
                module = walker.pin_root(root, self._environment_of(importer))
                if module is not None:
                    raise ObjMismatchError(
                        f"{first!r} comes from {importer!r}, but module {module!r} comes from "
                        f"another importer; a package can contain only one version of {root!r}",
                        hint=_SPLIT,
                    )


def _flatten(importer: Importer) -> Iterator[Importer]:
    if isinstance(importer, OrderedImporter):
        for each in importer.importers:
            yield from _flatten(each)
    else:
        yield importer


def encode_source(source: str) -> bytes:
    r"""Encode source text with the encoding that its coding cookie names.

    Raises:
        UnicodeEncodeError: If the encoding cannot represent all characters.

    >>> encode_source("# coding: latin-1\nx = '\xe9'")[-2:]
    b"\xe9'"
    """
    plain = source.encode()
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(plain).readline)[0]
        return plain if encoding.startswith("utf-8") else source.encode(encoding)
    # An unknown encoding, or none of texts. Both are reported when the source is read.
    except (SyntaxError, LookupError):
        return plain


def iter_sources(module: str, path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield the source files at a path: module path, file, and whether it is a package.

    Args:
        module: The module path of the file or folder itself.
        path: A source file, or a folder with sources at any depth. Files that no import statement
            can name, such as those in ``.ipynb_checkpoints``, are skipped.

    Raises:
        FileNotFoundError: If the path does not exist.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            *folders, name = file.relative_to(path).parts
            own = [] if name == "__init__.py" else [name[: -len(".py")]]
            if not any("." in part for part in (*folders, *own)):
                yield ".".join([module, *folders, *own]), file, name == "__init__.py"
    elif path.is_file():
        yield module, path, path.name == "__init__.py"
    else:
        raise FileNotFoundError(f"{str(path)!r}, the source of module {module!r}, does not exist")
