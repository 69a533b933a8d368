"""Names and attributes that a module's functions set anew: its own state, or others' wishes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from modpack.core.defined import Setting
from modpack.discovery._bindings import assigned_names
from modpack.discovery._literals import dotted_name
from modpack.discovery._nodes import nodes_in
from modpack.discovery._parse import ParsedSource
from modpack.discovery._wordlines import lines_at, spans_any

__all__ = ["ANY", "Settings"]

ANY: Final = "*"
"""Stands for names that a function computes."""
_MOST_CALLS: Final = 3

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_GLOBAL_OR_ATTRIBUTE = re.compile(
    r"^[ \t]*(?:global\s|setattr\((?!self\b)"
    r"|(?!self\.\w+\s*[-+*/|&:=])\w+(?:\(\w*\))?\.[\w.]+\s*[-+*/|&]?=(?!=))",
    re.MULTILINE,
)
"""Lines that may declare a global, or set an attribute of something else than ``self``."""
_PLAIN_CALLS = frozenset({"bool", "int", "float", "str", "tuple", "list", "dict", "set"})
_ON_CLASSES = frozenset({"classmethod", "staticmethod"})


class Settings:
    """What the code of a module sets anew.

    Args:
        parsed: its source.
        functions: its functions and methods, each with the path of its class.

    Attributes:
        settings: see :class:`modpack.core.defined.Defined`.
        setters: likewise.
    """

    def __init__(self, parsed: ParsedSource, functions: Sequence[tuple[_Function, str]]) -> None:
        self.settings: dict[str, int] = {}
        self.setters: dict[str, list[str]] = {}
        places = (match.start() for match in _GLOBAL_OR_ATTRIBUTE.finditer(parsed.text))
        lines = lines_at(places, parsed.text)
        if not lines:
            return
        self._tree = parsed.tree
        self._used: dict[str, int] | None = None
        for function, path in functions:
            if spans_any(function, lines):
                self._see_function(function, path)
        if self.setters:
            self._see_callers(functions)
        for statement in parsed.tree.body:
            if spans_any(statement, lines):
                for name in _attributes_at_import(statement):
                    self.settings.setdefault(f".{name}", Setting.AT_IMPORT)

    def _see_function(self, function: _Function, path: str) -> None:
        nodes = list(nodes_in(function))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        local = _parameters(function) | set(_assigned(nodes)) - declared
        found = list(_set_in(nodes, declared, local))
        if not found:
            return
        asked = self._is_for_others(function, path)
        for name, value in found:
            is_given = _is_passed_on(value, _parameters(function))
            is_switched = _is_ready(value, local) and not self._is_used(function.name)
            on_request = asked and (is_given or is_switched)
            when = Setting.ON_REQUEST if on_request else Setting.RUNNING
            if name != ANY:
                self.settings[name] = max(self.settings.get(name, when), when)
            self.setters.setdefault(function.name, []).append(name)

    def _see_callers(self, functions: Sequence[tuple[_Function, str]]) -> None:
        """What calls a function that sets something, sets it as well."""
        used = {
            function.name: {node.id for node in nodes_in(function) if isinstance(node, ast.Name)}
            for function, path in functions
            if not path
        }
        for _ in range(_MOST_CALLS):
            for name, others in used.items():
                for other in others & self.setters.keys() - {name}:
                    known = self.setters.setdefault(name, [])
                    known += [each for each in self.setters[other] if each not in known]

    def _is_for_others(self, function: _Function, path: str) -> bool:
        """Whether a function is one that users of the module may call without an object of it."""
        if function.name.startswith("_"):
            return False
        decorators = {dotted_name(each) for each in function.decorator_list}
        return not path or bool(decorators & _ON_CLASSES)

    def _is_used(self, name: str) -> bool:
        """Whether the module itself uses a function."""
        if self._used is None:
            self._used = {}
            for node in nodes_in(self._tree):
                if isinstance(node, ast.Name):
                    self._used[node.id] = 1
                elif isinstance(node, ast.Attribute):
                    self._used[node.attr] = 1
        return name in self._used


def _set_in(
    nodes: Sequence[ast.AST], declared: set[str], local: set[str]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Globals and attributes of others that a function sets, each with its new value."""
    for node in nodes:
        if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
            yield ANY, None
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for target in _targets(node):
            for name in assigned_names(target):
                if name in declared:
                    yield name, value
            if isinstance(target, ast.Attribute) and _is_shared(target.value, local):
                yield f".{target.attr}", value


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [node.target]
    if isinstance(node, ast.Delete):
        return node.targets
    return []


def _is_shared(owner: ast.expr, local: set[str]) -> bool:
    """Whether an attribute belongs to a class, a module or an object that others see as well."""
    if isinstance(owner, ast.Call):  # type(self)
        return dotted_name(owner.func) == "type"
    name = dotted_name(owner)
    first = name.partition(".")[0]
    return first == "cls" or name.endswith(".__class__") or bool(first and first not in local)


def _assigned(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _is_passed_on(value: ast.expr | None, parameters: set[str]) -> bool:
    """Whether a value is a parameter, or a plain value made of one; and not work done with it."""
    nodes = list(nodes_in(value)) if value is not None else []
    called = {dotted_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return called <= _PLAIN_CALLS and bool(names & parameters)


def _is_ready(value: ast.expr | None, local: set[str]) -> bool:
    """Whether a value is a constant, or the name of something that was there before."""
    if value is None or isinstance(value, ast.Constant):
        return value is not None
    first = dotted_name(value).partition(".")[0]
    return bool(first) and first not in local


def _parameters(function: _Function) -> set[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in named if each is not None}


def _attributes_at_import(statement: ast.stmt) -> Iterator[str]:
    """The attributes that a statement sets when the module is imported."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        for target in _targets(node):
            if isinstance(target, ast.Attribute):
                yield target.attr
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            todo.extend(ast.iter_child_nodes(node))
