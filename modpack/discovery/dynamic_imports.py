"""Imports by function call, and folders of code that a source lists to import their modules."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from modpack.core.names import require_module_name
from modpack.core.scan import FolderListing
from modpack.discovery.data_files import PathResolver, SourcePath
from modpack.discovery.syntax import (
    COMPREHENSIONS,
    FUNCTIONS,
    Bindings,
    Block,
    BlockPart,
    ParsedSource,
    Scope,
    assigned_names,
    literal_string,
    literal_strings,
    qualified_name,
    resolve_relative,
)

# Without an import that says otherwise, a bare name is taken at its word.
_IMPORT_MODULE = frozenset({"importlib.import_module", "import_module"})
_DUNDER_IMPORT = frozenset({"__import__", "builtins.__import__", "importlib.__import__"})
_MAX_ALTERNATIVES = 10_000
_PLAIN_CONVERSIONS = (-1, ord("s"))
_NAMED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.MatchAs, ast.MatchStar, ast.ExceptHandler),
)


class CallReading(NamedTuple):
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


class CallReader:
    """Reads calls of one module that import, and the strings that they are given.

    Args:
        module: the module's name, the value of ``__name__``.
        package: the package that it is in, or is: the value of ``__package__``, from which
            ``__import__`` counts its levels.
        origins: what its names are bound to.
        scope: the module's own.
    """

    def __init__(self, module: str, package: str, bindings: Bindings, scope: Scope) -> None:
        self._package = package
        self._own_names = {"__name__": module, "__package__": package}
        self._bindings = bindings
        self._scope = scope
        self._locals: dict[ast.AST, frozenset[str]] = {}

    def read(self, call: ast.Call, block: Block) -> CallReading:
        """Return what a call in a block imports; nothing, for most."""
        name = qualified_name(call.func, block.scope)
        if name in _IMPORT_MODULE:
            arguments = _arguments(call, ("name", "package"))
            anchors = self._alternatives(arguments.get("package"), block) or ()
            package = anchors[0] if len(anchors) == 1 else ""
            names = self._alternatives(arguments.get("name"), block)
            if names is None:
                return _UNREADABLE
            return _importing([_absolute(each, package) for each in names])
        if name in _DUNDER_IMPORT:
            arguments = _arguments(call, ("name", "globals", "locals", "fromlist", "level"))
            names = self._alternatives(arguments.get("name"), block)
            given = arguments.get("level", ast.Constant(0))
            level = given.value if isinstance(given, ast.Constant) else None
            if names is None or not isinstance(level, int):
                return _UNREADABLE
            modules = [resolve_relative(self._package, level, each) for each in names]
            return _importing(modules, _names_taken(arguments.get("fromlist")))
        # Is an importing function handed to someone, as in ``map(import_module, ...)``?
        importers = _IMPORT_MODULE | _DUNDER_IMPORT
        is_handed_on = any(qualified_name(each, block.scope) in importers for each in call.args)
        return _UNREADABLE if is_handed_on else CallReading()

    def _alternatives(self, node: ast.expr | None, block: Block) -> tuple[str, ...] | None:
        """Every value that an expression takes: several where a literal loop drives it.

        Args:
            node: a string, a name, an f-string of those, or a sum of those.
            block: the block that it is in.

        Returns:
            The values in the loops' order; None if they are known at run time only.
        """
        parts = _parts(node)
        if parts is None:
            return None
        choices: dict[str, tuple[str, ...]] = {}
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in choices:
                values = self._values_of_name(part.id, block)
                if values is None:
                    return None
                choices[part.id] = values
        if math.prod(map(len, choices.values())) > _MAX_ALTERNATIVES:
            return None
        return tuple(
            _join(parts, dict(zip(choices, values, strict=True)))
            for values in itertools.product(*choices.values())
        )

    def _values_of_name(self, name: str, block: Block) -> tuple[str, ...] | None:
        if name in self._own_names:
            return (self._own_names[name],)
        binder = self._binder(name, block)
        if binder is None:
            # A constant of the module. No constants of constants: one step needs no recursion, and
            # people write one.
            parts = _parts(self._sole_assignment(name))
            names = {part.id for part in parts or () if isinstance(part, ast.Name)}
            if parts is None or not names <= self._own_names.keys():
                return None
            return (_join(parts, self._own_names),)
        sequence = _sequence_looped_over(binder.owner, name)
        if sequence is None or binder.parent is None:
            return None
        if isinstance(sequence, ast.Name) and self._binder(sequence.id, binder.parent) is None:
            sequence = self._sole_assignment(sequence.id)
        return None if sequence is None else literal_strings(sequence)

    def _sole_assignment(self, name: str) -> ast.expr | None:
        found = self._bindings.find(name, self._scope)
        value = found[0][1] if len(found) == 1 else None
        return value if isinstance(value, ast.expr) else None

    def _binder(self, name: str, block: Block) -> Block | None:
        """The innermost block that gives ``name`` a meaning of its own; None: the module."""
        left_function = False
        here: Block | None = block
        while here is not None:
            owner = here.owner
            if isinstance(owner, FUNCTIONS):
                if name in self._names_in(owner):
                    return here
                left_function = True
            elif isinstance(owner, ast.ClassDef):
                if not left_function and name in self._names_in(owner):
                    return here
            elif here.part is BlockPart.BODY and name in _loop_names(owner):
                return here
            here = here.parent
        return None

    def _names_in(self, owner: ast.AST) -> frozenset[str]:
        if owner not in self._locals:
            self._locals[owner] = frozenset(_stored_names(owner))
        return self._locals[owner]


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


def _absolute(name: str, package: str) -> str | None:
    """A name given to ``import_module``, its leading dots resolved against ``package``."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    return resolve_relative(package, level, name[level:]) if package else None


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


