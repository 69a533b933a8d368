"""What an audit finds, for facts that are made up."""

from dataclasses import replace

import pytest

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.observations import MockEvent, MockEventKind, MockRisk, Observations
from modpack.core.plan import UseKind
from modpack.core.rules import IMPLICIT, Action, Owner
from modpack.core.scan import ImportKind
from modpack.core.selftest import SelfTestCase, SelfTestRecord
from modpack.diagnostics import Diagnostic, Severity
from modpack.report.audit_facts import AuditFacts, DistributionFacts, MockFacts
from modpack.report.audit_findings import find_all
from modpack.report.facts import (
    ImporterFacts,
    ModuleFacts,
    ResourceFacts,
    ResourceKind,
    UseFacts,
)
from tests.described_packages import package_of


def importer(name="shop.net", line=3, kind=ImportKind.REQUIRED):
    return ImporterFacts(name, f"{name.replace('.', '/')}.py", line, kind)


def package(**more):
    return package_of("m.modpack", **more)


def self_test(**changes):
    case = SelfTestCase(("m", "m.pkl"), 0, deterministic=changes.pop("deterministic", True))
    return SelfTestRecord(**{"passed": True, "namespace": "private", "cases": (case,), "rounds": 1,
                          "seconds": 1.0, **changes})  # fmt: skip


def found(**facts):
    tested = package(self_test=self_test())
    given = {"package": tested, "modules": (), "is_verified": True, **facts}
    return find_all(AuditFacts(**given))


def codes(**facts):
    return [each.code for each in found(**facts)]


def mock(*uses, risk=MockRisk.NOT_OBSERVED, events=(), importers=None, runs=0):
    by = (importer(),) if importers is None else importers
    return MockFacts("spy", "mock('spy')", by, uses, risk, events, runs)


NET = ModuleFacts("shop.net", Action.INTERN, record="shop/net.py")


def use(kind, name="log", line=7, scope=""):
    return UseFacts("spy", name, "shop.net", "shop/net.py", line, kind, scope)


def test_mock_without_runs_is_a_warning_at_its_first_use():
    uses = (use(UseKind.FUNCTION_BODY, "log", 7, "Net.forward"), use(UseKind.BASE_CLASS, "Base", 4))
    (finding,) = found(modules=(NET,), mocks=(mock(*uses),))
    assert (finding.code, finding.severity) == ("mock-not-observed", Severity.WARNING)
    assert finding.subject == "spy"
    assert finding.location == "shop/net.py:7"
    assert finding.message == (
        "spy.log is used in shop.net.Net.forward, and in 1 more location; spy is not observed"
    )
    assert "example_inputs" in finding.hint


def test_mock_without_uses_is_located_at_its_import():
    (finding,) = found(mocks=(mock(),))
    assert finding.code == "mock-not-observed"
    assert (finding.location, finding.message) == (
        "shop/net.py:3",
        "shop.net imports spy; spy is not observed",
    )


def test_mock_for_type_checking_only_is_not_a_finding():
    checked = importer(kind=ImportKind.TYPE_CHECKING)
    assert codes(mocks=(mock(importers=()),)) == []
    assert codes(mocks=(mock(importers=(checked,)),)) == []


HARMLESS = [
    (MockRisk.UNTOUCHED, "mock-untouched", "untouched in 2 runs"),
    (MockRisk.USED_AT_IMPORT, "mock-used-at-import", "used at import in 2 runs"),
]


@pytest.mark.parametrize(("risk", "code", "text"), HARMLESS)
def test_observations_of_checked_signer_are_infos(risk, code, text):
    mocks = (mock(use(UseKind.FUNCTION_BODY), risk=risk, runs=2),)
    (finding,) = [
        each
        for each in found(mocks=mocks, package=package(self_test=self_test()), is_verified=True)
        if each.subject == "spy"
    ]
    assert (finding.code, finding.severity) == (code, Severity.INFO)
    assert finding.message.endswith(text)


