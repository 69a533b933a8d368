"""Re-creation of functions that cannot be imported, such as lambdas and nested functions.

Such a function is saved by its source. Loading takes two steps, so that a function may refer to
itself or to an object that refers to it: an empty function is created from the source, then its
cells, defaults, and attributes are set. A function of an importable module uses that module's
globals. A function of ``__main__`` or of a notebook gets its own namespace with the globals that it
names.
"""

from __future__ import annotations

import ast
import builtins
import dis
import io
import linecache
import zlib
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from modpack.pickling.rebuild import named_in_packages

FACTORY = "__modpack_factory__"


class FunctionText(NamedTuple):
    """A function's source.

    Attributes:
        source: The definition as in its file, including indentation but without decorators; for
            a lambda, the expression.
        is_lambda: Whether it is an expression.
        name: The name that the definition binds.
        free: The names of its closure variables.
        flags: Compiler flags of the ``from __future__`` statements in effect.
        class_name: The class whose private names (``__x``) it uses, if any.
        line: The line of its file where the source starts, from 1.
    """

    source: str
    is_lambda: bool
    name: str
    free: tuple[str, ...]
    flags: int
    class_name: str | None = None
    line: int = 1


def compiled_function(
    text: FunctionText, filename: str, imported: tuple[str, ...] = ()
) -> CodeType:
    """Return the code of a function's source, compiled with its closure variables free.

    Line numbers are those of the file that the source comes from.

    Args:
        text: The source.
        filename: The file name in tracebacks.
        imported: Names that its module imports. The code behaves the same without them, but
            Python compiles calls of their attributes differently.
    """
    module = ast.parse(parsable(text), filename)
    # The definition is on line 2 of the parsed text.
    ast.increment_lineno(module, text.line - 2)
    imports = [ast.Import([ast.alias(name)]) for name in imported]
    tree = ast.Module([*imports, _enclosed(module.body[0], text)], [])
    ast.fix_missing_locations(tree)
    # Future statements of this module, such as annotations, must not apply to the user's code.
    compiled = compile(tree, filename, "exec", flags=text.flags, dont_inherit=True)
    return _find_code(compiled, text)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects in it."""
    todo = [code]
    while todo:
        each = todo.pop()
        yield each
        todo.extend(constant for constant in each.co_consts if isinstance(constant, CodeType))


def parsable(text: FunctionText) -> str:
    """Return source that parses, with the definition from line 2 on, so it can stay indented."""
    if text.is_lambda:
        return f"(\n{text.source}\n)"
    head = "if True:" if text.source[:1].isspace() else ""
    return f"{head}\n{text.source}\n"


def _enclosed(parsed: ast.stmt, text: FunctionText) -> ast.stmt:
    """Wrap a definition in its class and in a function that binds its closure variables."""
    inner = parsed.body[0] if isinstance(parsed, ast.If) else parsed
    if isinstance(inner, ast.Expr):
        inner = ast.Return(inner.value)
    # Parameters of a function around it make these names closure variables.
    if text.free or text.is_lambda or text.class_name is not None:
        inner = _statement(f"def {FACTORY}({', '.join(text.free)}): ...", inner)
    # Outermost, because Python mangles private names everywhere inside a class body.
    if text.class_name is not None:
        inner = _statement(f"class {text.class_name}: ...", inner)
    return inner


def _statement(head: str, inner: ast.stmt) -> ast.stmt:
    outer = ast.parse(head).body[0]
    outer.body = [inner]  # type: ignore[attr-defined]
    return outer


def _find_code(module: CodeType, text: FunctionText) -> CodeType:
    """Return the function's code: the outermost one with its name, inside the factory if any."""
    name = "<lambda>" if text.is_lambda else text.name
    todo = [module]
    while todo:
        code = todo.pop(0)
        inner = [c for c in code.co_consts if isinstance(c, CodeType)]
        named = [c for c in inner if c.co_name == name]
        if named:
            return named[-1]  # lambdas in a lambda's defaults come before it
        todo.extend(inner)
    return module


SCRIPTS = ("__main__", "__mp_main__")
"""Names of the running script's module, in this process and in :mod:`multiprocessing` children."""


@named_in_packages
class GlobalNames(dict[str, Any]):
    """The globals of functions that are saved without their module.

    Attributes:
        builtins: The builtins of these functions. While a package is loaded, they are the
            package's, so that import statements find packaged modules.
    """

    builtins: Any = builtins


@named_in_packages
def make_cell() -> CellType:
    """Create an empty closure cell, to be filled by a function.

    Cells are pickled as separate objects because functions may share them: with ``nonlocal``, one
    function sees what another one assigns.
    """
    return CellType()


@named_in_packages
def make_function(
    fields: tuple[Any, ...],
    identity: tuple[str, str, str],
    home: Any,
    cells: tuple[CellType, ...],
) -> FunctionType:
    """Create a function from its source, with cells that may still be empty.

    Args:
        fields: The fields of a :class:`FunctionText`.
        identity: The function's ``__name__``, ``__qualname__``, and ``__module__``.
        home: The module that contains the function's globals, or a :class:`GlobalNames`.
        cells: The function's closure, in the order of the source's free variables.
    """
    text = FunctionText(*fields)
    name, qualname, module = identity
    filename = _cache_source(text, f"{module}:{text.line} {qualname}")
    code = compiled_function(text, filename)
    by_name = dict(zip(text.free, cells, strict=True))
    namespace = home if isinstance(home, GlobalNames) else vars(home)
    # Before the function exists: Python looks up its builtins once, when it creates the function.
    if isinstance(home, GlobalNames):
        home.setdefault("__builtins__", home.builtins)
        home.setdefault("__name__", module)
    # Cells are matched by name, because the compiler decides the order of `co_freevars`.
    function = FunctionType(
        code, namespace, name, None, tuple(by_name[each] for each in code.co_freevars)
    )
    function.__qualname__ = qualname
    function.__module__ = str(namespace.get("__name__", module))
    return function


@named_in_packages
def make_method(function: Callable[..., Any], owner: object) -> MethodType:
    """Bind a function to an object whose class does not have it as an attribute."""
    return MethodType(function, owner)


@named_in_packages
def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Set everything that a function refers to; see :func:`make_function`."""
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
    # Other functions may share these globals: what is set already stays.
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)


def named_globals(function: FunctionType) -> dict[str, Any]:
    """Return the module globals that a function, or a function inside it, uses."""
    names: dict[str, Any] = {}
    for code in codes_in(function.__code__):
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in _USES_GLOBAL and name in function.__globals__:
                names.setdefault(name, function.__globals__[name])
    return names


_USES_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"}
    | {"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # in class bodies
)


def closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure variables and their values, without unbound ones."""
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _cache_source(text: FunctionText, label: str) -> str:
    """Cache the source for tracebacks and :mod:`inspect`, and return the file name to use.

    Lines keep their numbers from the original file. The line before the source makes it parse, so
    that the function and those inside it can be saved again.
    """
    before = "\n"
    if text.is_lambda:
        before = "(\n"
    elif text.source[:1].isspace():
        before = f"class {text.class_name}:\n" if text.class_name else "if True:\n"
    content = f"{text.source}\n" + (")\n" if text.is_lambda and text.line > 1 else "")
    filename = f"<modpack {label} {zlib.crc32(content.encode()):08x}>"
    above = ["\n"] * (text.line - 2) + [before] if text.line > 1 else []
    lines = above + io.StringIO(content).readlines()
    # Without a time (None), `linecache.checkcache` keeps the entry, although there is no such file.
    linecache.cache[filename] = (len(content), None, lines, filename)
    return filename
