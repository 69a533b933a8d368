"""In what the code of a live module differs from its source."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from modpack.packing.scriptproof import codes_in, functions_in
from modpack.packing.scriptsources import same_file
from modpack.pickling.functiontext import same_code
from modpack.resolution.live import is_a

__all__ = ["Difference", "difference"]

_SHOWN: Final = 3
_HEADER: Final = 16
"""Bytes before the code in a .pyc: magic number, flags, the source's time and size (PEP 552)."""


@dataclass(frozen=True)
class Difference:
    """How a live module differs from its source.

    Attributes:
        what: a clause that says it.
        line: where in the source, 1-based.
    """

    what: str
    line: int


def difference(live: Mapping[str, object], source: bytes, file: str) -> Difference | None:
    """In what a live module differs from its source.

    Functions, and methods of classes, are compared with what the source compiles to. What stands
    outside of them leaves no code behind in a live module: that is known if the ``.pyc`` is still
    the one of the import.

    Args:
        live: what the module holds.
        source: what its file says now.
        file: its file.

    Returns:
        None if they do the same, as far as can be known, or if the source cannot be compiled,
        which others tell.
    """
    try:
        compiled = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    codes: dict[str, list[CodeType]] = {}
    for code in codes_in(compiled):
        codes.setdefault(code.co_name, []).append(code)
    others: dict[str, int] = {}
    for function in _functions_of(live, file):
        like = codes.get(function.__code__.co_name, [])
        if not any(same_code(code, function.__code__) for code in like):
            others.setdefault(function.__qualname__, like[0].co_firstlineno if like else 1)
    if others:
        return Difference(_named(list(others)), next(iter(others.values())))
    before = _code_before(file)
    if before is None or same_code(before, compiled):
        return None
    return Difference("what stands outside of its functions is not what ran", 1)


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} does what its source said then"
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    *shown, last = names[:_SHOWN] + more
    return f"{', '.join(shown)} and {last} do what their source said then"


def _functions_of(live: Mapping[str, object], file: str) -> Iterator[FunctionType]:
    """The functions that a file defines, as far as its module and their classes hold them."""
    todo: list[Any] = list(live.values())
    seen: set[int] = set()
    for value in todo:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not is_a(value, type):
            found = functions_in(value)
            yield from (each for each in found if same_file(each.__code__.co_filename, file))
        elif vars(value).get("__module__") == live.get("__name__"):
            todo += vars(value).values()


def _code_before(file: str) -> CodeType | None:
    """What a file compiled to when it was last imported; None if that is what it says now.

    None as well where nobody knows: there is no ``.pyc``, or it belongs to another Python.
    """
    try:
        data = Path(cache_from_source(file)).read_bytes()
        status = Path(file).stat()
    except (OSError, NotImplementedError):
        return None
    time_and_size = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    known = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
    by_time = data[:8] == MAGIC_NUMBER + bytes(4)
    if not by_time or known == time_and_size:
        return None
    try:
        code = marshal.loads(data[_HEADER:])
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None