@pytest.mark.parametrize(("risk", "code", "text"), HARMLESS)
def test_observations_of_unchecked_package_are_warnings(risk, code, text):
    mocks = (mock(use(UseKind.FUNCTION_BODY), risk=risk, runs=2),)
    (finding,) = [
        each
        for each in found(mocks=mocks, package=package(self_test=self_test()), is_verified=False)
        if each.subject == "spy"
    ]
    assert (finding.code, finding.severity) == ("mock-unverified", Severity.WARNING)
    assert finding.message.endswith(f"{text}, recorded by the package")
    assert "--key" in finding.hint


@pytest.mark.parametrize("is_verified", [False, True])
def test_mock_called_in_the_self_test_is_an_error(is_verified):
    event = MockEvent("spy", MockEventKind.USED, "spy.log", "was called", "shop/net.py:7")
    mocks = (mock(use(UseKind.FUNCTION_BODY), risk=MockRisk.CALLED, events=(event,)),)
    of_package = found(mocks=mocks, package=package(), is_verified=is_verified)
    (error,) = [each for each in of_package if each.subject == "spy"]
    assert (error.code, error.severity) == ("mock-called", Severity.ERROR)
    assert error.location == "shop/net.py:7"
    assert "spy.log was called" in error.message


def test_warning_of_the_self_test_is_a_finding():
    observed = Observations(warnings=("model.scale differs from that of the live object",))
    (finding,) = found(package=package(self_test=self_test(observations=observed)))
    assert finding.code == "self-test-warning"
    assert "model.scale differs" in finding.message


def extern(module, provided_by, distribution=None, version=None, editable=False):
    return ModuleFacts(module, Action.EXTERN, "extern('**')", importers=(importer(),),
                       provided_by=provided_by, distribution=distribution, version=version,
                       editable=editable)  # fmt: skip


@pytest.mark.parametrize(
    "facts, code",
    [
        (extern("json", Owner.STDLIB), None),
        (extern("torch.nn", Owner.RUNTIME), None),
        (extern("numpy.linalg", Owner.INSTALLED, "numpy", "2.1"), None),
        (extern("loose", Owner.LOCAL), "extern-local"),
        (extern("mine", Owner.LOCAL, "mine", "0.1", editable=True), "extern-local"),
        (extern("numpy", None), "extern-unpinned"),
    ],
)
def test_extern_must_be_installable_and_pinned(facts, code):
    assert codes(modules=(facts,)) == ([code] if code else [])


def test_standard_library_of_another_python_is_not_local():
    gone = ModuleFacts("imp", Action.EXTERN, str(IMPLICIT[0]), provided_by=Owner.LOCAL)
    assert codes(modules=(gone,)) == []


def test_modules_of_one_extern_are_one_finding():
    modules = tuple(extern(f"numpy{part}", None) for part in ("", ".linalg", ".fft"))
    (finding,) = found(modules=modules)
    assert finding.subject == "numpy"
    assert "3 modules" in finding.message
    assert finding.location == "shop/net.py:3"


def test_missing_module_imported_at_once_is_an_error():
    graph = DependencyGraph()
    graph.mark_root("<m/m.pkl>")
    for edge in (
        Edge("<m/m.pkl>", "shop.net", ImportKind.PICKLE, None, ("Net",)),
        Edge("shop.net", "gone", ImportKind.REQUIRED, 3),
        Edge("shop.net", "gone.guarded", ImportKind.GUARDED, 4),
        Edge("shop.net", "gone.later", ImportKind.FUNCTION, 5),
        Edge("gone.later", "gone.much.later", ImportKind.REQUIRED, 5),
    ):
        graph.add_edge(edge)
    (finding,) = found(modules=(NET,), graph=graph)
    assert (finding.code, finding.severity) == ("missing-module", Severity.ERROR)
    assert (finding.subject, finding.location) == ("gone", "shop/net.py:3")


def test_missing_module_with_a_note_is_reported_once():
    graph = DependencyGraph()
    graph.mark_root("shop")
    graph.add_edge(Edge("shop", "gone", ImportKind.REQUIRED, 3))
    shop = (ModuleFacts("shop", Action.INTERN),)
    absent = Diagnostic.from_code("optional-import-missing", "gone", "nobody has it")
    assert codes(modules=shop, graph=graph) == ["missing-module"]
    assert codes(modules=shop, graph=graph, notes=(absent,)) == ["optional-import-missing"]


