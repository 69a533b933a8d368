"""Definitions of a module and its classes, recorded with the scan; functions are not entered.

An export compares them with the modules that run, without parsing or compiling anything. With them
are recorded the names and attributes that functions set anew, which is the module's own state or
what others asked for, and what calling a class makes of its arguments where its ``__init__`` only
keeps them.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from modpack.core.scan import Body, Definitions, Initializer, Literal, Rebinding, Row
from modpack.discovery.syntax import (
    Function,
    ParsedSource,
    assigned_names,
    bindings,
    bodies,
    dotted_name,
    parameters_of,
    targets_of,
)

_UNKNOWN: Final[list[str]] = []
_LONGEST_TEXT = 500
_LARGEST = 1 << 64
_LARGEST_EXPONENT = 64
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}

_LONGEST_CLASS = 150
"""Lines of a class. One that only keeps settings is shorter; others took most of the time."""
_OUT_OF_SIGHT = frozenset(
    {"__new__", "__setattr__", "__getattribute__", "__getattr__", "__post_init__"}
)
_BUILT = frozenset({"setattr", "vars", "__dict__"})

_COMPUTED: Final = "*"
"""Stands for names that a function computes."""
_MAX_CALLS: Final = 3
_GLOBAL_OR_ATTRIBUTE = re.compile(
    r"[ \t]*(?:global\s|setattr\((?!self\b)"
    r"|(?!self\.\w+\s*[-+*/|&:=])\w+(?:\(\w*\))?\.[\w.]+\s*[-+*/|&]?=(?!=))"
)
"""Lines that may declare a global, or set an attribute of something else than ``self``."""
_PLAIN_CALLS = frozenset({"bool", "int", "float", "str", "tuple", "list", "dict", "set"})
_ON_CLASSES = frozenset({"classmethod", "staticmethod"})

_UNREAD = "?"
_NAMESPACES = frozenset({"globals", "locals", "vars", "exec", "setattr"})


def defined_by(parsed: ParsedSource) -> Definitions:
    """Return what a source defines, and which of that its own code sets anew."""
    reader = _DefinitionReader()
    reader.read(parsed.tree)
    settings = _Rebindings(parsed, reader.functions)
    return Definitions(
        bodies={path: found.body() for path, found in reader.found.items()},
        settings=settings.settings,
        setters=settings.setters,
        called=tuple(dict.fromkeys(reader.called)),
        is_dynamic=reader.is_dynamic,
        initializers=reader.initializers,
    )


class _Found:
    """What one body binds, while it is read."""

    def __init__(self, node: ast.ClassDef | None) -> None:
        self._line = node.lineno if node is not None else 0
        self._decorators = _decorators(node) if node is not None else []
        self._rows: dict[str, list[Row]] = {}
        self._certain: set[str] = set()

    def add(self, name: str, row: Row, is_certain: bool) -> None:
        self._rows.setdefault(name, []).append(row)
        if is_certain:
            self._certain.add(name)

    def body(self) -> Body:
        functions: dict[str, int] = {}
        values: dict[str, tuple[int, Literal]] = {}
        others: dict[str, Sequence[Row]] = {}
        unread: list[str] = []
        for name, rows in self._rows.items():
            (line, kind, given, named), *more = rows
            if not more and kind == "def" and not given and named == {"": name}:
                functions[name] = line
            elif not more and kind == "is":
                values[name] = (line, given[0])
            elif any(kind == _UNREAD for _, kind, _, _ in rows):
                unread.append(name)
            else:
                others[name] = rows
        conditional = [name for name in self._rows if name not in self._certain]
        return Body(self._line, self._decorators, functions, values, others, unread, conditional)


class _DefinitionReader:
    """Reads statements, in and out of blocks, and classes, nested ones too.

    Attributes:
        found: what each body binds, by the path of its class.
        functions: the functions and methods, each with the path of its class.
        called: see :class:`Definitions`.
        is_dynamic: see :class:`Definitions`.
        initializers: see :class:`Definitions`.
    """

    def __init__(self) -> None:
        self.found: dict[str, _Found] = {"": _Found(None)}
        self.functions: list[tuple[Function, str]] = []
        self.called: list[str] = []
        self.is_dynamic = False
        self.initializers: dict[str, Initializer] = {}

    def read(self, tree: ast.Module) -> None:
        todo: list[tuple[Sequence[ast.stmt], str, bool]] = [(tree.body, "", True)]
        while todo:
            statements, path, is_certain = todo.pop()
            kind = path.rpartition(".")[2]
            for statement in statements:
                if isinstance(statement, ast.ClassDef):
                    made: Row = (statement.lineno, "class", _decorators(statement), {})
                    self.found[path].add(statement.name, made, is_certain)
                    todo.append((statement.body, self._enter(statement, path), True))
                    continue
                for name, row in self._rows(statement, path):
                    self.found[path].add(_mangled(name, kind), row, is_certain)
                if not isinstance(statement, Function):
                    todo += [(block, path, False) for _, _, block in bodies(statement)]

    def _enter(self, node: ast.ClassDef, path: str) -> str:
        inner = f"{path}.{node.name}" if path else node.name
        is_defined = inner in self.found
        self.found[inner] = _Found(node)
        if is_defined:  # nobody knows which one is there
            self.found[inner].add("*", _row(node.lineno, None), True)
        made = _initializer_of(node)
        if made is not None:
            self.initializers[inner] = made
        return inner

    def _rows(self, statement: ast.stmt, path: str) -> Iterator[tuple[str, Row]]:
        line = statement.lineno
        if isinstance(statement, Function):
            self.functions.append((statement, path))
            yield statement.name, (line, "def", _decorators(statement), {"": statement.name})
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], _row(line, None)
        elif isinstance(statement, ast.Expr):
            if isinstance(statement.value, ast.Call):
                called = statement.value.func
                last = dotted_name(called).rpartition(".")[2]
                self.called.append(last)
                self.is_dynamic |= last in _NAMESPACES or _is_namespace(called)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, _row(line, None)
        else:
            if isinstance(statement, ast.Assign):
                self.is_dynamic |= any(map(_is_namespace, statement.targets))
            for name, value in bindings(statement):
                yield name, _row(line, value)


def _is_namespace(node: ast.expr) -> bool:
    """Whether an expression is a part of what ``globals()`` or the like gives."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Call) and dotted_name(node.func) in _NAMESPACES


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return [dotted_name(each) for each in called]


