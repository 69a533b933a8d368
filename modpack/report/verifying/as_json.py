"""Verifications as JSON; ``docs/reference/json/verify.schema.json`` describes every key."""

from __future__ import annotations

from modpack.core.planjson import Json
from modpack.report.as_json import SCHEMA
from modpack.report.auditing.as_json import finding_to_json
from modpack.report.codelisting import code_document
from modpack.report.verifying.facts import VerifyFacts

__all__ = ["verify_document"]


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
