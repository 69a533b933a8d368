"""Imports by function call, and sources that import what they find in a folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

from modpack.core.names import require_module_name
from modpack.discovery.syntax import (
    Bindings,
    Scope,
    literal_strings,
    qualified_name,
    resolve_relative,
)

# A bare name without an import of its own is assumed to be the function of that name.
_IMPORT_MODULE = frozenset({"importlib.import_module", "import_module"})
_DUNDER_IMPORT = frozenset({"__import__", "builtins.__import__", "importlib.__import__"})
_PLAIN_CONVERSIONS = (-1, ord("s"))


class CallReading(NamedTuple):
    """The imports of a call.

    Attributes:
        module: Absolute name of the module; None if there is none or it is unknown.
        names: Names imported from it (``fromlist``).
        readable: Whether everything is known; False if some of it is known only at run time.
    """

    module: str | None = None
    names: tuple[str, ...] = ()
    readable: bool = True


_UNREADABLE = CallReading(readable=False)


class CallReader:
    """A static reader for calls that import modules.

    Only literals, ``__name__``, ``__package__``, and the module's constants are read. The self-test
    and the loaded modules show which modules a loop or a function imports.

    Args:
        module: Absolute name of the module (``__name__``).
        package: Python package of the module (``__package__``), for the levels of ``__import__``.
        bindings: Bindings of the module's names.
    """

    def __init__(self, module: str, package: str, bindings: Bindings) -> None:
        self._package = package
        self._own_names = {"__name__": module, "__package__": package}
        self._bindings = bindings

    def read(self, call: ast.Call, scope: Scope) -> CallReading:
        """Return the imports of a call in a scope; empty for most calls."""
        name = qualified_name(call.func, scope)
        if name in _IMPORT_MODULE:
            arguments = _arguments(call, ("name", "package"))
            module = self._text(arguments.get("name"), scope)
            # Leading dots refer to the ``package`` argument, not to the calling module.
            level = len(module or "") - len((module or "").lstrip("."))
            if module and level:
                package = self._text(arguments.get("package"), scope)
                module = resolve_relative(package, level, module[level:]) if package else None
            return _reading_of(module)
        if name in _DUNDER_IMPORT:
            arguments = _arguments(call, ("name", "globals", "locals", "fromlist", "level"))
            module = self._text(arguments.get("name"), scope)
            level_node = arguments.get("level", ast.Constant(0))
            given = level_node.value if isinstance(level_node, ast.Constant) else None
            if module is None or not isinstance(given, int):
                return _UNREADABLE
            names = _names_in_fromlist(arguments.get("fromlist"))
            return _reading_of(resolve_relative(self._package, given, module), names)
        # ``map(import_module, ...)`` passes an importing function as an argument.
        importers = _IMPORT_MODULE | _DUNDER_IMPORT
        passes_importer = any(qualified_name(each, scope) in importers for each in call.args)
        return _UNREADABLE if passes_importer else CallReading()

    def _text(self, node: ast.expr | None, scope: Scope, is_constant: bool = False) -> str | None:
        """Return the value of a string, a name, an f-string of those, or a sum of those.

        Args:
            node: Expression.
            scope: Scope of the expression.
            is_constant: Whether it is a constant's value. Constants built from other constants are
                rare; leaving them out avoids recursion.

        Returns:
            None if the value is known only at run time.
        """
        parts = _string_parts(node)
        if parts is None:
            return None
        texts: list[str | None] = []
        for part in parts:
            if isinstance(part, ast.Name):
                known = self._own_names.get(part.id)
                if known is None and not is_constant:
                    known = self._text(self._constant_value(part.id, scope), scope, True)
                texts.append(known)
            else:
                texts.append(part)
        return None if None in texts else "".join(map(str, texts))

    def _constant_value(self, name: str, scope: Scope) -> ast.expr | None:
        """Return the value of a name that the module binds once."""
        binder, found = scope.find_binder(name), self._bindings.find(name, scope)
        is_module_level = binder is not None and binder.parent is None
        # If there are several bindings, only a run shows which of them applies.
        return found[0][1] if is_module_level and len(found) == 1 else None


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


def _names_in_fromlist(fromlist: ast.expr | None) -> tuple[str, ...] | None:
    """Return a literal ``fromlist``; empty for ``[""]``, an idiom to get the submodule itself."""
    if fromlist is None or (isinstance(fromlist, ast.Constant) and fromlist.value is None):
        return ()
    names = literal_strings(fromlist)
    return None if names is None else tuple(filter(None, names))


def _reading_of(module: str | None, names: tuple[str, ...] | None = ()) -> CallReading:
    """Return the reading of a valid module name; unreadable for any other."""
    try:
        valid = require_module_name(module)
    except (TypeError, ValueError):
        return _UNREADABLE
    return CallReading(valid, names or (), readable=names is not None)


def _string_parts(node: ast.expr | None) -> list[str | ast.Name] | None:
    """Return the strings and names that a string expression joins; None for anything else."""
    parts: list[str | ast.Name] = []
    pending = [node]
    while pending:  # with a stack, because a sum of strings may be long
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