def _mangled(name: str, kind: str) -> str:
    """The name under which a class keeps what its body calls ``__name``; no class, the name.

    >>> _mangled("__x", "_Net"), _mangled("__init__", "Net"), _mangled("__x", "")
    ('_Net__x', '__init__', '__x')
    """
    if not kind.strip("_") or not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{kind.lstrip('_')}{name}"


# -- values ---------------------------------------------------------------------------------


def _row(line: int, value: ast.expr | None) -> Row:
    literal = _literal_of(value)
    if literal != _UNKNOWN:
        is_container = isinstance(value, (ast.List, ast.Dict, ast.Set))
        return line, "holds" if is_container else "is", [literal], {}
    if isinstance(value, ast.Call):
        called = dotted_name(value.func)
        is_spread = any(isinstance(each, ast.Starred) for each in value.args)
        if called and not is_spread and all(keyword.arg is not None for keyword in value.keywords):
            named = {keyword.arg or "": _literal_of(keyword.value) for keyword in value.keywords}
            return line, "call", [called, *map(_literal_of, value.args)], named
    return line, _UNREAD, [], {}


def _literal_of(node: ast.expr | None) -> Literal:
    """The value of an expression as rows have it; unknown if it is no literal.

    >>> [
    ...     _literal_of(ast.parse(text, mode="eval").body)
    ...     for text in ("-3", "2 * 4", "1 << 4", "(-8) ** 0.5", "(1, 'a')", "f()")
    ... ]
    [-3, 8, 16, [], ["(1, 'a')"], []]
    """
    try:
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, (ast.UnaryOp, ast.BinOp)):
            number = _number(node)
            return _UNKNOWN if number is None else number
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set)):
            text = repr(ast.literal_eval(node))
            return [text] if len(text) <= _LONGEST_TEXT else _UNKNOWN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN
    return _UNKNOWN


def _constant(value: object) -> Literal:
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else _UNKNOWN
    if isinstance(value, float):
        return value if math.isfinite(value) else _UNKNOWN
    if value is None:
        return None
    if isinstance(value, str):
        fits = len(value) <= _LONGEST_TEXT
        is_text = fits and not any("\ud800" <= each <= "\udfff" for each in value)
        return value if is_text else _UNKNOWN
    text = repr(value)
    return [text] if len(text) <= _LONGEST_TEXT else _UNKNOWN


