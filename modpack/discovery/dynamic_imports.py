"""Imports by function call, and folders of code whose modules a source lists and imports."""

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

# A bare name without an import of its own is assumed to be the function of that name.
_IMPORT_MODULE = frozenset({"importlib.import_module", "import_module"})
_DUNDER_IMPORT = frozenset({"__import__", "builtins.__import__", "importlib.__import__"})
_MAX_ALTERNATIVES = 10_000
_PLAIN_CONVERSIONS = (-1, ord("s"))
_NAMED_NODES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.MatchAs, ast.MatchStar, ast.ExceptHandler),
)


class CallReading(NamedTuple):
    """The imports of a call.

    Attributes:
        modules: Absolute names of the modules; several for a call in a literal loop.
        names: Names imported from each of them (``fromlist``).
        readable: Whether everything is known; False if some of it is known only at run time.
    """

    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    readable: bool = True


_UNREADABLE = CallReading(readable=False)


class CallReader:
    """A static reader for calls that import modules.

    Args:
        module: Absolute name of the module (``__name__``).
        package: Python package of the module (``__package__``), for the levels of ``__import__``.
        bindings: Bindings of the module's names.
        scope: Scope of the module.
    """

    def __init__(self, module: str, package: str, bindings: Bindings, scope: Scope) -> None:
        self._package = package
        self._own_names = {"__name__": module, "__package__": package}
        self._bindings = bindings
        self._scope = scope
        self._bound_names_by_owner: dict[ast.AST, frozenset[str]] = {}

    def read(self, call: ast.Call, block: Block) -> CallReading:
        """Return the imports of a call in a block; empty for most calls."""
        name = qualified_name(call.func, block.scope)
        if name in _IMPORT_MODULE:
            arguments = _arguments(call, ("name", "package"))
            anchors = self._alternatives(arguments.get("package"), block) or ()
            package = anchors[0] if len(anchors) == 1 else ""
            names = self._alternatives(arguments.get("name"), block)
            if names is None:
                return _UNREADABLE
            return _reading_of([_absolute(each, package) for each in names])
        if name in _DUNDER_IMPORT:
            arguments = _arguments(call, ("name", "globals", "locals", "fromlist", "level"))
            names = self._alternatives(arguments.get("name"), block)
            level_node = arguments.get("level", ast.Constant(0))
            level = level_node.value if isinstance(level_node, ast.Constant) else None
            if names is None or not isinstance(level, int):
                return _UNREADABLE
            modules = [resolve_relative(self._package, level, each) for each in names]
            return _reading_of(modules, _names_in_fromlist(arguments.get("fromlist")))
        # ``map(import_module, ...)`` passes an importing function as an argument.
        importers = _IMPORT_MODULE | _DUNDER_IMPORT
        passes_importer = any(qualified_name(each, block.scope) in importers for each in call.args)
        return _UNREADABLE if passes_importer else CallReading()

    def _alternatives(self, node: ast.expr | None, block: Block) -> tuple[str, ...] | None:
        """Return all values of a string expression; several in a literal loop.

        Args:
            node: A string, a name, an f-string of those, or a sum of those.
            block: Block of the expression.

        Returns:
            The values in loop order; None if they are known only at run time.
        """
        parts = _parts(node)
        if parts is None:
            return None
        choices: dict[str, tuple[str, ...]] = {}
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in choices:
                values = self._name_values(part.id, block)
                if values is None:
                    return None
                choices[part.id] = values
        if math.prod(map(len, choices.values())) > _MAX_ALTERNATIVES:
            return None
        return tuple(
            _join(parts, dict(zip(choices, values, strict=True)))
            for values in itertools.product(*choices.values())
        )

    def _name_values(self, name: str, block: Block) -> tuple[str, ...] | None:
        if name in self._own_names:
            return (self._own_names[name],)
        binder = self._find_binder(name, block)
        if binder is None:
            # A module-level constant. Constants built from other constants are rare; leaving them
            # out avoids recursion.
            parts = _parts(self._constant_value(name))
            names = {part.id for part in parts or () if isinstance(part, ast.Name)}
            if parts is None or not names <= self._own_names.keys():
                return None
            return (_join(parts, self._own_names),)
        sequence = _loop_sequence(binder.owner, name)
        if sequence is None or binder.parent is None:
            return None
        if isinstance(sequence, ast.Name) and self._find_binder(sequence.id, binder.parent) is None:
            sequence = self._constant_value(sequence.id)
        return None if sequence is None else literal_strings(sequence)

    def _constant_value(self, name: str) -> ast.expr | None:
        found = self._bindings.find(name, self._scope)
        value = found[0][1] if len(found) == 1 else None
        return value if isinstance(value, ast.expr) else None

    def _find_binder(self, name: str, block: Block) -> Block | None:
        """Return the innermost block that binds a name; None for the module."""
        left_function = False
        inner: Block | None = block
        while inner is not None:
            owner = inner.owner
            if isinstance(owner, FUNCTIONS):
                if name in self._bound_names(owner):
                    return inner
                left_function = True
            elif isinstance(owner, ast.ClassDef):
                if not left_function and name in self._bound_names(owner):
                    return inner
            elif inner.part is BlockPart.BODY and name in _loop_names(owner):
                return inner
            inner = inner.parent
        return None

    def _bound_names(self, owner: ast.AST) -> frozenset[str]:
        if owner not in self._bound_names_by_owner:
            self._bound_names_by_owner[owner] = frozenset(_stored_names(owner))
        return self._bound_names_by_owner[owner]


