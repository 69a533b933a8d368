"""File names in the string constants of a source.

Paths are not computed: a constant counts only if such a file exists next to the code, and the
self-test finds the files that code opens under computed names.
"""

from __future__ import annotations

import ast
import re

from modpack.core.scan import FileName
from modpack.discovery.syntax import ParsedSource

_OWN_PATH_NAMES = ("__file__", "__path__", "__spec__", "pkgutil")
_RESOURCES = re.compile(r"importlib[._]resources|from importlib import .*resources|resource_\w+\(")
_RELATIVE_PATH = re.compile(r"[\w.*][\w .*+@=-]*(/[\w.*+@=-]+)*(?<![ .])|\.\.")
_MAX_LENGTH = 200  # characters


def find_file_names(parsed: ParsedSource) -> tuple[FileName, ...]:
    r"""Return the string constants that may name files or folders next to a source, in order.

    They are relative paths and patterns such as ``*.json``. Prose is skipped.

    Args:
        parsed: Parsed source. One that does not use its own path has no names.

    >>> from modpack.discovery.syntax import parse_source
    >>> find_file_names(parse_source("here = dirname(__file__)\nopen(here + '/words.txt')"))
    (FileName(text='words.txt', line=2),)
    """
    text = parsed.text
    uses_own_path = any(word in text for word in _OWN_PATH_NAMES)
    if not uses_own_path and ("resource" not in text or not _RESOURCES.search(text)):
        return ()
    constants = [
        (node.lineno, node.col_offset, node.value.removeprefix("/"))
        for node in ast.walk(parsed.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found: dict[str, FileName] = {}
    # ``ast.walk`` is breadth-first and does not yield nodes in source order.
    for line, _, name in sorted(constants):
        if len(name) <= _MAX_LENGTH and _RELATIVE_PATH.fullmatch(name):
            # A word may name a folder; words with spaces and ``*`` are something else.
            if "." in name or not ({" ", "*"} & set(name)):
                found.setdefault(name, FileName(name, line))
    return tuple(found.values())
