"""Unified diffs."""

from __future__ import annotations

import random

import pytest

from modpack.report.text_diff import WorkBudget, as_text, text_difference


def diff(before, after):
    return text_difference(before, after, "x.py", "x.py")


def applied(before: str, unified: tuple[str, ...]) -> str:
    """What a unified diff makes of a text; fails if the diff does not fit the text."""
    old, new, position = before.split("\n"), [], 0
    for line in unified[2:]:
        mark, text = line[:1], line[1:]
        if mark == "@":
            start, _, length = line.split()[1][1:].partition(",")
            begin = int(start) - (0 if length == "0" else 1)
            new += old[position:begin]
            position = begin
        elif mark in " -":
            assert old[position] == text
            position += 1
        if mark in " +":
            new.append(text)
    return "\n".join([*new, *old[position:]])


def test_diff_of_equal_texts_is_empty():
    assert diff("a\nb\n", "a\nb\n").unified == ()


def test_diff_counts_added_and_removed_lines():
    found = diff("a\nb\nc\n", "a\nB\nB2\nc\n")
    assert (found.added, found.removed) == (2, 1)
    assert found.unified[2:] == ("@@ -1,3 +1,4 @@", " a", "-b", "+B", "+B2", " c")


def test_distant_changes_form_two_hunks():
    lines = [f"line {number}\n" for number in range(40)]
    other = [*lines[:5], "new\n", *lines[5:30], *lines[31:]]
    found = diff("".join(lines), "".join(other))
    heads = [line for line in found.unified if line.startswith("@@")]
    assert heads == ["@@ -3,6 +3,7 @@", "@@ -28,7 +29,6 @@"]


def test_diff_marks_missing_line_end():
    assert diff("a\n", "a").unified[2:] == (
        *("@@ -1 +1 @@", "-a", "+a", "\\ No newline at end of file"),
    )


def test_only_line_feeds_end_lines():
    assert diff("a\x0cb\r\n", "a\x0cc\r\n").removed == 1
    assert diff("a\r\n", "a\n").unified[3:] == ("-a\r", "+a")


def test_diff_of_new_text_starts_at_dev_null():
    found = text_difference("", "a\n", None, "x.py")
    assert found.unified == ("--- /dev/null", "+++ b/x.py", "@@ -0,0 +1 @@", "+a")


@pytest.mark.parametrize("alphabet", [2, 5, 40])
def test_diff_applies_to_first_text(alphabet):
    chance = random.Random(alphabet)
    for _ in range(150):
        before = [str(chance.randrange(alphabet)) for _ in range(chance.randrange(1, 40))]
        after = list(before)
        for _ in range(chance.randrange(10)):
            place = chance.randrange(len(after) + 1)
            after[place : place + chance.randrange(2)] = [str(chance.randrange(alphabet))]
        old, new = "\n".join([*before, "end"]), "\n".join([*after, "end"])
        assert applied(old, diff(old, new).unified) == new


def test_small_change_of_large_text_is_found():
    lines = [f"    value = {number % 50}\n" for number in range(20_000)]
    other = [*lines[:9000], "new\n", *lines[9000:15_000], *lines[15_010:]]
    found = diff("".join(lines), "".join(other))
    assert (found.added, found.removed) == (1, 10)


def test_unrelated_texts_are_replaced_fast():
    found = diff("x\ny\n" * 20_000, "z\ny\nx\n" * 20_000)
    assert applied("x\ny\n" * 20_000, found.unified) == "z\ny\nx\n" * 20_000


def gaps(mark, count, lines=250):
    """Lines that differ with the mark, and between them some that are the same whatever it is."""
    return "".join(f"{mark}\n" * lines + f"# {number}\n" for number in range(count))


@pytest.mark.parametrize("steps", [0, 200_000, 2_000_000])
def test_all_gaps_share_the_budget(steps):
    effort = WorkBudget(steps=steps)
    before, after = gaps("x", 300), gaps("y", 300)
    found = text_difference(before, after, "x.py", "x.py", effort)
    assert effort.steps >= 0
    assert applied(before, found.unified) == after


def test_equal_lines_count_as_steps():
    chance = random.Random(0)
    before, after = ("".join(f"{chance.randrange(90)}\n" for _ in range(9000)) for _ in range(2))
    effort = WorkBudget(steps=1_000_000)
    found = text_difference(before, after, "x.py", "x.py", effort)
    assert effort.steps >= 0
    assert applied(before, found.unified) == after


def test_rest_of_budget_serves_next_text():
    effort = WorkBudget()
    before, after = "a\nb\na\n", "b\na\nb\n"
    first = text_difference(before, after, "x.py", "x.py", effort)
    assert (first.added, first.removed) == (1, 1)
    effort.steps = 0
    second = text_difference(before, after, "x.py", "x.py", effort)
    assert (second.added, second.removed) == (3, 3)
    assert applied(before, second.unified) == after


def test_budget_limits_lines_of_texts():
    effort = WorkBudget(lines=10)
    assert effort.has_room_for("a\n" * 3, "b\n" * 3)
    assert not effort.has_room_for("a\n" * 3, "b\n" * 3)
    assert effort.has_room_for("a\n" * 2, "b\n" * 2)
    assert not WorkBudget().has_room_for("a\n" * 400_000, "b\n" * 400_000)


def test_moved_lines_of_large_text_are_found():
    lines = [f"{number}\n" for number in range(400_000)]
    before = "".join([*lines[200_000:], *reversed(lines[:200_000])])
    found = diff(before, "".join(lines))
    assert (found.added, found.removed) == (200_000, 200_000)


def test_declared_encoding_of_source_is_used():
    source = "# -*- coding: latin-1 -*-\nx = 'größe'\n"
    assert as_text(source.encode("latin-1"), "x.py") == source
    assert as_text(source.encode("latin-1"), "x.txt") is None


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"a\0b", *(b"# coding: %s\n" % c for c in (b"nonsense", b"rot13", b"undefined"))],
)
def test_binary_record_is_not_text(content):
    assert as_text(content, "x.py") is None
