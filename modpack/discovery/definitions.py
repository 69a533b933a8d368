"""Definitions of a module and its classes, recorded with the scan; functions are not entered.

An export compares them with the modules that run, without parsing or compiling anything. With them
are recorded the names and attributes that functions set anew, which is the module's own state or
what others asked for, and what calling a class makes of its arguments where its ``__init__`` only
keeps them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from modpack.core.scan import Body, Defined, Initializer, Literal, Row, Setting
from modpack.discovery.constants import UNKNOWN, literal_of, mangled
from modpack.discovery.syntax import ParsedSource, assigned_names, bindings, bodies, dotted_name

_LONGEST = 150
"""Lines of a class. One that only keeps settings is shorter; others took most of the time."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_OUT_OF_SIGHT = frozenset(
    {"__new__", "__setattr__", "__getattribute__", "__getattr__", "__post_init__"}
)
_BUILT = frozenset({"setattr", "vars", "__dict__"})


def initializer_of(node: ast.ClassDef) -> Initializer | None:
    """What a class keeps of the arguments that it is called with; None where that is not plain."""
    if (node.end_lineno or node.lineno) - node.lineno > _LONGEST:
        return None
    methods = [each for each in node.body if isinstance(each, _FUNCTIONS)]
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
    changed = {mangled(name, node.name): when for name, when in changed.items()}
    if own is None:
        return Initializer((), {}, changed)
    parameters = _init_parameters(own)
    if parameters is None:
        return None
    kept = {
        mangled(attribute, node.name): given
        for attribute, given in _kept(own.body, {name for name, _ in parameters})
    }
    return Initializer(parameters, kept, changed)


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement keeps something, or does nothing that would tell here."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or _is_call_of_object(value)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return all(map(_own_attribute, _targets(statement)))
    return False


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


