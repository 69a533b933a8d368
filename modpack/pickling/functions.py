"""Functions that cannot be imported, by their source: lambdas, nested functions.

The text is proved, not guessed: it is compiled again and its code compared with the code of
the live function. A source file that changed since it was imported is noticed that way.

A function is made in two steps, so that it may refer to itself, or to an object that refers
to it: first an empty one from its text, then its cells, defaults and attributes are filled
in. A function of an importable module uses that module's globals; one of ``__main__`` or of a
notebook gets a namespace of its own, with the globals that it names.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import io
import linecache
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from modpack.core.cell_magic import magic_texts
from modpack.pickling.rebuild import named_in_packages

FACTORY = "__modpack_factory__"


class NoSourceError(ValueError):
    """No source text can be had for a function, or none that compiles to its code."""


class FunctionText(NamedTuple):
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
    """A module, and the names that import statements bind in it, once each."""
    tree = ast.parse(source)
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
    return tree, tuple(names)


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


SCRIPTS = ("__main__", "__mp_main__")
"""What the script that runs is called, and in processes that :mod:`multiprocessing` spawned."""


@named_in_packages
class GlobalNames(dict[str, Any]):
    """The globals of functions that have no module to be imported with them.

    Attributes:
        builtins: what the functions see as builtins: those of a package while one is loaded,
            so that their import statements find what the package holds.
    """

    builtins: Any = builtins


def home_module(function: FunctionType) -> ModuleType | None:
    """The importable module whose globals a function uses; None for those of scripts."""
    # not its __module__: a decorator's wrapper carries that of the function inside
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    if module is None or module.__name__ in SCRIPTS:
        return None
    return module if vars(module) is function.__globals__ else None


def parts_of(function: FunctionType, home: object) -> tuple[Any, ...]:
    """What pickle needs to make a function again (the six-part form of ``__reduce__``).

    Args:
        function: the function.
        home: the module whose globals it uses, or a :class:`GlobalNames`.

    Raises:
        NoSourceError: its source cannot be had.
    """
    text = text_of(function)
    identity = (function.__name__, function.__qualname__, function.__module__ or "__main__")
    itself = [n for n, v in function.__dict__.items() if type(v) is int and v == id(function)]
    state = {
        "cells": dict(closed_over(function)),
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "doc": function.__doc__,
        # Those that are text; live types would drag in modules that no call needs.
        "annotations": {n: t for n, t in function.__annotations__.items() if isinstance(t, str)},
        "attributes": {n: v for n, v in function.__dict__.items() if n not in itself},
        **({"identities": tuple(itself)} if itself else {}),
        "globals": named_globals(function) if isinstance(home, GlobalNames) else {},
    }
    arguments = (tuple(text), identity, home, function.__closure__ or ())
    return make_function, arguments, state, None, None, fill_function


@named_in_packages
def make_cell() -> CellType:
    """Make a closure's cell, empty until a function fills it.

    A cell is pickled as an object of its own, for functions may share it: what one binds with
    ``nonlocal``, the other one sees.
    """
    return CellType()


@named_in_packages
def make_function(
    fields: tuple[Any, ...],
    identity: tuple[str, str, str],
    home: Any,
    cells: tuple[CellType, ...],
) -> FunctionType:
    """Make a function from its text, with cells that may still be empty.

    Args:
        fields: the fields of a :class:`FunctionText`.
        identity: its ``__name__``, its ``__qualname__`` and its ``__module__``.
        home: the module whose globals it uses, or a :class:`GlobalNames`.
        cells: of its closure, in the order of the text's free variables.
    """
    text = FunctionText(*fields)
    name, qualname, module = identity
    filename = _shown_source(text, f"{module}:{text.line} {qualname}")
    code = compiled_function(text, filename)
    by_name = dict(zip(text.free, cells, strict=True))
    namespace = home if isinstance(home, GlobalNames) else vars(home)
    if isinstance(home, GlobalNames):
        home.setdefault("__builtins__", home.builtins)
        home.setdefault("__name__", module)
    function = FunctionType(
        code, namespace, name, None, tuple(by_name[each] for each in code.co_freevars)
    )
    function.__qualname__ = qualname
    function.__module__ = str(namespace.get("__name__", module))
    return function


@named_in_packages
def make_method(function: Callable[..., Any], owner: object) -> MethodType:
    """Bind a function to an object of whose class it is no attribute."""
    return MethodType(function, owner)


def attribute_of(method: MethodType) -> str | None:
    """The name under which a method's object has it; None if it was bound by hand.

    The function's own name may be another one: for ``__private`` methods, aliases, and what
    a decorator returned.
    """
    owner, function = method.__self__, method.__func__
    kind = owner if isinstance(owner, type) else type(owner)
    first = getattr(function, "__name__", "")
    for name in dict.fromkeys((first, *(name for each in kind.__mro__ for name in vars(each)))):
        # on the class only: what is set on the object itself is not there when it is made again
        found = inspect.getattr_static(kind, name, None)
        if getattr(found, "__func__", found) is function:
            return name
    return None


@named_in_packages
def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Fill in what a function refers to; see :func:`make_function`."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if name in state["cells"]:
            cell.cell_contents = state["cells"][name]
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__doc__ = state["doc"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])
    function.__dict__.update(dict.fromkeys(state.get("identities", ()), id(function)))
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)


def named_globals(function: FunctionType) -> dict[str, Any]:
    """Those globals of its module that a function, or a function inside it, uses."""
    names: dict[str, Any] = {}
    todo: list[CodeType] = [function.__code__]
    while todo:
        code = todo.pop()
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in _USES_GLOBAL and name in function.__globals__:
                names.setdefault(name, function.__globals__[name])
        todo.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names


_USES_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"}
    | {"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # in the bodies of classes
)


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Closure variables and what they are bound to; not those that are bound to nothing yet."""
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _shown_source(text: FunctionText, place: str) -> str:
    """Let tracebacks and :mod:`inspect` show the source; returns the name to compile it under.

    The lines keep the numbers that they have in the file that they come from. The line before
    them makes them parse, so that the function, and those inside it, can be saved again.
    """
    before = "\n"
    if text.is_lambda:
        before = "(\n"
    elif text.source[:1].isspace():
        before = f"class {text.class_name}:\n" if text.class_name else "if True:\n"
    content = f"{text.source}\n" + (")\n" if text.is_lambda and text.line > 1 else "")
    filename = f"<modpack {place} {zlib.crc32(content.encode()):08x}>"
    above = ["\n"] * (text.line - 2) + [before] if text.line > 1 else []
    lines = above + io.StringIO(content).readlines()
    linecache.cache[filename] = (len(content), None, lines, filename)
    return filename
