"""The exact source text of a function that cannot be imported: lambdas, nested functions.

The text is proved, not guessed: it is compiled again and its code compared with the code of
the live function. A source file that changed since it was imported is noticed that way.
"""

from __future__ import annotations

import ast
import linecache
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType

from modpack.core.cellmagic import magic_texts

__all__ = [
    "FUTURE_FLAGS",
    "FunctionText",
    "NoSourceError",
    "compiled_function",
    "parsable_text",
    "same_code",
    "text_of",
]

FACTORY = "__modpack_factory__"


class NoSourceError(ValueError):
    """No source text can be had for a function, or none that compiles to its code."""


@dataclass(frozen=True)
class FunctionText:
    """A function as text.

    Attributes:
        source: the definition as it stands in its file, indentation included, without
            decorators; for a lambda the expression.
        is_lambda: whether it is an expression.
        name: the name under which the definition binds it.
        free: the names of its closure variables.
        flags: compiler flags of ``from __future__`` statements in force.
        class_name: the class whose private names (``__x``) it mentions, if any.
        line: the line of its file at which the text starts, from 1.
    """

    source: str
    is_lambda: bool
    name: str
    free: tuple[str, ...]
    flags: int
    class_name: str | None = None
    line: int = 1


def text_of(function: FunctionType) -> FunctionText:
    """The source text of a function.

    Raises:
        NoSourceError: there is none, or the file has changed since it was loaded.
    """
    code = function.__code__
    key = id(code)
    if key not in _KNOWN:
        text = _searched(code, function)
        _KNOWN[key] = text, weakref.ref(code, lambda _: _KNOWN.pop(key, None))
    return _KNOWN[key][0]


_KNOWN: dict[int, tuple[FunctionText, object]] = {}
"""By the id of living codes, which many functions may share: a closure is made anew each time."""


def _searched(code: CodeType, function: FunctionType) -> FunctionText:
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        for text in magic_texts():  # IPython's own magics compile under a name without a source
            magic = _text_in(text.splitlines(keepends=True), code)
            if magic is not None:
                return magic
        raise NoSourceError(f"there is no source for {code.co_filename!r}")
    found = _text_in(lines, code)
    if found is None:  # what is cached may be older than the module, after a reload
        linecache.checkcache(code.co_filename)
        found = _text_in(linecache.getlines(code.co_filename, function.__globals__), code)
    if found is None:
        raise NoSourceError(
            f"{code.co_filename}:{code.co_firstlineno} holds no text that compiles to its code: "
            "the file has changed since it was loaded, or something rewrote the code"
        )
    return found


def compiled_function(
    text: FunctionText, filename: str, imported: tuple[str, ...] = ()
) -> CodeType:
    """Compile a function's text, with its closure variables free; returns its code.

    Lines are numbered as in the file that the text comes from.

    Args:
        text: the text.
        filename: what tracebacks call its file.
        imported: names that its module imports. The code does the same without, but Python
            compiles the calls of their attributes in another way.
    """
    module = ast.parse(_parsable(text), filename)
    ast.increment_lineno(module, text.line - 2)
    imports = [ast.Import([ast.alias(name)]) for name in imported]
    tree = ast.Module([*imports, _enclosed(module.body[0], text)], [])
    ast.fix_missing_locations(tree)
    compiled = compile(tree, filename, "exec", flags=text.flags, dont_inherit=True)
    return _innermost(compiled, text)


FUTURE_FLAGS = 0x1000000 | 0x800000 | 0x400000  # annotations, generator_stop, barry_as_FLUFL
"""What ``from __future__`` statements leave in the flags of code."""


def _text_in(lines: list[str], code: CodeType) -> FunctionText | None:
    """The one text among those at the place of a code that compiles to it."""
    source = "".join(lines)
    try:
        tree, imported = _parsed(source)
    except (SyntaxError, ValueError, RecursionError) as failure:
        raise NoSourceError(f"{code.co_filename} does not parse: {failure}") from failure
    for candidate in _candidates(source, tree, code):
        if same_code(compiled_function(candidate, code.co_filename, imported), code):
            return candidate
    return None


def parsable_text(function: FunctionType) -> str:
    """A function's source as a module of its own would have it, to be read and not to be run.

    Raises:
        NoSourceError: there is none.
    """
    return _parsable(text_of(function))


def _parsable(text: FunctionText) -> str:
    """The text from the second line on, so that its indentation may stay as it is."""
    if text.is_lambda:
        return f"(\n{text.source}\n)"
    head = "if True:" if text.source[:1].isspace() else ""
    return f"{head}\n{text.source}\n"


