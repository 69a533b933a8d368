"""Looking at a model from the outside: what it calls, and where a plan first breaks."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from modpack.core.plan import PackagingError

__all__ = ["find_first_use_of_broken_modules", "trace_dependencies"]


def trace_dependencies(
    callable: Callable[..., Any], inputs: Iterable[tuple[Any, ...]]
) -> list[str]:
    """Call something, and tell which modules the called code lives in.

    It is run: this is for code that you would run anyway.

    Args:
        callable: what to call.
        inputs: the positional arguments of each call.

    Raises:
        TypeError: an argument is none of these.

    Returns:
        The module paths of all Python functions that ran in this thread, sorted.

    >>> import json
    >>> trace_dependencies(json.dumps, [({"a": 1},)])
    ['json', 'json.encoder']
    """
    if not builtins.callable(callable):
        raise TypeError(f"callable must be callable, not {type(callable).__name__}")
    calls = _argument_tuples(inputs)
    modules: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__")
            if isinstance(name, str):
                modules.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for arguments in calls:
            callable(*arguments)
    finally:
        sys.setprofile(before)
    return sorted(modules - {__name__})


def find_first_use_of_broken_modules(exc: PackagingError) -> dict[str, list[str]]:
    """For each module that a :class:`PackagingError` is about, the chain that leads to it.

    Args:
        exc: the error.

    Returns:
        By module path: the importers from what was saved down to the module itself.

    Raises:
        TypeError: ``exc`` is another kind of error.
    """
    if not isinstance(exc, PackagingError):
        raise TypeError(f"exc must be a PackagingError, not {type(exc).__name__}")
    return {problem.subject: list(problem.chain) for problem in exc.problems if problem.chain}


def _argument_tuples(inputs: object) -> list[tuple[Any, ...]]:
    listed = list(inputs) if isinstance(inputs, Iterable) else None
    if listed is None or not all(isinstance(arguments, (tuple, list)) for arguments in listed):
        raise TypeError("inputs must hold a tuple of arguments for each call")
    return [tuple(arguments) for arguments in listed]
