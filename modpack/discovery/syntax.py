"""Syntax trees: parsing, scopes and blocks, names and the statements that bind them."""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from modpack.core.scan import ScanFailure

_LONG = 200_000
"""Bytes below which no source is too large."""
_MAX_SIGNS = 200_000
"""Words, numbers, texts and other signs of a source: each may become a kilobyte of syntax tree."""
_SIGN = re.compile(
    rb'''("""|\'\'\')(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^'\\\n])*\''''
    rb"|#[^\n]*|\w+|[^\w\s]|\n",
    re.DOTALL,
)
_TOO_DEEP = "nested too deeply for Python's own parser"


@dataclass(frozen=True)
class ParsedSource:
    """A source that Python can parse.

    Attributes:
        text: the decoded source; its lines end in a line feed, whatever they ended in before.
        tree: its syntax tree.
    """

    text: str
    tree: ast.Module


def parse_source(source: str | bytes) -> ParsedSource | ScanFailure:
    """Decode and parse a source as the import system would, without compiling it.

    Args:
        source: text, or bytes in the encoding that their byte order mark or their coding
            cookie names (PEP 263); UTF-8 if they name none.

    Returns:
        The tree with its text, or what Python says against it. Nothing is raised for a
        source, however broken.
    """
    try:
        text = _decode(source)
        return ParsedSource(text, _parse(text))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return ScanFailure(f"bytes that are not {error.encoding}: {error.reason}", line)
    except UnicodeEncodeError as error:  # a lone surrogate in a text: no file can hold that
        line = error.object.count("\n", 0, error.start) + 1
        return ScanFailure(f"a character that is not text: {error.reason}", line)
    except SyntaxError as error:
        is_known = error.lineno is not None and error.lineno >= 1
        return ScanFailure(_one_line(error.msg), error.lineno if is_known else None)
    except (RecursionError, MemoryError):
        return ScanFailure(_TOO_DEEP)
    except (ValueError, LookupError) as error:  # LookupError: a codec that is not for text
        return ScanFailure(_one_line(str(error)))


def lines_of(words: Sequence[str], text: str) -> list[int]:
    r"""Return the numbers, from 1 and ascending, of the lines of code that contain a word.

    Examples in docstrings are skipped: no line of code begins with ``>>>``.

    >>> lines_of(["x", "y"], "a\nx\n>>> x\ny")
    [2, 4]
    """
    found = sorted(m.start() for word in words for m in re.finditer(re.escape(word), text))
    lines, line, counted = [], 1, 0
    for start in found:
        line += text.count("\n", counted, start)
        counted = start
        before = text[text.rfind("\n", 0, start) + 1 : start]
        # A quote may end the docstring: what follows it is code.
        if not before.lstrip().startswith(">>>") or '"' in before or "'" in before:
            lines.append(line)
    return lines


def has_line_in(statement: ast.stmt, lines: Sequence[int]) -> bool:
    """Return whether a statement, with its decorators, contains one of some ascending lines."""
    decorators = getattr(statement, "decorator_list", ())
    first = decorators[0].lineno if decorators else statement.lineno
    following = bisect.bisect_left(lines, first)
    return following < len(lines) and lines[following] <= (statement.end_lineno or first)


def is_large(source: str | bytes) -> bool:
    """Whether parsing a source takes hundreds of megabytes, which few real ones come near.

    >>> is_large("x = 1"), is_large("x;" * 200_000)
    (False, True)
    """
    if len(source) < _LONG:
        return False
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    signs = itertools.islice(_SIGN.finditer(data), _MAX_SIGNS)
    return sum(1 for _ in signs) == _MAX_SIGNS


def _decode(source: str | bytes) -> str:
    if isinstance(source, bytes):
        source = source.decode(_encoding(source))
    text = source.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SyntaxError("source code cannot contain null bytes", ("", line, None, None))
    return text


