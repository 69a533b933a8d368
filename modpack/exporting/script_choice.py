"""Selection of the way each name of a script gets into a package: text, import, literal, or value.

The script may have been edited, a notebook cell run again, or a method replaced since execution.
The source is therefore compiled again and compared with the code of the live functions. Values that
a definition's text does not produce are set on it after loading.
"""

from __future__ import annotations

import abc
import ast
import builtins
import collections
import enum
import math
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from modpack.discovery.script import Cell, Script, StatementKind, TopLevelStatement
from modpack.discovery.syntax import import_bindings, targets_of
from modpack.environment.finder import is_a
from modpack.environment.importers import module_dict
from modpack.exporting.live_code import absolute_file, nested_codes, unwrap_functions
from modpack.saving.base import Filling
from modpack.saving.function_source import FUTURE_FLAGS, same_code

_ABSENT = object()
_MAX_LITERAL_LENGTH = 500
_ATOMS = (int, float, str, bytes, bool, type(None), type(...))
_CONTAINERS = (
    *(dict, list, set),
    *(collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter),
)
_TYPE_EXPRESSION = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List),
    *(ast.BinOp, ast.BitOr, ast.expr_context),
)
_ALIASES = (
    *(types.GenericAlias, types.UnionType),
    *(type(typing.List[int]), type(typing.Union[int, str])),  # noqa: UP006, UP007
)
_TYPE_VARIABLES = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
    if hasattr(typing, name)  # of later versions of Python than 3.10
)
_CODE_TYPES = (type, ModuleType, FunctionType, types.BuiltinFunctionType)
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
_CHANGED = (
    "its source has changed since it was executed, or other code has replaced parts of it",
    "Run the script or the cell again and re-create the object, or move the definition into a "
    "module.",
)
_NO_SOURCE = (
    "its source cannot be found, because no class statement of the script defines it",
    "Define it with a class statement in a file or in a notebook cell, or move it into a module.",
)


class CaptureMethod(enum.Enum):
    """The way in which the definitions module binds a name."""

    TEXT = "text"
    LITERAL = "literal"
    VALUE = "value"
    """The pickle sets its value. The module's text, if any, binds the name before that."""
    ABSENT = "absent"
    PROBLEM = "problem"


class CapturedName(NamedTuple):
    """The way in which one name gets into the package.

    Attributes:
        how: The method.
        statement: The included statement. For a literal or a value, the first statement that binds
            the name, if any.
        text: The literal, or the description of a problem.
        hint: How to fix a problem.
        before: For a value, the included statement that binds the name to something else until the
            value is set.
    """

    how: CaptureMethod
    statement: TopLevelStatement | None = None
    text: str = ""
    hint: str = ""
    before: TopLevelStatement | None = None

    @property
    def included(self) -> TopLevelStatement | None:
        """The statement whose text is in the module, if any."""
        return self.statement if self.how is CaptureMethod.TEXT else self.before


