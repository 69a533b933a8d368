"""What fails an audit besides errors."""

import pytest

from modpack.diagnostics import Diagnostic, diagnostic_codes
from modpack.report.audit import judge, parse_gate
from modpack.report.audit_facts import AuditFacts, DistributionFacts
from tests.described_packages import package_of


def audit(*codes, **more):
    return AuditFacts(
        package_of(),
        (),
        findings=tuple(Diagnostic.from_code(c, "subject", "text") for c in codes),
        **more,
    )


def fires(gate, *codes):
    return bool(parse_gate(gate).findings(audit(*codes)))


def test_judge_without_gates_fails_on_errors():
    assert judge(audit("mock-not-observed", "self-test-missing")).passed
    assert not judge(audit("mock-called")).passed


@pytest.mark.parametrize("code", [code for code in diagnostic_codes("audit") if code != "license"])
def test_gate_fires_on_its_code_only(code):
    assert fires(code, code)
    assert not fires(code, "native-code" if code != "native-code" else "self-test-missing")


def test_gate_fires_on_codes_that_imply_its_code():
    ladder = ["mock-untouched", "mock-used-at-import", "mock-not-observed", "mock-called"]
    for place, gate in enumerate(ladder):
        assert [fires(gate, code) for code in ladder] == [n >= place for n in range(len(ladder))]
    assert fires("mock-not-observed", "mock-unverified")
    assert fires("extern-unpinned", "extern-local")
    assert fires("self-test-missing", "self-test-failed")
    assert fires("self-test-missing", "self-test-unverified")


def test_severity_gate_fires_on_higher_severities():
    each_kind = ("mock-called", "mock-not-observed", "self-test-missing")
    assert [fires("error", code) for code in each_kind] == [True, False, False]
    assert [fires("warning", code) for code in each_kind] == [True, True, False]
    assert [fires("info", code) for code in each_kind] == [True, True, True]


def test_verdict_lists_fired_gates_and_their_findings():
    verdict = judge(
        audit("self-test-missing"), [parse_gate("self-test-missing"), parse_gate("native-code")]
    )
    assert not verdict.passed
    fired, quiet = verdict.gates
    assert (fired.gate, fired.fired) == ("self-test-missing", True)
    assert [each.code for each in fired.findings] == ["self-test-missing"]
    assert quiet == ("native-code", False, ())


@pytest.mark.parametrize(
    "expression, glob, is_hit",
    [
        ("GPL-3.0-only", "GPL*", True),
        ("gpl-3.0-or-later", "GPL*", True),
        ("GPL-3.0-only", "gpl-3*", True),
        ("MIT OR GPL-2.0-only", "GPL*", True),
        ("(MIT AND (Apache-2.0 OR GPL-2.0+))", "GPL*", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "Classpath*", True),
        ("LGPL-2.1-only", "GPL*", False),
        ("LGPL-2.1-only", "*GPL*", True),
        ("AGPL-3.0-only", "AGPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", "GPL*", True),
        ("GNU General Public License v3 (GPLv3)", "GNU General*", True),
        ("MIT", "GPL*", False),
        (None, "*", False),
    ],
)
def test_license_gate_matches_each_license_of_an_expression(expression, glob, is_hit):
    facts = audit(distributions=(DistributionFacts("lib", "1.0", expression),))
    found = parse_gate(f"license:{glob}").findings(facts)
    assert bool(found) is is_hit
    if is_hit:
        assert found[0].subject == "lib"
        assert expression in found[0].message


def test_parse_gate_accepts_license_pattern():
    assert parse_gate("license:GPL*").license == "GPL*"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mock-caled", "Did you mean 'mock-called'"),
        ("licens:GPL*", "Did you mean"),
        ("license", "license:GPL*"),
        ("license:", "license:GPL*"),
        ("mock-called:spy", "only license:"),
        ("zzzzzz", "reference page on diagnostics"),
        ("", "reference page on diagnostics"),
    ],
)
def test_parse_gate_rejects_unknown_code_with_hint(text, expected):
    with pytest.raises(ValueError, match=expected.replace("*", "[*]")):
        parse_gate(text)
