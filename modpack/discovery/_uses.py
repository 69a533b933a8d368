"""Which names of its module a statement uses: when it runs, and later.

Read off the compiled code, which knows what is local, global, or a closure's; it is never run.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

__all__ = ["Uses", "uses_of"]

_TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's code, not that of a class or a module
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic parameters")
_OF_MODULE = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})
_BY_NAME = frozenset({"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_EVERY_MODULE = frozenset(
    {"__name__", "__qualname__", "__module__", "__file__", "__doc__", "__builtins__"}
    | {"__spec__", "__package__", "__loader__", "__annotations__"}
)


@dataclass(frozen=True)
class Uses:
    """Names of the module that a statement uses.

    Attributes:
        eager: when it runs: in decorators, base classes, default values, bodies of classes.
        late: when the functions in it are called, or their annotations are looked at.
    """

    eager: frozenset[str]
    late: frozenset[str]


def uses_of(node: ast.stmt, flags: int) -> Uses:
    """The names of the module that a statement of its top level uses.

    Args:
        node: the statement.
        flags: compiler flags of the ``from __future__`` statements in force.

    Raises:
        SyntaxError, ValueError, RecursionError: it does not compile.
    """
    module = ast.Module([node], [])
    code = compile(module, "<script>", "exec", flags | _TOP_LEVEL_AWAIT, dont_inherit=True)
    found = list(_names(code, True))
    eager = {name for name, is_eager in found if is_eager}
    late = {name for name, is_eager in found if not is_eager} | set(_annotated(node))
    return Uses(frozenset(eager - _OF_EVERY_MODULE), frozenset(late - _OF_EVERY_MODULE))


def _names(code: CodeType, eager: bool) -> Iterator[tuple[str, bool]]:
    own: set[str] = set()  # what a class body has bound by then is its own
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation == "STORE_NAME":
            own.add(name)
        elif operation in _OF_MODULE or (operation in _BY_NAME and name not in own):
            yield name, eager
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner, eager and _runs_at_once(inner))


def _runs_at_once(code: CodeType) -> bool:
    return not code.co_flags & _OPTIMIZED or code.co_name.startswith(_AT_ONCE)


def _annotated(node: ast.stmt) -> Iterator[str]:
    """Names in annotations, as text or not: what looks at them needs what they name."""
    for inner in ast.walk(node):
        for note in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            if isinstance(note, ast.expr):
                yield from _named_in(note)


def _named_in(note: ast.expr) -> Iterator[str]:
    for part in ast.walk(note):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                yield from _named_in(ast.parse(part.value.strip(), mode="eval").body)
            except (SyntaxError, ValueError, RecursionError):  # text that is no annotation
                continue
