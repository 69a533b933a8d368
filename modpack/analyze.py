"""Analysis: the modules that a call uses, and the import chains to broken modules."""

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
    """Call a function, and return the modules of all Python functions that run.

    Args:
        callable: The function, which is executed.
        inputs: The positional arguments of each call.

    Returns:
        The module paths of all Python functions that ran in this thread, sorted.

    Raises:
        TypeError: If an argument has the wrong type.

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

    # A profile function, because debuggers and coverage tools use the trace function.
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for arguments in calls:
            callable(*arguments)
    finally:
        sys.setprofile(before)
    return sorted(modules - {__name__})


def find_first_use_of_broken_modules(exc: PackagingError) -> dict[str, list[str]]:
    """Return the import chain to each module of a :class:`PackagingError`.

    Args:
        exc: The error.

    Returns:
        For each module path, the chain from a saved object or module to the module itself.

    Raises:
        TypeError: If ``exc`` is not a :class:`PackagingError`.
    """
    if not isinstance(exc, PackagingError):
        raise TypeError(f"exc must be a PackagingError, not {type(exc).__name__}")
    return {problem.subject: list(problem.chain) for problem in exc.problems if problem.chain}


def _argument_tuples(inputs: object) -> list[tuple[Any, ...]]:
    listed = list(inputs) if isinstance(inputs, Iterable) else None
    if listed is None or not all(isinstance(arguments, (tuple, list)) for arguments in listed):
        raise TypeError("inputs must contain a tuple of arguments for each call")
    return [tuple(arguments) for arguments in listed]
