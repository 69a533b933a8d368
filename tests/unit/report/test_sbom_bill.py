"""Components and dependencies in bills of materials of invented audits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from modpack.core.environment import RecordedDistribution, RecordedEnvironment
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts
from modpack.report.facts import ModuleFacts, PackageFacts, StorageFacts
from modpack.report.sbom import sbom_of

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


def drawn_up(*modules: ModuleFacts, **more: object):
    audit = AuditFacts(PACKAGE, modules)
    return json.loads(sbom_of(replace(audit, **more)))


def items(bill):
    """The components by key."""
    return {each["bom-ref"]: each for each in bill["components"]}


def facts_of(component):
    """The properties of a component. An origin may occur several times."""
    return {p["name"].removeprefix("modpack:"): p["value"] for p in component["properties"]}


def needs_of(bill, key):
    (found,) = [each for each in bill["dependencies"] if each["ref"] == key]
    return set(found.get("dependsOn", ()))


def test_distribution_is_one_component():
    bill = drawn_up(
        interned("shop.till", "Shop", "1.2"), interned("shop.coins", "Shop", "1.2"), interned("own")
    )
    found = items(bill)
    assert set(found) == {"pypi:shop@1.2", "code:own", "python"}
    shop = found["pypi:shop@1.2"]
    assert (shop["name"], shop["version"], shop["purl"]) == ("Shop", "1.2", "pkg:pypi/shop@1.2")
    assert facts_of(shop) == {"modules": "2", "origin": "intern"}
    assert found["code:own"].keys().isdisjoint({"version", "purl"})


def test_late_imported_distribution_is_optional():
    graph = imports(
        (MODEL, "own", ImportKind.PICKLE),
        ("own", "soon", ImportKind.REQUIRED),
        ("own", "late", ImportKind.FUNCTION),
        ("own", "maybe", ImportKind.GUARDED),
    )
    modules = [extern(name, name, "1") for name in ("soon", "late", "maybe")]
    found = items(drawn_up(interned("own"), *modules, graph=graph))
    scopes = {key: found[f"pypi:{key}@1"]["scope"] for key in ("soon", "late", "maybe")}
    assert scopes == {"soon": "required", "late": "optional", "maybe": "optional"}


def test_externs_are_required_without_recorded_imports():
    late = items(drawn_up(extern("late", "late", "1")))["pypi:late@1"]
    assert late["scope"] == "required"


def test_mocked_modules_are_excluded():
    modules = [ModuleFacts("spy", Action.MOCK), ModuleFacts("spy.sub", Action.MOCK)]
    spy = items(drawn_up(*modules))["mocked:spy"]
    assert spy["scope"] == "excluded"
    assert facts_of(spy) == {"origin": "mock", "modules": "2"}


def test_components_depend_on_their_imports():
    graph = imports(
        (MODEL, "own", ImportKind.PICKLE),
        ("own", "own.sub", ImportKind.REQUIRED),
        ("own.sub", "numpy", ImportKind.FUNCTION),
        ("own", "json", ImportKind.REQUIRED),
        ("own", "typing_only", ImportKind.TYPE_CHECKING),
    )
    stdlib = ModuleFacts("json", Action.EXTERN, provided_by=Owner.STDLIB)
    modules = [interned("own"), interned("own.sub"), extern("numpy", "numpy", "2.1"), stdlib]
    bill = drawn_up(*modules, extern("typing_only"), graph=graph)
    assert needs_of(bill, "code:own") == {"pypi:numpy@2.1", "python"}
    # The model depends on components that no other one needs.
    assert needs_of(bill, "model") == {"code:own", "extern:typing_only"}


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
    bill = drawn_up(*modules, graph=graph, environment=recorded)
    found = items(bill)
    assert needs_of(bill, "pypi:top@1") == {"pypi:middle@2"}
    middle = found["pypi:middle@2"]
    assert (middle["name"], facts_of(middle)) == ("Middle", {"origin": "required"})
    assert middle["licenses"][0]["license"]["id"] == "MIT"
    assert middle["scope"] == found["pypi:bottom@3"]["scope"] == "required"
    assert found["pypi:extra@4"]["scope"] == "optional" and "purl" not in found["pypi:extra@4"]
    assert found["python"]["version"] == "3.11.7"
    assert facts_of(found["python"]) == {"origin": "extern"}


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
    assert (late["scope"], facts_of(late)["origin"]) == ("required", "extern")


def test_editable_and_url_installs_have_no_purl():
    recorded = RecordedEnvironment(
        distributions={
            "far": RecordedDistribution(
                "far", "1", url="git+https://example.org/far@abc", hashes={"sha256": "aa" * 32}
            )
        }
    )
    here = replace(extern("here", "here", "1"), editable=True)
    found = items(drawn_up(extern("far", "far", "1"), here, environment=recorded))
    far = found["pypi:far@1"]
    assert far["externalReferences"][0]["url"] == "git+https://example.org/far@abc"
    assert far["hashes"] == [{"alg": "SHA-256", "content": "aa" * 32}]
    assert facts_of(found["pypi:here@1"])["editable"] == "true"
    assert "purl" not in far and "purl" not in found["pypi:here@1"]


def test_bill_describes_package():
    bill = drawn_up(interned("own"))
    model = bill["metadata"]["component"]
    assert (model["name"], model["version"]) == ("net", "sha256:d1")
    assert facts_of(model)["format"].startswith("modpack")


def test_bill_limits_the_number_of_components():
    modules = [extern(f"lib{n}") for n in range(5001)]
    with pytest.raises(ArchiveError, match="more than 5000 components"):
        drawn_up(*modules)
