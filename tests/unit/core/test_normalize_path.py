"""Normalized paths are those of pathlib."""

import os
from pathlib import Path

import pytest

from modpack.core.process import normalize_path

PATHS = [
    "",
    ".",
    "..",
    "a",
    "a/",
    "a//b",
    "a/./b",
    "a/../b",
    "./a",
    "/",
    "//",
    "///",
    "//a/b",
    "/a/b/",
]


@pytest.mark.parametrize("path", [*PATHS, *(path.replace("/", os.sep) for path in PATHS)])
def test_normalize_path_matches_pathlib(path):
    assert normalize_path(path) == str(Path(path))
