"""Where the source of what runs as ``__main__`` is: a file, or the cells of a notebook.

Whether a statement of a script is the one that made a live class or function.

A script may have been edited since it was started, a cell of a notebook run again, a method
replaced. So nothing is believed: the source is compiled once more, and its code compared with
that of the live functions.

Values of a script's names: which can be written down, and which text makes them again.
"""

from __future__ import annotations

import ast
import builtins
import collections
import linecache
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from modpack.core.cell_magic import magic_body, without_magics
from modpack.discovery.finder import is_a
from modpack.discovery.importers import contents_of
from modpack.discovery.script import Cell, Script, Statement
from modpack.pickling.functions import FUTURE_FLAGS, same_code

_CELL_NAMES = re.compile(r"<(ipython|python)-input-|[\\/]ipykernel_\d+[\\/]")
"""What IPython, its kernel, and Python's own prompt (3.13) call the files of cells."""


def cells_of(namespace: Mapping[str, object]) -> tuple[Cell, ...]:
    """The sources that were executed in a namespace, in the order of execution.

    Args:
        namespace: the globals of ``__main__``.
    """
    files: dict[str, str] = {}
    for name in _executed(namespace):
        files.setdefault(_absolute(name), name)
    cells = [Cell(name, _text(name, namespace)) for name in files.values()]
    return tuple(_as_python(cell for cell in _in_history_order(cells, namespace) if cell.text))


