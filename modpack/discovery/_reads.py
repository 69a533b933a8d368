"""Which files beside the code a source reads, as far as that can be seen without running it.

Paths are followed from where a module learns its own place (``__file__``, ``__path__``,
``importlib.resources``, ``pkgutil.get_data``) through the functions of :mod:`os.path` and
:mod:`pathlib`, and through names that are assigned once. What is wrong here costs little: a path
counts only if there is a file, and a file that is not found is found by a trial run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from modpack.core.imports import FileRead, ReadKind
from modpack.discovery._nodes import child_nodes
from modpack.discovery._parse import ParsedSource
from modpack.discovery._places import PATHS, Place, Places

__all__ = ["find_reads"]

_PLACES = ("__file__", "__path__", "__spec__", "get_data")
_RESOURCES = re.compile(r"importlib[._]resources|from importlib import .*resources|resource_\w+\(")
_FILE_NAME = re.compile(r"[\w.][\w .+@=-]*(/[\w.+@=-]+)*")
_NO_READ = frozenset({"sys.path.append", "sys.path.insert", "sys.path.remove", "os.chdir"})


def find_reads(parsed: ParsedSource, module: str, package: str) -> tuple[FileRead, ...]:
    """The files and folders beside the code that a source reads, in source order.

    Args:
        parsed: the source.
        module: the module's name.
        package: the package that it is in, or is.
    """
    if not _knows_its_place(parsed.text):
        return ()
    try:
        found = dict.fromkeys(_Reads(parsed.tree, module, package).all())
    except RecursionError:  # a table of thousands of calls in one expression: no path is in there
        return ()
    return tuple(sorted(found, key=lambda read: read.line))


def _knows_its_place(text: str) -> bool:
    """Whether a source can know where its file is; quick, because most do not ask."""
    if any(word in text for word in _PLACES):
        return True
    return "resource" in text and _RESOURCES.search(text) is not None


class _Reads:
    def __init__(self, tree: ast.Module, module: str, package: str) -> None:
        self._tree = tree
        self._places = Places(tree, module, package)

    def all(self) -> Iterator[FileRead]:
        waiting: list[ast.AST] = [self._tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Constant):
                yield from self._name(node)
                continue
            place = self._places.of(node) if type(node) in PATHS else None
            if place is not None:
                yield from self._read(node, place)
            elif not isinstance(node, ast.Name) and self._is_looked_into(node):
                waiting.extend(reversed(child_nodes(node)))

    def _read(self, node: ast.AST, place: Place) -> Iterator[FileRead]:
        if place.is_own_file:
            return
        path = "/".join(place.parts)
        is_folder = place.is_open or not place.parts or place.parts[-1] == ".."
        kind = ReadKind.FOLDER if is_folder else ReadKind.FILE
        yield FileRead(kind, path, getattr(node, "lineno", 1), place.module)

    def _name(self, node: ast.Constant) -> Iterator[FileRead]:
        """A text that may well be the name of a file."""
        text = node.value
        if not isinstance(text, str) or id(node) in self._places.docstrings or len(text) > 200:
            return
        if ("." in text or "/" in text or text.isupper()) and _FILE_NAME.fullmatch(text):
            yield FileRead(ReadKind.NAME, text, node.lineno)

    def _is_looked_into(self, node: ast.AST) -> bool:
        return not self._is_no_read(node) and not self._is_name_of_path(node)

    def _is_no_read(self, node: ast.AST) -> bool:
        """Whether a call only tells Python where to look for modules."""
        return isinstance(node, ast.Call) and self._places.qualified(node.func) in _NO_READ

    def _is_name_of_path(self, node: ast.AST) -> bool:
        """Whether a node gives a path a name: then it counts where the name is used."""
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return False
        target = node.targets[0]
        if not isinstance(target, ast.Name) or target.id not in self._places.used:
            return False
        place = self._places.of(node.value)
        is_whole = place is not None and not place.is_open
        return is_whole and self._places.named(target.id) is not None