class DefinitionSelector:
    """Selects the capture method for the names of one script.

    Args:
        script: The source.
        namespace: The globals.
    """

    def __init__(self, script: Script, namespace: Mapping[str, Any]) -> None:
        self.script = script
        self.namespace = namespace
        self._compiled: dict[tuple[Cell, int], CodeType | None] = {}

    def choose(self, name: str) -> CapturedName:
        """Select the method for a name by its current value."""
        statements = self.script.find_bindings(name)
        if name not in self.namespace:
            # An import under TYPE_CHECKING, for a name that only annotations use.
            for statement in statements:
                if statement.kind is StatementKind.IMPORT_BLOCK:
                    return CapturedName(CaptureMethod.TEXT, statement)
            return CapturedName(CaptureMethod.ABSENT)
        value = self.namespace[name]
        # The last one first: a later binding replaces an earlier one.
        for statement in reversed(statements or self.script.star_imports):
            if self._may_produce(statement, name, value):
                return CapturedName(CaptureMethod.TEXT, statement)
        if is_a(value, (type, FunctionType)) and self._is_defined_in_script(value, name):
            is_class = is_a(value, type)
            kind = StatementKind.CLASS if is_class else StatementKind.FUNCTION
            made = [each for each in statements if each.kind is kind]
            if made:
                return CapturedName(CaptureMethod.PROBLEM, made[-1], *_CHANGED)
            called = [each for each in statements if isinstance(each.value, ast.Call)]
            if is_class and called:  # such as Point = namedtuple("Point", "x y")
                return CapturedName(CaptureMethod.TEXT, called[-1])
            if is_class:
                return CapturedName(CaptureMethod.PROBLEM, None, *_NO_SOURCE)
        first, literal = statements[0] if statements else None, _literal_of(value)
        if literal is not None:
            return CapturedName(CaptureMethod.LITERAL, first, literal)
        # Definitions may use a container before its value is set: @register fills a registry.
        container = next((each for each in statements if self._is_container(each.value)), None)
        return CapturedName(CaptureMethod.VALUE, first, before=container)

    def _may_produce(self, statement: TopLevelStatement, name: str, value: Any) -> bool:
        """Return whether a statement alone binds a name to its current value, as far as known."""
        if statement.kind in (StatementKind.IMPORT, StatementKind.IMPORT_BLOCK):
            return self._binds_by_import(statement.node, name, value)
        if statement.kind is StatementKind.FUNCTION:
            return self._may_create_function(value, statement)
        if statement.kind is StatementKind.CLASS:
            if not isinstance(value, type):  # a decorator has replaced the class
                return statement is self.script.find_bindings(name)[-1]
            is_own = self._is_defined_in_script(value, name)
            return is_own and self._may_create_class(value, statement)
        expression = statement.value
        if expression is None:
            return False
        # Pickle refers to a type variable, for example, by a name of its module.
        is_named = is_a(value, _TYPE_VARIABLES) and getattr(value, "__name__", None) == name
        # A literal of a container would not be the object that other objects share.
        is_same = _literal_of(value) is not None and is_literal(expression, value)
        # A type such as ``dict[str, Tensor]``, for annotations.
        is_alias = is_a(value, _ALIASES) and all(
            isinstance(part, _TYPE_EXPRESSION) for part in ast.walk(expression)
        )
        return is_named or is_same or is_alias or self._refers_to(expression, value)

    def _resolved(self, expression: ast.expr | None) -> Any:
        """Resolve a dotted name through modules and classes only. None for other expressions."""
        if not isinstance(expression, (ast.Name, ast.Attribute)):
            return None
        first, *others = ast.unparse(expression).split(".")
        found = self.namespace.get(first)
        # Not getattr, which may run a property or a module's ``__getattr__``.
        for part in others:
            found = module_dict(found).get(part)
        return found

    def _refers_to(self, expression: ast.expr | None, value: Any) -> bool:
        """Return whether an expression names an object that a definition or an import created."""
        return is_a(value, _CODE_TYPES) and self._resolved(expression) is value

    def _is_container(self, expression: ast.expr | None) -> bool:
        """Return whether an expression only creates a new container of literals."""
        if isinstance(expression, ast.Call):
            made = self._resolved(expression.func)
            if made is None and isinstance(expression.func, ast.Name):
                made = getattr(builtins, expression.func.id, None)
            arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
            return made in _CONTAINERS and all(map(_is_argument, arguments))
        return isinstance(expression, (ast.List, ast.Dict, ast.Set)) and _is_argument(expression)

    def _binds_by_import(self, statement: ast.stmt, name: str, value: Any) -> bool:
        """Return whether an import, or one in a block of imports, binds a name to a value."""
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if self._imported_value(node, name) is value:
                    return True
            elif isinstance(node, ast.Assign):
                if any(isinstance(each, ast.Name) and each.id == name for each in node.targets):
                    if is_literal(node.value, value) or self._refers_to(node.value, value):
                        return True
        return False

    def _imported_value(self, node: ast.Import | ast.ImportFrom, name: str) -> Any:
        """Return the value that an import statement binds a name to, without importing anything."""
        package = str(self.namespace.get("__package__") or "")
        for bound, meaning in import_bindings(node, package):
            if bound not in (name, "*"):
                continue
            if isinstance(node, ast.Import):
                return sys.modules.get(meaning, _ABSENT)
            module, _, attribute = meaning.rpartition(".")
            attribute = name if bound == "*" else attribute
            if module in sys.modules:
                found = getattr(sys.modules[module], attribute, _ABSENT)  # as the script did
                submodule = sys.modules.get(f"{module}.{attribute}", _ABSENT)
                return submodule if found is _ABSENT else found
        return _ABSENT

    def _is_defined_in_script(self, value: Any, name: str) -> bool:
        here = self.namespace.get("__name__")
        return bool(value.__module__ == here and value.__qualname__ == name)

    def _may_create_function(self, value: Any, statement: TopLevelStatement) -> bool:
        """Return whether a function statement may have created an object, judging by its code.

        A decorated object that contains no function of that name is accepted.
        """
        made = list(unwrap_functions(value))
        for function in made:
            code = self._code_of(statement, function.__code__.co_flags & FUTURE_FLAGS)
            if code is not None and same_code(code, function.__code__):
                return True
        if any(each.__code__.co_name == statement.binds[0] for each in made):
            return False
        is_decorated = bool(getattr(statement.node, "decorator_list", []))
        return is_decorated or type(value) is not FunctionType

    def _may_create_class(self, kind: type, statement: TopLevelStatement) -> bool:
        """Return whether a class statement may have created a class, by its methods and bases."""
        body = self._code_of(statement, flags_of(kind))
        if body is None or not isinstance(statement.node, ast.ClassDef):
            return False
        for method in _methods(statement.node):
            # A decorator may return something that the class does not keep.
            if _mangle(kind, method.name) not in vars(kind) and not method.decorator_list:
                return False
        # Methods from other files, or of another name, were generated by a decorator or a
        # metaclass, or set later.
        files = {absolute_file(cell.file) for cell in self.script.cells}
        here, codes = absolute_file(statement.cell.file), list(nested_codes(body))
        for value in vars(kind).values():
            for function in unwrap_functions(value):
                file = absolute_file(function.__code__.co_filename)
                own = f"{kind.__qualname__}.{function.__code__.co_name}"
                if function.__qualname__ == own and file in files:
                    if file != here or not _is_among(codes, function):
                        return False
        bases = (*kind.__bases__, *getattr(kind, "__orig_bases__", ()))
        for base in statement.node.bases:
            found = self._resolved(base)
            # class Linear(Linear): the name led to another class before
            if found is not kind and is_a(found, type):
                if not any(each is found for each in bases):
                    return False
        return True

    def _code_of(self, statement: TopLevelStatement, flags: int) -> CodeType | None:
        """Compile the current source of a class or function, and return its code."""
        # The flags of the live code count: a later cell may have changed those of the session.
        cell = statement.cell
        if (cell, flags) not in self._compiled:
            all_flags = flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = self.script.cells[cell]
            try:
                module = compile(tree, cell.file, "exec", all_flags, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError):
                module = None
            self._compiled[cell, flags] = module
        module = self._compiled[cell, flags]
        lines = (statement.line, statement.node.lineno)
        for code in nested_codes(module, deep=False) if module is not None else ():
            if code.co_name == statement.binds[0] and code.co_firstlineno in lines:
                return code
        return None

    def fillings(self, name: str, statement: TopLevelStatement) -> Iterator[Filling]:
        """Yield values to set on a class or function after its definition is executed.

        These are default values and class attributes that are not literals, and attributes that
        were added or replaced later.
        """
        value = self.namespace.get(name)  # missing for names that only type checkers see
        node = statement.node
        if (
            isinstance(node, _FUNCTION_NODES)
            and type(value) is FunctionType
            and not node.decorator_list
        ):
            yield from self._function_fillings((name,), value, node)
        elif isinstance(node, ast.ClassDef) and isinstance(value, type):
            if not issubclass(value, enum.Enum):
                yield from self._class_fillings(name, value, node, statement)

    def _function_fillings(
        self,
        path: tuple[str, ...],
        function: FunctionType,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
    ) -> Iterator[Filling]:
        named = [default for default in node.args.kw_defaults if default is not None]
        for attribute, expressions, values in (
            ("__defaults__", node.args.defaults, function.__defaults__ or ()),
            ("__kwdefaults__", named, tuple((function.__kwdefaults__ or {}).values())),
        ):
            is_same = len(expressions) == len(values)
            if not is_same or not all(map(self._is_reproducible, expressions, values)):
                yield Filling((*path, attribute), getattr(function, attribute))
        for name, value in vars(function).items():
            yield Filling((*path, name), value)

    def _class_fillings(
        self, path: str, kind: type, node: ast.ClassDef, statement: TopLevelStatement
    ) -> Iterator[Filling]:
        own, body = vars(kind), self._code_of(statement, flags_of(kind))
        codes = [] if body is None else list(nested_codes(body))
        replaced = set()
        for method in _methods(node):
            name = _mangle(kind, method.name)
            live, is_decorated = own.get(name), bool(method.decorator_list)
            functions = (f for f in unwrap_functions(live) if f.__code__.co_name == method.name)
            if codes and not is_decorated and not any(_is_among(codes, f) for f in functions):
                replaced.add(name)  # after the class was made
                if name in own:
                    yield Filling((path, name), live)
                continue
            bare = live.__func__ if is_a(live, (staticmethod, classmethod)) else live
            decorators = {getattr(each, "id", None) for each in method.decorator_list}
            if type(bare) is FunctionType and decorators <= {"staticmethod", "classmethod"}:
                yield from self._function_fillings((path, name), bare, method)
        for name in self._members_to_set(kind, node, codes):
            if name not in replaced:
                yield Filling((path, name), own[name])

    def _members_to_set(
        self, kind: type, node: ast.ClassDef, codes: Sequence[CodeType]
    ) -> Iterator[str]:
        """Yield the attributes of a class that its body alone would not produce.

        Setting attributes of a named tuple or a special class may have side effects, and
        decorators, metaclasses, and base classes add functions themselves. For such classes, only
        what the script sets counts.
        """
        written: dict[str, ast.expr | None] = {}
        for each in node.body:
            if isinstance(each, (ast.Assign, ast.AnnAssign)):
                names = (target.id for target in targets_of(each) if isinstance(target, ast.Name))
                written.update(dict.fromkeys(names, each.value))
        methods = {_mangle(kind, method.name) for method in _methods(node)}
        is_plain = type(kind) in (type, abc.ABCMeta) and not hasattr(kind, "_fields")
        gets_no_code = is_plain and not node.decorator_list
        gets_no_code &= not any("__init_subclass__" in vars(b) for b in type.mro(kind)[1:-1])
        for name, value in vars(kind).items():
            is_code, expression = _is_code(value), written.get(name)
            is_special = (name.startswith("__") and name.endswith("__")) or name == "_abc_impl"
            if name in methods or (is_special and not is_code):
                continue
            functions = list(unwrap_functions(value)) if is_code else []
            inside = (f for f in functions if f.__qualname__.startswith(f"{kind.__qualname__}."))
            if any(_is_among(codes, function) for function in inside):
                continue
            if expression is not None and is_code:
                # Unless it is computed, the body shows its value.
                named = self._resolved(expression)
                differs = isinstance(expression, ast.Lambda) or named not in (None, value)
            elif expression is not None:
                differs = not self._is_reproducible(expression, value)
            else:
                is_set = gets_no_code if is_code else is_plain
                is_set |= (kind.__name__, name) in self.script.patched
                differs = any(map(self._is_of_script, functions)) or (
                    is_set and not _class_binds(node, name)
                )
            if differs:
                yield name

    def _is_of_script(self, function: FunctionType) -> bool:
        file = absolute_file(function.__code__.co_filename)
        is_in_cell = any(file == absolute_file(cell.file) for cell in self.script.cells)
        return is_in_cell and function.__globals__ is self.namespace

    def _is_reproducible(self, expression: ast.expr, value: Any) -> bool:
        """Return whether an expression in a definition has this value in any environment."""
        if self._refers_to(expression, value):
            return True
        is_same = is_literal(expression, value) or self._resolved(expression) is value
        return is_same and _literal_of(value) is not None