def _arguments(call: ast.Call, parameters: Sequence[str]) -> dict[str, ast.expr]:
    """Return a call's arguments by parameter; empty if it unpacks arguments or has too many."""
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
    """Resolve the leading dots of an ``import_module`` name against a Python package."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    return resolve_relative(package, level, name[level:]) if package else None


def _names_in_fromlist(fromlist: ast.expr | None) -> tuple[str, ...] | None:
    """Return a literal ``fromlist``; empty for ``[""]``, an idiom to get the submodule itself."""
    if fromlist is None or (isinstance(fromlist, ast.Constant) and fromlist.value is None):
        return ()
    names = literal_strings(fromlist)
    return None if names is None else tuple(filter(None, names))


def _reading_of(modules: Sequence[str | None], names: tuple[str, ...] | None = ()) -> CallReading:
    """Return a reading of valid module names; unreadable if one is not valid."""
    try:
        valid = tuple(require_module_name(module) for module in modules)
    except (TypeError, ValueError):
        return _UNREADABLE
    return CallReading(valid, names or (), readable=names is not None)


def _parts(node: ast.expr | None) -> list[str | ast.Name] | None:
    """Return the strings and names that a string expression joins; None for anything else."""
    parts: list[str | ast.Name] = []
    pending = [node]
    while pending:
        piece = pending.pop()
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            parts.append(piece.value)
        elif isinstance(piece, ast.Name):
            parts.append(piece)
        elif isinstance(piece, ast.BinOp) and isinstance(piece.op, ast.Add):
            pending.extend((piece.right, piece.left))
        elif isinstance(piece, ast.JoinedStr):
            pending.extend(reversed(piece.values))
        elif (
            isinstance(piece, ast.FormattedValue)
            and piece.format_spec is None
            and piece.conversion in _PLAIN_CONVERSIONS
        ):
            pending.append(piece.value)
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


def _loop_sequence(owner: ast.AST, name: str) -> ast.expr | None:
    """Return the sequence whose items a loop assigns to a name, unless it is assigned again."""
    if _stored_names(owner).count(name) != 1:
        return None
    for loop in _loops(owner):
        if isinstance(loop.target, ast.Name) and loop.target.id == name:
            return loop.iter
    return None


def _stored_names(owner: ast.AST) -> list[str]:
    """Return all names that are bound anywhere below a node, including parameters."""
    stored: list[str] = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored.append(node.id)
        elif isinstance(node, ast.arg):
            stored.append(node.arg)
        elif isinstance(node, ast.alias):
            stored.append((node.asname or node.name).partition(".")[0])
        elif isinstance(node, _NAMED_NODES) and node.name:
            stored.append(node.name)
    return stored


_LISTERS = ("iter_modules", "walk_packages", "glob", "listdir", "scandir", "iterdir")
_LISTER_PATTERNS = tuple(map(re.compile, (*_LISTERS, r"walk\((?<!\wwalk\()")))
_IMPORTERS = ("import_module", "__import__", "__all__", "exec_module", "load_module")
_IMPORTER_PATTERNS = tuple(
    map(re.compile, (*_IMPORTERS, "spec_from_file_location", r"exec\((?<!\wexec\()"))
)
_CODE_HINTS = re.compile(r"\.py\b|\bstem\b|splitext|is_?dir\b|__init__")
_MODULE_LISTERS = frozenset({"iter_modules", "walk_packages"})
_FILE_LISTERS = frozenset({"glob", "iglob", "rglob", "listdir", "scandir", "iterdir", "walk"})
_DEEP = frozenset({"walk_packages", "rglob", "walk"})
_CODE_PATTERN = re.compile(r"(?:.*[/*])?\*(?:\.py)?")


def find_listings(parsed: ParsedSource, module: str, package: str) -> tuple[FolderListing, ...]:
    """Return the folders that a source lists and may import modules from, in source order.

    Args:
        parsed: Parsed source.
        module: Absolute name of the module.
        package: Python package that contains the module, or that it is.
    """
    if not all(
        any(p.search(parsed.text) for p in patterns)
        for patterns in (_LISTER_PATTERNS, _IMPORTER_PATTERNS)
    ):
        return ()
    resolver = PathResolver(parsed.tree, module, package)
    lists_code = _CODE_HINTS.search(parsed.text) is not None
    calls = (node for node in ast.walk(parsed.tree) if isinstance(node, ast.Call))
    try:
        found = dict.fromkeys(
            listing for call in calls for listing in _listings(call, resolver, lists_code)
        )
    except RecursionError:  # as in find_reads
        return ()
    return tuple(sorted(found, key=lambda listing: listing.line))


def _listings(call: ast.Call, resolver: PathResolver, lists_code: bool) -> Iterator[FolderListing]:
    qualified = resolver.qualified_name(call.func) or getattr(call.func, "attr", "")
    name = str(qualified).rpartition(".")[2]
    deep = name in _DEEP
    if name in _MODULE_LISTERS:
        named = [word.value for word in call.keywords if word.arg == "path"]
        found = [
            path
            for node in (*call.args[:1], *named)
            for path in _search_path_folders(node, resolver)
        ]
    elif name in _FILE_LISTERS and lists_code:
        patterns = [_last_string(node) for node in call.args]
        if any("*" in text and not _CODE_PATTERN.fullmatch(text) for text in patterns):
            return  # the pattern matches other files than modules
        deep = deep or any("**" in text or "*/" in text for text in patterns)
        found = [resolver.resolve(call)]
    else:
        return
    for path in found:
        if path is not None and not path.is_own_file:
            yield FolderListing("/".join(path.parts), deep, call.lineno, path.module)


def _search_path_folders(node: ast.expr, resolver: PathResolver) -> Iterator[SourcePath | None]:
    """Yield the folders of a search path."""
    if isinstance(node, (ast.List, ast.Tuple)):
        yield from map(resolver.resolve, node.elts)
    elif isinstance(node, ast.Name) and node.id != "__path__":
        values = resolver.values.get(node.id, [])
        sole = values[0] if len(values) == 1 else None
        if isinstance(sole, (ast.List, ast.Tuple, ast.Attribute)):
            yield from _search_path_folders(sole, resolver)
    else:  # the first folder of the path
        yield resolver.resolve(ast.Subscript(node, ast.Constant(0), ast.Load()))


def _last_string(node: ast.expr) -> str:
    """Return the last string in an expression, which is the pattern of a path."""
    texts = [text for each in ast.walk(node) if (text := literal_string(each)) is not None]
    return texts[-1] if texts else ""
