"""Compile imports at module level so that they can wait until a name is looked up.

``from mylib.ops import fuse`` becomes ``if __modpack_defer__(...): from mylib.ops import fuse``. At
run time, :class:`.ModuleBuiltins` notes the import and skips the statement, or lets it run where it
stands. No other code changes: what reads the name later is compiled as it is written.

Statements stay where their effect is part of the module's control flow (``try``, ``with``, loops,
class bodies), and where nothing in the module reads the name: such a module may be imported for its
side effects. ``import a.b`` binds ``a`` and is left alone, too.

A ``try`` that only asks whether something can be imported is executed as a whole when one of its
names is looked up. Its handlers are executed then, so that it binds what it would have bound.

Before Python 3.14, a ``def`` evaluates its annotations, most of which no code ever reads. Those
that may name something that waits are evaluated when they are read for the first time.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from copy import copy
from typing import Final, NamedTuple, TypeAlias

DEFER_NAME: Final = "__modpack_defer__"
"""The builtin that notes an import; see :meth:`.ModuleBuiltins.defer`."""
ANNOTATE_NAME: Final = "__modpack_annotate__"
"""The builtin that sets postponed annotations; see :meth:`.ModuleBuiltins.annotate`."""
COMPILER_NAME: Final = "__modpack_compiler__"
"""The builtin that replaces decorators of torch's compiler; see :func:`.decorate`."""
COMPILER_DECORATORS: Final = ("allow_in_graph", "assume_constant_result", "disable")
"""Functions of ``torch.compiler`` that import the compiler only to mark a function."""
_PUBLIC_MARKERS: Final = frozenset({"allow_in_graph", "assume_constant_result"})
"""Those that have the same parameters in ``torch._dynamo``."""

_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
_MARKER: Final = re.compile(
    rb"(?m)^[ \t]*@[^\n]*(?:%s)|\btorch[.]_dynamo[ \t]+import\b"
    % "|".join(COMPILER_DECORATORS).encode()
)
"""A decorator of torch's compiler, perhaps under a longer name, or an import of one."""
_DEFERRABLE: Final = re.compile(rb"(?m)^[ \t]*(?:from\b[^\n]*\bimport\b|import\b)")
_READS_ALL_NAMES: Final = re.compile(
    rb"\b(?:f_globals|__globals__|__builtins__|_getframe)\b"
    rb"|(?<!\bself)\.\s*__class__\s*=[^=]|\bjit\b[^\n]*\bscript"
)
"""Code that reads a module's names in other ways than by looking one up, or changes its class."""
_LISTS_NAMES: Final = re.compile(rb"\b(?:dir|locals|vars)\s*\(\s*\)")
"""Calls that list the names of the scope that they are in."""
_TEXT: Final = re.compile(
    rb"(?s)((?:[rR]?[fF][rR]?)(?:\"\"\"(?:\\.|.)*?\"\"\"|'''(?:\\.|.)*?'''))"
    rb"|\"\"\"(?:\\.|.)*?\"\"\"|'''(?:\\.|.)*?'''|#[^\n]*"
    rb"|(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
)
"""Text in triple quotes and comments, in which a word is no use of a name; and other strings, which
are captured: ``__all__`` and quoted annotations are in them."""
_WORD: Final = re.compile(rb"(?<![\w.])[A-Za-z_]\w*")
_GLOBAL: Final = re.compile(rb"\bglobal[ \t]+([\w, \t]+)")


class _Choice(NamedTuple):
    """Which imports of a module may wait.

    Attributes:
        chosen: The names that may, from a trial run. None if only the rules below decide.
        kept: Names that a function binds or that are deleted.
        used: The words in the module's code; None if no name has to be among them.
        has_hook: Whether the module defines ``__getattr__``.
    """

    chosen: Collection[str] | None
    kept: Collection[bytes]
    used: Collection[bytes] | None
    has_hook: bool

    def allows(self, name: str, module: str, *, is_used: bool = False) -> bool:
        """Return whether the import of a name may wait."""
        if self.chosen is not None:
            return name in self.chosen and module != "__future__"
        is_plain = "." not in name and name != "*" and not name.startswith("__")
        may_wait = is_plain and module != "__future__" and name.encode() not in self.kept
        return may_wait and (is_used or self.used is None or name.encode() in self.used)


