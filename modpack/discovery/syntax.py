"""From the bytes of a module to its syntax tree, or to the reason why there is none.

Kinds of syntax nodes that several readers treat alike, and what is below a node.

Where a statement stands: the blocks around it, and the names that it sees there.

Where words stand in a source: what has none of them need not be looked at.

The names that a statement binds.

Blocks that only import: ``try``/``except ImportError``, ``if TYPE_CHECKING``, versions.

They decide anew where they are run, and are taken as they stand.
"""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import re
import sys
import threading
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from modpack.core.scan import ScanFailure

_LONG = 200_000
"""Bytes below which no source is too large."""
_MOST_SIGNS = 200_000
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
        return ScanFailure(_one_line(error.msg), _known_line(error.lineno))
    except (RecursionError, MemoryError):
        return ScanFailure(_TOO_DEEP)
    except (ValueError, LookupError) as error:  # LookupError: a codec that is not for text
        return ScanFailure(_one_line(str(error)))


def is_large(source: str | bytes) -> bool:
    """Whether parsing a source takes hundreds of megabytes, which few real ones come near.

    >>> is_large("x = 1"), is_large("x;" * 200_000)
    (False, True)
    """
    if len(source) < _LONG:
        return False
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    signs = itertools.islice(_SIGN.finditer(data), _MOST_SIGNS)
    return sum(1 for _ in signs) == _MOST_SIGNS


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
        return _parse_on_an_empty_stack(text)


