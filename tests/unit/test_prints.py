"""The library does not print; only commands and progress write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import modpack

ROOT = Path(modpack.__file__).parent
WRITERS = ("bundled/command.py", "cli", "report/progress.py", "serving/log.py")
"""Modules that write to the terminal."""


def writes(source: str) -> Iterator[tuple[int, str]]:
    """Yield calls of print and writes to the standard streams."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "print":
                yield node.lineno, "print"
        if isinstance(node, ast.Attribute) and node.attr in ("write", "writelines"):
            written = ast.unparse(node.value)
            if written.startswith(("sys.stdout", "sys.stderr")):
                yield node.lineno, written


def test_library_prints_nothing():
    found = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in sorted(ROOT.rglob("*.py"))
        if not file.relative_to(ROOT).as_posix().startswith(WRITERS)
        for line, what in writes(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_calls_that_print_are_found():
    source = "import sys\nprint(1)\nsys.stderr.write('x')\nfile.write('y')\n"
    assert list(writes(source)) == [(2, "print"), (3, "sys.stderr")]