def needs_change(source: bytes, chosen: Collection[str] | None) -> bool:
    """Return whether :func:`postpone_imports` may change a source."""
    if chosen is not None and not chosen:
        return _MARKER.search(source) is not None
    return _DEFERRABLE.search(source) is not None


def postpone_imports(
    tree: ast.Module, source: bytes, is_package: bool, chosen: Collection[str] | None
) -> bool:
    """Change a module's syntax tree in place so that its imports can wait.

    Args:
        tree: The syntax tree.
        source: The source that it was parsed from.
        is_package: Whether the module is a Python package. Its imports are names for others, so
            they can wait although the module itself does not read them.
        chosen: The names that still waited at the end of a trial run; None if no run has loaded
            the module.

    Returns:
        Whether anything was changed.
    """
    choice = _choice(tree, source, is_package, chosen)
    if choice is None:
        return False
    has_marker = _MARKER.search(source) is not None
    names: set[str] = set()
    # Before imports are deferred, which note the module that they name then.
    marks = has_marker and _bind_markers(tree.body)
    for block in _blocks(tree.body):
        block[:] = [each for old in block for each in _deferred(old, choice, names)]
    marks |= has_marker and _mark_compiler_decorators(tree.body)
    if names and sys.version_info < (3, 14) and not _has_postponed_annotations(tree):
        _postpone_annotations(tree.body, frozenset(), names)
    return bool(names) or marks


def _choice(
    tree: ast.Module, source: bytes, is_package: bool, chosen: Collection[str] | None
) -> _Choice | None:
    """Return which imports may wait; None if the module reads names in other ways."""
    has_hook = b"__getattr__" in source and "__getattr__" in _bound_names(tree.body)
    if chosen is not None:  # the trial has followed these rules
        return _Choice(chosen, (), None, has_hook)
    text = without_text(source)
    if _READS_ALL_NAMES.search(text):
        return None
    if _LISTS_NAMES.search(text) and any(map(_lists_names, _scope_nodes(tree))):
        return None
    # Functions may bind a global name themselves, and ``del`` fails if it is not bound yet.
    kept = {name.strip() for names in _GLOBAL.findall(text) for name in names.split(b",")}
    kept |= {name.encode() for name in _deleted_names(tree.body)}
    return _Choice(None, kept, None if is_package else _used_words(tree, source), has_hook)


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield a module's statements and those in branches of ``if``, the inner ones first."""
    for statement in list(body):
        if isinstance(statement, ast.If):
            yield from _blocks(statement.body)
            yield from _blocks(statement.orelse)
    yield body


def _module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements that run in the module's own scope."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _module_statements([child])
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                yield from _module_statements(child.body)


def _scope_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in the module's own scope."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _scope_nodes(node)


