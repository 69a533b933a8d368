"""Syntax trees: parsing, scopes, blocks, names, and bindings."""

from __future__ import annotations

import ast
import bisect
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from modpack.core.scan import ScanFailure

_TOO_DEEP = "nested too deeply for Python's own parser"


class ParsedSource(NamedTuple):
    """A parsed source.

    Attributes:
        text: Decoded source, with line feeds as line endings.
        tree: Syntax tree.
    """

    text: str
    tree: ast.Module


def parse_source(source: str | bytes) -> ParsedSource | ScanFailure:
    """Decode and parse a source like the import system, without compiling it. Never raises.

    Args:
        source: Text, or bytes in the encoding of their byte order mark or coding cookie (PEP 263).
            Default encoding: UTF-8.

    Returns:
        The tree with its text, or the parse error.
    """
    try:
        text = _decode(source)
        return ParsedSource(text, _parse(text))
    # Unicode errors are ValueErrors, so their handlers come first.
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return ScanFailure(f"invalid {error.encoding}: {error.reason}", line)
    except UnicodeEncodeError as error:  # a lone surrogate, which no file can contain
        line = error.object.count("\n", 0, error.start) + 1
        return ScanFailure(f"invalid character: {error.reason}", line)
    except SyntaxError as error:
        is_known = error.lineno is not None and error.lineno >= 1
        return ScanFailure(_one_line(error.msg), error.lineno if is_known else None)
    # CPython reports nesting beyond its parser's own limit as MemoryError.
    except (RecursionError, MemoryError):
        return ScanFailure(_TOO_DEEP)
    except (ValueError, LookupError) as error:  # LookupError: a codec that is not for text
        return ScanFailure(_one_line(str(error)))


def keyword_lines(words: Sequence[str], text: str) -> list[tuple[int, int]]:
    r"""Return the 1-based line and the offset of each keyword in code, in order.

    Examples in docstrings are skipped: no line of code begins with ``>>>``.

    >>> keyword_lines(["x", "y"], "a\nx\n>>> x\ny")
    [(2, 2), (4, 10)]
    """
    found = sorted(m.start() for word in words for m in re.finditer(re.escape(word), text))
    lines, line, counted = [], 1, 0
    for start in found:
        line += text.count("\n", counted, start)
        counted = start
        before = text[text.rfind("\n", 0, start) + 1 : start]
        # A quote may end the docstring, and code may follow it.
        if not before.lstrip().startswith(">>>") or '"' in before or "'" in before:
            lines.append((line, start))
    return lines


def contains_line(statement: ast.stmt, lines: Sequence[int]) -> bool:
    """Return whether a statement or its decorators contain one of some lines.

    Args:
        statement: Statement to check.
        lines: 1-based lines in ascending order.
    """
    # The ``lineno`` of a decorated definition is that of ``def`` or ``class``.
    decorators = getattr(statement, "decorator_list", ())
    first = decorators[0].lineno if decorators else statement.lineno
    following = bisect.bisect_left(lines, first)
    return following < len(lines) and lines[following] <= (statement.end_lineno or first)


def _decode(source: str | bytes) -> str:
    if isinstance(source, bytes):
        source = source.decode(_encoding(source))
    text = source.removeprefix("\ufeff")
    # Like the parser, so that positions in the tree are valid in the text.
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # The parser rejects null bytes, too, but without a line.
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SyntaxError("source code cannot contain null bytes", ("", line, None, None))
    return text


