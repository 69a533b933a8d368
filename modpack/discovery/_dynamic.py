"""Imports by function call: ``importlib.import_module`` and ``__import__``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from modpack.core.names import require_module_name
from modpack.discovery._blocks import Block, qualified_name, resolve_relative
from modpack.discovery._constants import StaticStrings, literal_strings

__all__ = ["CallReading", "read_call"]

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
