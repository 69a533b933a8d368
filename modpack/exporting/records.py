"""Which record each module of a plan goes to, and whether there is room for it.

Where an exporter's modules come from: its importers as environments, and files.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from modpack.archive.layout import NameRegistry
from modpack.core.graph import Environment
from modpack.core.names import is_within, module_record
from modpack.core.plan import PackagingErrorReason, Plan, Problem
from modpack.core.rules import Action
from modpack.discovery.finder import HostEnvironment
from modpack.discovery.importers import ImportedEnvironment, Importer, OrderedImporter, sys_importer
from modpack.discovery.walk import Walker


def interned_records(plan: Plan, walker: Walker) -> dict[str, str]:
    """The record of each interned module that has a source; the others are folders only."""
    return {
        module: module_record(module, walker.is_package(module))
        for module in plan.modules(Action.INTERN)
        if walker.has_source(module)
    }


def mocked_records(plan: Plan) -> dict[str, str]:
    """The record of each stand-in: a package's where the plan holds modules below it."""
    mocked = plan.modules(Action.MOCK)
    held = [*mocked, *plan.modules(Action.INTERN)]
    return {
        module: module_record(module, any(o != module and is_within(o, module) for o in held))
        for module in mocked
    }


def clashes(plan: Plan, walker: Walker, taken: Iterable[str]) -> Iterator[Problem]:
    """Modules whose record has the name of another record, for some file system at least.

    Args:
        plan: what will be written.
        walker: knows the sources.
        taken: the records that are there already: the saved resources.
    """
    registry = NameRegistry()
    for name in taken:
        registry.add(name)
    records = {**interned_records(plan, walker), **mocked_records(plan)}
    for module, record in records.items():
        reason = registry.add(record)
        if reason is not None:
            context = f"its record is {record}, but {reason}"
            chain = plan.graph.shortest_path(module)
            yield Problem(module, PackagingErrorReason.DUPLICATE_RECORD, context, None, chain)


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