def _encoding(source: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    except SyntaxError as error:
        source.decode("utf-8")  # the UnicodeDecodeError, if any, has the line
        first, _, _ = source.partition(b"\n")
        error.lineno = 1 if b"coding" in first else 2
        raise


def _parse(text: str) -> ast.Module:
    try:
        return _parse_quietly(text)
    except RecursionError:
        # The caller's stack depth counts against the parser. Parsing in a new thread, with an
        # empty stack, makes the result independent of the caller.
        with ThreadPoolExecutor(1, "modpack-parse") as thread:
            return thread.submit(_parse_quietly, text).result()


def _parse_quietly(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences in third-party code
        return ast.parse(text)


def _one_line(message: str | None) -> str:
    return " ".join((message or "invalid syntax").split())


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

if sys.version_info >= (3, 11):
    TRIES = (ast.Try, ast.TryStar)
else:
    TRIES = (ast.Try,)

# Modules that the scanner interprets.
_KNOWN_ROOTS = frozenset(
    {"builtins", "contextlib", "importlib", "os", "pkgutil", "platform", "sys", "typing"}
    | {"typing_extensions"}
)
_MAX_ATTRIBUTES = 4  # importlib.machinery.PathFinder.find_spec


class BlockPart(Enum):
    """The part of a statement or an expression that is a block."""

    BODY = "body"
    ELSE = "else"
    FINALLY = "finally"
    FOLLOWING = "following"
    """The statements after a conditional exit, such as ``if x: return`` or ``assert``."""


@dataclass(eq=False)
class Scope:
    """The names that a function, class, module, or comprehension binds.

    Attributes:
        parent: Enclosing scope; None for a module.
        names: Dotted name of each name's meaning. A leading dot means that the scanned module
            defines it.
        declared_global: Names in ``global`` statements.
        owner: Node of the scope; None for a module.
    """

    parent: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    owner: ast.stmt | ast.expr | None = None

    def outside_comprehensions(self) -> Scope:
        """Return the scope of the function, class, or module around comprehensions."""
        scope = self
        while scope.parent is not None and isinstance(scope.owner, COMPREHENSIONS):
            scope = scope.parent
        return scope

    def binder_of(self, name: str) -> Scope:
        """Return the scope that an assignment in this scope binds a name in."""
        scope = self.outside_comprehensions()  # ``:=`` binds outside of them
        if name in scope.declared_global:
            while scope.parent is not None:
                scope = scope.parent
        return scope

    def bind(self, name: str, meaning: str) -> None:
        """Set the meaning of a name.

        Its first import or alias survives a fallback such as ``importlib = None`` in ``except
        ImportError``. Only a standard-library meaning replaces it.
        """
        before = self.names.get(name, ".")
        if before.startswith(".") or (_is_known_name(meaning) and not _is_known_name(before)):
            self.names[name] = meaning

    def resolve(self, name: str) -> str:
        """Return the dotted name that a name refers to; the name itself if it is unbound."""
        scope = self.find_binder(name)
        return name if scope is None else scope.names[name]

    def find_binder(self, name: str) -> Scope | None:
        """Return the nearest scope that binds a name."""
        scope: Scope | None = self
        while scope is not None:
            # Methods do not see the names of their class.
            seen = scope is self or not isinstance(scope.owner, ast.ClassDef)
            if seen and name in scope.names:
                return scope
            scope = scope.parent
        return None


def inner_scope(node: ast.stmt | ast.expr, outer: Scope) -> Scope:
    """Return the scope of a function, class, or comprehension, with its parameters or targets."""
    names: Iterable[str] = ()
    if isinstance(node, FUNCTIONS):
        names = (each.arg for each in parameters_of(node))
    elif isinstance(node, COMPREHENSIONS):
        names = (name for each in node.generators for name in assigned_names(each.target))
    return Scope(outer, {name: f".{name}" for name in names}, owner=node)


@dataclass(eq=False)
class Block:
    """A sequence of statements, or a part of an expression, under a common owner.

    Attributes:
        parent: Enclosing block; None for a module's body.
        scope: Scope of the block's names.
        owner: Statement, handler, or expression that contains the block.
        part: Part of the owner.
    """

    parent: Block | None
    scope: Scope
    owner: ast.AST
    part: BlockPart = BlockPart.BODY

    def inside(
        self, owner: ast.AST, part: BlockPart = BlockPart.BODY, scope: Scope | None = None
    ) -> Block:
        """Return a new block inside this one."""
        return Block(self, scope or self.scope, owner, part)


def bodies(statement: ast.stmt) -> Iterator[tuple[ast.AST, BlockPart, list[ast.stmt]]]:
    """Yield the owner, the part, and the statements of each block in a compound statement."""
    body = getattr(statement, "body", None)
    if body:
        yield statement, BlockPart.BODY, body
    for case in getattr(statement, "cases", ()):
        yield statement, BlockPart.BODY, case.body
    for handler in getattr(statement, "handlers", ()):
        yield handler, BlockPart.BODY, handler.body
    for part, name in ((BlockPart.ELSE, "orelse"), (BlockPart.FINALLY, "finalbody")):
        block = getattr(statement, name, None)
        if block:
            yield statement, part, block


class Bindings:
    """The expressions that names are bound to, with the scopes of the bindings.

    They are not attributes of :class:`Scope`, to which blocks refer: a reference cycle would keep a
    source's tree alive after its scan, until the next garbage collection.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Scope, str], list[tuple[Scope, ast.expr | None]]] = {}

    def add(self, name: str, scope: Scope, place: Scope, value: ast.expr | None) -> None:
        """Add one binding.

        Args:
            name: Bound name.
            scope: Scope of the name.
            place: Scope of the binding statement.
            value: Expression, or None for a loop's items, a definition, or anything else.
        """
        self._values.setdefault((scope, name), []).append((place, value))

    def find(self, name: str, scope: Scope) -> Sequence[tuple[Scope, ast.expr | None]]:
        """Return all bindings of a name that is used in a scope."""
        binder = scope.find_binder(name)
        return () if binder is None else self._values.get((binder, name), ())


def dotted_name(node: ast.AST | None) -> str:
    """Return ``a.b.c`` for a chain of attributes; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST | None) -> str:
    """Return the last component of a dotted name, or of a call's function; otherwise empty.

    >>> last_name(ast.parse("typing.Literal", mode="eval").body)
    'Literal'
    """
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literal_string(node: ast.AST) -> str | None:
    """Return the value of a string literal; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def literal_strings(node: ast.expr) -> tuple[str, ...] | None:
    """Return the elements of a literal tuple, list, or set of strings; None for anything else."""
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return None
    strings = [text for each in node.elts if (text := literal_string(each)) is not None]
    return tuple(strings) if len(strings) == len(node.elts) else None


def parameters_of(function: Function | ast.Lambda) -> list[ast.arg]:
    """Return all parameters of a function, ``*args`` and ``**kwargs`` last."""
    arguments = function.args
    stars = (each for each in (arguments.vararg, arguments.kwarg) if each is not None)
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]


def qualified_name(node: ast.AST, scope: Scope) -> str | None:
    """Return the dotted name that an expression such as ``il.util.find_spec`` refers to.

    Returns:
        The name with import aliases resolved; None if the expression is not a chain of attributes.
    """
    attributes: list[str] = []
    while isinstance(node, ast.Attribute) and len(attributes) < _MAX_ATTRIBUTES:
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([scope.resolve(node.id), *reversed(attributes)])


def resolve_relative(package: str, level: int, name: str) -> str | None:
    """Return the absolute name of a relative import (PEP 328).

    Args:
        package: Python package that the import starts from; ``""`` if there is none.
        level: Number of leading dots; 0 for an absolute import.
        name: Name after the dots; may be empty.

    Returns:
        The absolute name; None if it is beyond the top-level package.

    >>> resolve_relative("a.b", 2, "c"), resolve_relative("a.b", 3, "c")
    ('a.c', None)
    """
    if level == 0:
        return name
    parts = package.split(".") if package else []
    base = parts[: len(parts) - level + 1]
    if len(parts) < level:
        return None
    return ".".join([*base, name] if name else base)


def _is_known_name(meaning: str) -> bool:
    return meaning.partition(".")[0] in _KNOWN_ROOTS


def bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement binds, except imports and nested statements.

    Yields:
        Each name with the expression that it is bound to; None if it is not bound to exactly one
        expression.
    """
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        value = statement.value
        targets = targets_of(statement) if value is not None else []
    elif isinstance(statement, (Function, ast.ClassDef)):
        yield statement.name, None
    elif isinstance(statement, (ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = targets_of(statement)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Match):
        for node in (node for case in statement.cases for node in ast.walk(case.pattern)):
            name = getattr(node, "rest", None) or getattr(node, "name", None)
            if name:  # a capture, a star, or a mapping's rest
                yield name, None
    elif sys.version_info >= (3, 12) and isinstance(statement, ast.TypeAlias):
        targets = [statement.name]
    for target in targets:
        for name in assigned_names(target):
            yield name, value if isinstance(target, ast.Name) else None


def import_bindings(
    statement: ast.Import | ast.ImportFrom, package: str
) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with its meaning; ``*`` for a star import.

    Args:
        statement: Import statement.
        package: Python package that relative imports start from.
    """
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            source = resolve_relative(package, statement.level, statement.module or "")
            yield alias.asname or alias.name, f"{source or ''}.{alias.name}"
        elif alias.asname is not None:
            yield alias.asname, alias.name
        else:
            # ``import a.b`` binds only ``a``.
            root = alias.name.partition(".")[0]
            yield root, root


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment, a deletion, or a loop; empty for anything else."""
    if isinstance(statement, (ast.Assign, ast.Delete)):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    return []


def assigned_names(target: ast.expr) -> Iterator[str]:
    """Yield the names in an assignment's target; attributes and items bind none."""
    pending = [target]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.Tuple, ast.List)):
            pending.extend(reversed(node.elts))
        elif isinstance(node, ast.Starred):
            pending.append(node.value)


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is ``TYPE_CHECKING``, with or without a module name."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def is_main_guard(node: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__":`` without ``else``."""
    return isinstance(node, ast.If) and uses_dunder_name(node.test) and not node.orelse


def uses_dunder_name(test: ast.expr) -> bool:
    """Return whether a condition uses ``__name__``."""
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))
