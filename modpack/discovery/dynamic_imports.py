"""Imports by function call, and folders of code that a source lists to import what is in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modpack.core.names import require_module_name
from modpack.core.scan import FolderListing
from modpack.discovery.constants import StaticStrings, literal_strings
from modpack.discovery.data_files import Place, Places
from modpack.discovery.syntax import (
    Block,
    ParsedSource,
    qualified_name,
    resolve_relative,
)

# Without an import that says otherwise, a bare name is taken at its word.
_IMPORT_MODULE = frozenset({"importlib.import_module", "import_module"})
_DUNDER_IMPORT = frozenset({"__import__", "builtins.__import__", "importlib.__import__"})
_IMPORT_MODULE_PARAMETERS = ("name", "package")
_DUNDER_PARAMETERS = ("name", "globals", "locals", "fromlist", "level")


@dataclass(frozen=True)
class CallReading:
    """What a call imports.

    Attributes:
        modules: absolute names of the modules; several where a literal loop drives the call.
        names: names taken from each of them (``fromlist``).
        readable: whether that is all; False if some of it is known at run time only.
    """

    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    readable: bool = True


_UNREADABLE = CallReading(readable=False)


def read_call(call: ast.Call, block: Block, strings: StaticStrings, package: str) -> CallReading:
    """Tell what a call imports; nothing, for most.

    Args:
        call: any call.
        block: where it stands.
        strings: reads its arguments.
        package: the package from which ``__import__`` counts its levels.
    """
    name = qualified_name(call.func, block.scope)
    if name in _IMPORT_MODULE:
        return _read_import_module(call, block, strings)
    if name in _DUNDER_IMPORT:
        return _read_dunder_import(call, block, strings, package)
    return _UNREADABLE if _passes_importer(call, block) else CallReading()


def _passes_importer(call: ast.Call, block: Block) -> bool:
    """Whether a call hands an importing function to someone, as ``map(import_module, ...)``."""
    importers = _IMPORT_MODULE | _DUNDER_IMPORT
    return any(qualified_name(argument, block.scope) in importers for argument in call.args)


def _read_import_module(call: ast.Call, block: Block, strings: StaticStrings) -> CallReading:
    arguments = _arguments(call, _IMPORT_MODULE_PARAMETERS)
    names = strings.alternatives(arguments["name"], block) if "name" in arguments else None
    if names is None:
        return _UNREADABLE
    anchor = arguments.get("package")
    package = strings.sole(anchor, block) if anchor is not None else None
    return _importing([_absolute(name, package) for name in names])


def _absolute(name: str, package: str | None) -> str | None:
    """A name given to ``import_module``, its leading dots resolved against ``package``."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    return resolve_relative(package, level, name[level:]) if package else None


def _read_dunder_import(
    call: ast.Call, block: Block, strings: StaticStrings, package: str
) -> CallReading:
    arguments = _arguments(call, _DUNDER_PARAMETERS)
    names = strings.alternatives(arguments["name"], block) if "name" in arguments else None
    level = _level(arguments.get("level"))
    if names is None or level is None:
        return _UNREADABLE
    modules = [resolve_relative(package, level, name) for name in names]
    return _importing(modules, _names_taken(arguments.get("fromlist")))


def _level(node: ast.expr | None) -> int | None:
    if node is None:
        return 0
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    return None


def _names_taken(fromlist: ast.expr | None) -> tuple[str, ...] | None:
    """The literal ``fromlist``; ``[""]``, an old trick to get the submodule, takes nothing."""
    if fromlist is None or (isinstance(fromlist, ast.Constant) and fromlist.value is None):
        return ()
    names = literal_strings(fromlist)
    return None if names is None else tuple(filter(None, names))


def _importing(modules: Sequence[str | None], names: tuple[str, ...] | None = ()) -> CallReading:
    """The reading, if every module has a name that a module can have."""
    try:
        valid = tuple(require_module_name(module) for module in modules)
    except (TypeError, ValueError):
        return _UNREADABLE
    return CallReading(valid, names or (), readable=names is not None)


def _arguments(call: ast.Call, parameters: Sequence[str]) -> dict[str, ast.expr]:
    """A call's arguments by parameter; none at all if it unpacks some or has too many."""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    if starred or len(call.args) > len(parameters):
        return {}
    arguments = dict(zip(parameters, call.args, strict=False))
    for word in call.keywords:
        if word.arg is None:
            return {}
        arguments[word.arg] = word.value
    return arguments


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
    if not all(any(p.search(parsed.text) for p in patterns) for patterns in (_LISTS, _IMPORTS)):
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
        self._is_of_code = _OF_CODE.search(parsed.text) is not None

    def all(self) -> Iterator[FolderListing]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from self._listing(node)

    def _listing(self, call: ast.Call) -> Iterator[FolderListing]:
        qualified = self._places.qualified(call.func) or getattr(call.func, "attr", "")
        name = str(qualified).rpartition(".")[2]
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
            values = self._places.values.get(node.id, [])
            sole = values[0] if len(values) == 1 else None
            if isinstance(sole, (ast.List, ast.Tuple, ast.Attribute)):
                yield from self._folders(sole)
        else:  # what its first folder is
            first = ast.Subscript(node, ast.Constant(0), ast.Load())
            yield self._places.of(first)


def _last_text(node: ast.expr) -> str:
    """The last text in an expression: of a path, its pattern."""
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return next((text for text in reversed(texts) if isinstance(text, str)), "")
