"""What torch evaluates and unpickles when it loads an exported program."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from modpack.archive.base import Archive
from modpack.errors import ArchiveError

__all__ = ["expressions_wrong", "is_program_pickle", "pickled_names"]

_LONGEST: Final = 100_000
_SYMBOL: Final = re.compile(r"[a-z]{1,8}[0-9]{1,9}")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_VALUES: Final = frozenset(("oo", "int_oo", "true", "false", "True", "False"))
_FUNCTIONS: Final = re.compile(
    r"Abs|Add|And|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|FloatPow|FloatTrueDiv|FloorDiv"
    r"|FloorToInt|Ge|GreaterThan|Gt|Identity|IntTrueDiv|Integer"
    r"|IsNonOverlappingAndDenseIndicator|LShift|Le|LessThan|Lt|Max|Min|Mod|ModularIndexing"
    r"|Mul|Ne|Not|Or|Pow|PowByNatural|PythonMod|RShift|Rational|RoundDecimal|RoundToInt"
    r"|StrictGreaterThan|StrictLessThan|ToFloat|TruncToFloat|TruncToInt|Unequality|Where"
    r"|OpaqueUnaryFn_[a-z0-9]+"
)
_SYNTAX: Final = (
    *(ast.Expression, ast.Load, ast.BinOp, ast.UnaryOp, ast.Compare, ast.USub),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr),
    *(ast.UAdd, ast.Invert, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_OBJECTS: Final = ("opaque_obj_", "custom_obj_")
_CONFIGS: Final = ("data/weights/", "data/constants/")


def is_program_pickle(name: str, pickled: frozenset[str]) -> bool:
    """Whether torch unpickles an entry of an archive, however it begins.

    Args:
        name: of the entry; torch finds entries whatever their case.
        pickled: what :func:`pickled_names` gives.
    """
    base = name.lower().rpartition("/")[2]
    return base.endswith((".pt", ".pth")) or base.startswith(_OBJECTS) or base in pickled


def pickled_names(archive: Archive) -> frozenset[str]:
    """The names of weights and constants that configs of the program have torch unpickle.

    Raises:
        ArchiveError: a config cannot be read.
    """
    names: set[str] = set()
    for record in archive.names():
        lowered = record.lower()
        if lowered.startswith(_CONFIGS) and lowered.endswith(".json"):
            names.update(_of_config(_read_json(archive, record), archive.source, record))
    return frozenset(names)


def _of_config(config: Any, source: str, record: str) -> Iterator[str]:
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict):
        raise ArchiveError(source, f"{record} is no config of an exported program", record)
    for entry in entries.values():
        path = entry.get("path_name") if isinstance(entry, dict) else None
        if not isinstance(path, str) or "/" in path or "\\" in path:
            raise ArchiveError(source, f"{record} names what cannot be followed", record)
        if entry.get("use_pickle") is not False:
            yield path.lower()


def expressions_wrong(archive: Archive) -> Iterator[tuple[str, str]]:
    """The expressions of the program's models that torch does not write: record, and expression.

    Raises:
        ArchiveError: a model cannot be read.
    """
    for record in archive.names():
        if record.lower().endswith(".json"):
            for text in _expressions(_read_json(archive, record)):
                if not _is_known(text):
                    yield record, repr(text)[:100]


def _read_json(archive: Archive, record: str) -> Any:
    try:
        return json.loads(archive.read(record))
    except (ValueError, RecursionError) as failure:
        reason = f"{record} cannot be read as JSON"
        raise ArchiveError(archive.source, reason, record) from failure


def _expressions(value: Any) -> Iterator[Any]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if "expr_str" in each:
                yield each["expr_str"]
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)


def _is_known(text: Any) -> bool:
    """Whether an expression is one of symbols, numbers, operators and torch's functions alone."""
    if not isinstance(text, str) or len(text) > _LONGEST or not text.isascii():
        return False
    if "#" in text or "\\" in text or "\n" in text:
        return False
    try:
        return _is_plain(ast.parse(text, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_plain(tree: ast.AST) -> bool:
    if isinstance(tree, ast.Constant):
        return type(tree.value) in (int, float, bool)
    if isinstance(tree, ast.Name):
        return tree.id in _VALUES or _SYMBOL.fullmatch(tree.id) is not None
    if isinstance(tree, ast.Call):
        return _is_plain_call(tree)
    return isinstance(tree, _SYNTAX) and all(map(_is_plain, ast.iter_child_nodes(tree)))


def _is_plain_call(call: ast.Call) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if not all(isinstance(each.value, ast.Constant) and each.arg for each in call.keywords):
        return False
    if name in ("Symbol", "Float"):
        return _is_leaf(call, _SYMBOL if name == "Symbol" else _NUMBER)
    is_known = _FUNCTIONS.fullmatch(name) is not None and not call.keywords
    return is_known and all(map(_is_plain, call.args))


def _is_leaf(call: ast.Call, pattern: re.Pattern[str]) -> bool:
    """Whether it is ``Symbol('s0', integer=True)`` or ``Float('1.5', precision=53)``."""
    first = call.args[0] if len(call.args) == 1 else None
    given = first.value if isinstance(first, ast.Constant) else None
    is_named = isinstance(given, str) and pattern.fullmatch(given) is not None
    return is_named and all(_is_plain(each.value) for each in call.keywords)
