"""Whether the code that torch generates for a graph is what it seems to be: tensors, computed.

A ``torch.fx.GraphModule`` in a plain pickle carries its code as a text, which is run when it is
loaded. What torch generates is of a narrow kind: one function, whose statements call functions of
torch and methods of values. Anything beyond that is refused.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from modpack.core.imports import ScanFailure
from modpack.core.knownmethods import is_harmless_method
from modpack.core.knownnames import is_known, special_attribute
from modpack.core.names import root_of
from modpack.discovery._parse import parse_source

__all__ = ["odd_part"]

_IMPORTS: Final = frozenset(
    {"import torch", "from torch import device", "from math import inf", "from math import nan"}
    | {"import torch.fx._pytree as fx_pytree", "import torch.utils._pytree as pytree"}
    | {"NoneType = type(None)"}
)
"""Lines that torch may put before the code."""
_GIVEN: Final = frozenset({"torch", "device", "inf", "nan", "fx_pytree", "pytree", "NoneType"})
_VALUES: Final = frozenset({"device", "inf", "nan", "NoneType"})
_BUILTINS: Final = frozenset({"Ellipsis", "bool", "dict", "float", "int", "list", "range", "slice"})
_TAKEN: Final = re.compile(
    r"from (?P<module>[\w.]+) import (?P<name>\w+)(?: as (?P<alias>\w+))?", re.ASCII
)
_SOURCES: Final = frozenset({"math", "typing", "collections"})
_HARMLESS: Final = _BUILTINS | {"abs", "len", "max", "min", "round", "sum", "tuple"}
_NODES: Final = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.Expr),
    *(ast.Pass, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Subscript),
    *(ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Starred),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.expr_context, ast.AnnAssign),
)


def odd_part(imports: str, code: str, is_only_torch: bool = True) -> str | None:
    r"""What in a graph's code is not of the kind that torch generates; None if nothing is.

    Args:
        imports: the lines that are run before the code.
        code: a function.
        is_only_torch: whether the pickle that holds it is made of nothing but objects of torch, so
            that whatever is below ``self`` is a module or a tensor.

    >>> odd_part("import torch", "def forward(self, x):\n    return torch.relu(x)")
    >>> odd_part("import torch", "def forward(self, x):\n    return torch.hub.load(x)")
    'torch.hub.load'
    """
    taken: set[str] = set()
    for line in map(str.strip, imports.split("\n")):
        names = _names_taken_by(line)
        if names is None:
            return line[:100]
        taken |= names
    parsed = parse_source(code)
    if isinstance(parsed, ScanFailure):
        return parsed.reason
    body = parsed.tree.body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].decorator_list:
        return "something besides one function"
    return next(
        (
            odd
            for odd in map(_Graph(body[0], taken, is_only_torch).odd, ast.walk(parsed.tree))
            if odd
        ),
        None,
    )


def _names_taken_by(line: str) -> frozenset[str] | None:
    """The names that a line before the code takes from elsewhere; None for unusual lines."""
    if not line or line in _IMPORTS:
        return frozenset()
    taken = _TAKEN.fullmatch(line)
    if taken is None:
        return None
    module, name, alias = taken["module"], taken["name"], taken["alias"] or taken["name"]
    if module == "builtins":
        return frozenset() if alias == name and name in _HARMLESS | {"getattr"} else None
    is_usual = module in _SOURCES or root_of(module) == "torch"
    is_free = alias not in _GIVEN | _HARMLESS | {"getattr", "self"}
    return frozenset({alias}) if is_usual and is_free and is_known(module, name) else None


class _Graph:
    """The code of one graph."""

    def __init__(self, function: ast.FunctionDef, taken: set[str], is_only_torch: bool) -> None:
        self._is_only_torch = is_only_torch
        nodes = list(ast.walk(function))
        self._taken = taken
        self._local = {each.arg for each in nodes if isinstance(each, ast.arg)}
        self._local |= {
            each.id
            for each in nodes
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        self._inner = {id(each.value) for each in nodes if isinstance(each, ast.Attribute)}
        self._inner |= {
            id(each.func) for each in nodes if isinstance(each, ast.Call) and _is_getattr(each)
        }

    def odd(self, node: ast.AST) -> str | None:
        if not isinstance(node, _NODES):
            return type(node).__name__
        if isinstance(node, ast.Attribute):
            if special_attribute(node.attr) is not None:
                return node.attr
            if not self._may_be_taken(node.value, node.attr):
                return node.attr
            return None if id(node) in self._inner else self._odd_name(node)
        if isinstance(node, ast.Name) and node.id == "self" and isinstance(node.ctx, ast.Store):
            return node.id
        if isinstance(node, ast.Name) and id(node) not in self._inner:
            return self._odd_name(node)
        if isinstance(node, ast.Call) and _is_getattr(node):
            return self._odd_getattr(node)
        return None

    def _odd_getattr(self, call: ast.Call) -> str | None:
        name = call.args[1] if len(call.args) > 1 else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            is_usual = self._may_be_taken(call.args[0], name.value)
            return special_attribute(name.value) if is_usual else name.value
        return "getattr"

    def _may_be_taken(self, owner: ast.expr, name: str) -> bool:
        """Whether an attribute leads to a module below ``self``, or to what tensors have."""
        is_harmless = is_harmless_method(name) or is_harmless_method(name.removesuffix("_"))
        if is_harmless or name in _OF_TENSORS:
            return True
        depth = _depth_below_self(owner)
        if depth is not None:
            return self._is_only_torch or depth == 0
        inner = owner
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        return isinstance(inner, ast.Name) and inner.id not in self._local

    def _odd_name(self, node: ast.Attribute | ast.Name) -> str | None:
        """A whole dotted name, of which nothing follows."""
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            return None  # an attribute of a value
        name = ".".join([inner.id, *reversed(parts)])
        if inner.id in self._local:
            return inner.id if inner.id in _GIVEN | _HARMLESS | {"getattr"} else None
        if not parts:
            return None if inner.id in _HARMLESS | _VALUES | self._taken else name
        is_given = inner.id == "torch" and _is_known_path(name)
        return None if is_given or name in _OF_TREES else name


def _is_getattr(call: ast.Call) -> bool:
    """Whether it is a call of ``getattr``, which must not be used in another way."""
    return isinstance(call.func, ast.Name) and call.func.id == "getattr"


def _depth_below_self(node: ast.expr) -> int | None:
    """How many attributes lead from ``self`` to a value; None if it is none below ``self``."""
    depth = 0
    while True:
        if isinstance(node, ast.Attribute):
            node = node.value
        elif isinstance(node, ast.Call) and _is_getattr(node) and node.args:
            node = node.args[0]
        else:
            return depth if isinstance(node, ast.Name) and node.id == "self" else None
        depth += 1


_OF_TENSORS: Final = frozenset(
    {"H", "T", "data", "device", "dim", "dtype", "grad", "is_complex", "is_cuda"}
    | {"is_floating_point", "layout", "mH", "mT", "ndim", "ndimension", "requires_grad", "shape"}
    | {"bool", "short", "byte", "char", "bfloat16", "cuda", "is_contiguous", "stride"}
    | {"new_empty_strided", "index_put", "masked_select", "storage_offset", "element_size"}
    | {
        "repeat",
        "unfold",
        "reshape_as",
        "sum_to_size",
        "nelement",
        "itemsize",
        "pin_memory",
        "type",
    }
    | {"to_dense", "to_sparse", "coalesce", "indices", "sparse_mask", "sparse_dim", "dense_dim"}
    | {"uniform_", "exponential_", "random_", "geometric_", "log_normal_", "cauchy_"}
    | {"fill_diagonal_", "cfloat", "cdouble", "is_leaf", "is_sparse", "is_quantized", "is_meta"}
)
_OF_TREES: Final = frozenset(
    {"fx_pytree.tree_flatten_spec", "pytree.tree_flatten", "pytree.tree_unflatten"}
)


def _is_known_path(path: str) -> bool:
    """Whether a dotted path below torch is on the list of known names, however it is cut."""
    parts = path.split(".")
    if parts[:2] == ["torch", "ops"]:
        return len(parts) in (4, 5) and not parts[2].startswith("_")
    cuts = range(1, len(parts))
    return any(is_known(".".join(parts[:at]), ".".join(parts[at:])) for at in cuts)
