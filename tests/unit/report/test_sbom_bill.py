"""Bills of materials of invented audits."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cyclonedx.model.component import ComponentScope

from modpack.core.environment import RecordedDistribution, RecordedEnvironment
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.observations import MockRisk
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.report.audit_facts import AuditFacts, MockFacts
from modpack.report.facts import ModuleFacts, PackageFacts, StorageFacts
from modpack.report.sbom import Sbom, SbomComponent, bill_of

PACKAGE = PackageFacts(
    "out/net.modpack", 10, "modpack 1", "d1", (), (), StorageFacts(2, 64), python="3.11.7"
)
MODEL = "<model/model.pkl>"


def interned(module: str, distribution: str | None = None, version: str | None = None):
    record = module.replace(".", "/") + ".py"
    return ModuleFacts(
        module,
        Action.INTERN,
        distribution=distribution,
        version=version,
        record=record,
        size_bytes=7,
    )


def extern(module: str, distribution: str | None = None, version: str | None = None):
    owner = Owner.INSTALLED if distribution else Owner.LOCAL
    return ModuleFacts(
        module, Action.EXTERN, provided_by=owner, distribution=distribution, version=version
    )


def imports(*edges: tuple[str, str, ImportKind]) -> DependencyGraph:
    graph = DependencyGraph()
    graph.mark_root(MODEL)
    for importer, imported, kind in edges:
        graph.add_edge(Edge(importer, imported, kind))
    return graph


def drawn_up(*modules: ModuleFacts, digests: dict[str, str] | None = None, **more: object) -> Sbom:
    audit = AuditFacts("net.modpack", modules, PACKAGE)
    return bill_of(replace(audit, **more), digests or {})


def items(bill: Sbom) -> dict[str, SbomComponent]:
    return {item.key: item for item in bill.items}


def test_distribution_is_one_component():
    bill = drawn_up(
        interned("shop.till", "Shop", "1.2"), interned("shop.coins", "Shop", "1.2"), interned("own")
    )
    found = items(bill)
    assert set(found) == {"pypi:shop@1.2", "code:own", "python"}
    shop = found["pypi:shop@1.2"]
    assert (shop.name, shop.version, shop.is_indexed) == ("Shop", "1.2", True)
    assert (shop.facts["modules"], shop.origins) == ("2", ("intern",))
    assert (found["code:own"].version, found["code:own"].is_indexed) == (None, False)


def test_code_digest_matches_sha256sum():
    digests = {"shop/b.py": "bb", "shop/a.py": "aa"}
    bill = drawn_up(
        interned("shop.b", "shop", "1"), interned("shop.a", "shop", "1"), digests=digests
    )
    expected = hashlib.sha256(b"aa  shop/a.py\nbb  shop/b.py\n").hexdigest()
    facts = items(bill)["pypi:shop@1"].facts
    assert (facts["code:sha256"], facts["code:bytes"]) == (expected, "14")


def test_late_imported_distribution_is_optional():
    graph = imports(
        (MODEL, "own", ImportKind.PICKLE),
        ("own", "soon", ImportKind.REQUIRED),
        ("own", "late", ImportKind.FUNCTION),
        ("own", "maybe", ImportKind.GUARDED),
    )
    modules = [extern(name, name, "1") for name in ("soon", "late", "maybe")]
    found = items(drawn_up(interned("own"), *modules, graph=graph))
    assert found["pypi:soon@1"].need is ComponentScope.REQUIRED
    assert found["pypi:late@1"].need is found["pypi:maybe@1"].need is ComponentScope.OPTIONAL


def test_externs_are_required_without_recorded_imports():
    assert (
        items(drawn_up(extern("late", "late", "1")))["pypi:late@1"].need is ComponentScope.REQUIRED
    )


def test_mocked_modules_are_excluded_with_risk():
    modules = [ModuleFacts("spy", Action.MOCK), ModuleFacts("spy.sub", Action.MOCK)]
    mocks = (
        MockFacts("spy", None, risk=MockRisk.UNTOUCHED),
        MockFacts("spy.sub", None, risk=MockRisk.CALLED),
    )
    spy = items(drawn_up(*modules, mocks=mocks))["mocked:spy"]
    assert (spy.need, spy.origins) == (ComponentScope.EXCLUDED, ("mock",))
    assert (spy.facts["mock:risk"], spy.facts["modules"]) == ("called", "2")


def test_components_depend_on_their_imports():
    graph = imports(
        (MODEL, "own", ImportKind.PICKLE),
        ("own", "own.sub", ImportKind.REQUIRED),
        ("own.sub", "numpy", ImportKind.FUNCTION),
        ("own", "json", ImportKind.REQUIRED),
        ("own", "typing_only", ImportKind.TYPE_CHECKING),
    )
    json = ModuleFacts("json", Action.EXTERN, provided_by=Owner.STDLIB)
    modules = [interned("own"), interned("own.sub"), extern("numpy", "numpy", "2.1"), json]
    bill = drawn_up(*modules, extern("typing_only"), graph=graph)
    assert items(bill)["code:own"].needs == {"pypi:numpy@2.1", "python"}
    assert bill.needs == {
        "code:own",
        "extern:typing_only",
    }  # the package depends on unneeded components


def test_bill_includes_indirect_requirements():
    recorded = RecordedEnvironment(
        "3.11.7",
        "CPython",
        distributions={
            "top": RecordedDistribution("top", "1", requires=("middle",)),
            "late": RecordedDistribution("late", "1", requires=("bottom", "extra")),
            "middle": RecordedDistribution("Middle", "2", license="MIT", requires=("bottom",)),
            "bottom": RecordedDistribution("bottom", "3", requires=("middle", "absent")),
            "extra": RecordedDistribution("extra", "4", editable=True),
        },
    )
    graph = imports(
        (MODEL, "own", ImportKind.PICKLE),
        ("own", "top", ImportKind.REQUIRED),
        ("own", "late", ImportKind.FUNCTION),
    )
    modules = [interned("own"), extern("top", "top", "1"), extern("late", "late", "1")]
    found = items(drawn_up(*modules, graph=graph, environment=recorded))
    assert found["pypi:top@1"].needs == {"pypi:middle@2"}
    middle = found["pypi:middle@2"]
    assert (middle.name, middle.license, middle.origins) == ("Middle", "MIT", ("required",))
    assert (middle.need, found["pypi:bottom@3"].need) == (
        ComponentScope.REQUIRED,
        ComponentScope.REQUIRED,
    )
    assert (found["pypi:extra@4"].need, found["pypi:extra@4"].is_indexed) == (
        ComponentScope.OPTIONAL,
        False,
    )
    assert (found["python"].version, found["python"].facts) == (
        "3.11.7",
        {"implementation": "CPython"},
    )


def test_requirement_of_required_component_is_required():
    recorded = RecordedEnvironment(
        distributions={
            "top": RecordedDistribution("top", "1", requires=("late",)),
            "late": RecordedDistribution("late", "1"),
        }
    )
    graph = imports((MODEL, "top", ImportKind.REQUIRED), (MODEL, "late", ImportKind.FUNCTION))
    modules = [extern("top", "top", "1"), extern("late", "late", "1")]
    late = items(drawn_up(*modules, graph=graph, environment=recorded))["pypi:late@1"]
    assert (late.need, late.origins) == (ComponentScope.REQUIRED, ("extern",))


def test_editable_and_url_installs_have_no_purl():
    recorded = RecordedEnvironment(
        distributions={
            "far": RecordedDistribution(
                "far", "1", url="git+https://example.org/far@abc", hashes={"sha256": "aa"}
            )
        }
    )
    here = replace(extern("here", "here", "1"), editable=True)
    found = items(drawn_up(extern("far", "far", "1"), here, environment=recorded))
    far = found["pypi:far@1"]
    assert (far.is_indexed, far.url) == (False, "git+https://example.org/far@abc")
    assert far.hashes == {"sha256": "aa"}
    assert found["pypi:here@1"].facts["editable"] == "true"
    assert not found["pypi:here@1"].is_indexed


def test_bill_describes_package():
    bill = drawn_up(interned("own"))
    assert (bill.name, bill.digest) == ("net", "d1")
    assert bill.facts["tensors:bytes"] == "64"
    assert bill.facts["self-test"] == "none"


def test_bill_rejects_plan():
    with pytest.raises(ValueError, match=r"train\.py:make is a plan"):
        bill_of(AuditFacts("train.py:make", ()), {})
