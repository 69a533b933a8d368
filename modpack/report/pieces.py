"""Pieces that reports for people are made of: titles, indented parts, tables without lines."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
    return Padding(content, (0, 0, 0, columns), expand=False)


def table(*columns: tuple[str, str]) -> Table:
    """A table without lines; each column by its style and alignment (``left``, ``right``)."""
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for style, justify in columns:
        made.add_column(style=style, justify="right" if justify == "right" else "left")
    for column in made.columns:
        column.overflow = "fold"
    return made
