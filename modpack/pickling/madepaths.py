"""Paths of source files in what torch writes, without the folders of this machine.

Graphs tell of their nodes from which line they came. A package tells that by the module's path, as
``nets/layers.py``: where the file lay says nothing elsewhere, and tells who made the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["portable_path", "portable_trace", "portable_trace_bytes", "without_folders"]

_FILE = re.compile(r'(File \\*")([^"\\]+)')
_FILE_BYTES = re.compile(rb'(File \\*")([^"\\]+)')
_TRACES = "_graphmodule_graph_node_meta_stack_trace"
"""Where a GraphModule keeps, in its saved state, from which line each node came."""


def portable_path(file: str) -> str:
    """The file of a module as a path below the folder that it was imported from.

    >>> portable_path(re.__file__), portable_path("/home/me/unknown.py")
    ('re/__init__.py', 'unknown.py')
    """
    path = Path(file)
    if not path.is_absolute():
        return file
    return _by_file().get(file) or path.name


def portable_trace(text: str) -> str:
    """A text in which lines as of tracebacks name files, with these as :func:`portable_path`."""
    known = _by_file()
    return _FILE.sub(lambda found: found[1] + _shown(known, found[2]), text)


def portable_trace_bytes(text: bytes) -> bytes:
    """The same for a document in UTF-8, such as JSON."""
    known = _by_file()
    return _FILE_BYTES.sub(lambda found: found[1] + _shown(known, found[2].decode()).encode(), text)


def without_folders(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an object packages itself as; of a graph, with the places of its nodes shortened."""
    function, arguments = parts
    state = arguments[0] if arguments else None
    if type(state) is not dict or not state.get(_TRACES):
        return parts
    traces = {node: portable_trace(trace) for node, trace in state[_TRACES].items()}
    return function, ({**state, _TRACES: traces}, *arguments[1:])


def _shown(known: dict[str, str], file: str) -> str:
    return known.get(file) or (Path(file).name if Path(file).is_absolute() else file)


def _file_of(module: object) -> object:
    """Where a module came from, without asking it; None for what only pretends to be one."""
    return vars(module).get("__file__") if isinstance(module, ModuleType) else None


def _by_file() -> dict[str, str]:
    """The files of all modules that are loaded."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = _file_of(module)
        if isinstance(file, str) and name != "__main__":
            count = name.count(".") + (2 if Path(file).stem == "__init__" else 1)
            found.setdefault(file, "/".join(Path(file).parts[-count:]))
    return found
