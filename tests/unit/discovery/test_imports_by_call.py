"""Imports by call at any position in an expression."""

from __future__ import annotations

import pytest

from modpack.discovery.import_scanner import scan_source


@pytest.mark.parametrize(
    "code",
    [
        "__import__('a.b')",
        "import_module('a.b')",
        "x = [import_module('a.b')]; y = 1",
        "def f():\n    return importlib.import_module('a.b')",
        "(load := __import__)\ndef f(): load('a.b')",
    ],
)
def test_keyword_skip_keeps_importing_calls(code):
    assert [item.module for item in scan_source(code, "pkg.mod", False).imports] == ["a.b"]
