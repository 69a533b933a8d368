"""Imports by function call, and sources that import what they find in a folder."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modpack.core.names import require_module_name
from modpack.discovery.syntax import (
    LOOPS,
    Bindings,
    Block,
    Scope,
    literal_strings,
    qualified_name,
    resolve_relative,
)

# A bare name without an import of its own is assumed to be the function of that name.
_IMPORT_MODULE = frozenset({"importlib.import_module", "import_module"})
_DUNDER_IMPORT = frozenset({"__import__", "builtins.__import__", "importlib.__import__"})
_MAX_ALTERNATIVES = 10_000
_PLAIN_CONVERSIONS = (-1, ord("s"))


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
    """

    def __init__(self, module: str, package: str, bindings: Bindings) -> None:
        self._package = package
        self._own_names = {"__name__": module, "__package__": package}
        self._bindings = bindings

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
        parts = _string_parts(node)
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
            _join_parts(parts, dict(zip(choices, values, strict=True)))
            for values in itertools.product(*choices.values())
        )

    def _name_values(self, name: str, block: Block) -> tuple[str, ...] | None:
        """Return the values of a name that a literal loop binds, or of a module's constant."""
        if name in self._own_names:
            return (self._own_names[name],)
        found = self._bindings.find(name, block.scope)
        around = set(block.owners())
        loops = [value for _, value in found if isinstance(value, LOOPS) and value in around]
        if not loops:
            # Constants built from other constants are rare; leaving them out avoids recursion.
            parts = _string_parts(self._constant_value(name, block.scope))
            names = {part.id for part in parts or () if isinstance(part, ast.Name)}
            if parts is None or not names <= self._own_names.keys():
                return None
            return (_join_parts(parts, self._own_names),)
        loop = loops[0]
        is_rebound = len(loops) > 1 or any(loop in inner.owners() for inner, _ in found)
        if is_rebound or not isinstance(loop.target, ast.Name):
            return None
        sequence: ast.expr | None = loop.iter
        if isinstance(sequence, ast.Name):
            sequence = self._constant_value(sequence.id, block.scope)
        return None if sequence is None else literal_strings(sequence)

    def _constant_value(self, name: str, scope: Scope) -> ast.expr | None:
        """Return the value of a name that the module binds once."""
        binder, found = scope.find_binder(name), self._bindings.find(name, scope)
        value = found[0][1] if len(found) == 1 else None
        is_module_level = binder is not None and binder.parent is None
        return value if is_module_level and isinstance(value, ast.expr) else None


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


def _string_parts(node: ast.expr | None) -> list[str | ast.Name] | None:
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


def _join_parts(parts: Sequence[str | ast.Name], values: Mapping[str, str]) -> str:
    return "".join(part if isinstance(part, str) else values[part.id] for part in parts)


_LISTS_FILES = re.compile(r"[^a-z_](?:[ir]?glob|listdir|scandir|iterdir|walk)\(")
_CODE_HINTS = re.compile(r"\.py\b|\bstem\b|splitext|is_?dir\b|__init__")
_IMPORTERS = re.compile(
    r"import_module|__import__|__all__|exec_module|load_module|spec_from_file_location|\bexec\("
)


def may_import_listed(text: str) -> bool:
    """Return whether a source may list the modules of a folder and import what it finds.

    Which folder, no analysis guesses: the loaded modules show what the source has imported.
    """
    if "__file__" not in text and "__path__" not in text:
        return False
    lists_modules = "iter_modules" in text or "walk_packages" in text
    lists_code = lists_modules or (_LISTS_FILES.search(text) and _CODE_HINTS.search(text))
    return bool(lists_code and _IMPORTERS.search(text))
