"""The parts of pages that commands write, between two marks."""

from __future__ import annotations

from pathlib import Path

__all__ = ["END", "begin", "replaced"]

END = "<!-- Until here. -->"


def begin(command: str) -> str:
    """The mark before what a command writes."""
    return f"<!-- Made by `{command}`, down to the next mark. Do not edit. -->"


def replaced(file: Path, command: str, inside: str) -> str:
    """A page with something else between its marks.

    Args:
        file: the page; it is not written.
        command: what writes that part of it.
        inside: the new part.
    """
    before, mark, rest = file.read_text(encoding="utf-8").partition(begin(command))
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{file.name} lacks its marks: {begin(command)} and {END}")
    return f"{before}{mark}\n\n{inside.strip()}\n\n{end}{after}"
