"""Definitions of a module and its classes, recorded with the scan. Function bodies are skipped.

An export compares the definitions with live modules, without parsing or compiling anything. The
record also has the globals and attributes that functions rebind (internal state, or settings that a
caller requests), and the initializers of classes that only store their arguments.
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
    contains_line,
    dotted_name,
    parameters_of,
    targets_of,
)

_UNKNOWN: Final[list[str]] = []
_MAX_TEXT = 500
_MAX_NUMBER = 1 << 64
_MAX_EXPONENT = 64
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

_MAX_CLASS_LINES = 150
"""Limit for the lines of a class. Longer ones rarely store settings, and took most of the time."""
_INTERCEPTORS = frozenset(
    {"__new__", "__setattr__", "__getattribute__", "__getattr__", "__post_init__"}
)
_DYNAMIC_SETTERS = frozenset({"setattr", "vars", "__dict__"})

_COMPUTED: Final = "*"
"""Placeholder for names that a function computes."""
_MAX_CALL_DEPTH: Final = 3
_GLOBAL_OR_ATTRIBUTE = re.compile(
    r"[ \t]*(?:global\s|setattr\((?!self\b)"
    r"|(?!self\.\w+\s*[-+*/|&:=])\w+(?:\(\w*\))?\.[\w.]+\s*[-+*/|&]?=(?!=))"
)
"""Lines that may declare a global, or set an attribute of an object other than ``self``."""
_PLAIN_CALLS = frozenset({"bool", "int", "float", "str", "tuple", "list", "dict", "set"})
_CLASS_LEVEL = frozenset({"classmethod", "staticmethod"})

_CHANGING_METHODS = frozenset(
    {
        *("add", "append", "clear", "difference_update", "discard", "extend", "insert"),
        *("intersection_update", "pop", "popitem", "remove", "reverse", "setdefault", "sort"),
        *("symmetric_difference_update", "update"),
    }
)
"""Methods that change a dict, a list, or a set."""
_UNREADABLE = "?"
_NAMESPACES = frozenset({"globals", "locals", "vars", "exec", "setattr"})


def read_definitions(parsed: ParsedSource) -> Definitions:
    """Return the definitions in a source, and the names that its own code rebinds."""
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


class _BodyBuilder:
    """A collector for the bindings of one body."""

    def __init__(self, node: ast.ClassDef | None) -> None:
        self._line = node.lineno if node is not None else 0
        self._decorators = _decorators(node) if node is not None else []
        self._rows: dict[str, list[Row]] = {}
        self._certain: set[str] = set()
        self._changed: set[str] = set()

    def add_change(self, name: str) -> None:
        self._changed.add(name)

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
            elif any(kind == _UNREADABLE for _, kind, _, _ in rows) or (
                name in self._changed and any(kind == "holds" for _, kind, _, _ in rows)
            ):
                unread.append(name)
            else:
                others[name] = rows
        conditional = [name for name in self._rows if name not in self._certain]
        return Body(self._line, self._decorators, functions, values, others, unread, conditional)


class _DefinitionReader:
    """A reader for the statements of a module and of its classes at any depth.

    Attributes:
        found: Bindings by the path of the class.
        functions: Functions and methods, each with the path of its class.
        called: See :class:`Definitions`.
        is_dynamic: See :class:`Definitions`.
        initializers: See :class:`Definitions`.
    """

    def __init__(self) -> None:
        self.found: dict[str, _BodyBuilder] = {"": _BodyBuilder(None)}
        self.functions: list[tuple[Function, str]] = []
        self.called: list[str] = []
        self.is_dynamic = False
        self.initializers: dict[str, Initializer] = {}

    def read(self, tree: ast.Module) -> None:
        pending: list[tuple[Sequence[ast.stmt], str, bool]] = [(tree.body, "", True)]
        while pending:
            statements, path, is_certain = pending.pop()
            kind = path.rpartition(".")[2]
            for statement in statements:
                if isinstance(statement, ast.ClassDef):
                    made: Row = (statement.lineno, "class", _decorators(statement), {})
                    self.found[path].add(statement.name, made, is_certain)
                    pending.append((statement.body, self._enter(statement, path), True))
                    continue
                for name, row in self._rows(statement, path):
                    self.found[path].add(_mangle(name, kind), row, is_certain)
                for name in _changed_in_place(statement):
                    self.found[path].add_change(_mangle(name, kind))
                if not isinstance(statement, Function):
                    pending += [(block, path, False) for _, _, block in bodies(statement)]

    def _enter(self, node: ast.ClassDef, path: str) -> str:
        inner = f"{path}.{node.name}" if path else node.name
        is_defined = inner in self.found
        self.found[inner] = _BodyBuilder(node)
        if is_defined:  # which definition is effective is unknown
            self.found[inner].add("*", _row(node.lineno, None), True)
        made = _read_initializer(node)
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


def _changed_in_place(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of containers whose items a statement sets, deletes, or changes by a method.

    >>> text = "X['a'] = 1; del Y[0]; Z['b'].pop(); W.copy()"
    >>> [name for each in ast.parse(text).body for name in _changed_in_place(each)]
    ['X', 'Y', 'Z']
    """
    changed: list[ast.expr] = [t for t in targets_of(statement) if isinstance(t, ast.Subscript)]
    value = getattr(statement, "value", None)
    called = value.func if isinstance(value, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in _CHANGING_METHODS:
        changed.append(called)
    for node in changed:
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id


def _is_namespace(node: ast.expr) -> bool:
    """Return whether an expression is an item or attribute of ``globals()`` or a similar call."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Call) and dotted_name(node.func) in _NAMESPACES


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return [dotted_name(each) for each in called]


def _mangle(name: str, kind: str) -> str:
    """Return the mangled form of a private name in a class; other names unchanged.

    >>> _mangle("__x", "_Net"), _mangle("__init__", "Net"), _mangle("__x", "")
    ('_Net__x', '__init__', '__x')
    """
    if not kind.strip("_") or not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{kind.lstrip('_')}{name}"


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
    return line, _UNREADABLE, [], {}


def _literal_of(node: ast.expr | None) -> Literal:
    """Return the value of a literal or of arithmetic with literals; otherwise unknown.

    >>> [
    ...     _literal_of(ast.parse(text, mode="eval").body)
    ...     for text in ("-3", "2 * 4", "1 << 4", "(-8) ** 0.5", "(1, 'a')", "...", "f()")
    ... ]
    [-3, 8, 16, [], ["(1, 'a')"], ['...'], []]
    """
    try:
        if isinstance(node, ast.Constant):
            return _read_constant(node)
        if isinstance(node, (ast.UnaryOp, ast.BinOp)):
            number = _evaluate_number(node)
            return _UNKNOWN if number is None else number
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set)):
            return _as_text(node, ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN
    return _UNKNOWN


def _read_constant(node: ast.Constant) -> Literal:
    value = node.value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_NUMBER else _UNKNOWN
    if isinstance(value, float):
        return value if math.isfinite(value) else _UNKNOWN
    if value is None:
        return None
    if isinstance(value, str):
        fits = len(value) <= _MAX_TEXT
        is_text = fits and not any("\ud800" <= each <= "\udfff" for each in value)
        return value if is_text else _UNKNOWN
    return _as_text(node, value)


def _as_text(node: ast.expr, value: object) -> Literal:
    """Return the text of a literal, which :func:`ast.literal_eval` can read."""
    text = repr(value)
    if "Ellipsis" in text or "inf" in text:  # names, which are no literals
        text = ast.unparse(node)
    return [text] if len(text) <= _MAX_TEXT else _UNKNOWN


def _evaluate_number(node: ast.expr) -> int | float | None:
    """Evaluate arithmetic with numbers; None if a number gets too large."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(node, ast.UnaryOp):
        operand = _evaluate_number(node.operand)
        if operand is None or not isinstance(node.op, (ast.USub, ast.UAdd)):
            return None
        return -operand if isinstance(node.op, ast.USub) else operand
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _evaluate_number(node.left), _evaluate_number(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, (ast.Pow, ast.LShift)) and not 0 <= right <= _MAX_EXPONENT:
        return None
    try:
        made = _OPERATORS[type(node.op)](left, right)
    except (ArithmeticError, ValueError, TypeError):
        return None
    # The power of a negative number may be complex.
    return made if isinstance(made, (int, float)) and abs(made) <= _MAX_NUMBER else None


def _read_initializer(node: ast.ClassDef) -> Initializer | None:
    """Return how a class stores its arguments; None if its ``__init__`` does anything else."""
    if (node.end_lineno or node.lineno) - node.lineno > _MAX_CLASS_LINES:
        return None
    methods = [each for each in node.body if isinstance(each, Function)]
    if any(method.name in _INTERCEPTORS for method in methods):
        return None
    own = next((each for each in methods if each.name == "__init__"), None)
    if own is not None and not all(map(_is_simple, own.body)):
        return None
    made = own is not None and any(
        isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(each.value, ast.Call)
        for each in own.body
    )
    if node.bases and made:
        return None  # probably a part of a model
    changed: dict[str, int] = {}
    for method in methods:
        if method is not own and not _record_changes(method, changed):
            return None
    changed = {_mangle(name, node.name): when for name, when in changed.items()}
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
                kept[_mangle(_self_attribute(target), node.name)] = value
    return Initializer(parameters, kept, changed)


def _is_simple(statement: ast.stmt) -> bool:
    """Return whether a statement only sets attributes, calls ``super().__init__``, or is empty."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return all(map(_self_attribute, targets_of(statement)))
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or _is_super_init(value)
    return isinstance(statement, ast.Pass)


def _is_super_init(value: ast.expr) -> bool:
    """Return whether an expression is ``super().__init__()`` without arguments."""
    if not isinstance(value, ast.Call) or value.args or value.keywords:
        return False
    called = value.func
    if not isinstance(called, ast.Attribute) or called.attr != "__init__":
        return False
    return isinstance(called.value, ast.Call) and dotted_name(called.value.func) == "super"


def _self_attribute(target: ast.expr) -> str:
    """Return ``x`` for ``self.x``; empty for anything else."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.attr if target.value.id == "self" else ""
    return ""


def _record_changes(method: Function, changed: dict[str, int]) -> bool:
    """Record the attributes that a method sets; return False if they cannot be read statically."""
    parameters = {each.arg for each in (*method.args.args[1:], *method.args.kwonlyargs)}
    for node in ast.walk(method):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in _DYNAMIC_SETTERS:
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed.setdefault(node.attr, Rebinding.RUNNING)
        if isinstance(node, ast.Assign) and not method.name.startswith("_"):
            uses = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            for target in node.targets:
                if uses & parameters and _self_attribute(target):
                    changed[_self_attribute(target)] = Rebinding.ON_REQUEST
    return True


class _Rebindings:
    """The globals and attributes that the code of a module rebinds.

    Args:
        parsed: Parsed source.
        functions: Functions and methods, each with the path of its class.

    Attributes:
        settings: See :class:`modpack.core.scan.Definitions`.
        setters: See :class:`modpack.core.scan.Definitions`.
    """

    def __init__(self, parsed: ParsedSource, functions: Sequence[tuple[Function, str]]) -> None:
        self.settings: dict[str, int] = {}
        self.setters: dict[str, list[str]] = {}
        self._tree = parsed.tree
        numbered = enumerate(parsed.text.split("\n"), 1)
        lines = [number for number, line in numbered if _GLOBAL_OR_ATTRIBUTE.match(line)]
        for function, path in functions if lines else ():
            if contains_line(function, lines):
                self._visit_function(function, path)
        if self.setters:
            self._propagate_to_callers(functions)
        for statement in parsed.tree.body if lines else ():
            if contains_line(statement, lines):
                for name in _attributes_set_at_import(statement):
                    self.settings.setdefault(f".{name}", Rebinding.AT_IMPORT)

    def _visit_function(self, function: Function, path: str) -> None:
        nodes = list(ast.walk(function))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        parameters = {each.arg for each in parameters_of(function)}
        local = parameters | assigned - declared
        # Public functions that can be called without an instance.
        is_public = not function.name.startswith("_") and (
            not path or not _CLASS_LEVEL.isdisjoint(_decorators(function))
        )
        for name, value in _shared_assignments(nodes, declared, local):
            is_argument = _is_derived_from(value, parameters)
            is_toggled = _is_existing_value(value, local) and function.name not in self._used_names
            on_request = is_public and (is_argument or is_toggled)
            when = Rebinding.ON_REQUEST if on_request else Rebinding.RUNNING
            if name != _COMPUTED:
                self.settings[name] = max(self.settings.get(name, when), when)
            self.setters.setdefault(function.name, []).append(name)

    def _propagate_to_callers(self, functions: Sequence[tuple[Function, str]]) -> None:
        """Add the names that a function sets to the functions that call it."""
        used = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function, path in functions
            if not path
        }
        for _ in range(_MAX_CALL_DEPTH):
            for name, others in used.items():
                for other in sorted(others & self.setters.keys() - {name}):
                    known = self.setters.setdefault(name, [])
                    known += [each for each in self.setters[other] if each not in known]

    @cached_property
    def _used_names(self) -> set[str]:
        """Names and attributes that the module itself uses."""
        nodes = list(ast.walk(self._tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _shared_assignments(
    nodes: Sequence[ast.AST], declared: set[str], local: set[str]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the globals and the attributes of shared objects that a function sets, with values."""
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
    """Return whether an attribute's owner is a class, a module, or another non-local object."""
    if isinstance(owner, ast.Call):  # type(self)
        return dotted_name(owner.func) == "type"
    name = dotted_name(owner)
    first = name.partition(".")[0]
    return first == "cls" or name.endswith(".__class__") or bool(first and first not in local)


def _is_derived_from(value: ast.expr | None, parameters: set[str]) -> bool:
    """Return whether a value is a parameter, or only converts one to a plain type."""
    nodes = list(ast.walk(value)) if value is not None else []
    called = {dotted_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return called <= _PLAIN_CALLS and bool(names & parameters)


def _is_existing_value(value: ast.expr | None, local: set[str]) -> bool:
    """Return whether a value is a constant or an existing non-local object."""
    if value is None or isinstance(value, ast.Constant):
        return value is not None
    first = dotted_name(value).partition(".")[0]
    return bool(first) and first not in local


def _attributes_set_at_import(statement: ast.stmt) -> Iterator[str]:
    """Yield the attributes that a statement sets when the module is imported."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        for target in targets_of(node):
            if isinstance(target, ast.Attribute):
                yield target.attr
        if not isinstance(node, (Function, ast.expr)):
            pending.extend(ast.iter_child_nodes(node))
