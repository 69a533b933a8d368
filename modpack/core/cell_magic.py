"""Python code in notebook cells that use magics: ``%%time``, ``%time``, ``!pip``.

IPython keeps the transformed source of each cell. There, a cell magic is a call with the cell's
text as an argument: ``get_ipython().run_cell_magic('time', '', 'class Net: ...')``.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from typing import Final

_OTHER_LANGUAGES: Final = frozenset(
    {
        *("!", "system", "sx", "bash", "sh", "script", "cmd", "perl", "ruby", "pypy", "python"),
        *("python2", "python3", "html", "HTML", "javascript", "js", "latex", "markdown"),
        *("svg", "SVG", "file", "writefile", "timeit"),
    }
)
"""Cell magics that do not run their cell as Python in the notebook's namespace."""
_MAGIC_LINE: Final = r"^(\s*)(?:[\w.\[\], ]+=\s*)?[%!].*$|^(\s*)[^#'\"]*\?{1,2}\s*$"


def magic_body(text: str) -> str | None:
    r"""Return the Python code that a cell magic runs; None for a cell without one.

    >>> magic_body("get_ipython().run_cell_magic('time', '', 'x = 1\\n!ls')")
    'x = 1\npass'
    >>> magic_body("%%bash\nls") is magic_body("x = 1") is None
    True
    """
    name, body = _read_cell_call(text) or _read_raw_cell(text)
    if body is None or name in _OTHER_LANGUAGES:
        return None
    # A cell magic may be below another one.
    return magic_body(body) or without_magics(body)


def without_magics(text: str) -> str:
    r"""Replace lines that are not Python with ``pass``; return valid Python unchanged.

    >>> without_magics("%matplotlib inline\nfiles = !ls\nx = 5 % 3")
    'pass\npass\nx = 5 % 3'
    """
    # `%` is an operator, too: only text that Python cannot parse contains magics.
    if _parse(text) is not None:
        return text
    # One line for each line, so that line numbers stay the same.
    lines = (re.sub(_MAGIC_LINE, r"\1\2pass", line) for line in text.splitlines())
    return "\n".join(lines)


def magic_texts() -> Iterator[str]:
    """Yield the Python code that magics have run in this process, latest first."""
    # A changed cell is cached under another name, and its last version counts.
    for name in reversed(list(linecache.cache)):
        text = "".join(linecache.getlines(name)) if name.startswith("<") or "ipyk" in name else ""
        if "run_cell_magic" in text or text.startswith("%%"):
            body = magic_body(text)
            if body is not None:
                yield body
        if "run_line_magic" in text:
            yield from _line_arguments(text)


def _read_cell_call(text: str) -> tuple[str, str] | None:
    """Return the name and the cell of a magic in IPython's transformed source."""
    tree = _parse(text) if "run_cell_magic" in text else None
    call = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    if not isinstance(call, ast.Expr):
        return None
    # IPython passes the name of the magic, the rest of its line, and the cell.
    found = list(_string_arguments(call.value, "run_cell_magic"))
    return (found[0], found[-1]) if len(found) == 3 else None


def _read_raw_cell(text: str) -> tuple[str, str | None]:
    first, _, rest = text.lstrip().partition("\n")
    return (first[2:].split(" ")[0], rest) if first.startswith("%%") else ("", None)


def _line_arguments(text: str) -> Iterator[str]:
    tree = _parse(text)
    for node in ast.walk(tree) if tree is not None else ():
        yield from list(_string_arguments(node, "run_line_magic"))[1:2]


def _string_arguments(node: ast.AST, method: str) -> Iterator[str]:
    """Yield the arguments of ``get_ipython().<method>(...)``, if all are strings."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
    ):
        yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