def _enclosed(parsed: ast.stmt, text: FunctionText) -> ast.stmt:
    """The definition where it compiles alike: in its class, its closure variables around it."""
    inner = parsed.body[0] if isinstance(parsed, ast.If) else parsed
    if isinstance(inner, ast.Expr):
        inner = ast.Return(inner.value)
    if text.free or text.is_lambda or text.class_name is not None:
        inner = _statement(f"def {FACTORY}({', '.join(text.free)}): ...", inner)
    if text.class_name is not None:
        inner = _statement(f"class {text.class_name}: ...", inner)
    return inner


def _statement(head: str, inner: ast.stmt) -> ast.stmt:
    outer = ast.parse(head).body[0]
    outer.body = [inner]  # type: ignore[attr-defined]
    return outer


def _innermost(module: CodeType, text: FunctionText) -> CodeType:
    """The function's code: the outermost one of its name, behind the factory if there is one."""
    name = "<lambda>" if text.is_lambda else text.name
    todo = [module]
    while todo:
        code = todo.pop(0)
        inner = [c for c in code.co_consts if isinstance(c, CodeType)]
        named = [c for c in inner if c.co_name == name]
        if named:
            return named[-1]  # before a lambda come those among its defaults
        todo.extend(inner)
    return module


@lru_cache(maxsize=8)
def _parsed(source: str) -> tuple[ast.Module, tuple[str, ...]]:
    tree = ast.parse(source)
    return tree, tuple(_imported_by(tree))


def _imported_by(tree: ast.Module) -> Iterator[str]:
    """The names that import statements bind in a module, once each."""
    names: dict[str, None] = {}
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            names.update(dict.fromkeys(name for name in bound if name != "*"))
        elif isinstance(node, ast.Module | ast.stmt | ast.excepthandler | ast.match_case):
            if not isinstance(node, _Function | ast.ClassDef):
                todo.extend(ast.iter_child_nodes(node))
    yield from names


def _candidates(source: str, tree: ast.Module, code: CodeType) -> Iterator[FunctionText]:
    free, flags = code.co_freevars, code.co_flags & FUTURE_FLAGS
    for node, class_name in _functions(tree):
        if not _starts_at(node, code):
            continue
        text, name = _segment(source, node), getattr(node, "name", "<lambda>")
        for enclosing in dict.fromkeys((None, class_name)):
            is_lambda = isinstance(node, ast.Lambda)
            yield FunctionText(text, is_lambda, name, free, flags, enclosing, node.lineno)


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _functions(tree: ast.Module) -> Iterator[tuple[_Function, str | None]]:
    """Every definition, with the class around it."""
    todo: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while todo:
        node, class_name = todo.pop()
        if isinstance(node, _Function):
            yield node, class_name
        inner = node.name if isinstance(node, ast.ClassDef) else class_name
        todo.extend((child, inner) for child in ast.iter_child_nodes(node))


def _starts_at(node: _Function, code: CodeType) -> bool:
    """Whether a definition can be the one that code was compiled from, by name and position."""
    if not isinstance(node, ast.Lambda):
        first = min([d.lineno for d in node.decorator_list] + [node.lineno])
        return node.name == code.co_name and code.co_firstlineno in (first, node.lineno)
    if code.co_name != "<lambda>" or code.co_firstlineno != node.lineno:
        return False
    if not hasattr(code, "co_positions"):  # Python 3.10: the first on its line that is the same
        return True
    body = node.body
    inside = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    return all(inside[0] <= place <= inside[1] for place in places)


def _segment(source: str, node: _Function) -> str:
    """The text of a definition from its ``def`` or ``lambda`` on, as it stands."""
    segment = ast.get_source_segment(source, node) or ""
    if isinstance(node, ast.Lambda):
        return segment
    line = source.split("\n")[node.lineno - 1]
    return line[: len(line) - len(line.lstrip())] + segment


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they were compiled."""
    if one.co_code != other.co_code or len(one.co_consts) != len(other.co_consts):
        return False
    if any(getattr(one, name) != getattr(other, name) for name in _COMPARED):
        return False
    if (one.co_flags ^ other.co_flags) & _CALLING_FLAGS:
        return False
    return all(
        same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else _equal(a, b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


_COMPARED = (
    *("co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)
_CALLING_FLAGS = 0x4 | 0x8 | 0x20 | 0x80 | 0x200  # *args, **kwargs, generator and async kinds


def _equal(one: object, other: object) -> bool:
    """Whether two constants are one: ``1`` is not ``True``, and ``0.0`` is not ``-0.0``."""
    if type(one) is not type(other):
        return False
    if isinstance(one, str) and isinstance(other, str) and "<locals>" in one:
        # qualified names of inner functions and classes tell where they were defined
        return one.rpartition("<locals>.")[2] == other.rpartition("<locals>.")[2]
    return repr(one) == repr(other) or (isinstance(one, frozenset) and one == other)
