"""Findings by severity and code, in the text of audits and on the report page."""

from modpack.diagnostics import Diagnostic, Severity
from modpack.report.audit_text import by_severity
from modpack.report.finding_groups import count_findings, group_findings


def found(code, subject, **more):
    return Diagnostic.from_code(code, subject, f"about {subject}", **more)


def test_findings_are_grouped_by_severity_then_code():
    groups = group_findings(
        [
            found("native-code", "numpy"),
            found("dynamic-import", "b.c"),
            found("mock-called", "spy"),
            found("extern-local", "x"),
            found("dynamic-import", "a.b"),
        ]
    )
    assert [(each.severity, each.code, len(each.findings)) for each in groups] == [
        (Severity.ERROR, "mock-called", 1),
        (Severity.WARNING, "dynamic-import", 2),
        (Severity.WARNING, "extern-local", 1),
        (Severity.INFO, "native-code", 1),
    ]
    assert [each.subject for each in groups[1].findings] == ["b.c", "a.b"]


def test_one_code_with_two_severities_makes_two_groups():
    groups = group_findings([found("loader", "x"), found("loader", "y", severity=Severity.WARNING)])
    assert [each.severity for each in groups] == [Severity.WARNING, Severity.INFO]


def test_group_has_the_hint_that_all_findings_share():
    (alike,) = group_findings([found("extern-local", "a"), found("extern-local", "b")])
    (other,) = group_findings([found("extern-local", "a"), found("extern-local", "b", hint="Do.")])
    assert alike.hint == alike.findings[0].hint != ""
    assert other.hint == ""


def test_text_of_many_findings_reads_each_hint_a_few_times(monkeypatch):
    """A hostile package causes tens of thousands of findings of one code."""
    several = [found("extern-local", f"a{number}") for number in range(300)]
    read = []

    def counted(self, name):
        read.append(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Diagnostic, "__getattribute__", counted, raising=False)
    assert len(list(by_severity(several, {}))) > 300
    assert read.count("hint") <= 4 * len(several)


def test_group_lists_top_level_names_once():
    (group,) = group_findings(found("extern-local", each) for each in ("a.b", "a.c", "d", "e.f"))
    assert group.roots() == ("a", "d", "e")
    assert group.roots(2) == ("d", "e")


def test_findings_are_counted_by_severity():
    assert count_findings([]) == "no findings"
    several = [found("native-code", "a"), found("mock-called", "b"), found("mock-called", "c")]
    assert count_findings(several) == "2 errors, 1 info"
