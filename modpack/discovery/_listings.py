"""Which folders of code a source lists, in order to import what is in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from modpack.core.imports import FolderListing
from modpack.discovery._nodes import nodes_in
from modpack.discovery._parse import ParsedSource
from modpack.discovery._places import Place, Places
from modpack.discovery._wordlines import has_any

__all__ = ["find_listings"]

_LISTERS = ("iter_modules", "walk_packages", "glob", "listdir", "scandir", "iterdir")
_LISTS = tuple(map(re.compile, (*_LISTERS, r"walk\((?<!\wwalk\()")))
_IMPORTERS = ("import_module", "__import__", "__all__", "exec_module", "load_module")
_IMPORTS = tuple(map(re.compile, (*_IMPORTERS, "spec_from_file_location", r"exec\((?<!\wexec\()")))
_OF_CODE = re.compile(r"\.py\b|\bstem\b|splitext|is_?dir\b|__init__")
_BY_MODULES = frozenset({"iter_modules", "walk_packages"})
_BY_NAMES = frozenset({"glob", "iglob", "rglob", "listdir", "scandir", "iterdir", "walk"})
_DEEP = frozenset({"walk_packages", "rglob", "walk"})
_PATTERN = re.compile(r"(?:.*[/*])?\*(?:\.py)?")


def find_listings(parsed: ParsedSource, module: str, package: str) -> tuple[FolderListing, ...]:
    """The folders that a source lists and whose modules it may import then, in source order.

    Args:
        parsed: the source.
        module: the module's name.
        package: the package that it is in, or is.
    """
    if not (has_any(_LISTS, parsed.text) and has_any(_IMPORTS, parsed.text)):
        return ()
    try:
        found = dict.fromkeys(_Listings(parsed, module, package).all())
    except RecursionError:  # as for files that are read
        return ()
    return tuple(sorted(found, key=lambda listing: listing.line))


class _Listings:
    def __init__(self, parsed: ParsedSource, module: str, package: str) -> None:
        self._tree = parsed.tree
        self._places = Places(parsed.tree, module, package)
        self._values = self._places.values
        self._is_of_code = _OF_CODE.search(parsed.text) is not None

    def all(self) -> Iterator[FolderListing]:
        for node in nodes_in(self._tree):
            if isinstance(node, ast.Call):
                yield from self._listing(node)

    def _listing(self, call: ast.Call) -> Iterator[FolderListing]:
        name = (self._places.qualified(call.func) or _attribute(call.func)).rpartition(".")[2]
        deep = name in _DEEP
        if name in _BY_MODULES:
            named = [word.value for word in call.keywords if word.arg == "path"]
            places = [place for node in (*call.args[:1], *named) for place in self._folders(node)]
        elif name in _BY_NAMES and self._is_of_code:
            patterns = [_last_text(node) for node in call.args]
            if any("*" in text and not _PATTERN.fullmatch(text) for text in patterns):
                return  # of files of another kind
            deep = deep or any("**" in text or "*/" in text for text in patterns)
            places = [self._places.of(call)]
        else:
            return
        for place in places:
            if place is not None and not place.is_own_file:
                yield FolderListing("/".join(place.parts), deep, call.lineno, place.module)

    def _folders(self, node: ast.expr) -> Iterator[Place | None]:
        """The folders of a search path."""
        if isinstance(node, (ast.List, ast.Tuple)):
            for each in node.elts:
                yield self._places.of(each)
        elif isinstance(node, ast.Name) and node.id != "__path__":
            values = self._values.get(node.id, [])
            sole = values[0] if len(values) == 1 else None
            if isinstance(sole, (ast.List, ast.Tuple, ast.Attribute)):
                yield from self._folders(sole)
        else:  # what its first folder is
            first = ast.Subscript(node, ast.Constant(0), ast.Load())
            yield self._places.of(first)


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _last_text(node: ast.expr) -> str:
    """The last text in an expression: of a path, its pattern."""
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return next((text for text in reversed(texts) if isinstance(text, str)), "")
