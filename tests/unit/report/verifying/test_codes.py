"""The table of codes, and the page that repeats it."""

import re
from pathlib import Path

from modpack.report.audit_facts import Severity
from modpack.report.finding_codes import CODES, VERIFY_CODES, found

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "verifying.md").read_text("utf-8")


def test_the_page_lists_every_code_as_it_is():
    listed = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)
    rows = VERIFY_CODES.values()
    assert listed == [(r.name, r.severity.value, r.meaning, r.remedy) for r in rows]


def test_no_code_means_two_things():
    assert not VERIFY_CODES.keys() & CODES.keys()


def test_the_worst_codes_come_first():
    severities = [list(Severity).index(row.severity) for row in VERIFY_CODES.values()]
    assert severities == sorted(severities)


def test_a_finding_has_the_severity_and_the_remedy_of_its_code():
    finding = found("storage-unused", "a", "b")
    assert (finding.severity, finding.remedy) == (Severity.NOTE, "")
    assert found("policy", "a", "b").severity is Severity.ERROR
