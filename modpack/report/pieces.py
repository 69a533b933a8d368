"""Pieces that reports for people are made of: titles, indented parts, tables without lines."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from modpack.report.plaintable import Column, PlainTable

__all__ = ["indented", "relative", "table", "title"]


def relative(place: str, folder: Path | None) -> str:
    """A place (``file:line``), relative to a folder if it lies below it."""
    if folder is None or not Path(place).is_relative_to(folder):
        return place
    return Path(place).relative_to(folder).as_posix()


def title(text: str, colour: str) -> Text:
    """The title of a part."""
    return Text(text, f"bold {colour}")


def indented(content: RenderableType, columns: int) -> RenderableType:
    """A part, some columns to the right."""
    if isinstance(content, PlainTable):
        return content.indented(columns)
    return Padding(content, (0, 0, 0, columns), expand=False)


def table(*columns: tuple[str, str]) -> PlainTable:
    """A table without lines; each column by its style and alignment (``left``, ``right``)."""
    return PlainTable([Column(style, justify == "right") for style, justify in columns])