def _parse_quietly(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in other people's code
        return ast.parse(text)


def _parse_on_an_empty_stack(text: str) -> ast.Module:
    trees: list[ast.Module] = []
    errors: list[BaseException] = []

    def parse() -> None:
        try:
            trees.append(_parse_quietly(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            errors.append(error)

    thread = threading.Thread(target=parse, name="modpack-parse")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return trees[0]


def _one_line(message: str | None) -> str:
    return " ".join((message or "invalid syntax").split())


def _known_line(line: int | None) -> int | None:
    return line if line is not None and line >= 1 else None


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

if sys.version_info >= (3, 11):
    TRIES = (ast.Try, ast.TryStar)
else:
    TRIES = (ast.Try,)

_LEAVES = frozenset({ast.Name, ast.Constant})
"""Half of all nodes."""
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
"""For each kind of node that was met, the fields that may hold what :func:`child_nodes` tells."""
_OTHER_FIELDS = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "type_comment"})


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """What :func:`ast.iter_child_nodes` says, short of operators and contexts.

    In less than half of its time: it is asked for each node of a source that reads files.
    """
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(name for name in kind._fields if name not in _OTHER_FIELDS)
    children: list[ast.AST] = []
    for name in _FIELDS[kind]:
        part = getattr(node, name, None)
        if isinstance(part, list):
            children += [each for each in part if isinstance(each, ast.AST)]
        elif isinstance(part, ast.AST):
            children.append(part)
    return children


def nodes_in(tree: ast.AST) -> Iterator[ast.AST]:
    """What :func:`ast.walk` says, in its order, short of operators and contexts."""
    level = [tree]
    while level:
        yield from level
        level = [
            below for node in level if type(node) not in _LEAVES for below in child_nodes(node)
        ]


# The modules whose names mean something to the scan.
_KNOWN_ROOTS = frozenset(
    {"builtins", "contextlib", "importlib", "os", "pkgutil", "platform", "sys", "typing"}
    | {"typing_extensions"}
)
_LONGEST_CHAIN = 4  # importlib.machinery.PathFinder.find_spec


class Part(Enum):
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
    part: Part = Part.BODY

    def inside(self, owner: ast.AST, part: Part = Part.BODY, scope: Scope | None = None) -> Block:
        """A block inside this one."""
        return Block(self, scope or self.scope, owner, part)


class Origins:
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


def has_any(patterns: Iterable[re.Pattern[str]], text: str) -> bool:
    """Whether one of several patterns, each of which begins with a plain word, is in a text.

    Python looks for the word before it matches a pattern. One pattern of alternatives it would try
    at every character, which takes four times as long.
    """
    return any(pattern.search(text) for pattern in patterns)


def places_of(word: str, text: str) -> Iterator[int]:
    """Where a word stands in code; it may be a part of a longer one.

    Not in the example of a docstring: no line of code begins with ``>>>``. A quarter of the walk
    of a library with such examples was spent on them.
    """
    found = text.find(word)
    while found >= 0:
        before = text[text.rfind("\n", 0, found) + 1 : found]
        is_in_example = ">>>" in before and before.lstrip().startswith(">>>")
        if not is_in_example or '"' in before or "'" in before:
            yield found
        found = text.find(word, found + len(word))


def lines_at(places: Iterable[int], text: str) -> list[int]:
    """1-based numbers, ascending, of the lines that places in a text are on."""
    lines: list[int] = []
    line, counted = 1, 0
    for place in sorted(places):
        line += text.count("\n", counted, place)
        counted = place
        lines.append(line)
    return lines


def spans_any(statement: ast.stmt, lines: Sequence[int]) -> bool:
    """Whether one of the lines, which ascend, is among those that a statement is written on."""
    if not lines:
        return False
    following = bisect.bisect_left(lines, _first_line(statement))
    return following < len(lines) and lines[following] <= (statement.end_lineno or 0)


def _first_line(statement: ast.stmt) -> int:
    """Where a statement begins: with its first decorator, if it has one."""
    decorators = getattr(statement, "decorator_list", ())
    return decorators[0].lineno if decorators else statement.lineno


_BINDERS = ("__getattr__", "__dict__", "globals", "vars", "locals", "exec", "eval", "setattr")
_BINDS_UNSEEN = (
    *(re.compile(rf"{word}\b(?<!\w{word})") for word in (*_BINDERS, "modules")),
    re.compile(r"import\s*\(?\s*\*"),
)

_BINDING = frozenset(
    {ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef}
    | {ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Match}
)
if sys.version_info >= (3, 12):
    BINDING = _BINDING | {ast.TypeAlias}
else:
    BINDING = _BINDING
"""The statements that :func:`bindings` has something to say of."""


def bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement binds itself, imports and nested statements left out.

    Yields:
        Each name with the expression that it is bound to, or None where the statement does
        not bind it to exactly one expression.
    """
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _bound_to(target, statement.value)
    elif isinstance(statement, ast.AnnAssign):
        if statement.value is not None:
            yield from _bound_to(statement.target, statement.value)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name, None
    elif isinstance(statement, (ast.AugAssign, ast.For, ast.AsyncFor)):
        yield from _bound_to(statement.target, None)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from _bound_to(item.optional_vars, None)
    elif isinstance(statement, ast.Match):
        for name in _captured_names(statement):
            yield name, None
    elif sys.version_info >= (3, 12) and isinstance(statement, ast.TypeAlias):
        yield from _bound_to(statement.name, None)


def binds_unseen(text: str) -> bool:
    """Whether a source has a word for binding names of the module that are not spelled in it."""
    return has_any(_BINDS_UNSEEN, text)


def _bound_to(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    sole = isinstance(target, ast.Name)
    for name in assigned_names(target):
        yield name, value if sole else None


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


def _captured_names(statement: ast.Match) -> Iterator[str]:
    for case in statement.cases:
        for node in ast.walk(case.pattern):
            if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            elif isinstance(node, ast.MatchMapping) and node.rest:
                yield node.rest


_ABSENCE = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_PLAIN_TEST = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Tuple),
    *(ast.Subscript, ast.Slice, ast.cmpop, ast.boolop, ast.unaryop, ast.expr_context),
)
_PLAIN_VALUE = (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context)


def is_import_block(node: ast.stmt) -> bool:
    """Whether a statement is an ``if`` or a ``try`` that does nothing but import."""
    if isinstance(node, ast.If):
        plain = is_type_checking(node.test) or _consists_of(node.test, _PLAIN_TEST)
        return plain and not _asks_for_main(node.test) and _only_imports([*node.body, *node.orelse])
    if isinstance(node, ast.Try):
        handled = [each for handler in node.handlers for each in handler.body]
        guards = all(_is_for_absence(handler) for handler in node.handlers)
        everything = [*node.body, *handled, *node.orelse, *node.finalbody]
        return guards and bool(node.handlers) and _only_imports(everything)
    return False


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers only: ``TYPE_CHECKING``, by any spelling."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def is_main_guard(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``, with nothing for other names."""
    return isinstance(node, ast.If) and _asks_for_main(node.test) and not node.orelse


def _asks_for_main(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))


def _is_for_absence(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in _ABSENCE for each in types)


def _only_imports(body: list[ast.stmt]) -> bool:
    """Whether there are imports, and besides them only names for what is absent."""
    leaves = list(_leaves(body))
    imports = [leaf for leaf in leaves if isinstance(leaf, (ast.Import, ast.ImportFrom))]
    others = [leaf for leaf in leaves if not isinstance(leaf, (ast.Import, ast.ImportFrom))]
    return bool(imports) and all(_is_plain(leaf) for leaf in others)


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)) and is_import_block(node):
            handled = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from _leaves([*node.body, *handled, *node.orelse])
        else:
            yield node


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        names = all(isinstance(target, ast.Name) for target in node.targets)
        return names and _consists_of(node.value, _PLAIN_VALUE)
    return False


def _consists_of(node: ast.expr, kinds: tuple[type[ast.AST], ...]) -> bool:
    return all(isinstance(part, kinds) for part in ast.walk(node))