def _number(node: ast.expr) -> int | float | None:
    """What Python makes of arithmetic with numbers, as long as they stay small."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(node, ast.UnaryOp):
        operand = _number(node.operand)
        if operand is None or not isinstance(node.op, (ast.USub, ast.UAdd)):
            return None
        return -operand if isinstance(node.op, ast.USub) else operand
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, (ast.Pow, ast.LShift)) and not 0 <= right <= _LARGEST_EXPONENT:
        return None
    try:
        made = _OPERATORS[type(node.op)](left, right)
    except (ArithmeticError, ValueError, TypeError):
        return None
    # A power of a negative number may be complex.
    return made if isinstance(made, (int, float)) and abs(made) <= _LARGEST else None


# -- what calling a class does ----------------------------------------------------------------


def _initializer_of(node: ast.ClassDef) -> Initializer | None:
    """What a class keeps of the arguments that it is called with; None where that is not plain."""
    if (node.end_lineno or node.lineno) - node.lineno > _LONGEST_CLASS:
        return None
    methods = [each for each in node.body if isinstance(each, Function)]
    if any(method.name in _OUT_OF_SIGHT for method in methods):
        return None
    own = next((each for each in methods if each.name == "__init__"), None)
    if own is not None and not all(map(_is_plain, own.body)):
        return None
    made = own is not None and any(
        isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(each.value, ast.Call)
        for each in own.body
    )
    if node.bases and made:
        return None  # a part of a model, most likely
    changed: dict[str, int] = {}
    for method in methods:
        if method is not own and not _note_changes(method, changed):
            return None
    changed = {_mangled(name, node.name): when for name, when in changed.items()}
    if own is None:
        return Initializer((), {}, changed)
    given = own.args
    is_plain = given.args and not (given.posonlyargs or given.vararg or given.kwarg)
    if not is_plain or own.decorator_list:
        return None
    defaults: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults))
    defaults += [*given.defaults, *given.kw_defaults]
    _, *parameters = [
        (each.arg, _literal_of(default))
        for each, default in zip([*given.args, *given.kwonlyargs], defaults, strict=True)
    ]
    kept: dict[str, tuple[str, Literal]] = {}
    for statement in own.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            name = dotted_name(statement.value)
            is_given = any(name == parameter for parameter, _ in parameters)
            value = (name, _UNKNOWN) if is_given else ("", _literal_of(statement.value))
            for target in targets_of(statement):
                kept[_mangled(_own_attribute(target), node.name)] = value
    return Initializer(parameters, kept, changed)


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement keeps something, or does nothing that matters here."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return all(map(_own_attribute, targets_of(statement)))
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or _is_call_of_object(value)
    return isinstance(statement, ast.Pass)


def _is_call_of_object(value: ast.expr) -> bool:
    """``super().__init__()``, without arguments."""
    if not isinstance(value, ast.Call) or value.args or value.keywords:
        return False
    called = value.func
    if not isinstance(called, ast.Attribute) or called.attr != "__init__":
        return False
    return isinstance(called.value, ast.Call) and dotted_name(called.value.func) == "super"


def _own_attribute(target: ast.expr) -> str:
    """``x`` of ``self.x``; empty for anything else."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.attr if target.value.id == "self" else ""
    return ""


def _note_changes(method: Function, changed: dict[str, int]) -> bool:
    """Note the attributes that a method sets; returns False if that cannot be read off."""
    parameters = {each.arg for each in (*method.args.args[1:], *method.args.kwonlyargs)}
    for node in ast.walk(method):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in _BUILT:
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed.setdefault(node.attr, Rebinding.RUNNING)
        if isinstance(node, ast.Assign) and not method.name.startswith("_"):
            uses = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            for target in node.targets:
                if uses & parameters and _own_attribute(target):
                    changed[_own_attribute(target)] = Rebinding.ON_REQUEST
    return True


# -- what functions set -----------------------------------------------------------------------


