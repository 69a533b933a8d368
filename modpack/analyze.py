"""Looking at a model from the outside: what it calls, and where a plan first breaks."""

from __future__ import annotations

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

    Returns:
        The module paths of all Python functions that ran in this thread, sorted.

    >>> import json
    >>> trace_dependencies(json.dumps, [({"a": 1},)])
    ['json', 'json.encoder']
    """
    modules: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__")
            if isinstance(name, str):
                modules.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for arguments in inputs:
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
