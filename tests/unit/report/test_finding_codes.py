"""The tables of codes, and the pages that repeat them."""

import re
from pathlib import Path

from modpack.core.plan import MockEventKind, MockRisk, NoteKind, UseKind
from modpack.report.findings import CODES, LICENSE, VERIFY_CODES, Severity, finding, milder_codes

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "risks.md").read_text("utf-8")
VERIFYING = (REFERENCE / "verifying.md").read_text("utf-8")


def test_the_page_of_risks_lists_every_code_as_it_is():
    told = re.findall(r"^\| `([a-z-]+)(:GLOB)?` \| (\w+) \| (.*?) \| (.*?) ?\|$", PAGE, re.M)
    codes = [
        (row.code, ":GLOB" if row.code == LICENSE else "", row.severity.value, row.meaning)
        for row in CODES.values()
    ]
    assert [each[:4] for each in told] == codes
    assert [each[4] for each in told] == [row.remedy for row in CODES.values()]


def test_the_page_of_verifying_lists_every_code_as_it_is():
    listed = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*?) \| (.*?) ?\|$", VERIFYING, re.MULTILINE)
    rows = VERIFY_CODES.values()
    assert listed == [(r.code, r.severity.value, r.meaning, r.remedy) for r in rows]


def test_no_code_means_two_things():
    assert not VERIFY_CODES.keys() & CODES.keys()


def test_the_page_of_risks_lists_every_kind_of_use_risk_touch_and_severity():
    for kind in (*UseKind, *MockRisk, *MockEventKind, *Severity):
        assert f"\n| `{kind.value}` | " in PAGE


def test_the_page_of_risks_lists_which_codes_are_worse_cases():
    worst = {row.code for row in CODES.values()} - {row.worse_than for row in CODES.values()}
    for code in worst:
        ladder = list(milder_codes(code))
        assert len(ladder) == 1 or " > ".join(f"`{each}`" for each in ladder) in PAGE


def test_every_kind_of_note_is_a_code_as_severe_as_the_note():
    for kind in NoteKind:
        assert (CODES[kind.value].severity is Severity.NOTE) == (not kind.is_warning)


def test_the_worst_codes_come_first():
    audited = list(CODES.values())[:-1]  # the last one is found by gates only
    for rows in (audited, list(VERIFY_CODES.values())):
        severities = [list(Severity).index(row.severity) for row in rows]
        assert severities == sorted(severities)


def test_a_finding_has_the_severity_and_the_remedy_of_its_code():
    unused = finding("storage-unused", "a", "b")
    assert (unused.severity, unused.remedy) == (Severity.NOTE, "")
    assert finding("policy", "a", "b").severity is Severity.ERROR
    assert finding("mock-called", "a", "b").remedy == "Intern or extern the module."


def test_every_code_is_told_in_a_sentence_and_only_notes_need_no_remedy():
    for row in CODES.values():
        assert row.meaning.endswith(".")
        assert "\n" not in row.meaning
        assert row.remedy.endswith(".") or row.severity is Severity.NOTE
