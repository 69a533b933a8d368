"""Where the source of what runs as ``__main__`` is: a file, or the cells of a notebook."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType

from modpack.core.cellmagic import magic_body, without_magics
from modpack.discovery.definitions import Cell
from modpack.resolution.live import is_a

__all__ = ["cells_of", "name_of", "same_file", "title_of"]

_CELL_NAMES = re.compile(r"<(ipython|python)-input-|[\\/]ipykernel_\d+[\\/]")
"""What IPython, its kernel, and Python's own prompt (3.13) call the files of cells."""


def cells_of(namespace: Mapping[str, object]) -> tuple[Cell, ...]:
    """The sources that were executed in a namespace, in the order of execution.

    Args:
        namespace: the globals of ``__main__``.
    """
    files: dict[str, str] = {}
    for name in _executed(namespace):
        files.setdefault(_absolute(name), name)
    cells = [Cell(name, _text(name, namespace)) for name in files.values()]
    return tuple(_as_python(cell for cell in _in_history_order(cells, namespace) if cell.text))


def _as_python(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Cells of which those with magics are the Python that the magics run.

    Some magics run it as a cell of its own, which is left out: it has no place in the history.
    """
    known = {cell.text.strip(): cell for cell in cells}
    bodies = {cell: magic_body(cell.text) for cell in known.values()}
    inner = {body.strip() for body in bodies.values() if body is not None}
    for cell, body in bodies.items():
        if body is not None:
            same = known.get(body.strip())
            yield Cell(same.file, body) if same else Cell(cell.file, "\n" + body)
        elif cell.text.strip() not in inner:
            yield Cell(cell.file, without_magics(cell.text)) if _is_cell(cell.file) else cell


def _is_cell(file: str) -> bool:
    return file.startswith("<") or _CELL_NAMES.search(file) is not None


def name_of(namespace: Mapping[str, object]) -> str:
    """What a script is called, as an identifier: after its file, or ``notebook``."""
    title = title_of(namespace)
    stem = title.removesuffix(".py") if title != "a notebook" else "notebook"
    return re.sub(r"\W", "_", stem)


def title_of(namespace: Mapping[str, object]) -> str:
    """What a script is called, for people: its file's name, or ``a notebook``."""
    file = namespace.get("__file__")
    if not isinstance(file, str):
        return "a notebook"
    path = Path(file)
    return f"{path.absolute().parent.name}/__main__.py" if path.stem == "__main__" else path.name


def same_file(one: str, other: str) -> bool:
    """Whether two codes say that they come from the same file or cell."""
    return _absolute(one) == _absolute(other)


def _absolute(name: str) -> str:
    return name if name.startswith("<") else str(Path(name).absolute())


def _executed(namespace: Mapping[str, object]) -> Iterator[str]:
    """The files of code that lives in a namespace, in the order in which they became known."""
    file = namespace.get("__file__")
    if isinstance(file, str):
        yield file
    of_functions = list(_files_of_functions(namespace))
    own = {_shape(name) for name in of_functions}
    for name in list(linecache.cache):
        if _CELL_NAMES.search(name) or (_shape(name) in own and not Path(name).exists()):
            yield name
    yield from of_functions


def _files_of_functions(namespace: Mapping[str, object]) -> Iterator[str]:
    for value in list(namespace.values()):
        owned = list(vars(value).values()) if is_a(value, type) else [value]
        for each in owned:
            if is_a(each, FunctionType) and each.__globals__ is namespace:
                yield each.__code__.co_filename


def _shape(name: str) -> str:
    """A cell's name without what differs from cell to cell: numbers and digests."""
    return re.sub(r"[0-9a-f]{6,}|\d+", "0", name)


def _text(name: str, namespace: Mapping[str, object]) -> str:
    return "".join(linecache.getlines(name, dict(namespace)))


def _in_history_order(cells: list[Cell], namespace: Mapping[str, object]) -> list[Cell]:
    """Cells in the order of IPython's history, where there is one: a cell may be run again."""
    history = namespace.get("_ih")
    if not isinstance(history, list):
        return cells
    last = {str(text).strip(): number for number, text in enumerate(history)}
    return sorted(cells, key=lambda cell: last.get(cell.text.strip(), -1))
