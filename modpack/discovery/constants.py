"""Values that a source spells out: strings, literals, and arithmetic of them."""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from modpack.core.scan import Literal
from modpack.discovery.syntax import COMPREHENSIONS, FUNCTIONS, Block, Part, assigned_names

_MOST_ALTERNATIVES = 10_000
_PLAIN_CONVERSIONS = (-1, ord("s"))
_NAMED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.MatchAs, ast.MatchStar, ast.ExceptHandler),
)


def literal_strings(node: ast.expr) -> tuple[str, ...] | None:
    """The elements of a literal tuple, list or set of strings; None for anything else."""
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return None
    strings = [
        element.value
        for element in node.elts
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    ]
    return tuple(strings) if len(strings) == len(node.elts) else None


class StaticStrings:
    """Reads string expressions of one module.

    Args:
        module: the module's name, which is what ``__name__`` holds.
        package: the package that it is in, or is: what ``__package__`` holds.
        values: name -> every expression that module-level code assigns to it, None for a
            binding that assigns no single expression.
    """

    def __init__(
        self, module: str, package: str, values: Mapping[str, Sequence[ast.expr | None]]
    ) -> None:
        self._own_names = {"__name__": module, "__package__": package}
        self._values = values
        self._locals: dict[ast.AST, frozenset[str]] = {}

    def sole(self, node: ast.expr, block: Block) -> str | None:
        """The one value of an expression, if it has one that is known."""
        values = self.alternatives(node, block)
        return values[0] if values is not None and len(values) == 1 else None

    def alternatives(self, node: ast.expr, block: Block) -> tuple[str, ...] | None:
        """Every value that an expression takes: several where a literal loop drives it.

        Args:
            node: a string, a name, an f-string of those, or a sum of those.
            block: where it stands.

        Returns:
            The values in the loops' order; None if they are known at run time only.
        """
        parts = _parts(node)
        if parts is None:
            return None
        choices: dict[str, tuple[str, ...]] = {}
        for part in parts:
            if isinstance(part, ast.Name) and part.id not in choices:
                values = self._values_of_name(part.id, block)
                if values is None:
                    return None
                choices[part.id] = values
        if math.prod(map(len, choices.values())) > _MOST_ALTERNATIVES:
            return None
        return tuple(
            _join(parts, dict(zip(choices, values, strict=True)))
            for values in itertools.product(*choices.values())
        )

    def _values_of_name(self, name: str, block: Block) -> tuple[str, ...] | None:
        if name in self._own_names:
            return (self._own_names[name],)
        binder = self._binder(name, block)
        if binder is None:
            return self._constant(name)
        sequence = _sequence_looped_over(binder.owner, name)
        if sequence is None or binder.parent is None:
            return None
        return self._strings_of(sequence, binder.parent)

    def _strings_of(self, sequence: ast.expr, block: Block) -> tuple[str, ...] | None:
        """The elements of what a loop runs over."""
        if isinstance(sequence, ast.Name) and self._binder(sequence.id, block) is None:
            value = self._sole_assignment(sequence.id)
            return None if value is None else literal_strings(value)
        return literal_strings(sequence)

    def _constant(self, name: str) -> tuple[str, ...] | None:
        """The value of a module-level name that is assigned once, to a string."""
        value = self._sole_assignment(name)
        parts = None if value is None else _parts(value)
        if parts is None:
            return None
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        # No constants of constants: one step needs no recursion, and people write one.
        return (_join(parts, self._own_names),) if names <= self._own_names.keys() else None

    def _sole_assignment(self, name: str) -> ast.expr | None:
        values = self._values.get(name, ())
        return values[0] if len(values) == 1 else None

    def _binder(self, name: str, block: Block) -> Block | None:
        """The innermost block that gives ``name`` a meaning of its own; None: the module."""
        left_function = False
        here: Block | None = block
        while here is not None:
            owner = here.owner
            if isinstance(owner, FUNCTIONS):
                if name in self._names_in(owner):
                    return here
                left_function = True
            elif isinstance(owner, ast.ClassDef):
                if not left_function and name in self._names_in(owner):
                    return here
            elif here.part is Part.BODY and name in _loop_names(owner):
                return here
            here = here.parent
        return None

    def _names_in(self, owner: ast.AST) -> frozenset[str]:
        if owner not in self._locals:
            self._locals[owner] = frozenset(_stored_names(owner))
        return self._locals[owner]


