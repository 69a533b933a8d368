"""Audits as people read them."""

from rich.console import Console

from modpack.core.observations import MockEvent, MockEventKind, MockRisk
from modpack.core.plan import (
    UseKind,
)
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.audit import judge, parse_gate
from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
from modpack.report.audit_text import audit_report, describe_events, describe_use
from modpack.report.facts import ImporterFacts, ModuleFacts, UseFacts
from tests.described_packages import package_of

USED = MockEvent("spy", MockEventKind.USED, "spy.log", "was called", "shop.py:7")
NAMED = MockEvent("spy", MockEventKind.NAMED, "spy.log")
LOADED = MockEvent("spy", MockEventKind.LOADED)


def shown(audit, *gates):
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(audit_report(judge(audit, map(parse_gate, gates))))
    return captured.get()


def use(kind, path="shop.py", **more):
    return UseFacts("spy", "log", "shop", path, 7, kind, **more)


def test_use_is_described_with_scope_and_origin():
    assert describe_use(use(UseKind.BASE_CLASS)) == "a base class"
    assert (
        describe_use(use(UseKind.DECORATOR, scope="Net.forward")) == "a decorator, in Net.forward"
    )
    assert describe_use(use(UseKind.FUNCTION_BODY, scope="run")) == "in the function run"
    assert describe_use(use(UseKind.TYPE_CHECK, scope="f")) == "checked in the function f"
    assert describe_use(use(UseKind.MODULE_LEVEL, via=("a", "b"))).endswith("; through a, b")


def test_most_severe_event_of_a_mock_is_described():
    def told(*events, runs=1):
        return describe_events(MockFacts("spy", None, events=events, runs=runs))

    assert told(runs=0).startswith("no run with example inputs is recorded. Pass example_inputs")
    assert told() == "the self-test did not import it"
    assert told(LOADED) == "the self-test only imported it"
    assert told(LOADED, NAMED) == "the self-test took names from it: spy.log"
    assert told(LOADED, NAMED, USED) == "the self-test used it: spy.log was called at shop.py:7"


def test_report_shows_findings_and_totals_in_order():
    audit = AuditFacts(
        package_of(),
        (ModuleFacts("shop", Action.INTERN, "intern('shop')", size_bytes=12),),
        findings=(
            Diagnostic.from_code("mock-not-observed", "spy", "spy.log is used"),
            Diagnostic.from_code("self-test-missing", "m", "x"),
        ),
    )
    text = shown(audit)
    order = ["1 warning", "spy.log is used", "1 info", "1 module", "passed"]
    assert sorted(order, key=text.index) == order


def test_report_counts_many_infos_of_one_code():
    notes = tuple(
        Diagnostic.from_code("optional-import-missing", f"m{n}", f"m{n} is not here")
        for n in range(9)
    )
    warnings = tuple(
        Diagnostic.from_code("extern-local", f"x{n}", f"x{n} is loose") for n in range(9)
    )
    text = shown(AuditFacts(package_of(), (), findings=(*warnings, *notes)))
    assert "x8 is loose" in text
    assert "m8 is not here" not in text
    assert "5 more, about m4, m5, m6, m7, m8; --json lists them" in text


def test_report_shows_a_shared_hint_once():
    findings = tuple(
        Diagnostic.from_code("dynamic-import-library", f"lib{n}", "by name") for n in range(3)
    )
    text = shown(AuditFacts(package_of(), (), findings=findings))
    assert text.count("-> Export with example inputs") == 1


def test_distributions_have_license_and_extent():
    distributions = (
        DistributionFacts("lib", "2.0", "MIT", interned=2, extern=1, size_bytes=2000),
        DistributionFacts("mine", "0.1", editable=True, extern=1, is_optional=True),
    )
    lines = [
        line.strip()
        for line in shown(AuditFacts(package_of(), (), distributions=distributions)).splitlines()
    ]
    assert "2 distributions" in lines
    first, second = (line.split("  ") for line in lines if "==" in line)
    assert [each.strip() for each in first if each] == [
        "lib==2.0",
        "MIT",
        "2 interned, 2.0 kB, 1 extern",
    ]
    assert [each.strip() for each in second if each] == [
        "mine==0.1",
        "license unknown, an editable install",
        "1 extern",
        "not needed to load",
    ]


def test_report_escapes_control_characters():
    evil = "evil\x1b[2J\u202e"
    by = ImporterFacts(evil, evil, 3, ImportKind.REQUIRED)
    one = UseFacts(evil, evil, evil, evil, 7, UseKind.FUNCTION_BODY, evil, via=(evil,))
    event = MockEvent(evil, MockEventKind.USED, evil, evil, evil)
    audit = AuditFacts(
        package_of(evil),
        (
            ModuleFacts(evil, Action.INTERN, evil, evil, (by,)),
            ModuleFacts(evil, Action.EXTERN, evil, evil, distribution=evil, license=evil),
        ),
        distributions=(DistributionFacts(evil, evil, evil),),
        mocks=(MockFacts(evil, evil, (by,), (one,), MockRisk.CALLED, (event,), 1),),
        findings=(Diagnostic.from_code("optional-import-missing", evil, evil, evil),),
    )
    text = shown(audit, "info")
    assert "evil" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
