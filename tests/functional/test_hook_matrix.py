"""Every kind of hook with every shape of callable, as shown in the docs."""

import subprocess
import sys
from pathlib import Path

import pytest

from modpack.core.hookspec import HOOK_KINDS
from modpack.hooks.kinds import KINDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "hook-spec.md"
LOADING = "\n### Hooks that a class registers when it is loaded"

WITH_TESTS_OF_THEIR_OWN = {"graph.capture_grad", "ddp.comm", "parametrization"}
SHAPES = [
    "function",
    "lambda",
    "closure over a collector",
    "closure over a parameter",
    "nested function",
    "partial",
    "method of an object",
    "method of the model",
    "callable object",
    "`no_grad` function",
    "`no_grad` nested function",
    "function of `__main__`",
]


@pytest.fixture
def table() -> list[list[str]]:
    """The rows of the first table, starting with the header."""
    matrix = PAGE.read_text().partition("\n## Hook matrix\n")[2].partition(LOADING)[0]
    lines = [line for line in matrix.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines]


def test_matrix_page_is_current():
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "hook_matrix")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"\n\n{made.stdout.strip()}\n\n<!-- End" in PAGE.read_text(), (
        "run: python tools/hook_matrix --write"
    )


def test_matrix_has_row_for_every_kind(table):
    rows = {row[0].partition(",")[0] for row in table[2:]}
    assert rows == set(KINDS) - WITH_TESTS_OF_THEIR_OWN
    assert set(KINDS) | {"parametrization"} == HOOK_KINDS


def test_matrix_has_column_for_every_shape(table):
    assert table[0] == ["kind", *SHAPES]


def test_matrix_loses_no_hook(table):
    """torch marks a public state-dict post hook with an attribute, which methods cannot have."""
    others = {
        (row[0], shape): cell
        for row in table[2:]
        for shape, cell in zip(SHAPES, row[1:], strict=True)
        if cell != "yes"
    }
    assert others == {
        ("state_dict_post", "method of an object"): "(1)",
        ("state_dict_post", "method of the model"): "(1)",
    }
    page = PAGE.read_text()
    assert "`AttributeError: 'method' object has no attribute '_from_public_api'`" in page
    assert "0 lost or different" in page


def test_matrix_restores_hooks_of_classes_that_register_them_when_loaded():
    page = PAGE.read_text().partition(LOADING)[2]
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert all(cell.strip() == "yes" for row in rows for cell in row.strip("|").split("|")[1:])