def _is_code(value: Any) -> bool:
    """Return whether a class attribute is a function, class, module, or descriptor of a user."""
    if is_a(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):  # made by Python
        return False
    return is_a(value, (ModuleType, type)) or hasattr(type(value), "__get__")


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield the methods of a class body, the last one of each name."""
    by_name = {each.name: each for each in node.body if isinstance(each, _FUNCTION_NODES)}
    yield from by_name.values()  # type: ignore[misc]  # asynchronous ones look alike


def _is_among(codes: Iterable[CodeType], function: FunctionType) -> bool:
    """Return whether one of the codes, under its name, is that of a function."""
    name = function.__code__.co_name
    return any(code.co_name == name and same_code(code, function.__code__) for code in codes)


def _mangle(kind: type, name: str) -> str:
    """Return the name under which a class stores ``__name``."""
    owner = kind.__name__.lstrip("_")  # Python mangles nothing in a class of underscores only
    is_private = bool(owner) and name.startswith("__") and not name.endswith("__")
    return f"_{owner}{name}" if is_private else name


def flags_of(value: Any) -> int:
    """Return the ``from __future__`` flags of a function or of a class's methods."""
    here = getattr(value, "__module__", None)
    parts = list(vars(value).values()) if is_a(value, type) else [value]
    for part in parts:
        for function in unwrap_functions(part):
            if function.__module__ == here:
                return function.__code__.co_flags & FUTURE_FLAGS
    return 0