def _as_python(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Cells of which those with magics are the Python that the magics run.

    Some magics run it as a cell of its own, which is left out: it has no place in the history.
    """
    known = {cell.text.strip(): cell for cell in cells}
    bodies = {cell: magic_body(cell.text) for cell in known.values()}
    inner = {body.strip() for body in bodies.values() if body is not None}
    for cell, body in bodies.items():
        if body is not None:
            same = known.get(body.strip())
            yield Cell(same.file, body) if same else Cell(cell.file, "\n" + body)
        elif cell.text.strip() not in inner:
            yield Cell(cell.file, without_magics(cell.text)) if _is_cell(cell.file) else cell


def _is_cell(file: str) -> bool:
    return file.startswith("<") or _CELL_NAMES.search(file) is not None


def name_of(namespace: Mapping[str, object]) -> str:
    """What a script is called, as an identifier: after its file, or ``notebook``."""
    title = title_of(namespace)
    stem = title.removesuffix(".py") if title != "a notebook" else "notebook"
    return re.sub(r"\W", "_", stem)


def title_of(namespace: Mapping[str, object]) -> str:
    """What a script is called, for people: its file's name, or ``a notebook``."""
    file = namespace.get("__file__")
    if not isinstance(file, str):
        return "a notebook"
    path = Path(file)
    return f"{path.absolute().parent.name}/__main__.py" if path.stem == "__main__" else path.name


def same_file(one: str, other: str) -> bool:
    """Whether two codes say that they come from the same file or cell."""
    return _absolute(one) == _absolute(other)


def _absolute(name: str) -> str:
    return name if name.startswith("<") else str(Path(name).absolute())


def _executed(namespace: Mapping[str, object]) -> Iterator[str]:
    """The files of code that lives in a namespace, in the order in which they became known."""
    file = namespace.get("__file__")
    if isinstance(file, str):
        yield file
    of_functions = list(_files_of_functions(namespace))
    own = {_shape(name) for name in of_functions}
    for name in list(linecache.cache):
        if _CELL_NAMES.search(name) or (_shape(name) in own and not Path(name).exists()):
            yield name
    yield from of_functions


def _files_of_functions(namespace: Mapping[str, object]) -> Iterator[str]:
    for value in list(namespace.values()):
        owned = list(vars(value).values()) if is_a(value, type) else [value]
        for each in owned:
            if is_a(each, FunctionType) and each.__globals__ is namespace:
                yield each.__code__.co_filename


def _shape(name: str) -> str:
    """A cell's name without what differs from cell to cell: numbers and digests."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "0", name)


def _text(name: str, namespace: Mapping[str, object]) -> str:
    return "".join(linecache.getlines(name, dict(namespace)))


def _in_history_order(cells: list[Cell], namespace: Mapping[str, object]) -> list[Cell]:
    """Cells in the order of IPython's history, where there is one: a cell may be run again."""
    history = namespace.get("_ih")
    if not isinstance(history, list):
        return cells
    last = {str(text).strip(): number for number, text in enumerate(history)}
    return sorted(cells, key=lambda cell: last.get(cell.text.strip(), -1))


_MISSING = object()
_MOST_WRAPPERS = 100


class Proof:
    """Compares the statements of a script with what lives in its namespace.

    Args:
        script: its source.
        namespace: its globals.
    """

    def __init__(self, script: Script, namespace: Mapping[str, Any]) -> None:
        self._script = script
        self._namespace = namespace
        self._compiled: dict[tuple[Cell, int], CodeType | None] = {}

    def is_function(self, value: Any, statement: Statement) -> bool:
        """Whether a function statement made an object, as far as its code tells.

        An object that a decorator made, and that holds no function of that name, may be.
        """
        made = list(functions_in(value))
        if self._has_code_of(made, statement):
            return True
        named = [each for each in made if each.__code__.co_name == statement.binds[0]]
        return not named and not (type(value) is FunctionType and not _is_decorated(statement))

    def is_class(self, kind: type, statement: Statement) -> bool:
        """Whether a class statement made a class, as far as its methods and bases tell."""
        body = self._code_of(statement, flags_of(kind))
        if body is None or not isinstance(statement.node, ast.ClassDef):
            return False
        return (
            all(self._fits(kind, method, body) for method in _methods(statement.node))
            and all(self._is_there(each, statement, body) for each in _own_methods(kind))
            and all(self._is_base(kind, base) for base in statement.node.bases)
        )

    def replaced(self, kind: type, statement: Statement) -> Iterator[str]:
        """The methods of a class that were replaced after it was made, by functions of others."""
        body = self._code_of(statement, flags_of(kind))
        if body is not None and isinstance(statement.node, ast.ClassDef):
            for method in _methods(statement.node):
                name = mangled(kind, method.name)
                live = vars(kind).get(name)
                if not method.decorator_list and not _holds(live, method, body):
                    yield name

    def _fits(self, kind: type, method: ast.FunctionDef, body: CodeType) -> bool:
        live = vars(kind).get(mangled(kind, method.name), _MISSING)
        if live is _MISSING:
            return bool(method.decorator_list)
        if _holds(live, method, body):
            return True
        own = f"{kind.__qualname__}.{method.name}"
        return not any(each.__qualname__ == own for each in functions_in(live))

    def _is_there(self, method: FunctionType, statement: Statement, body: CodeType) -> bool:
        """Whether a class statement holds a method's code, if the script does at all."""
        file = method.__code__.co_filename
        if not any(same_file(file, cell.file) for cell in self._script.cells):
            return True  # generated, by a decorator or a metaclass
        inside = same_file(file, statement.cell.file)
        return inside and any(same_code(code, method.__code__) for code in codes_in(body))

    def _is_base(self, kind: type, base: ast.expr) -> bool:
        found = resolved(base, self._namespace)
        bases = (*kind.__bases__, *getattr(kind, "__orig_bases__", ()))
        return not is_a(found, type) or any(each is found for each in bases)

    def _has_code_of(self, functions: list[FunctionType], statement: Statement) -> bool:
        for function in functions:
            code = self._code_of(statement, function.__code__.co_flags & FUTURE_FLAGS)
            if code is not None and same_code(code, function.__code__):
                return True
        return False

    def _code_of(self, statement: Statement, flags: int) -> CodeType | None:
        """The code of a class's body or of a function, compiled from the source as it is now."""
        module = self._module_code(statement.cell, flags)
        lines = (statement.line, statement.node.lineno)
        for code in codes_in(module, deep=False) if module is not None else ():
            if code.co_name == statement.binds[0] and code.co_firstlineno in lines:
                return code
        return None

    def _module_code(self, cell: Cell, flags: int) -> CodeType | None:
        if (cell, flags) not in self._compiled:
            flags_all = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = self._script.cells[cell]
            try:
                code = compile(tree, cell.file, "exec", flags_all, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                code = None
            self._compiled[cell, flags] = code
        return self._compiled[cell, flags]


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions in an object that a decorator may have made of one, the outermost first."""
    todo: list[Any] = [value]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_WRAPPERS:
        each = todo.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_a(each, FunctionType):
            yield each
            todo += [cell.cell_contents for cell in each.__closure__ or () if _is_bound(cell)]
        todo += list(_wrapped(each))


def mangled(kind: type, name: str) -> str:
    """The name under which a class keeps what its body calls ``__name``."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


def resolved(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """What a dotted name stands for, looked up in modules only; None for anything else."""
    if isinstance(expression, ast.Name):
        return namespace.get(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, namespace)
        return getattr(owner, "__dict__", {}).get(expression.attr) if owner is not None else None
    return None


def _wrapped(value: Any) -> Iterator[Any]:
    if is_a(value, (FunctionType, staticmethod, classmethod)) or callable(value):
        own = contents_of(value)
        if "__wrapped__" in own:
            yield own["__wrapped__"]
    if is_a(value, (staticmethod, classmethod)):
        yield value.__func__
    elif is_a(value, property):
        yield from filter(None, (value.fget, value.fset, value.fdel))
    elif is_a(value, (partial, partialmethod, cached_property)):
        yield value.func


def _is_bound(cell: Any) -> bool:
    try:
        return is_a(cell.cell_contents, (FunctionType, staticmethod, classmethod))
    except ValueError:
        return False


def _is_decorated(statement: Statement) -> bool:
    return bool(getattr(statement.node, "decorator_list", []))


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods of a class body, of each name the last."""
    by_name = {
        each.name: each
        for each in node.body
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    yield from by_name.values()  # type: ignore[misc]  # asynchronous ones look alike


def _own_methods(kind: type) -> Iterator[FunctionType]:
    """The functions of a class whose code says that it was defined in its body."""
    for value in vars(kind).values():
        for function in functions_in(value):
            owner, _, name = function.__qualname__.rpartition(".")
            if owner == kind.__qualname__ and name == function.__code__.co_name:
                yield function
                break


def _holds(live: Any, method: ast.FunctionDef, body: CodeType) -> bool:
    """Whether a method, or what a decorator made of it, has the code of its definition."""
    lines = (method.lineno, *(each.lineno for each in method.decorator_list))
    codes = [
        code
        for code in codes_in(body, deep=False)
        if code.co_name == method.name and code.co_firstlineno in lines
    ]
    made = list(functions_in(live))
    return any(same_code(code, each.__code__) for code in codes for each in made)


def flags_of(value: Any) -> int:
    """The ``from __future__`` statements that were in force for a function or a class's methods."""
    here = getattr(value, "__module__", None)
    parts = list(vars(value).values()) if is_a(value, type) else [value]
    for part in parts:
        for function in functions_in(part):
            if function.__module__ == here:
                return function.__code__.co_flags & FUTURE_FLAGS
    return 0


def codes_in(code: CodeType, deep: bool = True) -> Iterator[CodeType]:
    """The codes in a code; those of generic classes and functions stand one level deeper."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            if deep or inner.co_name.startswith("<generic parameters"):
                yield from codes_in(inner, deep)


_LONGEST = 500
_ATOMS = (int, float, str, bytes, bool, type(None), type(...))
_CONTAINERS = (
    *(dict, list, set),
    *(collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter),
)
_TYPE_EXPRESSION = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List),
    *(ast.BinOp, ast.BitOr, ast.expr_context),
)


def literal_of(value: Any) -> str | None:
    """A literal for a value that never changes: a number, a text, a tuple of such; else None.

    >>> literal_of((1, "a")), literal_of([1]), literal_of(float("nan"))
    ("(1, 'a')", None, None)
    """
    text = repr(value) if _is_plain(value) else None
    return text if text is not None and len(text) <= _LONGEST else None


def is_literal(expression: ast.expr | None, value: Any) -> bool:
    """Whether an expression is a literal of this very value: ``1`` is not ``True``."""
    try:
        told = ast.literal_eval(expression) if expression is not None else _ABSENT
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(told) is type(value) and repr(told) == repr(value)


def is_container(expression: ast.expr | None, namespace: Mapping[str, Any]) -> bool:
    """Whether an expression makes a new container of literals, and does nothing else."""
    if isinstance(expression, ast.Call):
        made = resolved(expression.func, {**vars(builtins), **namespace})
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return made in _CONTAINERS and all(_is_argument(each) for each in arguments)
    if isinstance(expression, (ast.List, ast.Dict, ast.Set)):
        return _is_argument(expression)
    return False


def gives(expression: ast.expr | None, value: Any, namespace: Mapping[str, Any]) -> bool:
    """Whether an expression is the name of an object that is made by definitions or imports."""
    is_code = is_a(value, (type, types.ModuleType, types.FunctionType))
    is_code = is_code or is_a(value, types.BuiltinFunctionType)
    return is_code and expression is not None and resolved(expression, namespace) is value


def is_type(expression: ast.expr | None, value: Any) -> bool:
    """Whether an expression spells a type, such as ``dict[str, Tensor]``, for annotations."""
    is_alias = is_a(value, (types.GenericAlias, types.UnionType, *_ALIASES))
    parts = ast.walk(expression) if expression is not None else ()
    return (
        is_alias
        and expression is not None
        and all(isinstance(part, _TYPE_EXPRESSION) for part in parts)
    )


def is_named_by_itself(name: str, value: Any) -> bool:
    """Whether pickle refers to an object by a name of its module: a type variable, for one."""
    return is_a(value, _NAMED) and getattr(value, "__name__", None) == name


_ABSENT = object()
_ALIASES = (type(typing.List[int]), type(typing.Union[int, str]))  # noqa: UP006, UP007
_NAMED = tuple(
    kind
    for kind in (
        getattr(typing, name, None)
        for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
    )
    if isinstance(kind, type)
)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(_is_plain(each) for each in value)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in _ATOMS


def _is_argument(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id in ("list", "dict", "set", "int", "float", "str", "tuple", "bool")
    try:
        ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
