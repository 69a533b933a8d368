"""Commands write parts of pages, and nothing else of them."""

import pytest

ROOM = "make something"


@pytest.fixture
def page(tool, tmp_path):
    marks = tool("page")
    file = tmp_path / "page.md"
    file.write_text(f"before\n\n{marks.begin(ROOM)}\n\nold\n\n{marks.END}\n\nafter\n")
    return file


def test_text_between_marks_is_replaced(tool, page):
    marks = tool("page")
    once = marks.replaced(page, ROOM, "new\n")
    assert once == f"before\n\n{marks.begin(ROOM)}\n\nnew\n\n{marks.END}\n\nafter\n"
    page.write_text(once)
    assert marks.replaced(page, ROOM, "new\n") == once


def test_page_without_marks_is_unchanged(tool, page):
    with pytest.raises(SystemExit, match=r"page\.md lacks the marks .*make nothing"):
        tool("page").replaced(page, "make nothing", "new")
