"""The figures in the README."""

from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"


@pytest.fixture
def saved(tool):
    figures = tool("figures")
    ours, theirs = (figures.Side(each, "saving") for each in ("modpack", "torch.package"))
    samples = {ours: [0.1, 0.2, 0.3], theirs: [1.0, 2.0, 3.0]}
    return figures.Measured("save-400", "save", (), samples)


def test_medians_of_all_rounds_stand_side_by_side(tool, saved):
    table = tool("page").highlights_table([saved], 3)
    assert table.splitlines()[-1] == "| save 400 tensors, 2 GiB | 200 ms | 2 s |  |"


def test_every_line_has_figures_that_are_measured(tool):
    rows = {row.name: row for row in tool("rows").rows()}
    for each in tool("page").HIGHLIGHTS:
        assert {subject for subject in each.subjects if subject} <= set(rows[each.row].subjects)


def test_readme_has_marks_for_highlights(marks):
    assert "new" in marks.replaced(README, "make bench", "new")