def _parts(node: ast.expr) -> list[str | ast.Name] | None:
    """A string expression as the strings and names that it joins; None if it is more."""
    parts: list[str | ast.Name] = []
    waiting: list[ast.expr] = [node]
    while waiting:
        piece = waiting.pop()
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            parts.append(piece.value)
        elif isinstance(piece, ast.Name):
            parts.append(piece)
        elif isinstance(piece, ast.BinOp) and isinstance(piece.op, ast.Add):
            waiting.extend((piece.right, piece.left))
        elif isinstance(piece, ast.JoinedStr):
            waiting.extend(reversed(piece.values))
        elif isinstance(piece, ast.FormattedValue) and _is_plain(piece):
            waiting.append(piece.value)
        else:
            return None
    return parts


def _is_plain(piece: ast.FormattedValue) -> bool:
    return piece.format_spec is None and piece.conversion in _PLAIN_CONVERSIONS


def _join(parts: Sequence[str | ast.Name], values: Mapping[str, str]) -> str:
    return "".join(part if isinstance(part, str) else values[part.id] for part in parts)


def _loop_names(owner: ast.AST) -> set[str]:
    if isinstance(owner, (ast.For, ast.AsyncFor)):
        return set(assigned_names(owner.target))
    if isinstance(owner, COMPREHENSIONS):
        return {name for loop in owner.generators for name in assigned_names(loop.target)}
    return set()


def _sequence_looped_over(owner: ast.AST, name: str) -> ast.expr | None:
    """What a loop assigns to ``name`` one by one, if nothing in the loop assigns it again."""
    loops: Sequence[ast.For | ast.AsyncFor | ast.comprehension] = ()
    if isinstance(owner, (ast.For, ast.AsyncFor)):
        loops = (owner,)
    elif isinstance(owner, COMPREHENSIONS):
        loops = owner.generators
    if sum(stored == name for stored in _stored_names(owner)) != 1:
        return None
    for loop in loops:
        if isinstance(loop.target, ast.Name) and loop.target.id == name:
            return loop.iter
    return None


def _stored_names(owner: ast.AST) -> list[str]:
    """Every name that is bound anywhere below a node; parameters too."""
    stored: list[str] = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored.append(node.id)
        elif isinstance(node, ast.arg):
            stored.append(node.arg)
        elif isinstance(node, ast.alias):
            stored.append((node.asname or node.name).partition(".")[0])
        elif isinstance(node, _NAMED) and node.name:
            stored.append(node.name)
    return stored


UNKNOWN: Final[list[str]] = []
_LONGEST = 500
_LARGEST = 1 << 64
_Number = int | float
_OPERATORS: Mapping[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def literal_of(node: ast.expr | None) -> Literal:
    """The value of an expression as rows have it; unknown if it is no literal.

    >>> [
    ...     literal_of(ast.parse(text, mode="eval").body)
    ...     for text in ("-3", "2 * 4", "(1, 'a')", "f()")
    ... ]
    [-3, 8, ["(1, 'a')"], []]
    """
    if node is None:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        return _folded(node)
    if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set)):
        try:
            text = repr(ast.literal_eval(node))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN
        return [text] if len(text) <= _LONGEST else UNKNOWN
    return UNKNOWN


def mangled(name: str, kind: str) -> str:
    """The name under which a class keeps what its body calls ``__name``; no class, the name.

    >>> mangled("__x", "_Net"), mangled("__init__", "Net"), mangled("__x", "")
    ('_Net__x', '__init__', '__x')
    """
    if not kind.strip("_") or not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{kind.lstrip('_')}{name}"


def _constant(value: object) -> Literal:
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else UNKNOWN
    if isinstance(value, float):
        return value if math.isfinite(value) else UNKNOWN
    if value is None:
        return None
    if isinstance(value, str):
        fits = len(value) <= _LONGEST and not any("\ud800" <= each <= "\udfff" for each in value)
        return value if fits else UNKNOWN
    text = repr(value)
    return [text] if len(text) <= _LONGEST else UNKNOWN


def _folded(node: ast.expr) -> Literal:
    """What Python makes of arithmetic with numbers, as long as they stay small."""
    try:
        number = _number(node)
    except RecursionError:
        return UNKNOWN
    return UNKNOWN if number is None else number


def _number(node: ast.expr) -> _Number | None:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value
    if isinstance(node, ast.UnaryOp):
        operand = _number(node.operand)
        if operand is None or not isinstance(node.op, (ast.USub, ast.UAdd)):
            return None
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else _calculated(node.op, left, right)
    return None


def _calculated(how: ast.operator, left: _Number, right: _Number) -> _Number | None:
    if isinstance(how, ast.LShift) and isinstance(left, int) and isinstance(right, int):
        how, right = ast.Mult(), 2**right if 0 <= right <= 64 else math.inf
    if type(how) not in _OPERATORS or (isinstance(how, ast.Pow) and not 0 <= right <= 64):
        return None
    try:
        made = _OPERATORS[type(how)](left, right)
    except (ArithmeticError, ValueError):
        return None
    return made if abs(made) <= _LARGEST else None