def _lists_names(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Name)
    return is_call and node.func.id in ("dir", "locals", "vars")  # type: ignore[attr-defined]


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    for statement in _module_statements(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            yield from _names_in(statement.targets)
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            yield from _names_in([statement.target])


def _deleted_names(body: list[ast.stmt]) -> Iterator[str]:
    for statement in _module_statements(body):
        if isinstance(statement, ast.Delete):
            yield from _names_in(statement.targets)


def _names_in(targets: list[ast.expr]) -> Iterator[str]:
    for target in targets:
        yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _used_words(tree: ast.Module, source: bytes) -> set[bytes]:
    """Return the words in a source outside of comments, docstrings, and the module's imports.

    A word after a dot is an attribute: ``torch.ops`` is no use of ``from . import ops``.
    """
    lines = source.splitlines(keepends=True)
    for statement in _module_statements(tree.body):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                # Not removed, because the numbers of other lines must stay.
                lines[number] = b"\n"
    return set(_WORD.findall(without_text(b"".join(lines))))


def without_text(source: bytes) -> bytes:
    """Return a source without docstrings and comments."""
    return _TEXT.sub(rb"\1\2", source)


def _deferred(statement: ast.stmt, choice: _Choice, names: set[str]) -> list[ast.stmt]:
    """Return the statements that replace one, and add the names that may wait."""
    if isinstance(statement, ast.Try):
        return [_deferred_probe(statement, choice, names)]
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [statement]
    waiting, others = [], []
    for target, alias in zip(_targets(statement), statement.names, strict=True):
        if choice.allows(target[0], target[1]):
            waiting.append((target, alias))
        else:
            others.append(alias)
    statement.names = others
    result: list[ast.stmt] = [statement] if statement.names else []
    # A statement for each name, because each waits on its own.
    for target, alias in waiting:
        own = copy(statement)
        own.names = [alias]
        names.add(target[0])
        test = _call(DEFER_NAME, _constants([target], statement.lineno, choice.has_hook))
        placed = ast.copy_location(ast.If(test, [own], []), statement)
        result.append(ast.fix_missing_locations(placed))
    return result


def _deferred_probe(statement: ast.Try, choice: _Choice, names: set[str]) -> ast.stmt:
    """Return what replaces a ``try``, and add the names that it binds if it may wait.

    It may if all that it does is to import and to set names to constants, by which other code sees
    whether the import has failed. The constants stand for a use of the imported names.
    """
    imports = [each for each in statement.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    targets = [target for each in imports for target in _targets(each)]
    plain = [each for each in statement.body if each not in imports] + statement.orelse
    handled = [each for handler in statement.handlers for each in handler.body]
    flags = set(_names_in([t for e in (*plain, *handled) for t in getattr(e, "targets", ())]))
    may_wait = (
        bool(targets and flags and handled)
        and not statement.finalbody
        and all(map(_catches_missing, statement.handlers))
        and all(_sets_constant(each) for each in (*plain, *handled))
        and all(choice.allows(name, module, is_used=True) for name, module, _, _ in targets)
        and all(choice.allows(name, "", is_used=True) for name in flags)
    )
    if not may_wait:
        return statement
    names.update(flags, (name for name, *_ in targets))
    # Those that an import binds first have a target of their own.
    others = tuple(sorted(flags - {name for name, *_ in targets}))
    given = (targets, statement.lineno, choice.has_hook, others, ast.unparse(statement))
    own = ast.If(_call(DEFER_NAME, _constants(*given)), [statement], [])
    return ast.fix_missing_locations(ast.copy_location(own, statement))


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler is for imports that fail, and does not look at the error."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    known = ("ImportError", "ModuleNotFoundError")
    return handler.name is None and all(
        isinstance(each, ast.Name) and each.id in known for each in kinds
    )


def _sets_constant(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        are_names = all(isinstance(each, ast.Name) for each in statement.targets)
        return are_names and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


def _targets(statement: ast.Import | ast.ImportFrom) -> list[tuple[str, str, int, str]]:
    """Return what an import binds: name, module, number of leading dots, and attribute."""
    if isinstance(statement, ast.Import):
        return [(each.asname or each.name, each.name, 0, "") for each in statement.names]
    module, level = statement.module or "", statement.level
    return [(each.asname or each.name, module, level, each.name) for each in statement.names]


def _constants(targets: list[tuple[str, str, int, str]], *others: object) -> list[ast.expr]:
    """Return the arguments of :meth:`.ModuleBuiltins.defer`."""
    return [ast.Constant(each) for each in (tuple(targets), *others)]  # type: ignore[arg-type]


def _call(name: str, arguments: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def _bind_markers(body: list[ast.stmt]) -> bool:
    """Import markers such as ``torch._dynamo.allow_in_graph`` from ``torch.compiler`` instead.

    The public functions do the same, but import the compiler only when they are called. The import
    may be in ``try``, because it fails in the same versions of torch: none that modpack supports.
    """
    changed = False
    for statement in _module_statements(body):
        if isinstance(statement, ast.ImportFrom) and statement.module == "torch._dynamo":
            if not statement.level and {each.name for each in statement.names} <= _PUBLIC_MARKERS:
                statement.module = "torch.compiler"
                changed = True
    return changed


def _mark_compiler_decorators(body: list[ast.stmt]) -> bool:
    """Replace decorators that are or may be ``torch.compiler.disable`` and its like."""
    changed = False
    for definition, _ in _definitions(body, frozenset()):
        for number, decorator in enumerate(definition.decorator_list):
            call = decorator if isinstance(decorator, ast.Call) else None
            named = decorator if call is None else call.func
            name = str(getattr(named, "attr", getattr(named, "id", "")))
            if not any(marker in name for marker in COMPILER_DECORATORS):
                continue
            marked = ast.Call(ast.Name(COMPILER_NAME, ast.Load()), [named], [])
            if call is not None:
                marked.args += [ast.Constant(value=True), *call.args]
                marked.keywords = call.keywords
            definition.decorator_list[number] = ast.copy_location(marked, decorator)
            ast.fix_missing_locations(marked)
            changed = True
    return changed


def _definitions(
    body: list[ast.stmt], in_classes: frozenset[str]
) -> Iterator[tuple[_Function | ast.ClassDef, frozenset[str]]]:
    """Yield a module's functions, classes, and methods, with the names of the classes' scopes."""
    for statement in _module_statements(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement, in_classes
        if isinstance(statement, ast.ClassDef):
            bound = frozenset(_bound_names(statement.body)) | in_classes
            yield from _definitions(statement.body, bound)


def _has_postponed_annotations(tree: ast.Module) -> bool:
    return any(
        isinstance(each, ast.ImportFrom)
        and each.module == "__future__"
        and any(alias.name == "annotations" for alias in each.names)
        for each in tree.body
    )


def _postpone_annotations(
    body: list[ast.stmt], in_classes: frozenset[str], waiting: set[str]
) -> None:
    """Postpone the annotations of functions that name something that may wait."""
    for function, bound in _definitions(body, in_classes):
        # The names of type parameters are in a scope of their own.
        if isinstance(function, ast.ClassDef) or getattr(function, "type_params", None):
            continue
        order: list[str] = []
        thunks: list[tuple[str, ast.expr]] = []
        names: set[str] = set()
        for key, holder, attribute in _annotations(function):
            annotation: ast.expr = getattr(holder, attribute)
            order.append(key)
            # The annotation becomes a lambda, which does not see names of a class body around it.
            read = {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)}
            if not read & waiting or read & bound or _is_mangled(read):
                continue
            if not any(isinstance(each, _SCOPED) for each in ast.walk(annotation)):
                setattr(holder, attribute, None)
                thunks.append((key, annotation))
                names |= read & waiting
        if thunks:
            arguments = ast.arguments([], [], None, [], [], None, [])
            decorator = _call(
                ANNOTATE_NAME,
                [
                    ast.Tuple([ast.Constant(each) for each in order], ast.Load()),
                    ast.Dict(
                        [ast.Constant(key) for key, _ in thunks],
                        [ast.Lambda(arguments, annotation) for _, annotation in thunks],
                    ),
                    ast.Tuple([ast.Constant(each) for each in sorted(names)], ast.Load()),
                ],
            )
            # On the line of the def, which stays the function's first line.
            placed = ast.copy_location(decorator, function)
            placed.end_lineno, placed.end_col_offset = placed.lineno, placed.col_offset
            function.decorator_list.append(ast.fix_missing_locations(placed))


_SCOPED: Final = (ast.NamedExpr, ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await)


def _is_mangled(names: set[str]) -> bool:
    return any(name.startswith("__") for name in names)


def _annotations(function: _Function) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield key, holder, and attribute of each annotation, in the order of ``__annotations__``."""
    known = function.args
    # CPython evaluates positional-only parameters after the other positional ones.
    arguments = [*known.args, *known.posonlyargs, known.vararg, *known.kwonlyargs, known.kwarg]
    for argument in arguments:
        if argument is not None and argument.annotation is not None:
            yield argument.arg, argument, "annotation"
    if function.returns is not None:
        yield "return", function, "returns"
