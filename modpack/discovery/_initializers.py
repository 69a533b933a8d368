"""What calling a class makes of its arguments, where its ``__init__`` only keeps them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from modpack.core.defined import Initializer, Literal, Setting
from modpack.discovery._literals import UNKNOWN, dotted_name, literal_of, mangled
from modpack.discovery._nodes import nodes_in

__all__ = ["initializer_of"]

_LONGEST = 150
"""Lines of a class. One that only keeps settings is shorter; others took most of the time."""
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_OUT_OF_SIGHT = frozenset(
    {"__new__", "__setattr__", "__getattribute__", "__getattr__", "__post_init__"}
)
_BUILT = frozenset({"setattr", "vars", "__dict__"})


def initializer_of(node: ast.ClassDef) -> Initializer | None:
    """What a class keeps of the arguments that it is called with; None where that is not plain."""
    if (node.end_lineno or node.lineno) - node.lineno > _LONGEST:
        return None
    methods = [each for each in node.body if isinstance(each, _Function)]
    if any(method.name in _OUT_OF_SIGHT for method in methods):
        return None
    own = next((each for each in methods if each.name == "__init__"), None)
    if own is not None and not all(map(_is_plain, own.body)):
        return None
    if own is not None and node.bases and any(map(_is_made, own.body)):
        return None  # a part of a model, most likely
    changed: dict[str, int] = {}
    for method in methods:
        if method is not own and not _note_changes(method, changed):
            return None
    changed = {mangled(name, node.name): when for name, when in changed.items()}
    if own is None:
        return Initializer((), {}, changed)
    parameters = _parameters(own)
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
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(_own_attribute(each) for each in targets)
    return False


def _is_made(statement: ast.stmt) -> bool:
    """Whether a statement keeps what a call gives."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    return isinstance(statement.value, ast.Call)


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


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
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
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        name = dotted_name(statement.value)
        for target in targets:
            if name in names:
                yield _own_attribute(target), (name, UNKNOWN)
            else:
                yield _own_attribute(target), ("", literal_of(statement.value))


def _note_changes(method: ast.FunctionDef | ast.AsyncFunctionDef, changed: dict[str, int]) -> bool:
    """Note the attributes that a method sets; returns False if that cannot be read off."""
    parameters = {each.arg for each in (*method.args.args[1:], *method.args.kwonlyargs)}
    for node in nodes_in(method):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in _BUILT:
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed.setdefault(node.attr, Setting.RUNNING)
        if isinstance(node, ast.Assign) and not method.name.startswith("_"):
            uses = {part.id for part in nodes_in(node.value) if isinstance(part, ast.Name)}
            for target in node.targets:
                if uses & parameters and _own_attribute(target):
                    changed[_own_attribute(target)] = Setting.ON_REQUEST
    return True
