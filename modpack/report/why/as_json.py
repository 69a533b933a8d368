"""Why a module is there, as JSON. ``docs/reference/json/why.schema.json`` describes it."""

from __future__ import annotations

from modpack.core.planjson import Json
from modpack.core.rules import UNRECORDED
from modpack.report.as_json import SCHEMA, note_to_json
from modpack.report.why.chains import Chain, Step, Why

__all__ = ["step_to_json", "why_document"]


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
