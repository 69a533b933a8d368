"""What audits and verifications find, and the codes of that, as ``finding_codes.json`` has them.

The reference pages of risks and of verifying repeat that table, and tests compare them.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

LICENSE: Final = "license"
"""What gates find that name licenses; an audit without one never finds it."""
_REMEDY: Final = ". Remedy: "


class Severity(str, Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The audit fails, whatever was asked for."""
    WARNING = "warning"
    """It may hurt where the package is loaded."""
    NOTE = "note"
    """Good to know."""

    @property
    def rank(self) -> int:
        """Its place in the order: the worst is 0."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """Something that an audit found, and that a CI can be told to fail on.

    Attributes:
        code: what it is, as ``--fail-on`` names it (``mock-reachable``); the risks' reference page
            lists them.
        severity: how bad it is.
        subject: the module, distribution or rule it is about.
        text: what was found, in one sentence.
        place: ``file:line`` where it shows, if there is such a place.
        remedy: what to do about it, in one sentence; empty if there is nothing to do.
        is_settled: whether the self-test, which passed, has done what the remedy says.
    """

    code: str
    severity: Severity
    subject: str
    text: str
    place: str | None = None
    remedy: str = ""
    is_settled: bool = False


@dataclass(frozen=True)
class FindingCode:
    """A kind of finding.

    Attributes:
        code: its name, as ``--fail-on`` takes it.
        severity: how bad it is.
        meaning: what a finding of this kind says, in one sentence.
        remedy: what to do about it, in one sentence; empty if there is nothing to do.
        worse_than: the code of which this is a worse case: a gate on that one fires on this, too.
    """

    code: str
    severity: Severity
    meaning: str
    remedy: str = ""
    worse_than: str | None = None


def _codes(rows: list[dict[str, Any]]) -> Mapping[str, FindingCode]:
    return MappingProxyType(
        {row["code"]: FindingCode(**{**row, "severity": Severity(row["severity"])}) for row in rows}
    )


# Not importlib.resources, whose import takes longer than all the rest of this module.
_TABLE: Final = json.loads(pkgutil.get_data(__package__, "finding_codes.json") or "")

CODES: Final = _codes(_TABLE["audit"])
"""What audits find, by code; the worst first."""
VERIFY_CODES: Final = _codes(_TABLE["verify"])
"""What verifying finds besides the pickles' findings of audits, by code; the worst first."""


def milder_codes(code: str) -> Iterator[str]:
    """A code, and those of which it is a worse case.

    >>> list(milder_codes("mock-reachable"))
    ['mock-reachable', 'mock-import-time', 'mock-imported']
    """
    name: str | None = code
    while name is not None:
        yield name
        name = CODES[name].worse_than


def finding(code: str, subject: str, text: str, place: str | None = None) -> Finding:
    """A finding with the severity and the remedy that its code has.

    Args:
        code: a key of :data:`CODES` or of :data:`VERIFY_CODES`.
        subject: what it is about: a module, a record, or the package.
        text: what was found, in one sentence.
        place: where it shows, if that is more than the subject.
    """
    row = CODES[code] if code in CODES else VERIFY_CODES[code]
    return Finding(code, row.severity, subject, text, place, row.remedy)


def finding_with_remedy(code: str, subject: str, reason: str) -> Finding:
    """A finding by the reason of an error, whose own remedy counts more than that of the code.

    Args:
        code: a key of :data:`CODES` or of :data:`VERIFY_CODES`.
        subject: what it is about.
        reason: what was found; "Remedy: " may follow.

    >>> each = finding_with_remedy("structure", "a", "it is b. Remedy: do c")
    >>> each.text, each.remedy
    ('it is b', 'Do c.')
    """
    if reason.count(_REMEDY) != 1:
        return finding(code, subject, reason)
    text, _, remedy = reason.partition(_REMEDY)
    return replace(finding(code, subject, text), remedy=as_sentence(remedy))


def as_sentence(remedy: str) -> str:
    """A remedy as findings have it: a sentence."""
    return f"{remedy[:1].upper()}{remedy[1:].removesuffix('.')}."
