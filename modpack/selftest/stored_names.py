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
_INITIALIZERS: Final = ("__init__", "__post_init__", "__setstate__")


class StoredNames:
    """The names that functions in a source store, and the lines of definitions.

    Args:
        source: The source. Nothing is found in one that Python cannot parse.

    Attributes:
        lines: Lines of definitions and assignments, by name or path: ``Net.forward``.
        has_dynamic_names: Whether the module adds names to itself through ``globals()``.
    """

    def __init__(self, source: bytes) -> None:
        self.lines: dict[str, int] = {}
        self.has_dynamic_names = False
        self._names: set[str] = set()
        """Global names, and names of containers that are filled."""
        self._attributes: set[str] = set()
        """Attributes that are stored or filled on other objects, such as classes and modules."""
        self._own_attributes: set[str] = set()
        """Attributes that are stored on ``self``."""
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            tree = ast.parse(source)
            self._find_lines(tree, "")
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self._read_function(node)

    def change(self, name: str, is_class_attribute: bool) -> bool:
        """Return whether functions may change a name.

        Args:
            name: Its path in a module: ``CACHE['a']``, ``STATE.count``, ``Net.scale``.
            is_class_attribute: Whether it is an attribute of a class. Methods that store an
                attribute of ``self`` do not change that of the class.
        """
        first, *steps = re.sub(r"[\[{].*", "", name).split(".")
        own = set() if is_class_attribute else self._own_attributes
        return first in self._names or not self._attributes.union(own).isdisjoint(steps)

    def change_outside(self, name: str) -> bool:
        """Return whether functions may change a name of another module."""
        first = re.split(r"\W", name, maxsplit=1)[0]
        return first in self._attributes or first in self._names

    def _find_lines(self, parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.lines[prefix + node.name] = node.lineno
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.lines[prefix + node.id] = node.lineno
            if isinstance(node, ast.ClassDef):
                self._find_lines(node, f"{prefix}{node.name}.")
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                self._find_lines(node, prefix)

    def _read_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        nodes = list(ast.walk(function))
        shared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        self._names |= shared
        # Filling a container in a local name changes no name of the module.
        bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        # ``known = self.known; known[key] = value`` fills the attribute.
        aliases = {
            node.targets[0].id: node.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        is_initializer = function.name in _INITIALIZERS
        for node in nodes:
            is_stored = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            if isinstance(node, ast.Attribute) and is_stored:
                self._store(node, is_initializer)
            filled: ast.expr | None = None
            if isinstance(node, ast.Subscript) and is_stored:
                filled = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                filled = node.func.value if _FILLING.fullmatch(node.func.attr) else None
            # ``TABLE[a][b] = c`` fills TABLE.
            while isinstance(filled, ast.Subscript):
                filled = filled.value
            if isinstance(filled, ast.Name):
                filled = aliases.get(filled.id, filled)
            if isinstance(filled, ast.Attribute):
                self._store(filled, is_initializer)
            elif isinstance(filled, ast.Name) and filled.id not in bound - shared:
                self._names.add(filled.id)
            elif isinstance(filled, ast.Call) and isinstance(filled.func, ast.Name):
                self.has_dynamic_names |= filled.func.id == "globals"

    def _store(self, target: ast.Attribute, is_initializer: bool) -> None:
        if not (isinstance(target.value, ast.Name) and target.value.id == "self"):
            self._attributes.add(target.attr)
        # Constructors set attributes of new objects, which changes no old one.
        elif not is_initializer:
            self._own_attributes.add(target.attr)
