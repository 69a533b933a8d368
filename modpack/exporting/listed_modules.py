"""Modules of the user's own that code finds without their names: in folders, by entry points."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser, ParsingError

from modpack.core.graph import Edge
from modpack.core.plan import Decision
from modpack.core.rules import Action
from modpack.core.scan import FolderListing, ImportKind, ImportStatement
from modpack.discovery.walk import Walker
from modpack.exporting.module_locations import Installed

_MOST_LISTED = 10_000


def listed_edges(
    walker: Walker,
    decisions: Mapping[str, Decision],
    is_own: Callable[[str], bool],
    installed: Installed,
) -> Iterator[Edge]:
    """Evidence for the modules that interned code of the user's own finds without their names.

    Those of folders that it lists; those of the entry points of its own project, where it asks for
    their group; and of ``from package import *``, whose ``__all__`` is computed, the submodules
    that are loaded here.

    Args:
        walker: the walk so far.
        decisions: what was decided by now.
        is_own: whether a module is the user's own code.
        installed: the distributions of this interpreter.
    """
    for module, decision in decisions.items():
        is_interned = decision.action is Action.INTERN and walker.is_followed(module)
        if not is_interned or not is_own(module):
            continue
        for listing in walker.scan(module).listings:
            for found in _modules_in(walker, module, listing):
                if found != module:
                    yield Edge(module, found, ImportKind.DYNAMIC, listing.line)
        for statement in walker.scan(module).imports:
            if statement.names == ("*",) and statement.kind.is_dependency:
                yield from _taken_by_star(walker, module, statement)
        yield from _entry_points(walker, module, installed)


def _taken_by_star(walker: Walker, module: str, statement: ImportStatement) -> Iterator[Edge]:
    package = statement.module
    scan, environment = walker.scan(package), walker.environment_of(package)
    if environment is None or scan.exported is not None or "__all__" not in scan.bound:
        return
    for found in _modules_in(walker, package, FolderListing("", False, statement.line)):
        name = found.rpartition(".")[2]
        if environment.live_attribute(package, name) == "submodule":
            yield Edge(module, found, ImportKind.LOADED, statement.line)


def _entry_points(walker: Walker, module: str, installed: Installed) -> Iterator[Edge]:
    source = walker.source(module) if walker.has_source(module) else b""
    if b"entry_points" not in source:
        return
    distribution = installed.distribution_of(module, walker.locate(module))
    contents = installed.contents_of(distribution) if distribution is not None else None
    file = contents.metadata.get("entry_points.txt") if contents is not None else None
    if file is None:
        return
    groups = ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    try:
        groups.read_string(file.read_text("utf-8"))
    except (OSError, ValueError, ParsingError):  # then nobody finds an entry point in there
        return
    for group in groups.sections():
        asked = re.search(rb"[\"']" + re.escape(group.encode()) + rb"[\"']", source)
        for value in groups[group].values() if asked is not None else ():
            target = value.partition(":")[0].partition("[")[0].strip()
            is_name = all(part.isidentifier() for part in target.split("."))
            if is_name and walker.locate(target) is not None:
                line = source.count(b"\n", 0, asked.start()) + 1 if asked is not None else None
                yield Edge(module, target, ImportKind.DYNAMIC, line)


def _modules_in(walker: Walker, module: str, listing: FolderListing) -> Iterator[str]:
    place = _folder(walker, listing.module or module)
    if place is None:
        return
    folder, package = place
    for part in listing.path.split("/") if listing.path else ():
        if part == "..":
            folder, package = os.path.dirname(folder), package.rpartition(".")[0]  # noqa: PTH120
        else:
            folder, package = os.path.join(folder, part), _joined(package, part)  # noqa: PTH118
    waiting, left = [(folder, package)], _MOST_LISTED
    while waiting and left:
        folder, package = waiting.pop()
        for name in sorted(_names_in(folder)):
            left = max(0, left - 1)
            inner = os.path.join(folder, name)  # noqa: PTH118
            base, is_source = name.removesuffix(".py"), name.endswith(".py")
            if not base.isidentifier() or base in ("__init__", "__main__", "__pycache__"):
                continue
            found = _joined(package, base)
            if is_source or os.path.isfile(os.path.join(inner, "__init__.py")):  # noqa: PTH113, PTH118
                yield found
            if listing.is_deep and not is_source and os.path.isdir(inner):  # noqa: PTH112
                waiting.append((inner, found))


def _folder(walker: Walker, module: str) -> tuple[str, str] | None:
    """The folder that a module is in, or that a package is, and the package that it stands for."""
    location = walker.locate(module)
    if location is None:
        return None
    package = module if location.is_package else module.rpartition(".")[0]
    if location.file is not None and os.path.isfile(location.file):  # noqa: PTH113
        return os.path.dirname(location.file), package  # noqa: PTH120
    return (location.search[0], package) if location.search else None


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:  # it is not there
        return []


def _joined(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name
