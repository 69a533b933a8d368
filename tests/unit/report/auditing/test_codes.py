"""The table of codes, and the page that repeats it."""

import re
from pathlib import Path

from modpack.core.plan import MockRisk, NoteKind, TouchKind, UseKind
from modpack.report.audit_facts import Severity
from modpack.report.finding_codes import CODES, LICENCE, milder_codes

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "risks.md").read_text("utf-8")


def test_the_page_of_risks_lists_every_code_as_it_is():
    told = re.findall(r"^\| `([a-z-]+)(:GLOB)?` \| (\w+) \| (.*?) \| (.*?) ?\|$", PAGE, re.M)
    codes = [
        (row.name, ":GLOB" if row.name == LICENCE else "", row.severity.value, row.meaning)
        for row in CODES.values()
    ]
    assert [each[:4] for each in told] == codes
    assert [each[4] for each in told] == [row.remedy for row in CODES.values()]


def test_the_page_of_risks_lists_every_kind_of_use_risk_touch_and_severity():
    for kind in (*UseKind, *MockRisk, *TouchKind, *Severity):
        assert f"\n| `{kind.value}` | " in PAGE


def test_the_page_of_risks_lists_which_codes_are_worse_cases():
    worst = {row.name for row in CODES.values()} - {row.worse_than for row in CODES.values()}
    for code in worst:
        ladder = list(milder_codes(code))
        assert len(ladder) == 1 or " > ".join(f"`{each}`" for each in ladder) in PAGE


def test_every_kind_of_note_is_a_code_as_severe_as_the_note():
    for kind in NoteKind:
        assert (CODES[kind.value].severity is Severity.NOTE) == (not kind.is_warning)


def test_the_worst_codes_come_first():
    severities = [list(Severity).index(row.severity) for row in CODES.values()]
    assert severities[:-1] == sorted(severities[:-1])  # the last one is found by gates only


def test_every_code_is_told_in_a_sentence_and_only_notes_need_no_remedy():
    for row in CODES.values():
        assert row.meaning.endswith(".")
        assert "\n" not in row.meaning
        assert row.remedy.endswith(".") or row.severity is Severity.NOTE
