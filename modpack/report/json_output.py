"""Facts as JSON. The command line's reference page documents every key.

Keys are only ever added under one schema number; a change that could mislead a reader of the
present one raises :data:`SCHEMA`.

Audits as JSON; ``docs/reference/json/audit.schema.json`` describes every key.

Why a module is there, as JSON. ``docs/reference/json/why.schema.json`` describes it.

Verifications as JSON; ``docs/reference/json/verify.schema.json`` describes every key.

Suggested rules as JSON. ``docs/reference/json/suggest.schema.json`` describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from modpack.core.codec import record_to_json
from modpack.core.environment import RecordedEnvironment
from modpack.core.json_values import Json
from modpack.core.plan import MockRisk, NameUse, Note, Problem
from modpack.core.rules import UNRECORDED, Action
from modpack.core.selftest import touch_to_json
from modpack.report.audit import Gate, Verdict
from modpack.report.audit_facts import (
    AuditFacts,
    DistributionFacts,
    Finding,
    MockFacts,
    files_of,
    place_in,
)
from modpack.report.code_listing import code_document
from modpack.report.facts import (
    HookFacts,
    ImporterFacts,
    ModuleFacts,
    PackageFacts,
    PlanFacts,
    ResourceFacts,
)
from modpack.report.suggest import Suggestion, as_option, as_toml, reasons
from modpack.report.verify import VerifyFacts
from modpack.report.why import Chain, Step, Why

SCHEMA = 1


def package_document(facts: PackageFacts) -> dict[str, Json]:
    """A package: ``package``, ``modules``, ``problems`` (none), ``notes``."""
    plan = PlanFacts(facts.modules, (), facts.notes, _files(facts))
    return _document(package_to_json(facts), plan)


def plan_document(facts: PlanFacts) -> dict[str, Json]:
    """A plan: the same keys; ``package`` is null, because nothing was written."""
    return _document(None, facts)


def error_document(kind: str, message: str, **more: Json) -> dict[str, Json]:
    """What stands in place of facts when there are none.

    Args:
        kind: the error's class.
        message: what is wrong, for people.
        more: further keys.
    """
    return {"schema": SCHEMA, "error": {"type": kind, "message": message, **more}}


def dumps(document: dict[str, Json]) -> str:
    """JSON text, in ASCII, ending with a newline."""
    return json.dumps(document, indent=2) + "\n"


def _document(package: Json, plan: PlanFacts) -> dict[str, Json]:
    return {
        "schema": SCHEMA,
        "package": package,
        "modules": [module_to_json(module) for module in plan.modules],
        "problems": [problem_to_json(problem) for problem in plan.problems],
        "notes": [note_to_json(note) for note in plan.notes],
        "files": [resource_to_json(file) for file in plan.files],
    }


def _files(facts: PackageFacts) -> tuple[ResourceFacts, ...]:
    return tuple(resource for resource in facts.resources if resource.kind.goes_along)


def package_to_json(facts: PackageFacts) -> Json:
    """What a package is, without its modules and notes."""
    return {
        "file": facts.file,
        "size_bytes": facts.size_bytes,
        "format": facts.format,
        "digest": facts.digest,
        "writer": facts.writer,
        "python": facts.python,
        "torch": facts.torch,
        "platform": facts.platform,
        "entry": None
        if facts.entry is None
        else {"package": facts.entry[0], "resource": facts.entry[1]},
        "namespace": facts.namespace,
        "trial": facts.trial.to_json() if facts.trial is not None else None,
        "resources": [resource_to_json(resource) for resource in facts.resources],
        "hooks": list(map(_hook, facts.hooks)),
        "storages": {"count": facts.storages.count, "size_bytes": facts.storages.size_bytes},
    }


def _hook(facts: HookFacts) -> Json:
    shown = {"resource": facts.resource, **record_to_json(facts.spec)}
    if facts.disagreement is not None:
        shown["disagreement"] = facts.disagreement
    return shown


def module_to_json(facts: ModuleFacts) -> Json:
    """A module, its decision, and who needs it."""
    return {
        "module": facts.module,
        "action": facts.action.value,
        "rule": facts.rule,
        "overridden_by": facts.overridden_by,
        "importers": [importer_to_json(importer) for importer in facts.importers],
        "provided_by": facts.provided_by.value if facts.provided_by is not None else None,
        "distribution": facts.distribution,
        "version": facts.version,
        "record": facts.record,
        "size_bytes": facts.size_bytes,
    }


def importer_to_json(facts: ImporterFacts) -> Json:
    """One piece of evidence that a module is needed."""
    return {
        "importer": facts.importer,
        "file": facts.file,
        "line": facts.line,
        "kind": facts.kind.value,
    }


def resource_to_json(facts: ResourceFacts) -> Json:
    """A record that is neither code nor a tensor storage."""
    return {
        "record": facts.record,
        "kind": facts.kind.value,
        "size_bytes": facts.size_bytes,
        "owner": facts.owner,
    }


def problem_to_json(problem: Problem) -> Json:
    """Something that stops a package from being written."""
    return {
        "subject": problem.subject,
        "reason": problem.reason.name.lower(),
        "advice": problem.reason.value,
        "context": problem.context,
        "place": problem.place,
        "chain": list(problem.chain),
    }


def note_to_json(note: Note) -> Json:
    """A hazard or remark."""
    return {
        "kind": note.kind.value,
        "subject": note.subject,
        "text": note.text,
        "place": note.place,
    }


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


def why_document(file: str, found: Why, every_chain: bool) -> dict[str, Json]:
    """All that is known of why a module is there.

    Args:
        file: the package, as it was named.
        found: what is known.
        every_chain: whether all chains were looked for, or the shortest ones.
    """
    decision = found.decision
    rule = decision.rule if decision is not None else None
    recorded = rule if rule is not None and rule.label != UNRECORDED else None
    return {
        "schema": SCHEMA,
        "file": file,
        "module": found.module,
        "standing": found.standing.value,
        "action": decision.action.value if decision is not None else None,
        "rule": str(recorded) if recorded is not None else None,
        "origin": recorded.origin.value if recorded is not None else None,
        "overridden_by": decision.overridden_by if decision is not None else None,
        "hooks": list(decision.hooks) if decision is not None else [],
        "provided_by": found.provider,
        "chains": [_chain(chain) for chain in found.chains.chains],
        "every_chain": every_chain,
        "more_chains": found.chains.more,
        "is_complete": found.chains.is_complete,
        "as_short": found.chains.as_short,
        "importers": [step_to_json(step) for step in found.importers],
        "notes": [note_to_json(note) for note in found.notes],
    }


def _chain(chain: Chain) -> Json:
    return {"start": chain.start, "steps": [step_to_json(step) for step in chain.steps]}


def step_to_json(step: Step) -> Json:
    """One step: who imports whom, and the evidence for it."""
    return {
        "importer": step.importer,
        "imported": step.imported,
        "kind": step.kind.value,
        "file": step.file,
        "line": step.line,
        "names": list(step.names),
        "others": step.others,
    }


def verify_document(facts: VerifyFacts) -> dict[str, Json]:
    """What came of verifying a package."""
    return {
        "schema": SCHEMA,
        "file": facts.subject,
        "accepted": facts.is_accepted,
        "format": facts.format or None,
        "digest": facts.digest or None,
        "size_bytes": facts.size_bytes,
        "checks": [
            {
                "name": each.name,
                "count": each.count,
                "unit": each.unit,
                "passed": each.is_passed,
            }
            for each in facts.checks
        ],
        "findings": [finding_to_json(each) for each in facts.findings],
        "signatures": [
            {"key_id": each.key_id, "place": each.place, "signer": each.signer or None}
            for each in facts.signatures
        ],
        "code": code_document(facts.code) if facts.code is not None else None,
    }


def suggestions_document(
    target: str, policy: str, found: Sequence[Suggestion], problems: Sequence[Problem]
) -> dict[str, Json]:
    """Every suggested rule, and what no rule can cure.

    Args:
        target: the target, as it was given.
        policy: the policy whose choices the suggestions follow.
        found: the rules, in the order in which they must be given.
        problems: what is wrong even with them.
    """
    return {
        "schema": SCHEMA,
        "target": target,
        "policy": policy,
        "suggestions": [_suggestion(each) for each in found],
        "problems": [problem_to_json(problem) for problem in problems],
    }


def _suggestion(found: Suggestion) -> Json:
    advice, distribution = found.advice, found.distribution
    return {
        **_rule(advice.action, advice.patterns),
        "kind": advice.kind.value,
        "name": advice.name,
        "modules": list(found.modules),
        "distribution": distribution.name if distribution is not None else None,
        "version": distribution.version if distribution is not None else None,
        "licence": distribution.licence if distribution is not None else None,
        "editable": distribution.editable if distribution is not None else None,
        "compiled": found.is_compiled,
        "reach": found.reach.value,
        "importers": [step_to_json(step) for step in found.importers],
        "reasons": list(reasons(found)),
        "mock_risk": found.mock_risk.value if found.mock_risk is not None else None,
        "alternative": _alternative(found),
    }


def _alternative(found: Suggestion) -> Json:
    if found.mock_risk in (None, MockRisk.REACHABLE):
        return None
    return _rule(Action.MOCK, found.advice.patterns)


def _rule(action: Action, patterns: Sequence[str]) -> dict[str, Json]:
    return {
        "action": action.value,
        "patterns": list(patterns),
        "option": as_option(action, patterns),
        "toml": as_toml(action, patterns),
    }