def test_namespace_package_is_not_missing():
    graph = DependencyGraph()
    graph.mark_root("spaces.shop")
    graph.add_edge(Edge("spaces.shop", "spaces", ImportKind.PARENT))
    shop = ModuleFacts("spaces.shop", Action.INTERN)
    assert codes(modules=(shop,), graph=graph) == []


def test_note_is_a_finding():
    note = Diagnostic.from_code("dynamic-import", "shop", "look out", "shop.py:3")
    assert found(notes=(note,)) == (note,)


def test_passed_self_test_settles_dynamic_imports_of_libraries():
    notes = (
        Diagnostic.from_code("dynamic-import-library", "shop", "imports by name", "shop.py:3"),
    )
    (_, untried) = found(notes=notes, package=package())
    assert untried.hint
    (tried,) = found(notes=notes, package=package(self_test=self_test()))
    assert not tried.hint
    assert tried.severity is untried.severity


def test_absent_optional_extern_is_an_info():
    graph = DependencyGraph()
    graph.mark_root("net")
    graph.add_edge(Edge("net", "gone", ImportKind.GUARDED, 1))
    graph.add_edge(Edge("net", "needed", ImportKind.REQUIRED, 2))
    modules = tuple(
        ModuleFacts(name, Action.EXTERN, "extern('**')", provided_by=Owner.LOCAL)
        for name in ("gone", "needed", "own")
    )
    facts = {"modules": modules, "graph": graph}
    assert codes(**facts, absent=frozenset({"gone", "needed"})) == [
        "extern-local",
        "extern-local",
        "optional-import-missing",
    ]
    assert "optional-import-missing" not in codes(**facts)


def test_package_without_self_test_is_an_info():
    assert codes(package=package()) == ["self-test-missing"]
    assert codes() == []


def test_passed_self_test_is_the_word_of_an_unchecked_producer():
    tried = package(self_test=self_test())
    (finding,) = found(package=tried, is_verified=False)
    assert (finding.code, finding.severity) == ("self-test-unverified", Severity.INFO)
    assert "--key" in finding.hint
    assert codes(package=tried) == []
    failed = package(self_test=self_test(passed=False))
    assert codes(package=failed, is_verified=False) == ["self-test-failed"]


def test_failed_self_test_is_an_error_with_its_reason():
    (finding,) = found(package=package(self_test=self_test(passed=False, failure="other numbers")))
    assert (finding.code, finding.severity) == ("self-test-failed", Severity.ERROR)
    assert "other numbers" in finding.message


def test_limits_of_a_self_test_are_reported():
    needs = self_test(deterministic=False, operators=("mylib::add(Tensor x) -> Tensor",))
    assert codes(package=package(self_test=needs)) == [
        "self-test-structure-only",
        "operator-needed",
    ]
    assert codes(package=package(self_test=self_test())) == []


def test_process_namespace_has_its_reason():
    tried = self_test(namespace="process", private_failure="it asks for its file by name")
    (finding,) = found(package=package(self_test=tried, namespace="process"))
    assert finding.code == "process-namespace"
    assert "it asks for its file by name" in finding.message


def test_native_code_is_one_finding_for_each_library():
    files = tuple(
        ResourceFacts(f"shop/{name}.so", ResourceKind.NATIVE, 9, f"shop.{name}") for name in "ab"
    )
    (finding,) = found(files=files)
    assert (finding.code, finding.subject) == ("native-code", "shop")


def test_distribution_without_license_is_an_info():
    distributions = (DistributionFacts("a", "1"), DistributionFacts("b", "1", "MIT"))
    (finding,) = found(distributions=distributions)
    assert (finding.code, finding.subject) == ("license-unknown", "a")


def test_torch_package_archive_is_an_info():
    old = replace(package_of("m.pt"), format="torch.package")
    assert codes(package=old) == ["torch-package-archive"]


def test_most_severe_finding_comes_first():
    notes = (
        Diagnostic.from_code("optional-import-missing", "a", "x"),
        Diagnostic.from_code("dynamic-import", "b", "x"),
    )
    failed = package(self_test=self_test(passed=False, failure="x"))
    assert codes(notes=notes, package=failed) == [
        "self-test-failed",
        "dynamic-import",
        "optional-import-missing",
    ]