def _encoding(source: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    except SyntaxError as error:
        source.decode("utf-8")  # where this fails, its error knows the line
        first, _, _ = source.partition(b"\n")
        error.lineno = 1 if b"coding" in first else 2
        raise


def _parse(text: str) -> ast.Module:
    try:
        return _parse_quietly(text)
    except RecursionError:
        # Python counts the caller's depth against the parser. An empty stack gives a source
        # the same answer wherever the scan was asked for.
        with ThreadPoolExecutor(1, "modpack-parse") as thread:
            return thread.submit(_parse_quietly, text).result()


def _parse_quietly(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in other people's code
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

# The modules whose names mean something to the scan.
_KNOWN_ROOTS = frozenset(
    {"builtins", "contextlib", "importlib", "os", "pkgutil", "platform", "sys", "typing"}
    | {"typing_extensions"}
)
_LONGEST_CHAIN = 4  # importlib.machinery.PathFinder.find_spec


class BlockPart(Enum):
    """Which of a statement's (or an expression's) parts a block is."""

    BODY = "body"
    ELSE = "else"
    FINALLY = "finally"
    REST = "rest"
    """What follows a statement that leaves the body around it unless its condition says so."""


@dataclass(eq=False)
class Scope:
    """The names that imports and assignments give to things, in one function, class or module.

    Attributes:
        parent: the scope around it; None for a module.
        names: name -> dotted name of what it stands for. One that starts with a dot is the
            scanned module's own.
        declared_global: names that a ``global`` statement gives to the module.
        owner: the function or class whose scope it is; None for a module.
    """

    parent: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    owner: ast.stmt | ast.Lambda | None = None

    def binds_in_module(self, name: str) -> bool:
        """Whether an assignment to ``name`` here makes a name of the module."""
        return self.parent is None or name in self.declared_global

    def bind(self, name: str, meaning: str) -> None:
        """Let ``name`` stand for something from here on.

        A name of the standard library survives its stand-in, as in ``try: import importlib``
        followed by ``except ImportError: importlib = None``.
        """
        before = self.names.get(name)
        if before is None or not _is_known(before) or _is_known(meaning):
            self.names[name] = meaning

    def meaning_of(self, name: str) -> str:
        """What ``name`` stands for; itself where nothing binds it."""
        scope = self.binding(name)
        return name if scope is None else scope.names[name]

    def binding(self, name: str) -> Scope | None:
        """The nearest scope that gives ``name`` a meaning."""
        scope: Scope | None = self
        while scope is not None:
            # A method does not see the names of its class.
            seen = scope is self or not isinstance(scope.owner, ast.ClassDef)
            if seen and name in scope.names:
                return scope
            scope = scope.parent
        return None


@dataclass(eq=False)
class Block:
    """A run of statements, or an expression's part, below something that may matter to it.

    Attributes:
        parent: the block around it; None for a module's body.
        scope: where its names live.
        owner: the statement, handler or expression that it is a part of.
        part: which part of it.
    """

    parent: Block | None
    scope: Scope
    owner: ast.AST
    part: BlockPart = BlockPart.BODY

    def inside(
        self, owner: ast.AST, part: BlockPart = BlockPart.BODY, scope: Scope | None = None
    ) -> Block:
        """A block inside this one."""
        return Block(self, scope or self.scope, owner, part)


def bodies(statement: ast.stmt) -> Iterator[tuple[ast.AST, BlockPart, list[ast.stmt]]]:
    """The runs of statements in a compound statement: what each is a part of, and which part."""
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
    """What names are bound to, and where.

    Kept apart from the scopes: blocks know theirs, and a scope that knew blocks would close a
    circle. A source's tree would then outlive its scan until Python searches for such circles.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Scope, str], list[tuple[Block, ast.AST | None]]] = {}

    def add(self, name: str, scope: Scope, block: Block, value: ast.AST | None) -> None:
        """Keep one binding.

        Args:
            name: the name.
            scope: where the name lives.
            block: where the statement stands.
            value: an expression, the definition of a function, or None for anything else.
        """
        self._found.setdefault((scope, name), []).append((block, value))

    def of(self, name: str, scope: Scope) -> Sequence[tuple[Block, ast.AST | None]]:
        """Every binding of ``name`` as a scope sees it."""
        binding = scope.binding(name)
        return () if binding is None else self._found.get((binding, name), ())


def dotted_name(node: ast.AST | None) -> str:
    """``a.b.c`` for a chain of names; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST | None) -> str:
    """The last component of a dotted name; of what is called, for a call; otherwise nothing.

    >>> last_name(ast.parse("typing.Literal", mode="eval").body)
    'Literal'
    """
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def literal_string(node: ast.AST) -> str | None:
    """The text that an expression is, if it is a literal one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def literal_strings(node: ast.expr) -> tuple[str, ...] | None:
    """The elements of a literal tuple, list or set of strings; None for anything else."""
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return None
    strings = [text for each in node.elts if (text := literal_string(each)) is not None]
    return tuple(strings) if len(strings) == len(node.elts) else None


def parameters_of(function: Function | ast.Lambda) -> list[ast.arg]:
    """All parameters of a function, those with stars last."""
    given = function.args
    stars = (each for each in (given.vararg, given.kwarg) if each is not None)
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *stars]


def qualified_name(node: ast.AST, scope: Scope) -> str | None:
    """The dotted name of what an expression such as ``il.util.find_spec`` refers to.

    Returns:
        The name with imports' aliases resolved; None if it is no plain chain of names.
    """
    attributes: list[str] = []
    while isinstance(node, ast.Attribute) and len(attributes) < _LONGEST_CHAIN:
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([scope.meaning_of(node.id), *reversed(attributes)])


def resolve_relative(package: str, level: int, name: str) -> str | None:
    """The absolute name of a relative import (PEP 328).

    Args:
        package: the package that the import starts from; ``""`` if there is none.
        level: number of leading dots; 0 is an absolute import.
        name: what follows the dots; may be empty.

    Returns:
        The absolute name; None if the dots lead beyond the top-level package.

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


def _is_known(meaning: str) -> bool:
    return meaning.partition(".")[0] in _KNOWN_ROOTS


# Python looks for a plain word at the beginning before it matches a pattern. One pattern of
# alternatives is tried at every character, which takes four times as long.
_BINDERS = ("__getattr__", "__dict__", "globals", "vars", "locals", "exec", "eval", "setattr")
_BINDS_DYNAMICALLY = (
    *(re.compile(rf"{word}\b(?<!\w{word})") for word in (*_BINDERS, "modules")),
    re.compile(r"import\s*\(?\s*\*"),
)


def bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement binds itself, imports and nested statements left out.

    Yields:
        Each name with the expression that it is bound to, or None where the statement does
        not bind it to exactly one expression.
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
            if name:  # of a capture, a star, or the rest of a mapping
                yield name, None
    elif sys.version_info >= (3, 12) and isinstance(statement, ast.TypeAlias):
        targets = [statement.name]
    for target in targets:
        for name in assigned_names(target):
            yield name, value if isinstance(target, ast.Name) else None


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """The targets of an assignment, a deletion or a loop; none of anything else."""
    if isinstance(statement, (ast.Assign, ast.Delete)):
        return statement.targets
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    return []


def binds_dynamically(text: str) -> bool:
    """Whether a source has a word for binding names of the module that are not spelled in it."""
    return any(pattern.search(text) for pattern in _BINDS_DYNAMICALLY)


def assigned_names(target: ast.expr) -> Iterator[str]:
    """The names in an assignment's target; attributes and items bind none."""
    waiting = [target]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.Tuple, ast.List)):
            waiting.extend(reversed(node.elts))
        elif isinstance(node, ast.Starred):
            waiting.append(node.value)


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers only: ``TYPE_CHECKING``, by any spelling."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def is_main_guard(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``, with nothing for other names."""
    return isinstance(node, ast.If) and asks_for_main(node.test) and not node.orelse


def asks_for_main(test: ast.expr) -> bool:
    """Whether a condition has ``__name__`` in it."""
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))