def _parts(node: ast.expr | None) -> list[str | ast.Name] | None:
    """A string expression as the strings and names that it joins; None if it is more."""
    parts: list[str | ast.Name] = []
    waiting = [node]
    while waiting:
        piece = waiting.pop()
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            parts.append(piece.value)
        elif isinstance(piece, ast.Name):
            parts.append(piece)
        elif isinstance(piece, ast.BinOp) and isinstance(piece.op, ast.Add):
            waiting.extend((piece.right, piece.left))
        elif isinstance(piece, ast.JoinedStr):
            waiting.extend(reversed(piece.values))
        elif (
            isinstance(piece, ast.FormattedValue)
            and piece.format_spec is None
            and piece.conversion in _PLAIN_CONVERSIONS
        ):
            waiting.append(piece.value)
        else:
            return None
    return parts


def _join(parts: Sequence[str | ast.Name], values: Mapping[str, str]) -> str:
    return "".join(part if isinstance(part, str) else values[part.id] for part in parts)


def _loops(owner: ast.AST) -> Sequence[ast.For | ast.AsyncFor | ast.comprehension]:
    if isinstance(owner, (ast.For, ast.AsyncFor)):
        return (owner,)
    return owner.generators if isinstance(owner, COMPREHENSIONS) else ()


def _loop_names(owner: ast.AST) -> set[str]:
    return {name for loop in _loops(owner) for name in assigned_names(loop.target)}


def _sequence_looped_over(owner: ast.AST, name: str) -> ast.expr | None:
    """What a loop assigns to ``name`` one by one, if nothing in the loop assigns it again."""
    if _stored_names(owner).count(name) != 1:
        return None
    for loop in _loops(owner):
        if isinstance(loop.target, ast.Name) and loop.target.id == name:
            return loop.iter
    return None


def _stored_names(owner: ast.AST) -> list[str]:
    """Every name that is bound anywhere below a node; parameters too."""
    stored: list[str] = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored.append(node.id)
        elif isinstance(node, ast.arg):
            stored.append(node.arg)
        elif isinstance(node, ast.alias):
            stored.append((node.asname or node.name).partition(".")[0])
        elif isinstance(node, _NAMED) and node.name:
            stored.append(node.name)
    return stored


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
    places = PathResolver(parsed.tree, module, package)
    is_of_code = _OF_CODE.search(parsed.text) is not None
    calls = (node for node in ast.walk(parsed.tree) if isinstance(node, ast.Call))
    try:
        found = dict.fromkeys(
            listing for call in calls for listing in _listings(call, places, is_of_code)
        )
    except RecursionError:  # as for files that are read
        return ()
    return tuple(sorted(found, key=lambda listing: listing.line))


def _listings(call: ast.Call, places: PathResolver, is_of_code: bool) -> Iterator[FolderListing]:
    qualified = places.qualified(call.func) or getattr(call.func, "attr", "")
    name = str(qualified).rpartition(".")[2]
    deep = name in _DEEP
    if name in _BY_MODULES:
        named = [word.value for word in call.keywords if word.arg == "path"]
        found = [place for node in (*call.args[:1], *named) for place in _folders(node, places)]
    elif name in _BY_NAMES and is_of_code:
        patterns = [_last_text(node) for node in call.args]
        if any("*" in text and not _PATTERN.fullmatch(text) for text in patterns):
            return  # of files of another kind
        deep = deep or any("**" in text or "*/" in text for text in patterns)
        found = [places.of(call)]
    else:
        return
    for place in found:
        if place is not None and not place.is_own_file:
            yield FolderListing("/".join(place.parts), deep, call.lineno, place.module)


def _folders(node: ast.expr, places: PathResolver) -> Iterator[SourcePath | None]:
    """The folders of a search path."""
    if isinstance(node, (ast.List, ast.Tuple)):
        yield from map(places.of, node.elts)
    elif isinstance(node, ast.Name) and node.id != "__path__":
        values = places.values.get(node.id, [])
        sole = values[0] if len(values) == 1 else None
        if isinstance(sole, (ast.List, ast.Tuple, ast.Attribute)):
            yield from _folders(sole, places)
    else:  # what its first folder is
        yield places.of(ast.Subscript(node, ast.Constant(0), ast.Load()))


def _last_text(node: ast.expr) -> str:
    """The last text in an expression: of a path, its pattern."""
    texts = [text for each in ast.walk(node) if (text := literal_string(each)) is not None]
    return texts[-1] if texts else ""
