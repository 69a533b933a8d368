"""A failure told in the package's terms: its modules and lines, not folders of a cache."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

__all__ = ["place_of", "trace_of", "what_failed"]

_MOST_FRAMES = 12
_MOST_CAUSES = 4


def what_failed(failure: BaseException) -> str:
    """The exception, in one line.

    >>> what_failed(KeyError("x"))
    "KeyError: 'x'"
    """
    lines = traceback.format_exception_only(type(failure), failure)
    return " ".join("".join(lines).split())


def trace_of(failure: BaseException, tree: Path | None) -> list[str]:
    """Where an exception was raised, innermost last, and what it was raised for.

    Args:
        failure: the exception.
        tree: the unpacked package, whose files are shown by their records.
    """
    lines = list(_frames(failure, tree))
    cause, seen = _cause_of(failure), 0
    while cause is not None and seen < _MOST_CAUSES:
        lines += [f"because of {what_failed(cause)}", *list(_frames(cause, tree))[-2:]]
        cause, seen = _cause_of(cause), seen + 1
    return lines


def _cause_of(failure: BaseException) -> BaseException | None:
    if failure.__cause__ is not None:
        return failure.__cause__
    return None if failure.__suppress_context__ else failure.__context__


def _frames(failure: BaseException, tree: Path | None) -> Iterator[str]:
    if isinstance(failure, SyntaxError) and failure.filename:
        yield f"{place_of(failure.filename, tree)}:{failure.lineno}"
    frames = [f for f in traceback.extract_tb(failure.__traceback__) if _is_told(f)]
    for frame in frames[-_MOST_FRAMES:]:
        line = f": {frame.line}" if frame.line else ""
        yield f"{place_of(frame.filename, tree)}:{frame.lineno}, in {frame.name}{line}"


def _is_told(frame: traceback.FrameSummary) -> bool:
    """Whether a frame says something: that modules are called by torch goes without saying."""
    own = str(Path(__file__).parents[1])
    is_call = frame.name in ("_call_impl", "_wrapped_call_impl")
    return not (
        frame.filename.startswith(("<frozen", own)) or frame.filename == "<string>" or is_call
    )


def place_of(file: str, tree: Path | None) -> str:
    """A file as the package knows it: its record, or what follows the folder of installed code.

    Args:
        file: its path.
        tree: the unpacked package.
    """
    if tree is not None and Path(file).is_relative_to(tree):
        return Path(file).relative_to(tree).as_posix()
    parts = Path(file).parts
    for home in ("site-packages", "dist-packages"):
        if home in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(home) :])
    return file
