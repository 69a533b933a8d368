"""The exact source text of a function that cannot be imported: lambdas, nested functions.

The text is proved, not guessed: it is compiled again and its code compared with the code of
the live function. A source file that changed since it was imported is noticed that way.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

__all__ = ["FunctionText", "NoSourceError", "compiled_function", "text_of"]

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
    """

    source: str
    is_lambda: bool
    name: str
    free: tuple[str, ...]
    flags: int
    class_name: str | None = None


def text_of(function: FunctionType) -> FunctionText:
    """The source text of a function.

    Raises:
        NoSourceError: there is none, or the file has changed since it was loaded.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise NoSourceError(f"there is no source for {code.co_filename!r}")
    flags = code.co_flags & _FUTURE_FLAGS
    for candidate in _candidates("".join(lines), code, flags):
        try:
            compiled = compiled_function(candidate, code.co_filename)
        except SyntaxError:
            continue  # this way of wrapping it does not fit its indentation
        if _same(compiled, code):
            return candidate
    raise NoSourceError(
        f"{code.co_filename}:{code.co_firstlineno} holds no such function any more: the file "
        "has changed since it was loaded"
    )


def compiled_function(text: FunctionText, filename: str) -> CodeType:
    """Compile a function's text, with its closure variables free; returns its code."""
    module = compile(_wrapped(text), filename, "exec", flags=text.flags, dont_inherit=True)
    return _innermost(module, text)


_FUTURE_FLAGS = 0x1000000 | 0x800000 | 0x400000  # annotations, generator_stop, barry_as_FLUFL


def _wrapped(text: FunctionText) -> str:
    """The text inside what makes it compile alike: mostly at its second line."""
    head = f"def {FACTORY}({', '.join(text.free)}):"
    if text.is_lambda:
        return f"{head} return (\n{text.source}\n)\n"
    if not text.source[:1].isspace():
        return f"#\n{text.source}\n"
    if text.class_name is None:
        return f"{head}\n{text.source}\n"
    return f"class {text.class_name}:\n {head}\n{text.source}\n"


def _innermost(module: CodeType, text: FunctionText) -> CodeType:
    found: list[CodeType] = [module]
    for name in (text.class_name, FACTORY, "<lambda>" if text.is_lambda else text.name):
        inner = [c for c in _nested(found[-1]) if c.co_name == name]
        found.extend(inner[:1])
    return found[-1]


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _candidates(source: str, code: CodeType, flags: int) -> Iterator[FunctionText]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, RecursionError) as failure:
        raise NoSourceError(f"{code.co_filename} does not parse: {failure}") from failure
    free = code.co_freevars
    for node, class_name in _functions(tree):
        if not _starts_at(node, code) or _is_lambda(node) != (code.co_name == "<lambda>"):
            continue
        text = _segment(source, node)
        name = getattr(node, "name", "<lambda>")
        for enclosing in dict.fromkeys((None, class_name)):
            yield FunctionText(text, _is_lambda(node), name, free, flags, enclosing)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.AST, str | None]]:
    todo: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while todo:
        node, class_name = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node, class_name
        inner = node.name if isinstance(node, ast.ClassDef) else class_name
        todo.extend((child, inner) for child in ast.iter_child_nodes(node))


def _is_lambda(node: ast.AST) -> bool:
    return isinstance(node, ast.Lambda)


def _starts_at(node: ast.AST, code: CodeType) -> bool:
    """Whether a definition can be the one that code was compiled from, by its position."""
    decorators = getattr(node, "decorator_list", [])
    first = min([d.lineno for d in decorators] + [node.lineno])  # type: ignore[attr-defined]
    if code.co_firstlineno not in (first, node.lineno):  # type: ignore[attr-defined]
        return False
    if not isinstance(node, ast.Lambda) or not hasattr(code, "co_positions"):
        return getattr(node, "name", code.co_name) == code.co_name
    body = node.body
    inside = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    return all(inside[0] <= place <= inside[1] for place in places)


def _segment(source: str, node: ast.AST) -> str:
    """The text of a definition from its ``def`` or ``lambda`` on, as it stands."""
    segment = ast.get_source_segment(source, node) or ""
    if isinstance(node, ast.Lambda):
        return segment
    line = source.splitlines()[node.lineno - 1]  # type: ignore[attr-defined]
    indent = line[: len(line) - len(line.lstrip())]
    return indent + segment


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they were compiled."""
    if one.co_code != other.co_code or len(one.co_consts) != len(other.co_consts):
        return False
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    return all(
        _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else _equal(a, b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _equal(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and ".<locals>" in other:
        return True  # qualified names of inner functions differ by where they are defined
    return type(one) is type(other) and (one == other or repr(one) == repr(other))
