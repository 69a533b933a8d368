"""Conditions that tell whether a module, or a device, is there.

``if HAS_X:`` is as good as a ``try`` around the import, wherever ``HAS_X`` comes from: a test, a
``try`` that imports, or a function that returns one of these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from modpack.core.names import root_of
from modpack.discovery._bindings import bindings
from modpack.discovery._blocks import Block, Origins, Scope, qualified_name
from modpack.discovery._nodes import FUNCTIONS, TRIES

__all__ = ["Answer", "Presence", "catches_absence", "is_caught"]

_FAILED_IMPORT = frozenset({"ImportError", "ModuleNotFoundError", "PackageNotFoundError"})
_ABSENCE = _FAILED_IMPORT | {"Exception", "BaseException"}
_ENVIRONMENT = frozenset(
    {"sys.version_info", "sys.hexversion", "sys.platform", "sys.implementation", "os.name"}
    | {"platform.system", "platform.python_implementation"}
)
_FINDERS = frozenset({"find_spec", "find_loader"})
_TELLS = re.compile(
    r"(?:.*\.)?(?:find_spec|find_loader|metadata\.(?:version|distribution)|is_available)|sys\.modules"
)
"""What looks for a module, a distribution, or a device."""


class Answer(NamedTuple):
    """What a condition asks.

    Attributes:
        is_guard: whether it looks for a module itself, or for the Python or platform that runs.
        is_told: whether its answer comes from what is there in any way, the platform apart.
        elsewhere: the names of other modules of the same library that it asks.
    """

    is_guard: bool = False
    is_told: bool = False
    elsewhere: tuple[str, ...] = ()


class _Part(NamedTuple):
    """What one expression of a condition asks by itself, and what its names are bound to."""

    is_guard: bool
    is_told: bool
    elsewhere: Sequence[str]
    origins: Sequence[tuple[ast.AST, Scope, bool]]  # the last: whether it is the value itself


class Presence:
    """Reads conditions of one module; each expression once, however many conditions lead to it.

    Args:
        module: its name.
        origins: what its names are bound to.
    """

    def __init__(self, module: str, origins: Origins) -> None:
        self._origins = origins
        self._within = f"{root_of(module)}."
        self._answers: dict[ast.AST, Answer] = {}
        self._parts: dict[ast.AST, _Part] = {}
        self._functions: dict[ast.AST, tuple[bool, list[ast.AST]]] = {}

    def asked_by(self, test: ast.AST, scope: Scope) -> Answer:
        """What a condition asks, also by way of names and functions of the module.

        Args:
            test: the condition.
            scope: the names that it sees.
        """
        if test not in self._answers:
            self._answers[test] = self._read(test, scope)
        return self._answers[test]

    def _read(self, test: ast.AST, scope: Scope) -> Answer:
        elsewhere: dict[str, None] = {}
        is_guard = is_told = False
        waiting: list[tuple[ast.AST, Scope, bool]] = [(test, scope, True)]
        seen: set[ast.AST] = set()
        while waiting:
            root, scope, is_value = waiting.pop()
            if root in seen:
                continue
            seen.add(root)
            part = self._parts.get(root)
            if part is None:
                part = self._parts[root] = self._part(root, scope)
            is_guard |= is_value and part.is_guard
            is_told |= part.is_told
            elsewhere.update(dict.fromkeys(part.elsewhere))
            waiting.extend(
                (origin, outer, is_value and is_plain) for origin, outer, is_plain in part.origins
            )
        return Answer(is_guard, is_told, tuple(elsewhere))

    def _part(self, root: ast.AST, scope: Scope) -> _Part:
        is_guard = is_told = False
        elsewhere: dict[str, None] = {}
        origins: list[tuple[ast.AST, Scope, bool]] = []
        for node in ast.walk(root):
            name = qualified_name(node, scope)
            if name is not None:
                is_guard |= name.rpartition(".")[2] in _FINDERS or name in _ENVIRONMENT
                is_told |= _TELLS.fullmatch(name) is not None
                if name.startswith(self._within):
                    elsewhere[name] = None
            for block, value in self._bound(node, scope):
                is_told |= _depends_on_import(block)
                if isinstance(value, FUNCTIONS):
                    looks, returned = self._function(value)
                    is_told |= looks
                    origins.extend((each, block.scope, False) for each in returned)
                elif value is not None:
                    origins.append((value, block.scope, True))
        return _Part(is_guard, is_told, tuple(elsewhere), origins)

    def _bound(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.AST | None]]:
        """What a name is bound to, an attribute of a class, or a new object: all of its class.

        A class by itself tells nothing. ``isinstance(x, Net)`` asks none of its methods.
        """
        if isinstance(node, ast.Name):
            for block, value in self._origins.of(node.id, scope):
                yield block, None if isinstance(value, ast.ClassDef) else value
        elif isinstance(node, ast.Attribute):
            for block, body in self._classes(node.value, scope):
                for member in body.body:
                    yield from ((block, each) for each in _values_of(member, node.attr))
        elif isinstance(node, ast.Call):
            yield from self._classes(node.func, scope)

    def _classes(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Block, ast.ClassDef]]:
        for block, value in self._origins.of(node.id, scope) if isinstance(node, ast.Name) else ():
            if isinstance(value, ast.ClassDef):
                yield block, value

    def _function(self, function: ast.AST) -> tuple[bool, list[ast.AST]]:
        """Whether a function looks for a module in its body, and the expressions it returns."""
        if function not in self._functions:
            looks = False
            returned: list[ast.AST] = [function] if isinstance(function, ast.Lambda) else []
            for node in ast.walk(function):
                looks = looks or _is_trial(node) or _is_finder(node)
                if isinstance(node, ast.Return) and node.value is not None:
                    returned.append(node.value)
            self._functions[function] = looks, returned
        return self._functions[function]


def _values_of(member: ast.stmt, name: str) -> Iterator[ast.AST]:
    """What a statement of a class's body makes an attribute of that name."""
    if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if member.name == name:
            yield member
    else:
        yield from (value for bound, value in bindings(member) if bound == name and value)


