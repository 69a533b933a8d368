"""What a source defines at the level of its module and its classes; functions are not entered.

It is recorded with the scan, so that an export can compare it with the modules that run without
parsing or compiling anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from modpack.core.defined import Body, Defined, Initializer, Literal, Row
from modpack.discovery._bindings import bindings
from modpack.discovery._initializers import initializer_of
from modpack.discovery._literals import UNKNOWN, dotted_name, literal_of, mangled
from modpack.discovery._nodes import TRIES
from modpack.discovery._parse import ParsedSource
from modpack.discovery._settings import Settings

__all__ = ["defined_by"]

_UNREAD = "?"
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMESPACES = frozenset({"globals", "locals", "vars", "exec", "setattr"})


def defined_by(parsed: ParsedSource) -> Defined:
    """What a source defines, and which of that its own code sets anew."""
    reader = _Reader()
    reader.read(parsed.tree)
    settings = Settings(parsed, reader.functions)
    return Defined(
        bodies={path: _body(found) for path, found in reader.found.items()},
        settings=settings.settings,
        setters=settings.setters,
        called=tuple(dict.fromkeys(reader.called)),
        is_dynamic=reader.is_dynamic,
        initializers=reader.initializers,
    )


class _Found:
    """What one body binds, while it is read."""

    def __init__(self, node: ast.ClassDef | None) -> None:
        self.line = node.lineno if node is not None else 0
        self.decorators = _decorators(node) if node is not None else []
        self.rows: dict[str, list[Row]] = {}
        self.certain: set[str] = set()
        self.depth = 0

    def add(self, name: str, row: Row) -> None:
        self.rows.setdefault(name, []).append(row)
        if not self.depth:
            self.certain.add(name)


class _Reader:
    """Reads statements, in and out of blocks, and classes, nested ones too.

    Attributes:
        found: what each body binds, by the path of its class.
        functions: the functions and methods, each with the path of its class.
        called: see :class:`Defined`.
        is_dynamic: see :class:`Defined`.
        initializers: see :class:`Defined`.
    """

    def __init__(self) -> None:
        self.found: dict[str, _Found] = {"": _Found(None)}
        self.functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]] = []
        self.called: list[str] = []
        self.is_dynamic = False
        self.initializers: dict[str, Initializer] = {}

    def read(self, tree: ast.Module) -> None:
        todo: list[tuple[Sequence[ast.stmt], str, int]] = [(tree.body, "", 0)]
        while todo:
            statements, path, depth = todo.pop()
            for statement in statements:
                self.found[path].depth = depth
                if isinstance(statement, ast.ClassDef):
                    todo.append((statement.body, self._enter(statement, path), 0))
                else:
                    self._read(statement, path)
                    todo += [(block, path, depth + 1) for block in _blocks(statement)]

    def _enter(self, node: ast.ClassDef, path: str) -> str:
        inner = f"{path}.{node.name}" if path else node.name
        body = self.found[path]
        body.add(node.name, (node.lineno, "class", list(_decorators(node)), {}))
        if inner in self.found:  # defined twice: nobody knows which one is there
            self.found[inner] = _Found(node)
            self.found[inner].add("*", (node.lineno, _UNREAD, [], {}))
        else:
            self.found[inner] = _Found(node)
        made = initializer_of(node)
        if made is not None:
            self.initializers[inner] = made
        return inner

    def _read(self, statement: ast.stmt, path: str) -> None:
        body = self.found[path]
        line = statement.lineno
        if isinstance(statement, _Function):
            name = mangled(statement.name, _last(path))
            body.add(name, (line, "def", list(_decorators(statement)), {"": statement.name}))
            self.functions.append((statement, path))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                bound = alias.asname or alias.name.partition(".")[0]
                body.add(mangled(bound, _last(path)), (line, _UNREAD, [], {}))
        elif isinstance(statement, ast.Expr):
            self._see_call(statement.value)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    body.add(mangled(target.id, _last(path)), (line, _UNREAD, [], {}))
        else:
            if isinstance(statement, ast.Assign):
                self.is_dynamic |= any(map(_is_namespace, statement.targets))
            for name, value in bindings(statement):
                body.add(mangled(name, _last(path)), _row(line, value))

    def _see_call(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            last = dotted_name(value.func).rpartition(".")[2]
            self.called.append(last)
            self.is_dynamic |= last in _NAMESPACES or _is_namespace(value.func)


def _is_namespace(node: ast.expr) -> bool:
    """Whether an expression is a part of what ``globals()`` or the like gives."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Call) and dotted_name(node.func) in _NAMESPACES


def _body(found: _Found) -> Body:
    functions: dict[str, int] = {}
    values: dict[str, tuple[int, Literal]] = {}
    others: dict[str, Sequence[Row]] = {}
    unread: list[str] = []
    for name, rows in found.rows.items():
        (line, kind, given, named), *more = rows
        if not more and kind == "def" and not given and named == {"": name}:
            functions[name] = line
        elif not more and kind == "is":
            values[name] = (line, given[0])
        elif any(kind == _UNREAD for _, kind, _, _ in rows):
            unread.append(name)
        else:
            others[name] = rows
    conditional = [name for name in found.rows if name not in found.certain]
    return Body(found.line, found.decorators, functions, values, others, unread, conditional)


def _row(line: int, value: ast.expr | None) -> Row:
    literal = literal_of(value)
    if literal != UNKNOWN:
        is_container = isinstance(value, (ast.List, ast.Dict, ast.Set))
        return line, "holds" if is_container else "is", [literal], {}
    if isinstance(value, ast.Call):
        return _call(line, value)
    return line, _UNREAD, [], {}


def _call(line: int, call: ast.Call) -> Row:
    called = dotted_name(call.func)
    is_spread = any(isinstance(each, ast.Starred) for each in call.args)
    if not called or is_spread or any(keyword.arg is None for keyword in call.keywords):
        return line, _UNREAD, [], {}
    named = {keyword.arg or "": literal_of(keyword.value) for keyword in call.keywords}
    return line, "call", [called, *map(literal_of, call.args)], named


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return [dotted_name(each) for each in called]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _blocks(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """The blocks of a compound statement that is no function and no class."""
    if isinstance(statement, (ast.If, ast.For, ast.AsyncFor, ast.While)):
        yield statement.body
        yield statement.orelse
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        yield statement.body
    elif isinstance(statement, TRIES):
        yield statement.body
        yield from (handler.body for handler in statement.handlers)
        yield statement.orelse
        yield statement.finalbody
    elif isinstance(statement, ast.Match):
        yield from (case.body for case in statement.cases)
