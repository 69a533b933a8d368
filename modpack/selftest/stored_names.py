"""The names that the functions of a module change themselves: counters, caches, registries.

A run leaves such names changed, so that a difference from a newly loaded module says little.
Reading the source only sorts differences that were observed; it finds none.
"""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Final

_FILLING: Final = re.compile(
    "add|append|appendleft|clear|discard|extend|insert|pop|popitem|remove|setdefault|update"
)
"""Methods that change a container."""
_INITIALIZERS: Final = ("__init__", "__new__", "__post_init__", "__setstate__")


class StoredNames(ast.NodeVisitor):
    """The names that functions in a source store, and the lines of definitions.

    Args:
        source: The source. Nothing is found in one that Python cannot parse.

    Attributes:
        lines: Lines of definitions and assignments, by name or path: ``Net.forward``.
    """

    def __init__(self, source: bytes) -> None:
        self.lines: dict[str, int] = {}
        self._names: set[str] = set()
        self._attributes: set[str] = set()
        """Attributes that are stored on other objects than ``self``, such as classes."""
        self._own_attributes: set[str] = set()
        self._filled: set[str] = set()
        self._has_dynamic_names = False
        self._path: list[str] = []
        self._depth = 0
        self._self = ""
        self._is_initializer = False
        self._aliases: dict[str, str] = {}
        self._locals: set[str] = set()
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            self.visit(ast.parse(source))

    def change(self, name: str, is_class_attribute: bool) -> bool:
        """Return whether functions may change a name.

        Args:
            name: Its path in a module: ``CACHE['a']``, ``STATE.count``, ``Net.scale``.
            is_class_attribute: Whether it is an attribute of a class. Methods that store an
                attribute of ``self`` do not change that of the class.
        """
        first, *steps = re.findall(r"(?:^|\.)([^\W\d]\w*)", re.sub(r"[\[{].*", "", name)) or [name]
        if first in self._names or first in self._filled:
            return True
        if is_class_attribute:
            return not self._attributes.isdisjoint(steps)
        changed = self._attributes | self._own_attributes | self._filled
        return not changed.isdisjoint(steps)

    def change_outside(self, name: str) -> bool:
        """Return whether functions may change a name of another module."""
        first = re.split(r"\W", name, maxsplit=1)[0]
        return first in self._attributes or first in self._filled

    @property
    def has_dynamic_names(self) -> bool:
        """Whether the module adds names to itself by computed names."""
        return self._has_dynamic_names

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._define(node.name, node.lineno)
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._define(node.name, node.lineno)
        before = self._self, self._is_initializer, self._aliases, self._locals
        arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        if not self._depth:
            self._self = "self" if arguments[:1] != ["cls"] else ""
            self._is_initializer = node.name in _INITIALIZERS
        stored = [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Global))]
        names = {n.id for n in stored if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names -= {name for n in stored if isinstance(n, ast.Global) for name in n.names}
        self._locals = self._locals | names | set(arguments)
        self._aliases = dict(self._aliases)
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        self._self, self._is_initializer, self._aliases, self._locals = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Global(self, node: ast.Global) -> None:
        self._names.update(node.names)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._define(node.id, node.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if self._depth and isinstance(target, ast.Name):
                if isinstance(node.value, ast.Name):
                    self._aliases[target.id] = node.value.id
                elif isinstance(node.value, ast.Attribute):
                    self._aliases[target.id] = node.value.attr
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._depth and not isinstance(node.ctx, ast.Load):
            if not self._is_self(node.value):
                self._attributes.add(node.attr)
            elif not self._is_initializer:
                self._own_attributes.add(node.attr)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._depth and not isinstance(node.ctx, ast.Load):
            self._fill(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if (
            self._depth
            and isinstance(node.func, ast.Attribute)
            and _FILLING.fullmatch(node.func.attr)
        ):
            self._fill(node.func.value)
        is_setattr = isinstance(node.func, ast.Name) and node.func.id == "setattr"
        if self._depth and is_setattr and len(node.args) > 1:
            if isinstance(node.args[1], ast.Constant):
                self._attributes.add(str(node.args[1].value))
        self.generic_visit(node)

    def _fill(self, target: ast.expr) -> None:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            name = self._aliases.get(target.id, target.id)
            if name != target.id or name not in self._locals:
                self._filled.add(name)
        elif isinstance(target, ast.Attribute):
            if not (self._is_initializer and self._is_self(target.value)):
                self._filled.add(target.attr)
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Name):
            self._has_dynamic_names |= target.func.id == "globals"

    def _is_self(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Name) and value.id == self._self

    def _define(self, name: str, line: int) -> None:
        if not self._depth:
            self.lines.setdefault(".".join((*self._path, name)), line)
