import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from modpack.report.format import Column, PlainTable, indented, table


def printed(content: object, width: int = 40, colors: bool = False) -> list[str]:
    stream = io.StringIO()
    system = "standard" if colors else None
    Console(file=stream, width=width, force_terminal=colors, color_system=system).print(content)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def filled(*rows: tuple[str | Text, ...]) -> PlainTable:
    made = table(("", "left"), ("", "right"), ("dim", "left"))
    for row in rows:
        made.add_row(*row)
    return made


def test_columns_are_as_wide_as_widest_cell():
    made = filled(("torch", "7", "needed"), ("a", "1234", "x"))
    assert printed(made) == ["torch     7  needed", "a      1234  x"]


def test_empty_table_prints_nothing():
    assert printed(filled()) == []


def test_empty_cells_keep_column_width():
    assert printed(filled(("a", "", "z"), ("bb", "9", ""))) == ["a      z", "bb  9"]


def test_column_keeps_minimum_width():
    made = filled(("a", "1", "z"))
    made.columns[0].min_width = 6
    assert printed(made) == ["a       1  z"]


def test_wide_cell_wraps_in_its_column():
    made = filled(("module", "12", "needed by one and two"), ("m", "1", "z"))
    assert printed(made, width=24) == [
        "module  12  needed by",
        "            one and two",
        "m        1  z",
    ]


def test_narrow_table_keeps_all_text():
    made = filled(("abcdefgh", "123", "xyz"))
    text = "".join(printed(made, width=9)).replace(" ", "")
    assert sorted(text) == sorted("abcdefgh123xyz")
    assert max(map(len, printed(made, width=9))) <= 9


def test_wide_characters_count_as_two_columns():
    assert printed(filled(("模块", "1", "z"), ("abcd", "2", "z"))) == ["模块  1  z", "abcd  2  z"]


def test_string_cells_are_not_markup():
    assert printed(filled(("[bold]x[/bold]", "", ""))) == ["[bold]x[/bold]"]


def test_indented_table_keeps_columns():
    made = filled(("a", "1", "z"))
    assert printed(indented(indented(made, 2), 2)) == ["    a  1  z"]
    assert printed(made) == ["a  1  z"]


def test_styles_of_column_cell_and_span_combine():
    made = PlainTable([Column("bold")])
    made.add_row("plain")
    made.add_row(Text("red", "red"))
    made.add_row(Text.assemble("one ", ("two", "green")))
    assert printed(made, colors=True) == [
        "\x1b[1mplain\x1b[0m",
        "\x1b[1;31mred\x1b[0m",
        "\x1b[1mone \x1b[0m\x1b[1;32mtwo\x1b[0m",
    ]


@pytest.mark.parametrize("width", [8, 14, 40])
def test_lines_are_equal_with_and_without_colors(width: int):
    made = indented(
        filled(
            ("module", "12", Text.assemble("needed by one ", ("and two", "red"))),
            ("", "", ""),
            ("模块", "", "x"),
            ("m", Text("1", "green"), ""),
        ),
        1,
    )
    colored = printed(made, width, colors=True)
    assert [re.sub("\x1b[^m]*m", "", line).rstrip() for line in colored] == printed(made, width)


def test_recorded_console_keeps_styles():
    made = filled(("a", "1", "dimmed"))
    console = Console(file=io.StringIO(), width=40, record=True, color_system=None)
    console.print(made)
    assert "<span" in console.export_html()


def test_row_of_wrong_length_is_rejected():
    with pytest.raises(ValueError, match="has 3 cells, not 1"):
        filled(("alone",))