class _Rebindings:
    """What the code of a module sets anew.

    Args:
        parsed: its source.
        functions: its functions and methods, each with the path of its class.

    Attributes:
        settings: see :class:`modpack.core.scan.Definitions`.
        setters: likewise.
    """

    def __init__(self, parsed: ParsedSource, functions: Sequence[tuple[Function, str]]) -> None:
        self.settings: dict[str, int] = {}
        self.setters: dict[str, list[str]] = {}
        self._tree = parsed.tree
        numbered = enumerate(parsed.text.split("\n"), 1)
        lines = [number for number, line in numbered if _GLOBAL_OR_ATTRIBUTE.match(line)]
        for function, path in functions if lines else ():
            if _has_line(function, lines):
                self._see_function(function, path)
        if self.setters:
            self._see_callers(functions)
        for statement in parsed.tree.body if lines else ():
            if _has_line(statement, lines):
                for name in _attributes_at_import(statement):
                    self.settings.setdefault(f".{name}", Rebinding.AT_IMPORT)

    def _see_function(self, function: Function, path: str) -> None:
        nodes = list(ast.walk(function))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        parameters = {each.arg for each in parameters_of(function)}
        local = parameters | assigned - declared
        # Users of the module may call it without an object of it.
        is_for_others = not function.name.startswith("_") and (
            not path or not _ON_CLASSES.isdisjoint(_decorators(function))
        )
        for name, value in _set_in(nodes, declared, local):
            is_given = _is_passed_on(value, parameters)
            is_switched = _is_ready(value, local) and function.name not in self._used
            on_request = is_for_others and (is_given or is_switched)
            when = Rebinding.ON_REQUEST if on_request else Rebinding.RUNNING
            if name != _COMPUTED:
                self.settings[name] = max(self.settings.get(name, when), when)
            self.setters.setdefault(function.name, []).append(name)

    def _see_callers(self, functions: Sequence[tuple[Function, str]]) -> None:
        """What calls a function that sets something, sets it as well."""
        used = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function, path in functions
            if not path
        }
        for _ in range(_MAX_CALLS):
            for name, others in used.items():
                for other in sorted(others & self.setters.keys() - {name}):
                    known = self.setters.setdefault(name, [])
                    known += [each for each in self.setters[other] if each not in known]

    @cached_property
    def _used(self) -> set[str]:
        """The names that the module itself uses."""
        nodes = list(ast.walk(self._tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _set_in(
    nodes: Sequence[ast.AST], declared: set[str], local: set[str]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Globals and attributes of others that a function sets, each with its new value."""
    for node in nodes:
        if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
            yield _COMPUTED, None
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for target in targets_of(node):
            for name in assigned_names(target):
                if name in declared:
                    yield name, value
            if isinstance(target, ast.Attribute) and _is_shared(target.value, local):
                yield f".{target.attr}", value


def _is_shared(owner: ast.expr, local: set[str]) -> bool:
    """Whether an attribute belongs to a class, a module or an object that others see as well."""
    if isinstance(owner, ast.Call):  # type(self)
        return dotted_name(owner.func) == "type"
    name = dotted_name(owner)
    first = name.partition(".")[0]
    return first == "cls" or name.endswith(".__class__") or bool(first and first not in local)


def _is_passed_on(value: ast.expr | None, parameters: set[str]) -> bool:
    """Whether a value is a parameter, or a plain value made of one; and not work done with it."""
    nodes = list(ast.walk(value)) if value is not None else []
    called = {dotted_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return called <= _PLAIN_CALLS and bool(names & parameters)


def _is_ready(value: ast.expr | None, local: set[str]) -> bool:
    """Whether a value is a constant, or the name of something that was there before."""
    if value is None or isinstance(value, ast.Constant):
        return value is not None
    first = dotted_name(value).partition(".")[0]
    return bool(first) and first not in local


def _has_line(statement: ast.stmt, lines: Sequence[int]) -> bool:
    decorators = getattr(statement, "decorator_list", ())
    first = decorators[0].lineno if decorators else statement.lineno
    return any(first <= line <= (statement.end_lineno or first) for line in lines)


def _attributes_at_import(statement: ast.stmt) -> Iterator[str]:
    """The attributes that a statement sets when the module is imported."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        for target in targets_of(node):
            if isinstance(target, ast.Attribute):
                yield target.attr
        if not isinstance(node, (Function, ast.expr)):
            todo.extend(ast.iter_child_nodes(node))
