"""Bills of materials as CycloneDX documents, checked by CycloneDX's own validators."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator

from modpack.core.environment import RecordedDistribution, RecordedEnvironment
from modpack.core.graph import DependencyGraph, Edge
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.errors import ArchiveError
from modpack.report.audit_facts import AuditFacts, MockFacts
from modpack.report.facts import ModuleFacts, PackageFacts, StorageFacts
from modpack.report.sbom import sbom_of

DIGEST = "ab" * 32
PACKAGE = PackageFacts("net.modpack", 10, "modpack 1", DIGEST, (), (), StorageFacts(2, 64))


def audit_of(*modules: ModuleFacts, **more: object) -> AuditFacts:
    graph = DependencyGraph()
    graph.mark_root("<model/model.pkl>")
    for facts in modules:
        graph.add_edge(Edge("<model/model.pkl>", facts.module, ImportKind.PICKLE))
    return replace(AuditFacts(PACKAGE, modules, graph=graph), **more)


def installed(name: str, version: str | None = "1.0", **more: object) -> ModuleFacts:
    given = {"provided_by": Owner.INSTALLED, "distribution": name, "version": version, **more}
    return ModuleFacts(name, Action.EXTERN, **given)


def valid(audit: AuditFacts, **more: object) -> str:
    text = sbom_of(audit, **more)
    validator = make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6)
    errors = validator.validate_str(text)
    assert errors is None, errors
    return text


def components(audit: AuditFacts) -> dict[str, dict]:
    return {each["bom-ref"]: each for each in json.loads(valid(audit))["components"]}


RICH = audit_of(
    ModuleFacts("own", Action.INTERN, record="own.py", size_bytes=3),
    ModuleFacts("spy", Action.MOCK),
    ModuleFacts("json", Action.EXTERN, provided_by=Owner.STDLIB),
    installed("torch", "2.13.0+cpu", provided_by=Owner.RUNTIME, license="BSD-3-Clause"),
    installed("two", license="MIT OR Apache-2.0"),
    installed("said", license="in their own words"),
    installed("here", editable=True),
    mocks=(MockFacts("spy", None),),
    environment=RecordedEnvironment("3.11.7", "CPython", "linux", "x86_64", "2.13.0+cpu"),
)


def test_document_with_all_component_kinds_is_valid():
    valid(RICH, file_sha256=DIGEST, timestamp=datetime(2024, 5, 6, tzinfo=timezone.utc))


def test_document_describes_the_model():
    document = json.loads(valid(RICH, file_sha256="cd" * 32))
    model = document["metadata"]["component"]
    assert (model["type"], model["name"]) == ("machine-learning-model", "net")
    assert model["version"] == f"sha256:{DIGEST}"
    assert model["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]
    told = {each["name"]: each["value"] for each in model["properties"]}
    assert told["modpack:format"] == "modpack 1"
    assert document["metadata"]["tools"]["components"][0]["name"] == "modpack"


def test_components_have_type_scope_and_purl():
    found = components(RICH)
    torch = found["pypi:torch@2.13.0+cpu"]
    assert (torch["type"], torch["scope"]) == ("framework", "required")
    assert torch["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert found["python"]["type"] == "platform"
    assert found["mocked:spy"]["scope"] == "excluded"
    assert "purl" not in found["code:own"]
    assert "purl" not in found["pypi:here@1.0"]


def test_licenses_are_identifiers_expressions_or_text():
    found = components(RICH)
    declared = {"acknowledgement": "declared"}
    assert found["pypi:torch@2.13.0+cpu"]["licenses"] == [
        {"license": {"id": "BSD-3-Clause", **declared}}
    ]
    assert found["pypi:two@1.0"]["licenses"] == [{"expression": "MIT OR Apache-2.0", **declared}]
    assert found["pypi:said@1.0"]["licenses"] == [
        {"license": {"name": "in their own words", **declared}}
    ]
    assert "licenses" not in found["pypi:here@1.0"]


def test_document_has_dependencies():
    document = json.loads(valid(RICH))
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert "code:own" in needs["model"]
    assert set(needs) == {"model", *components(RICH)}


def test_document_is_reproducible():
    assert valid(RICH) == valid(RICH)
    assert "timestamp" not in json.loads(valid(RICH))["metadata"]
    other = replace(RICH, package=replace(PACKAGE, digest="ef" * 32))
    serials = [json.loads(valid(audit))["serialNumber"] for audit in (RICH, other)]
    assert serials[0] != serials[1]


def test_document_has_valid_hashes_only():
    hashes = {"sha256": "cd" * 32, "sha1": "no digest", "blake9": "cd"}
    known = {"far": RecordedDistribution("far", "1.0", hashes=hashes)}
    audit = audit_of(installed("far"), environment=RecordedEnvironment(distributions=known))
    assert components(audit)["pypi:far@1.0"]["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]


def test_install_url_is_external_reference():
    url = "https://example.org/far-1.0.tar.gz"
    known = {"far": RecordedDistribution("far", "1.0", url=url)}
    audit = audit_of(installed("far"), environment=RecordedEnvironment(distributions=known))
    reference = components(audit)["pypi:far@1.0"]["externalReferences"]
    assert [(each["type"], each["url"]) for each in reference] == [("distribution", url)]


HOSTILE = "]]></name><!--\x1b[2J\x00\ud800\ufffe&\"'\n"


@pytest.mark.parametrize("where", ["name", "version", "license", "module", "file"])
def test_document_of_hostile_package_is_valid(where):
    facts = {"version": HOSTILE} if where == "version" else {"license": HOSTILE}
    name = HOSTILE if where == "name" else "fine"
    module = ModuleFacts(HOSTILE, Action.EXTERN) if where == "module" else installed(name, **facts)
    package = replace(PACKAGE, path=HOSTILE, writer=HOSTILE, platform=HOSTILE)
    valid(audit_of(module, package=package if where == "file" else PACKAGE))


@pytest.mark.parametrize("facts", [{"name": ""}, {"version": ""}, {"license": ""}])
def test_document_accepts_empty_texts(facts):
    valid(audit_of(installed(facts.pop("name", "fine"), **facts)))


def test_dependencies_are_not_registered_one_by_one(monkeypatch):
    def looked_up(*_: object) -> None:
        raise AssertionError("the library looks a component up")

    monkeypatch.setattr(Bom, "register_dependency", looked_up)
    assert {each["ref"] for each in json.loads(valid(RICH))["dependencies"]} >= {*components(RICH)}


def test_document_rejects_long_version():
    with pytest.raises(ArchiveError, match="version of fine is too long"):
        valid(audit_of(installed("fine", "1" * 2000)))