def _literal_of(value: Any) -> str | None:
    """Return a literal for an immutable value: a number, a text, or a tuple of these.

    >>> _literal_of((1, "a")), _literal_of([1]), _literal_of(float("nan"))
    ("(1, 'a')", None, None)
    """
    text = repr(value) if _is_immutable(value) else ""
    return text if 0 < len(text) <= _MAX_LITERAL_LENGTH else None


def _is_immutable(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    # There are no literals of infinity and of numbers that are none.
    return type(value) in _ATOMS and (type(value) is not float or math.isfinite(value))


def is_literal(expression: ast.expr | None, value: Any) -> bool:
    """Return whether an expression is a literal of exactly this value: ``1`` is not ``True``."""
    # Equality would not do: 1 == True and 0.0 == -0.0.
    literal = _evaluate(expression) if expression is not None else _ABSENT
    return type(literal) is type(value) and repr(literal) == repr(value)


def _evaluate(expression: ast.expr) -> Any:
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _ABSENT


def _is_argument(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id in ("list", "dict", "set", "int", "float", "str", "tuple", "bool")
    return _evaluate(expression) is not _ABSENT


def _class_binds(node: ast.ClassDef, name: str) -> bool:
    """Return whether any statement of a class body, however nested, binds a name."""
    return any(
        getattr(each, "name", None) == name
        or (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        for each in ast.walk(node)
    )
