"""Audits as JSON; ``docs/reference/json/audit.schema.json`` describes every key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from modpack.core.environment import RecordedEnvironment
from modpack.core.planjson import Json
from modpack.core.trialrecord import touch_to_json
from modpack.core.usage import NameUse
from modpack.report.as_json import (
    SCHEMA,
    importer_to_json,
    module_to_json,
    note_to_json,
    package_to_json,
    problem_to_json,
    resource_to_json,
)
from modpack.report.auditing.facts import AuditFacts, DistributionFacts, Finding, MockFacts
from modpack.report.auditing.gates import Gate, Verdict
from modpack.report.auditing.places import files_of, place_in
from modpack.report.codelisting import code_document
from modpack.report.facts import ModuleFacts

__all__ = ["audit_document", "finding_to_json"]


def audit_document(audit: AuditFacts, gates: Iterable[Gate], verdict: Verdict) -> dict[str, Json]:
    """An audit and what becomes of it.

    Args:
        audit: what was found.
        gates: everything that it must not find.
        verdict: what becomes of it.
    """
    files = files_of(audit)
    fired = dict(verdict.fired)
    return {
        "schema": SCHEMA,
        "subject": audit.subject,
        "passed": verdict.passed,
        "gates": [_gate(gate, fired.get(gate, ())) for gate in gates],
        "findings": [finding_to_json(each) for each in audit.findings],
        "problems": [problem_to_json(each) for each in audit.problems],
        "mocks": [_mock(each, files) for each in audit.mocks],
        "modules": [_module(each) for each in audit.modules],
        "distributions": [_distribution(each) for each in audit.distributions],
        "files": [resource_to_json(each) for each in audit.files],
        "notes": [note_to_json(each) for each in audit.notes],
        "code": code_document(audit.code) if audit.code is not None else None,
        "environment": _environment(audit.environment),
        "package": package_to_json(audit.package) if audit.package is not None else None,
    }


def _gate(gate: Gate, findings: Iterable[Finding]) -> Json:
    listed: list[Json] = [finding_to_json(each) for each in findings]
    return {"gate": gate.text, "fired": bool(listed), "findings": listed}


def finding_to_json(each: Finding) -> Json:
    """A finding, as every document tells it."""
    return {
        "code": each.code,
        "severity": each.severity.value,
        "subject": each.subject,
        "text": each.text,
        "place": each.place,
        "remedy": each.remedy,
    }


def _mock(mock: MockFacts, files: Mapping[str, str]) -> Json:
    return {
        "module": mock.module,
        "rule": mock.rule,
        "risk": mock.risk.value,
        "importers": [importer_to_json(each) for each in mock.importers],
        "uses": [_use(each, files) for each in mock.uses],
        "tried": mock.is_tried,
        "touches": [touch_to_json(each) for each in mock.touches],
    }


def _use(use: NameUse, files: Mapping[str, str]) -> Json:
    return {
        "name": use.name,
        "importer": use.importer,
        "file": files.get(use.importer),
        "line": use.line,
        "place": place_in(files, use.importer, use.line),
        "kind": use.kind.value,
        "scope": use.scope,
        "live": use.is_live,
        "called_later": use.is_called_later,
        "via": list(use.via),
    }


def _module(facts: ModuleFacts) -> Json:
    document = cast(dict[str, Json], module_to_json(facts))
    return {**document, "licence": facts.licence, "editable": facts.editable}


def _distribution(facts: DistributionFacts) -> Json:
    return {
        "name": facts.name,
        "version": facts.version or None,
        "licence": facts.licence,
        "editable": facts.editable,
        "interned": facts.interned,
        "extern": facts.extern,
        "size_bytes": facts.size_bytes,
        "optional": facts.is_optional,
    }


def _environment(environment: RecordedEnvironment | None) -> Json:
    if environment is None:
        return None
    return {
        "python": environment.python,
        "implementation": environment.implementation,
        "platform": environment.platform,
        "machine": environment.machine,
        "torch": environment.torch,
    }