def _init_parameters(
    function: _Function,
) -> list[tuple[str, Literal]] | None:
    given = function.args
    if given.posonlyargs or given.vararg or given.kwarg or function.decorator_list:
        return None
    names = [each.arg for each in given.args[1:]]
    defaults = [UNKNOWN] * (len(names) - len(given.defaults)) + list(
        map(literal_of, given.defaults)
    )
    named = [
        (each.arg, literal_of(value))
        for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return [*zip(names, defaults, strict=True), *named]


def _kept(body: Sequence[ast.stmt], names: set[str]) -> Iterator[tuple[str, tuple[str, Literal]]]:
    """Each attribute with the parameter, or the literal, that it holds; neither if unknown."""
    for statement in body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        name = dotted_name(statement.value)
        kept = (name, UNKNOWN) if name in names else ("", literal_of(statement.value))
        for target in _targets(statement):
            yield _own_attribute(target), kept


def _note_changes(method: _Function, changed: dict[str, int]) -> bool:
    """Note the attributes that a method sets; returns False if that cannot be read off."""
    parameters = {each.arg for each in (*method.args.args[1:], *method.args.kwonlyargs)}
    for node in ast.walk(method):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in _BUILT:
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed.setdefault(node.attr, Setting.RUNNING)
        if isinstance(node, ast.Assign) and not method.name.startswith("_"):
            uses = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
            for target in node.targets:
                if uses & parameters and _own_attribute(target):
                    changed[_own_attribute(target)] = Setting.ON_REQUEST
    return True


ANY: Final = "*"
"""Stands for names that a function computes."""
_MOST_CALLS: Final = 3

_GLOBAL_OR_ATTRIBUTE = re.compile(
    r"[ \t]*(?:global\s|setattr\((?!self\b)"
    r"|(?!self\.\w+\s*[-+*/|&:=])\w+(?:\(\w*\))?\.[\w.]+\s*[-+*/|&]?=(?!=))"
)
"""Lines that may declare a global, or set an attribute of something else than ``self``."""
_PLAIN_CALLS = frozenset({"bool", "int", "float", "str", "tuple", "list", "dict", "set"})
_ON_CLASSES = frozenset({"classmethod", "staticmethod"})


class Settings:
    """What the code of a module sets anew.

    Args:
        parsed: its source.
        functions: its functions and methods, each with the path of its class.

    Attributes:
        settings: see :class:`modpack.core.scan.Defined`.
        setters: likewise.
    """

    def __init__(self, parsed: ParsedSource, functions: Sequence[tuple[_Function, str]]) -> None:
        self.settings: dict[str, int] = {}
        self.setters: dict[str, list[str]] = {}
        self._tree = parsed.tree
        self._used: set[str] | None = None
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
                    self.settings.setdefault(f".{name}", Setting.AT_IMPORT)

    def _see_function(self, function: _Function, path: str) -> None:
        nodes = list(ast.walk(function))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        local = _parameters(function) | assigned - declared
        found = list(_set_in(nodes, declared, local))
        if not found:
            return
        asked = self._is_for_others(function, path)
        for name, value in found:
            is_given = _is_passed_on(value, _parameters(function))
            is_switched = _is_ready(value, local) and not self._is_used(function.name)
            on_request = asked and (is_given or is_switched)
            when = Setting.ON_REQUEST if on_request else Setting.RUNNING
            if name != ANY:
                self.settings[name] = max(self.settings.get(name, when), when)
            self.setters.setdefault(function.name, []).append(name)

    def _see_callers(self, functions: Sequence[tuple[_Function, str]]) -> None:
        """What calls a function that sets something, sets it as well."""
        used = {
            function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            for function, path in functions
            if not path
        }
        for _ in range(_MOST_CALLS):
            for name, others in used.items():
                for other in others & self.setters.keys() - {name}:
                    known = self.setters.setdefault(name, [])
                    known += [each for each in self.setters[other] if each not in known]

    def _is_for_others(self, function: _Function, path: str) -> bool:
        """Whether a function is one that users of the module may call without an object of it."""
        if function.name.startswith("_"):
            return False
        decorators = {dotted_name(each) for each in function.decorator_list}
        return not path or bool(decorators & _ON_CLASSES)

    def _is_used(self, name: str) -> bool:
        """Whether the module itself uses a function."""
        if self._used is None:
            nodes = list(ast.walk(self._tree))
            self._used = {node.id for node in nodes if isinstance(node, ast.Name)}
            self._used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return name in self._used


def _set_in(
    nodes: Sequence[ast.AST], declared: set[str], local: set[str]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Globals and attributes of others that a function sets, each with its new value."""
    for node in nodes:
        if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
            yield ANY, None
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for target in _targets(node):
            for name in assigned_names(target):
                if name in declared:
                    yield name, value
            if isinstance(target, ast.Attribute) and _is_shared(target.value, local):
                yield f".{target.attr}", value


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.Assign, ast.Delete)):
        return node.targets
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        return [node.target]
    return []


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


def _parameters(function: _Function) -> set[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in named if each is not None}


def _has_line(statement: ast.stmt, lines: Sequence[int]) -> bool:
    decorators = getattr(statement, "decorator_list", ())
    first = decorators[0].lineno if decorators else statement.lineno
    return any(first <= line <= (statement.end_lineno or first) for line in lines)


def _attributes_at_import(statement: ast.stmt) -> Iterator[str]:
    """The attributes that a statement sets when the module is imported."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        for target in _targets(node):
            if isinstance(target, ast.Attribute):
                yield target.attr
        if not isinstance(node, (*_FUNCTIONS, ast.expr)):
            todo.extend(ast.iter_child_nodes(node))


_UNREAD = "?"
_NAMESPACES = frozenset({"globals", "locals", "vars", "exec", "setattr"})


def defined_by(parsed: ParsedSource) -> Defined:
    """What a source defines, and which of that its own code sets anew."""
    reader = _Reader()
    reader.read(parsed.tree)
    settings = Settings(parsed, reader.functions)
    return Defined(
        bodies={path: _body(found) for path, found in reader.found.items()},
        settings=settings.settings,
        setters=settings.setters,
        called=tuple(dict.fromkeys(reader.called)),
        is_dynamic=reader.is_dynamic,
        initializers=reader.initializers,
    )


class _Found:
    """What one body binds, while it is read."""

    def __init__(self, node: ast.ClassDef | None) -> None:
        self.line = node.lineno if node is not None else 0
        self.decorators = _decorators(node) if node is not None else []
        self.rows: dict[str, list[Row]] = {}
        self.certain: set[str] = set()
        self.depth = 0

    def add(self, name: str, row: Row) -> None:
        self.rows.setdefault(name, []).append(row)
        if not self.depth:
            self.certain.add(name)


class _Reader:
    """Reads statements, in and out of blocks, and classes, nested ones too.

    Attributes:
        found: what each body binds, by the path of its class.
        functions: the functions and methods, each with the path of its class.
        called: see :class:`Defined`.
        is_dynamic: see :class:`Defined`.
        initializers: see :class:`Defined`.
    """

    def __init__(self) -> None:
        self.found: dict[str, _Found] = {"": _Found(None)}
        self.functions: list[tuple[_Function, str]] = []
        self.called: list[str] = []
        self.is_dynamic = False
        self.initializers: dict[str, Initializer] = {}

    def read(self, tree: ast.Module) -> None:
        todo: list[tuple[Sequence[ast.stmt], str, int]] = [(tree.body, "", 0)]
        while todo:
            statements, path, depth = todo.pop()
            for statement in statements:
                self.found[path].depth = depth
                if isinstance(statement, ast.ClassDef):
                    todo.append((statement.body, self._enter(statement, path), 0))
                else:
                    self._read(statement, path)
                    if not isinstance(statement, _FUNCTIONS):
                        inner = (block for _, _, block in bodies(statement))
                        todo += [(block, path, depth + 1) for block in inner]

    def _enter(self, node: ast.ClassDef, path: str) -> str:
        inner = f"{path}.{node.name}" if path else node.name
        body = self.found[path]
        body.add(node.name, (node.lineno, "class", list(_decorators(node)), {}))
        if inner in self.found:  # defined twice: nobody knows which one is there
            self.found[inner] = _Found(node)
            self.found[inner].add("*", (node.lineno, _UNREAD, [], {}))
        else:
            self.found[inner] = _Found(node)
        made = initializer_of(node)
        if made is not None:
            self.initializers[inner] = made
        return inner

    def _read(self, statement: ast.stmt, path: str) -> None:
        body = self.found[path]
        line = statement.lineno
        if isinstance(statement, _FUNCTIONS):
            name = mangled(statement.name, _last(path))
            body.add(name, (line, "def", list(_decorators(statement)), {"": statement.name}))
            self.functions.append((statement, path))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                bound = alias.asname or alias.name.partition(".")[0]
                body.add(mangled(bound, _last(path)), (line, _UNREAD, [], {}))
        elif isinstance(statement, ast.Expr):
            self._see_call(statement.value)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    body.add(mangled(target.id, _last(path)), (line, _UNREAD, [], {}))
        else:
            if isinstance(statement, ast.Assign):
                self.is_dynamic |= any(map(_is_namespace, statement.targets))
            for name, value in bindings(statement):
                body.add(mangled(name, _last(path)), _row(line, value))

    def _see_call(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            last = dotted_name(value.func).rpartition(".")[2]
            self.called.append(last)
            self.is_dynamic |= last in _NAMESPACES or _is_namespace(value.func)


def _is_namespace(node: ast.expr) -> bool:
    """Whether an expression is a part of what ``globals()`` or the like gives."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Call) and dotted_name(node.func) in _NAMESPACES


def _body(found: _Found) -> Body:
    functions: dict[str, int] = {}
    values: dict[str, tuple[int, Literal]] = {}
    others: dict[str, Sequence[Row]] = {}
    unread: list[str] = []
    for name, rows in found.rows.items():
        (line, kind, given, named), *more = rows
        if not more and kind == "def" and not given and named == {"": name}:
            functions[name] = line
        elif not more and kind == "is":
            values[name] = (line, given[0])
        elif any(kind == _UNREAD for _, kind, _, _ in rows):
            unread.append(name)
        else:
            others[name] = rows
    conditional = [name for name in found.rows if name not in found.certain]
    return Body(found.line, found.decorators, functions, values, others, unread, conditional)


def _row(line: int, value: ast.expr | None) -> Row:
    literal = literal_of(value)
    if literal != UNKNOWN:
        is_container = isinstance(value, (ast.List, ast.Dict, ast.Set))
        return line, "holds" if is_container else "is", [literal], {}
    if isinstance(value, ast.Call):
        return _call(line, value)
    return line, _UNREAD, [], {}


def _call(line: int, call: ast.Call) -> Row:
    called = dotted_name(call.func)
    is_spread = any(isinstance(each, ast.Starred) for each in call.args)
    if not called or is_spread or any(keyword.arg is None for keyword in call.keywords):
        return line, _UNREAD, [], {}
    named = {keyword.arg or "": literal_of(keyword.value) for keyword in call.keywords}
    return line, "call", [called, *map(literal_of, call.args)], named


def _decorators(node: ast.ClassDef | _Function) -> list[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return [dotted_name(each) for each in called]


def _last(path: str) -> str:
    return path.rpartition(".")[2]
