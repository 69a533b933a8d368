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
from modpack.discovery._blocks import Block, Scope, qualified_name
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


class Presence:
    """Reads conditions of one module.

    Args:
        module: its name.
    """

    def __init__(self, module: str) -> None:
        self._within = f"{root_of(module)}."
        self._answers: dict[ast.AST, Answer] = {}
        self._looked: dict[ast.AST, bool] = {}

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
            for node in ast.walk(root) if root not in seen else ():
                name = qualified_name(node, scope)
                if name is None:
                    continue
                is_finder = name.rpartition(".")[2] in _FINDERS
                is_guard |= is_value and (is_finder or name in _ENVIRONMENT)
                is_told |= _TELLS.fullmatch(name) is not None
                if name.startswith(self._within):
                    elsewhere[name] = None
                for block, value in scope.origins_of(node.id) if type(node) is ast.Name else ():
                    is_told |= _depends_on_import(block) or self._looks(value)
                    is_plain = is_value and not isinstance(value, FUNCTIONS)
                    for part in _parts_that_tell(value):
                        waiting.append((part, block.scope, is_plain))
            seen.add(root)
        return Answer(is_guard, is_told, tuple(elsewhere))

    def _looks(self, value: ast.AST | None) -> bool:
        """Whether a function looks for a module in its body."""
        if not isinstance(value, FUNCTIONS):
            return False
        if value not in self._looked:
            nodes = ast.walk(value)
            self._looked[value] = any(_is_trial(node) or _is_finder(node) for node in nodes)
        return self._looked[value]


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


def _parts_that_tell(value: ast.AST | None) -> Iterator[ast.AST]:
    """The expressions that a name's value comes from: of a function, those that it returns."""
    if isinstance(value, FUNCTIONS) and not isinstance(value, ast.Lambda):
        for node in ast.walk(value):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value
    elif value is not None:
        yield value


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
