"""Commands write parts of pages, and nothing else of them."""

from pathlib import Path

import pytest

ROOM = "make something"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def page(marks, tmp_path):
    file = tmp_path / "page.md"
    file.write_text(f"before\n\n{marks.begin(ROOM)}\n\nold\n\n{marks.END}\n\nafter\n")
    return file


def test_text_between_marks_is_replaced(marks, page):
    once = marks.replaced(page, ROOM, "new\n")
    assert once == f"before\n\n{marks.begin(ROOM)}\n\nnew\n\n{marks.END}\n\nafter\n"
    page.write_text(once)
    assert marks.replaced(page, ROOM, "new\n") == once


def test_page_without_marks_is_unchanged(marks, page):
    with pytest.raises(SystemExit, match=r"page\.md lacks the marks .*make nothing"):
        marks.replaced(page, "make nothing", "new")


def test_every_page_has_marks_for_the_command_that_writes_it(marks):
    for command, page in {
        "make bench": "reference/performance",
        "make bench-commands": "reference/performance",
        "make bench-serve": "reference/performance",
        "make bench-start": "how-to/start-fast",
        "make bench-scale": "how-to/run-on-ray",
        "make torture": "explanation/what-a-package-may-do",
        "python tools/hook_matrix --write": "reference/hook-spec",
    }.items():
        assert "new" in marks.replaced(ROOT / "docs" / f"{page}.md", command, "new")