def is_caught(handlers: Sequence[ast.ExceptHandler]) -> bool:
    """Whether one of some handlers catches a failed import."""
    return any(catches_absence(handler.type) for handler in handlers)


def catches_absence(caught: ast.expr | None) -> bool:
    """Whether an ``except`` clause of this type catches a failed import."""
    if caught is None:
        return True
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(_last_name(kind) in _ABSENCE for kind in types)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_finder(node: ast.AST) -> bool:
    name = qualified_name(node, Scope())
    return name is not None and _TELLS.fullmatch(name) is not None


def _depends_on_import(block: Block) -> bool:
    """Whether statements of a block run only if an import succeeds, or only if it fails."""
    inner: Block | None = block
    while inner is not None and not isinstance(inner.owner, FUNCTIONS):
        owner = inner.owner
        if _is_trial(owner) or _handles_failed_import(owner):
            return True
        inner = inner.parent
    return False


def _handles_failed_import(node: ast.AST) -> bool:
    """Whether a handler is there for failed imports, and not for whatever may fail."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return False
    types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(_last_name(kind) in _FAILED_IMPORT for kind in types)


def _is_trial(node: ast.AST) -> bool:
    """Whether a statement tries to import, and catches the failure."""
    if not isinstance(node, TRIES) or not is_caught(node.handlers):
        return False
    tried = (each for statement in node.body for each in ast.walk(statement))
    return any(isinstance(each, (ast.Import, ast.ImportFrom)) or _imports(each) for each in tried)


def _imports(node: ast.AST) -> bool:
    return _is_finder(node) or _last_name_of_call(node) in ("import_module", "__import__")


def _last_name_of_call(node: ast.AST) -> str | None:
    return _last_name(node.func) if isinstance(node, ast.Call) else None
